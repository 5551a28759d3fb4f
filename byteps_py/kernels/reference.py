"""The kernels in NumPy: slow, short, and what the C ones are held against.

Needs no compiler; chosen by ``BYTEPS_KERNELS=reference``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_py.errors import KernelError
from byteps_py.kernels.arguments import OVERLAP_MESSAGE, SHARED_MESSAGE, check_converting, check_copy, check_sum
from byteps_py.kernels.reference_rows import ReferenceRows
from byteps_py.types import DType

__all__ = ["ReferenceKernels"]

_Array = npt.NDArray[Any]


class ReferenceKernels(ReferenceRows):
    """:class:`byteps_py.kernels.Kernels` in NumPy, on the caller's thread whatever ``threads`` says."""

    name = "reference"

    def sum_groups(
        self,
        out: object,
        sources: Sequence[object],
        groups: Sequence[int],
        dtype: DType,
        count: int,
        divisor: int,
        threads: int,
    ) -> None:
        """See :meth:`byteps_py.kernels.Kernels.sum_groups`."""
        target, views = check_sum(out, sources, groups, dtype, count, divisor, threads)
        if count == 0:
            return
        result = _elements(target, dtype.storage, count)
        operands = [_elements(each, dtype.storage, count) for each in views]
        if not _same(result, operands[0]):
            _refuse_overlap(result, operands[:1])
        _refuse_overlap(result, operands[1:])
        with np.errstate(all="ignore"):
            total = _left_fold(_left_fold(group) for group in _split((_widen(x, dtype) for x in operands), groups))
            result[:] = _narrow(_clean(_divide(total, divisor)), dtype)

    def sum_converting(
        self,
        out: object,
        sources: Sequence[object],
        groups: Sequence[int],
        dtype: DType,
        count: int,
        divisor: int,
        threads: int,
        *,
        widen: bool,
    ) -> None:
        """See :meth:`byteps_py.kernels.Kernels.sum_converting`."""
        target, views = check_converting(out, sources, groups, dtype, count, divisor, threads, widen)
        if count == 0:
            return
        given, made = (dtype, DType.FLOAT32) if widen else (DType.FLOAT32, dtype)
        result = _elements(target, made.storage, count)
        operands = [_elements(each, given.storage, count) for each in views]
        if any(np.may_share_memory(result, each) for each in operands):
            raise KernelError(SHARED_MESSAGE)
        with np.errstate(all="ignore"):
            total = _left_fold(_left_fold(group) for group in _split((_widen(x, given) for x in operands), groups))
            result[:] = _narrow(_clean(_divide(total, divisor)), made)

    def copy(self, out: object, source: object, nbytes: int, threads: int, *, far: bool = False) -> None:
        """See :meth:`byteps_py.kernels.Kernels.copy`."""
        target, origin = check_copy(out, source, nbytes, threads)
        if nbytes == 0:
            return
        result, original = (_elements(each, np.dtype(np.uint8), nbytes) for each in (target, origin))
        _refuse_overlap(result, [original])
        result[:] = original

    def team(self, threads: int) -> int:
        """See :meth:`byteps_py.kernels.Kernels.team`."""
        return 1


def _elements(buffer: memoryview, storage: np.dtype[Any], count: int) -> _Array:
    return np.frombuffer(buffer, storage, count)


def _same(a: _Array, b: _Array) -> bool:
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])


def _refuse_overlap(out: _Array, sources: Sequence[_Array]) -> None:
    if any(np.may_share_memory(out, each) for each in sources):
        raise KernelError(OVERLAP_MESSAGE)


def _split(operands: Iterator[_Array], groups: Sequence[int]) -> Iterator[Iterator[_Array]]:
    for size in groups:
        yield (next(operands) for _ in range(size))


def _left_fold(operands: Iterator[_Array]) -> _Array:
    return functools.reduce(np.add, operands)


def _divide(total: _Array, divisor: int) -> _Array:
    if divisor == 1:
        return total
    quotient: _Array
    if total.dtype.kind == "f":
        quotient = np.true_divide(total, total.dtype.type(divisor))
        return quotient
    # The divisor may not fit the type of the elements; the quotient does.
    quotient = np.floor_divide(total.astype(np.int64), divisor)
    return quotient.astype(total.dtype)


def _clean(result: _Array) -> _Array:
    """``result`` with every NaN replaced by the positive quiet one without payload."""
    if result.dtype.kind != "f":
        return result
    return np.where(np.isnan(result), result.dtype.type(np.nan), result)


def _widen(elements: _Array, dtype: DType) -> _Array:
    if dtype is DType.BFLOAT16:
        bits: npt.NDArray[np.uint32] = elements.astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    return elements.astype(np.float32) if dtype is DType.FLOAT16 else elements


def _narrow(result: _Array, dtype: DType) -> _Array:
    if dtype is not DType.BFLOAT16:
        return result.astype(dtype.storage, copy=False)
    bits = result.view(np.uint32)
    # Half of the 16 bits that go, less one if the last bit that stays is even. The one NaN that _clean leaves does
    # not carry into its exponent.
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded: npt.NDArray[np.uint32] = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    return rounded.astype(np.uint16)
