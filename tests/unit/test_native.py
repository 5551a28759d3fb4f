"""The C extension: its numbers agree with Python's, its limits, and how it lives with others in one process.

What it computes is tested in tests/contract/test_kernels.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from byteps_py.errors import KernelError
from byteps_py.kernels import arguments
from byteps_py.kernels._native import ffi, lib
from byteps_py.kernels.native import LEVELS, NativeKernels
from byteps_py.types import DType

MIB = 1 << 20


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
def test_element_types_have_the_same_number_in_c(dtype: DType) -> None:
    assert getattr(lib, f"BYTEPS_{dtype.name}") == dtype


def test_levels_and_limits_are_the_same_in_c() -> None:
    assert [getattr(lib, f"BYTEPS_LEVEL_{name.upper()}") for name in LEVELS] == list(range(len(LEVELS)))
    assert lib.BYTEPS_MAX_DIVISOR == arguments.MAX_DIVISOR


def test_the_best_level_is_the_default() -> None:
    assert NativeKernels().level == LEVELS[lib.byteps_best_level()]
    assert NativeKernels("baseline").level == "baseline"


def test_a_level_that_is_not_there_is_refused() -> None:
    with pytest.raises(KernelError, match=r"no kernels for 'sse9' on this processor; it can use baseline"):
        NativeKernels("sse9")


def test_small_work_stays_on_the_callers_thread() -> None:
    assert lib.byteps_team_size(0, 64) == 1
    assert lib.byteps_team_size(2 * MIB - 1, 64) == 1
    assert lib.byteps_team_size(2 * MIB, 64) == 2
    assert lib.byteps_team_size(2 * MIB, 1) == 1
    assert lib.byteps_team_size(1 << 40, 64) == 64


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"dtype": 0}, "BYTEPS_BAD_DTYPE"),
        ({"dtype": 9}, "BYTEPS_BAD_DTYPE"),
        ({"level": -1}, "BYTEPS_BAD_LEVEL"),
        ({"level": len(LEVELS)}, "BYTEPS_BAD_LEVEL"),
        ({"groups": [3]}, "BYTEPS_BAD_GROUPS"),
        ({"groups": [2, 0]}, "BYTEPS_BAD_GROUPS"),
        ({"groups": []}, "BYTEPS_BAD_GROUPS"),
        ({"divisor": 0}, "BYTEPS_BAD_DIVISOR"),
        ({"divisor": (1 << 24) + 1}, "BYTEPS_BAD_DIVISOR"),
        ({"threads": 0}, "BYTEPS_BAD_THREADS"),
        ({}, "BYTEPS_OK"),
    ],
)
def test_c_checks_its_arguments_itself(change: dict[str, Any], status: str) -> None:
    given: dict[str, Any] = {"groups": [2], "dtype": 1, "count": 2, "divisor": 1, "threads": 1, "level": 0}
    given |= change
    groups = given.pop("groups")
    out, source = (ffi.from_buffer(memoryview(bytearray(8))) for _ in range(2))
    found = lib.byteps_sum_groups(out, [source, source], 2, groups, len(groups), *given.values())
    assert found == getattr(lib, status)


def test_several_threads_may_sum_at_once() -> None:
    kernels = NativeKernels()
    wrong: list[int] = []

    def work(number: int) -> None:
        sources = [np.full(MIB, number + each, np.int32) for each in range(3)]
        out = np.empty(MIB, np.int32)
        for _ in range(5):
            kernels.sum_groups(out, sources, (2, 1), DType.INT32, MIB, 1, 2)
            if (out != 3 * number + 3).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


@pytest.mark.parametrize(("environ", "given"), [({}, 4), ({"OMP_THREAD_LIMIT": "2"}, 2)], ids=["", "limit"])
def test_a_team_is_tried_out_and_its_threads_end(environ: dict[str, str], given: int) -> None:
    """Under an active policy they would spin for minutes if the thread that asked for them lived on."""
    script = (
        "import os, time\n"
        "from byteps_py.kernels.native import NativeKernels\n"
        "def count(): return len(os.listdir('/proc/self/task'))\n"
        "before = count()  # NumPy has threads, too\n"
        "print(NativeKernels().team(4))\n"
        "deadline = time.monotonic() + 30\n"
        "while count() > before: assert time.monotonic() < deadline; time.sleep(0.01)\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=clean | {"OMP_WAIT_POLICY": "ACTIVE"} | environ,
    )
    assert (done.stdout, done.stderr, done.returncode) == (f"{given}\n", "", 0)


def test_subnormals_are_kept_where_the_caller_flushes_them() -> None:
    torch = pytest.importorskip("torch")
    bits = np.full(MIB, 71362, np.uint32)  # as float32: about 1e-40
    out = np.zeros(MIB, np.uint32)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        for threads in (1, 2):
            out.fill(0)
            NativeKernels().sum_groups(out, [bits, bits], (2,), DType.FLOAT32, MIB, 1, threads)
            assert (out == 2 * 71362).all()
        still_flushed = (bits[:8].view(np.float32) + bits[:8].view(np.float32)).view(np.uint32)
        assert still_flushed.tolist() == [0] * 8
    finally:
        torch.set_flush_denormal(False)


_USE_BOTH = """
import {first}, {second}, numpy, os
from byteps_py.kernels.native import NativeKernels
from byteps_py.types import DType
import torch
values = numpy.ones(1 << 20, numpy.float32)
NativeKernels().sum_groups(numpy.empty_like(values), [values, values], (2,), DType.FLOAT32, values.size, 1, 2)
torch.ones(1 << 20).sum()
with open("/proc/self/maps") as maps:
    print(*{{line.split()[-1] for line in maps if os.path.basename(line.split()[-1]).startswith("libgomp")}})
"""


@pytest.mark.parametrize("order", [("torch", "byteps_py.kernels.native"), ("byteps_py.kernels.native", "torch")])
def test_torch_and_the_kernels_share_one_openmp_runtime(order: tuple[str, str]) -> None:
    pytest.importorskip("torch")
    script = _USE_BOTH.format(first=order[0], second=order[1])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert len(done.stdout.split()) == 1, done.stdout
