"""How torch finds the workers of a job, in this process: which handler is asked, and what it gives."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from torch.distributed.rendezvous import _rendezvous_handlers, rendezvous  # noqa: E402

from byteps_py import session as _session  # noqa: E402
from byteps_py.errors import AgreementError, TransportError, TransportTimeout  # noqa: E402
from byteps_py.torch import rendezvous as ours  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DMLC_ROLE")
OF_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
WAIT = timedelta(seconds=30)


@pytest.fixture
def environ(monkeypatch):
    """Without what torch looks for, also afterwards; nobody joins a job."""
    with monkeypatch.context() as patch:
        patch.setattr(ours, "_told", {})
        for name in VARIABLES + OF_LAUNCHERS:
            patch.setenv(name, "")
            patch.delenv(name)
        patch.setattr(_session, "init", lambda: None)
        patch.setattr(_session, "is_initialized", lambda: False)
        for name, value in {
            "DMLC_NUM_WORKER": "1",
            "DMLC_NUM_SERVER": "1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": "9",
            "DMLC_NODE_HOST": "127.0.0.1",
        }.items():
            patch.setenv(name, value)
        yield patch


def test_the_backend_is_registered_once() -> None:
    before = dict(_rendezvous_handlers)
    ours.register()
    assert _rendezvous_handlers == before
    assert dist.Backend("BytePS") == dist.Backend.BYTEPS == "byteps"
    assert dist.is_backend_available("byteps")
    assert dist.Backend.backend_capability["byteps"] == ["cpu"]
    assert dist.get_default_backend_for_device("cpu") == "gloo"


def test_torch_without_distributed_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist.Backend, "BYTEPS")
    ours.register()
    assert not hasattr(dist.Backend, "BYTEPS")


@pytest.mark.parametrize("url", ["env://", "byteps://"])
def test_workers_meet_at_a_store_of_worker_0(environ, url) -> None:
    environ.setenv("DMLC_ROLE", "worker")

    def body(session):
        store, rank, size = next(rendezvous(url, timeout=WAIT))
        store.set(f"of {rank}", "here")
        assert [store.get(f"of {each}") for each in range(size)] == [b"here"] * 3
        session.barrier()
        return rank, size

    assert run_workers(3, body) == [(0, 3), (1, 3), (2, 3)]
    assert os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"] == "3"
    assert {"RANK", "LOCAL_RANK"} <= set(os.environ)


def test_the_store_listens_at_a_port_of_the_range(environ) -> None:
    taken = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    low = min(taken.port, 65530)
    environ.setenv("BYTEPS_PORT_RANGE", f"{low}-{low + 5}")
    environ.setenv("DMLC_PS_ROOT_PORT", str(low))
    store, place = ours._listen(WAIT)
    host, port = place.split()
    port = int(port)
    assert host == "127.0.0.1"
    assert low <= port <= low + 5
    assert port != taken.port
    environ.setenv("BYTEPS_PORT_RANGE", f"{port}-{port}")
    environ.setenv("DMLC_PS_ROOT_PORT", str(port))
    with pytest.raises(TransportError, match=f"no port of {port}-{port} is free"):
        ours._listen(WAIT)
    del store


def test_what_keeps_worker_0_from_listening_is_told_to_all(environ) -> None:
    def fail(timeout):
        raise OSError("no more sockets")

    environ.setattr(ours, "_listen", fail)

    def body(session):
        with pytest.raises((OSError, TransportError), match="no more sockets"):
            next(rendezvous("byteps://", timeout=WAIT))

    run_workers(2, body)


def test_ranks_may_be_chosen_and_sizes_must_agree(environ) -> None:
    def body(session):
        store, rank, size = next(rendezvous("byteps://", 1 - session.rank, 2, timeout=WAIT))
        assert (rank, size) == (1 - session.rank, 2)
        session.barrier()  # until then somebody may need the store of worker 0
        del store
        with pytest.raises(AgreementError, match=r"world_size=3\): this job of byteps_py has 2 workers"):
            next(rendezvous("byteps://", 0, 3, timeout=WAIT))

    run_workers(2, body)


def test_a_process_alone_is_a_world_of_one(environ) -> None:
    def body(session):
        store, rank, size = next(rendezvous("env://", timeout=WAIT))
        store.set("a", "b")
        assert store.get("a") == b"b"
        return rank, size

    assert run_workers(1, body) == [(0, 1)]


def test_what_torchrun_or_the_user_has_set_is_followed(environ) -> None:
    environ.setenv("RANK", "0")
    with pytest.raises(ValueError, match="WORLD_SIZE expected"):
        next(rendezvous("env://", timeout=WAIT))
    environ.setenv("WORLD_SIZE", "1")
    with pytest.raises(ValueError, match="MASTER_ADDR expected"):
        next(rendezvous("env://", timeout=WAIT))
    environ.setenv("MASTER_ADDR", "127.0.0.1")
    environ.setenv("MASTER_PORT", "0")
    _, rank, size = next(rendezvous("env://", timeout=WAIT))
    assert (rank, size) == (0, 1)


@pytest.mark.parametrize("url", ["env://", "byteps://"])
def test_a_worker_that_does_not_come_is_waited_for_no_longer_than_asked(environ, url) -> None:
    environ.setenv("DMLC_ROLE", "worker")
    reached = threading.Event()

    def body(session):
        if session.rank == 1:
            assert reached.wait(60)
        else:
            for _ in range(2):
                with pytest.raises(TransportTimeout, match=r"not all workers of the job have come within 0\.05 s"):
                    next(rendezvous(url, timeout=timedelta(seconds=0.05)))
            reached.set()
        store, rank, _ = next(rendezvous(url))  # and who comes late meets who tries again
        store.set(f"of {rank}", "here")
        assert store.get(f"of {1 - rank}") == b"here"
        session.barrier()

    run_workers(2, body)


@pytest.mark.parametrize("name", OF_LAUNCHERS)
def test_the_processes_of_another_launcher_are_no_worlds_of_one(environ, name) -> None:
    environ.setenv(name, "1")
    assert run_workers(1, lambda session: next(rendezvous("env://"))[1:]) == [(0, 1)]
    for told in ours._told:
        environ.delenv(told)
    environ.setenv(name, "4")
    with pytest.raises(ValueError, match="RANK expected"):
        next(rendezvous("env://"))
    environ.setenv("DMLC_ROLE", "worker")
    assert run_workers(1, lambda session: next(rendezvous("env://"))[1:]) == [(0, 1)]


def test_variables_that_others_have_set_do_not_stay_wrong(environ, caplog) -> None:
    environ.setenv("DMLC_ROLE", "worker")
    environ.setenv("RANK", "3")
    assert run_workers(1, lambda session: next(rendezvous("env://"))[1:]) == [(0, 1)]
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "1")
    assert "RANK=3 is set, but RANK is 0 in this job" in caplog.text
    # A place that a profile has exported is for other jobs, also once RANK and WORLD_SIZE have been set here.
    environ.setenv("MASTER_ADDR", "192.0.2.1")
    environ.setenv("MASTER_PORT", "9")
    caplog.clear()
    for _ in range(2):
        assert run_workers(1, lambda session: next(rendezvous("env://"))[1:]) == [(0, 1)]
    assert not caplog.text


def test_ranks_of_a_later_group_are_told_anew(environ) -> None:
    environ.setenv("DMLC_ROLE", "worker")
    told = []

    def body(session):
        for rank in (session.rank, 1 - session.rank):
            store, *_ = next(rendezvous("byteps://", rank, 2, timeout=WAIT))
            told.append(os.environ["RANK"])
            session.barrier()
            del store

    run_workers(2, body)
    assert sorted(ours._told) == ["RANK", "WORLD_SIZE"]
    assert set(told[2:]) == {"0", "1"}


def test_a_place_that_is_meant_for_this_process_is_followed_in_a_job(environ) -> None:
    for name, value in {"DMLC_ROLE": "worker", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        environ.setenv(name, value)
    assert next(rendezvous("env://", 0, 1))[1:] == (0, 1)  # there is no session, so it was torch's
    environ.setenv("RANK", "0")
    environ.setenv("WORLD_SIZE", "1")
    assert next(rendezvous("env://"))[1:] == (0, 1)
