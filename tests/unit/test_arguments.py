"""The checks of kernel arguments; what the kernels do with them is tested in tests/contract/test_kernels.py."""

from __future__ import annotations

import numpy as np
import pytest

from byteps_py.errors import KernelError
from byteps_py.kernels.arguments import MAX_DIVISOR, check_copy, check_sum, view
from byteps_py.types import DType


def test_a_view_covers_the_whole_buffer_without_a_copy() -> None:
    room = bytearray(6)
    found = view(room, 4, "out", writable=True)
    found[5] = 7
    assert (found.nbytes, room[5]) == (6, 7)


def test_a_view_of_several_dimensions_counts_bytes() -> None:
    assert view(np.zeros((2, 3), np.float64), 48, "source").nbytes == 48
    with pytest.raises(KernelError, match="source has 48 bytes, but 49 are needed"):
        view(np.zeros((2, 3), np.float64), 49, "source")


@pytest.mark.parametrize("buffer", [memoryview(bytes(8))[::2], np.zeros((3, 3)).T])
def test_a_view_must_be_contiguous(buffer: object) -> None:
    with pytest.raises(KernelError, match="source is not C-contiguous; copy it first"):
        view(buffer, 1, "source")


def test_a_released_buffer_is_named() -> None:
    gone = memoryview(b"1234")
    gone.release()
    with pytest.raises(KernelError, match="source 0 is no buffer that can be read here"):
        check_sum(bytearray(4), [gone], (1,), DType.INT32, 1, 1, 1)


def test_views_come_back_in_order() -> None:
    out, sources = check_sum(bytearray(4), [b"abcd", b"efgh"], (1, 1), DType.INT8, 4, MAX_DIVISOR, 1)
    assert not out.readonly
    assert [bytes(each) for each in sources] == [b"abcd", b"efgh"]
    target, origin = check_copy(bytearray(2), b"xyz", 2, 1)
    assert (target.nbytes, bytes(origin)) == (2, b"xyz")
