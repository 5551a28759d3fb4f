"""What only the NumPy kernels can get wrong; the rest is in tests/contract/test_kernels.py."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np

from byteps_py.kernels.reference import ReferenceKernels
from byteps_py.types import DType

KERNELS = ReferenceKernels()


def test_it_needs_no_extension() -> None:
    script = """if True:
        import sys
        sys.modules["byteps_py.kernels._native"] = None
        from byteps_py import kernels
        print(kernels.select("reference").name)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "reference\n", done.stderr


def test_numpy_warns_of_nothing() -> None:
    out = np.empty(1, np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KERNELS.sum_groups(out, [np.full(1, 65504, np.float16)] * 2, (2,), DType.FLOAT16, 1, 1, 1)
        assert out[0] == np.inf
        KERNELS.sum_groups(out, [out.copy(), -out], (1, 1), DType.FLOAT16, 1, 1, 1)
        assert np.isnan(out[0])


def test_sources_are_left_alone() -> None:
    sources = [np.arange(4, dtype=np.int64) for _ in range(3)]
    KERNELS.sum_groups(np.empty(4, np.int64), sources, (2, 1), DType.INT64, 4, 2, 1)
    assert [each.tolist() for each in sources] == [[0, 1, 2, 3]] * 3


def test_a_divisor_may_exceed_the_element_type() -> None:
    out = np.empty(2, np.int8)
    KERNELS.sum_groups(out, [np.array([-1, 127], np.int8)], (1,), DType.INT8, 2, 1000, 1)
    assert out.tolist() == [-1, 0]
