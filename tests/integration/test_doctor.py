"""``bps doctor`` against real schedulers, over TCP, and as a command."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from byteps_py.doctor import command, loading
from byteps_py.doctor.ports import check_ports
from byteps_py.doctor.situation import Situation
from byteps_py.settings import JobSettings
from byteps_py.transport.zmq import ZmqEndpoint
from byteps_py.types import DType, Operation, Role, TensorSpec
from byteps_py.version import package_version
from tests.helpers.cluster import cluster
from tests.helpers.jobs import free_port

Examine = Callable[[dict[str, str]], tuple[int, dict[str, list[dict[str, Any]]]]]


class Network:
    """Makes the endpoints of a cluster that talks TCP."""

    def endpoint(self, identity: bytes) -> ZmqEndpoint:
        return ZmqEndpoint(identity)


def job(port: int, **further: str) -> dict[str, str]:
    return {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        **further,
    }


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Examine:
    """Runs the doctor in this process, without frameworks, which take long: exit status, and findings by check."""
    monkeypatch.setattr(loading, "FRAMEWORKS", ())
    monkeypatch.setattr(loading, "COMPANIONS", ())

    def run(environ: dict[str, str]) -> tuple[int, dict[str, list[dict[str, Any]]]]:
        status = command.run({"PATH": os.environ["PATH"], **environ}, None, 60, json=True)
        told = json.loads(capsys.readouterr().out)
        assert told["problem"] is (status == 1)
        found: dict[str, list[dict[str, Any]]] = {}
        for each in told["findings"]:
            found.setdefault(each["check"], []).append(each)
        return status, found

    return run


@contextlib.contextmanager
def held_by_byteps_py() -> Iterator[int]:
    """A port at which a process listens that looks like one of our servers."""
    text = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    command = [sys.executable, "-c", text, "/src", "byteps_py", "server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.communicate("\n", timeout=60)


def problems(found: dict[str, list[dict[str, Any]]]) -> list[tuple[str, str]]:
    return [(name, each["text"]) for name, rows in found.items() for each in rows if each["severity"] == "problem"]


def test_a_running_job_is_not_disturbed(examine: Examine) -> None:
    port, server_port = free_port(), free_port()
    with cluster(2, 1, network=Network(), root_port=port, server={"port": server_port}, transport="tcp") as running:
        status, found = examine(job(port, DMLC_ROLE="worker"))
        assert problems(found) == []
        assert status == 0
        first, *others = found["scheduler"]
        facts = first["facts"]
        assert {name: facts[name] for name in ("job_id", "state", "machines", "workers", "servers", "missing")} == {
            "job_id": "0",
            "state": "running",
            "machines": 2,
            "workers": 2,
            "servers": 1,
            "missing": "",
        }
        (clock,) = (each["facts"] for each in others if "offset_s" in each["facts"])
        assert abs(clock["offset_s"]) <= clock["bound_s"] + 0.1, "it is the same clock"
        software = f"byteps_py {package_version()}, Python {platform.python_version()}, numpy {np.__version__}"
        assert any(f"the versions agree: {software} (all 5 processes)" in each["text"] for each in others)

        status, found = examine(job(port, BYTEPS_JOB_ID="other", DMLC_NUM_WORKER="3"))
        assert status == 1
        assert [name for name, _ in problems(found)] == ["scheduler", "scheduler"]
        assert "belongs to job '0', this process to job 'other'" in problems(found)[0][1]

        status, found = examine(job(port, DMLC_ROLE="scheduler"))
        assert status == 0
        assert "has been taken by a scheduler of this job" in found["ports"][0]["text"]
        assert found["ports"][0]["remedy"].startswith("leave it alone: its job is running")

        for other in ({"BYTEPS_JOB_ID": "other"}, {"DMLC_NUM_SERVER": "3"}):
            status, found = examine(job(port, DMLC_ROLE="scheduler", **other))
            assert status == 1
            (_, here), (_, text) = problems(found)
            assert "is there already: it belongs to another job, '0' of 2 worker machines and 1 server" in here
            assert text == (
                f"DMLC_PS_ROOT_PORT={port} is held by the scheduler of another job (pid {os.getpid()}), '0' of 2 "
                "worker machines and 1 server, which is running"
            )
            assert found["ports"][0]["remedy"] == (
                "choose another DMLC_PS_ROOT_PORT, the same in all processes of this job, or wait until that job ends"
            )

        with held_by_byteps_py() as held:
            status, found = examine(job(port, DMLC_ROLE="server", DMLC_PORT=str(held)))
            assert (status, problems(found)) == (0, [])
            (told,) = (each for each in found["ports"] if "has servers already" in each["text"])
            assert f": {held} by process" in told["text"]
            assert told["remedy"].startswith("leave that alone if it is this job's")
            ranged = JobSettings(
                num_worker=2, num_server=1, root_uri="127.0.0.1", root_port=port, port_range=(held, held)
            )
            first, *_ = check_ports(Situation({}, Role.SERVER, ranged))
            assert (first.severity.value, first.facts) == ("note", {"taken": [held]})
            assert f"and the job has servers already: {held} by process" in first.text
            status, found = examine(job(free_port(), DMLC_ROLE="server", DMLC_PORT=str(held)))
            assert [name for name, _ in problems(found)] == ["scheduler", "ports"], "there is no such job"

        status, found = examine(job(server_port))
        assert status == 1
        assert "a server of a job listens there, whose scheduler is at 127.0.0.1" in problems(found)[0][1]

        spec = TensorSpec("w", DType.FLOAT32, (4,))
        ones = np.ones(4, np.float32)
        sums = running.each(lambda session: session.submit(spec, ones, None, Operation.SUM, step=0).wait())
        assert [each.tolist() for each in sums] == [[2.0] * 4] * 2
    assert running.statuses == {"scheduler": 0, "server 0": 0}
    assert running.aborts == []


def test_no_scheduler_and_a_stranger_in_its_place(examine: Examine) -> None:
    port = free_port()
    status, found = examine(job(port))
    assert status == 1
    ((name, text),) = problems(found)
    assert (name, text) == (
        "scheduler",
        f"the scheduler at 127.0.0.1:{port}: connections are refused (nothing listens there)",
    )
    assert found["scheduler"][0]["remedy"].startswith("start it (`bpslaunch` with DMLC_ROLE=scheduler)")
    status, found = examine(job(port, DMLC_ROLE="scheduler"))
    assert status == 0
    assert f"DMLC_PS_ROOT_PORT={port} is free" in [each["text"] for each in found["ports"]]
    with socket.create_server(("127.0.0.1", port)) as stranger:
        status, found = examine(job(port, DMLC_ROLE="scheduler", BYTEPS_KERNELS="fast", DMLC_NUM_SERVER="0"))
        assert status == 1
        told = problems(found)
        assert [name for name, _ in told] == ["variables", "variables", "scheduler", "ports"]
        assert "something that is not byteps_py listens there" in told[2][1]
        assert f"port {port} on 127.0.0.1 is in use by process {os.getpid()}" in told[3][1]
        assert f"port {port} on 127.0.0.1 is in use by process {os.getpid()}" in found["scheduler"][1]["text"]
        assert stranger.fileno() >= 0


def test_the_command() -> None:
    """With what is installed: everything is fine on a machine where the tests pass."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
    done = subprocess.run(
        [sys.executable, "-m", "byteps_py", "doctor", "--timeout", "90"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    assert done.stdout.startswith("variables  ok       no distributed job is described here")
    assert " problem" not in done.stdout
    assert "the kernels are in C" in done.stdout
    assert "use" in done.stdout.partition("the kernels of byteps_py")[2].partition("libgomp")[0]
