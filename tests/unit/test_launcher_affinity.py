"""Flag before exported variable before default; and what counts as a visible GPU."""

from __future__ import annotations

import os

import pytest

from byteps_py.launcher import affinity
from byteps_py.launcher.affinity import OpenMP
from byteps_py.types import Role


@pytest.mark.parametrize(
    ("environ", "policy", "threads", "expected"),
    [
        ({}, None, None, OpenMP("passive", "2")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None, None, OpenMP("active", "2")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "passive", None, OpenMP("passive", "2")),
        ({"OMP_NUM_THREADS": "4,2"}, None, None, OpenMP("passive", "4,2")),
        ({"OMP_NUM_THREADS": "4"}, None, 3, OpenMP("passive", "3")),
        ({"OMP_NUM_THREADS": " ", "OMP_WAIT_POLICY": ""}, None, None, OpenMP("passive", "2")),
    ],
)
def test_flag_before_exported_before_default(
    environ: dict[str, str], policy: str | None, threads: int | None, expected: OpenMP
) -> None:
    chosen = affinity.choose(
        Role.SERVER, environ, wait_policy=policy, num_threads=threads, default=OpenMP("passive", "2")
    )
    assert chosen == expected


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
        ({}, 0, 0),
        ({}, 8, 8),
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
    ],
)
def test_visible_devices(environ: dict[str, str], present: int, count: int) -> None:
    assert affinity.count_devices(environ, present) == count


@pytest.mark.parametrize(("text", "threads"), [("", 1), ("4", 4), ("0", 1), ("two", 1), ("-3", 1)])
def test_engine_threads(text: str, threads: int) -> None:
    assert affinity.engine_threads({"BYTEPS_SERVER_ENGINE_THREAD": text}) == threads


def test_this_machine() -> None:
    assert affinity.usable_cores() == os.sched_getaffinity(0)
    assert affinity.device_files() >= 0
