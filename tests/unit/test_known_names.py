"""Variables that are set and do nothing are told, and so are misspelt ones; others' variables are left alone."""

from __future__ import annotations

import pytest

from byteps_py.known_names import KNOWN, READ, WITHOUT_EFFECT, at_start, foreign_launch, report
from byteps_py.types import Role
from tests.helpers.leftovers import RUN_MARK


def test_no_name_is_in_two_tables() -> None:
    names = [name for group in WITHOUT_EFFECT for name in group.names]
    assert len(names) == len(set(names))
    assert not READ & set(names)
    assert READ | set(names) == KNOWN


def test_each_reason_speaks_of_names_that_are_read() -> None:
    for group in WITHOUT_EFFECT:
        words = (word.strip(":;,()").partition("=")[0] for word in group.reason.split())
        assert {word for word in words if word.startswith(("BYTEPS_", "DMLC_", "PS_"))} <= READ


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {"BYTEPS_SERVER_ENABLE_SCHEDULE": "1"},
            "BYTEPS_SERVER_ENABLE_SCHEDULE=1 has no effect here: a round is summed as soon as its last contribution is "
            "there",
        ),
        (
            {"PS_HEARTBEAT_TIMEOUT": " 60 "},
            "PS_HEARTBEAT_TIMEOUT=60 has no effect here: signs of life are always sent; BYTEPS_LOST_TIMEOUT says how "
            "long a process may be silent",
        ),
        (
            {"DMLC_ENABLE_RDMA": "ibverbs"},
            "DMLC_ENABLE_RDMA=ibverbs has no effect here: between hosts TCP is the only transport",
        ),
        (
            {"BYTEPS_THREADPOOL_SIZE": "8", "BYTEPS_MIN_COMPRESS_BYTES": "1024", "BYTEPS_TRACE_ON": "1"},
            "BYTEPS_MIN_COMPRESS_BYTES=1024, BYTEPS_THREADPOOL_SIZE=8 have no effect here: compression beyond 16-bit "
            "floats is not there yet",
        ),
    ],
)
def test_no_effect(environ: dict[str, str], line: str) -> None:
    assert report(environ) == [line]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BYTEPS_SERVER_ENABLE_SCHEDULE", "0"),
        ("BYTEPS_SERVER_ENABLE_SCHEDULE", "False"),
        ("BYTEPS_SERVER_ENABLE_SCHEDULE", " "),
        ("BYTEPS_KEY_HASH_FN", "djb2"),
        ("DMLC_ENABLE_RDMA", "zmq"),
        ("BYTEPS_NUMA_ON", "1"),
        ("PS_RESEND", "1"),
        ("BYTEPS_NCCL_HOME", "/usr/local/nccl"),
        ("DMLC_TASK_ID", "3"),
        ("ENABLE_PROFILING", "1"),
        ("BYTEPS_SERVER_OMP_WAIT_POLICY", "active"),
        ("BYTEPS_OMP_THREAD_PER_GPU", "4"),
        (RUN_MARK, "a test run"),
    ],
)
def test_what_asks_for_nothing_is_no_news(name: str, value: str) -> None:
    assert report({name: value}) == []


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("DMLC_NUM_WORKERS", "; did you mean DMLC_NUM_WORKER?"),
        ("BYTEPS_PARTITON_BYTES", "; did you mean BYTEPS_PARTITION_BYTES?"),
        ("DLMC_ROLE", "; did you mean DMLC_ROLE?"),
        ("BYTESPS_LOCAL_SIZE", "; did you mean BYTEPS_LOCAL_SIZE?"),
        ("BPS_PARTITION_BYTES", "; did you mean BYTEPS_PARTITION_BYTES?"),
        ("dmlc_ps_root_uri", "; did you mean DMLC_PS_ROOT_URI?"),
        ("PS_VERBOS", "; did you mean PS_VERBOSE?"),
        (
            "BYTEPS_SERVER_ENABLE_SCHEDUL",
            "; BYTEPS_SERVER_ENABLE_SCHEDULE has no effect here either: a round is summed as soon as its last "
            "contribution is there",
        ),
        ("BYTEPS_FAVOURITE_COLOUR", ""),
        ("DMLC_", ""),
    ],
)
def test_misspelt(name: str, rest: str) -> None:
    assert report({name: "1"}) == [f"{name}: no variable of that name is known{rest}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PS_FORMAT", "pid,args"),
        ("PS_PERSONALITY", "linux"),
        ("PS1", "$ "),
        ("BYTES_PER_SECOND", "3"),
        ("BYTE", "1"),
        ("OMP_PROC_BIND", "true"),
        ("NCCL_DEBUG", "INFO"),
        ("PATH", "/bin"),
        ("BYTEPS_SCHEDULER_SERVICE_HOST", "10.0.0.7"),
        ("BYTEPS_SCHEDULER_SERVICE_PORT_HTTP", "9000"),
        ("BYTEPS_SCHEDULER_PORT", "tcp://10.0.0.7:9000"),
        ("BYTEPS_SCHEDULER_PORT_9000_TCP_ADDR", "10.0.0.7"),
        ("BYTEPS_SCHEDULER_PORT_9000_TCP", "tcp://10.0.0.7:9000"),
    ],
)
def test_variables_of_others_are_left_alone(name: str, value: str) -> None:
    assert report({name: value}) == []


