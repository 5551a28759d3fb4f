"""Flag before exported variable before default; and what counts as a visible GPU."""

from __future__ import annotations

import os

import pytest

from byteps_py.errors import SettingsError
from byteps_py.launcher import affinity
from byteps_py.launcher.affinity import OpenMP
from byteps_py.settings import ServerSettings, WorkerSettings, read
from byteps_py.types import Role

DEFAULT = OpenMP("passive", "2")
JOB = {
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}


@pytest.mark.parametrize(
    ("environ", "policy", "threads", "expected"),
    [
        ({}, None, None, OpenMP("passive", "2")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None, None, OpenMP("active", "2")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "passive", None, OpenMP("passive", "2")),
        ({"OMP_NUM_THREADS": "4,2"}, None, None, OpenMP("passive", "4,2")),
        ({"OMP_NUM_THREADS": "4"}, None, 3, OpenMP("passive", "3")),
        ({"OMP_NUM_THREADS": " ", "OMP_WAIT_POLICY": ""}, None, None, OpenMP("passive", "2")),
        ({"BYTEPS_OMP_THREAD_PER_GPU": "8"}, None, None, OpenMP("passive", "8")),
        ({"BYTEPS_OMP_THREAD_PER_GPU": "8", "OMP_NUM_THREADS": "4"}, None, None, OpenMP("passive", "4")),
        ({"BYTEPS_SERVER_OMP_NUM_THREADS": "6", "OMP_NUM_THREADS": "4"}, None, None, OpenMP("passive", "6")),
        ({"BYTEPS_SERVER_OMP_NUM_THREADS": "6"}, None, 3, OpenMP("passive", "3")),
        ({"BYTEPS_SERVER_OMP_WAIT_POLICY": "Active", "OMP_WAIT_POLICY": "passive"}, None, None, OpenMP("active", "2")),
        ({"BYTEPS_SERVER_OMP_WAIT_POLICY": "active"}, "passive", None, OpenMP("passive", "2")),
        ({"BYTEPS_WORKER_OMP_WAIT_POLICY": "active", "BYTEPS_WORKER_OMP_NUM_THREADS": "9"}, None, None, DEFAULT),
        ({"OMP_WAIT_POLICY": "eager", "OMP_NUM_THREADS": "many"}, None, None, OpenMP(None, None)),
    ],
)
def test_flag_before_exported_before_default(
    environ: dict[str, str], policy: str | None, threads: int | None, expected: OpenMP
) -> None:
    chosen = affinity.choose(
        Role.SERVER, environ, wait_policy=policy, num_threads=threads, default=OpenMP("passive", "2")
    )
    assert chosen == expected


def test_the_process_reads_what_was_settled() -> None:
    """A flag must not be undone by a variable that goes before OMP_* in the process itself."""
    exported = {
        "BYTEPS_SERVER_OMP_WAIT_POLICY": "active",
        "BYTEPS_SERVER_OMP_NUM_THREADS": "7",
        "BYTEPS_OMP_THREAD_PER_GPU": "9",
        "HOME": "/root",
    }
    chosen = affinity.choose(Role.SERVER, exported, wait_policy="passive", num_threads=3, default=DEFAULT)
    settled = chosen.settle(exported)
    assert settled == {"HOME": "/root", "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "3"}
    server = read(ServerSettings, {**JOB, **settled})
    assert (server.omp_wait_policy, server.omp_num_threads) == ("passive", 3)


def test_a_bad_value_stays_for_the_settings_to_tell() -> None:
    exported = {"BYTEPS_WORKER_OMP_WAIT_POLICY": "eager", "OMP_WAIT_POLICY": "passive"}
    chosen = affinity.choose(Role.WORKER, exported, wait_policy=None, num_threads=None, default=OpenMP(None, "2"))
    with pytest.raises(SettingsError, match="BYTEPS_WORKER_OMP_WAIT_POLICY='eager' must be one of passive, active"):
        read(WorkerSettings, {**JOB, **chosen.settle(exported)})


def test_what_is_not_chosen_is_not_set() -> None:
    assert OpenMP().environment() == {}
    assert OpenMP("active", None).environment() == {"OMP_WAIT_POLICY": "active"}
    assert OpenMP(None, "1").describe() == "OMP_NUM_THREADS=1"
    assert OpenMP("active", "2").describe() == "OMP_WAIT_POLICY=active OMP_NUM_THREADS=2"


def test_a_policy_for_one_thread_is_said_to_be_inert() -> None:
    assert "one thread never waits" in OpenMP("active", "1").describe()


@pytest.mark.parametrize(
    ("environ", "present", "count"),
    [
        ({}, 0, None),
        ({}, 8, None),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1,2"}, 8, 3),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"}, 0, 2),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 4, 4),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, 4, 0),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, 4, 0),
        ({"NVIDIA_VISIBLE_DEVICES": ""}, 4, 0),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 8, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 8, 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, 8, 0),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "1"}, 8, 1),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1,2,3", "CUDA_VISIBLE_DEVICES": "0,1"}, 8, 2),
        ({"NVIDIA_VISIBLE_DEVICES": "ALL"}, 4, 4),
        ({"NVIDIA_VISIBLE_DEVICES": " None "}, 4, 0),
        ({"NVIDIA_VISIBLE_DEVICES": "none", "CUDA_VISIBLE_DEVICES": "0,1"}, 4, 0),
        ({"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "0"}, 4, 0),
        ({"NVIDIA_VISIBLE_DEVICES": "6,7", "CUDA_VISIBLE_DEVICES": "0,1"}, 2, 2),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0,1"}, 0, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 2, 2),
        ({"CUDA_VISIBLE_DEVICES": "5,0"}, 2, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 0, 2),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 8, 0),
        ({"CUDA_VISIBLE_DEVICES": "all"}, 8, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1b, MIG-2c/1/0"}, 8, 2),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 8, 0),
    ],
)
def test_listed_devices(environ: dict[str, str], present: int, count: int | None) -> None:
    assert affinity.listed_devices(environ, present) == count
    assert affinity.count_devices(environ, present) == (present if count is None else count)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [({3}, "core 3"), ({0, 1}, "cores 0-1"), ({0, 2}, "cores 0,2"), ({10, 1, 2, 3}, "cores 1-3,10")],
)
def test_describe_cores(numbers: set[int], text: str) -> None:
    assert affinity.describe_cores(numbers) == text


@pytest.mark.parametrize(("text", "threads"), [("", 1), ("4", 4), ("0", 1), ("two", 1), ("-3", 1)])
def test_engine_threads(text: str, threads: int) -> None:
    assert affinity.engine_threads({"BYTEPS_SERVER_ENGINE_THREAD": text}) == threads


def test_this_machine() -> None:
    assert affinity.usable_cores() == os.sched_getaffinity(0)
    assert affinity.device_files() >= 0