def test_the_report_is_in_a_fixed_order() -> None:
    environ = {"DMLC_X": "1", "DMLC_LOCAL": "1", "BYTEPS_SERVER_ENABLE_SCHEDULE": "1"}
    assert report(environ) == report(dict(reversed(environ.items())))
    assert len(report(environ)) == 3


class TestAtStart:
    def test_the_launcher_has_told_it(self) -> None:
        environ = {"BYTEPS_SERVER_ENABLE_SCHEDULE": "1", "BYTEPS_VISIBLE_CPU_CORES": "0"}
        assert at_start(Role.WORKER, {**environ, "BYTEPS_LAUNCH_ID": "9a"}) == []
        assert len(at_start(Role.WORKER, environ)) == 2
        as_without = {"BYTEPS_CPU_BLACKLIST": "-1", "BYTEPS_MULTITHREADED_CPU": "yes", "BYTEPS_NUMA_ON": "0"}
        assert at_start(Role.WORKER, {**as_without, "BYTEPS_NUMA_DEFAULT_QUOTA": "0"}) == []
        assert at_start(Role.SERVER, environ) == report(environ)

    @pytest.mark.parametrize(
        ("environ", "line"),
        [
            (
                {"BYTEPS_WORKER_OMP_WAIT_POLICY": "active"},
                "BYTEPS_WORKER_OMP_WAIT_POLICY=active comes too late: OpenMP libraries read OMP_WAIT_POLICY when they "
                "are loaded; start by bpslaunch, or export OMP_WAIT_POLICY=active",
            ),
            (
                {"BYTEPS_WORKER_OMP_NUM_THREADS": "3", "OMP_NUM_THREADS": "2"},
                "BYTEPS_WORKER_OMP_NUM_THREADS=3 comes too late for torch and others: OpenMP libraries read "
                "OMP_NUM_THREADS when they are loaded; start by bpslaunch, or export OMP_NUM_THREADS=3",
            ),
            (
                {"BYTEPS_VISIBLE_CPU_CORES": "0-3"},
                "BYTEPS_VISIBLE_CPU_CORES=0-3 has no effect here: only bpslaunch binds workers to cores",
            ),
            (
                {"BYTEPS_CPU_BLACKLIST": "0"},
                "BYTEPS_CPU_BLACKLIST=0 has no effect here: only bpslaunch binds workers to cores",
            ),
        ],
    )
    def test_what_only_the_launcher_can_do(self, environ: dict[str, str], line: str) -> None:
        assert at_start(Role.WORKER, environ) == [line]
        assert at_start(Role.SERVER, environ) == []

    def test_what_is_so_already_comes_in_time(self) -> None:
        environ = {"BYTEPS_WORKER_OMP_WAIT_POLICY": "passive", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "2"}
        assert at_start(Role.WORKER, environ) == []


@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_processes_of_another_launcher_are_told_that_they_are_alone(name: str) -> None:
    text = foreign_launch({name: "2"})
    assert text is not None
    assert text.startswith(f"{name}=2, but DMLC_ROLE is not set: ")
    for value in ("1", "", "x", "-2"):
        assert foreign_launch({name: value}) is None
