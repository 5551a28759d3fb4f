"""Arguments of the kernels for rows, and the checks that both implementations share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from byteps_py.errors import KernelError
from byteps_py.kernels.arguments import MAX_DIVISOR, SHARED_MESSAGE, view
from byteps_py.types import DType

__all__ = ["INDEX_BYTES", "RowSource", "check_fold_rows", "check_sources", "check_sum_rows"]

INDEX_BYTES = 8


class RowSource(NamedTuple):
    """Some rows of a tensor: buffers of ``size`` indices (int64, rising) and of the values of these rows."""

    size: int
    indices: object
    values: object


def check_sources(sources: Sequence[RowSource], row_bytes: int = 0) -> list[RowSource]:
    """Views of the buffers, once they are found long enough for the indices and for rows of ``row_bytes``.

    Raises:
        KernelError: the first argument that is not right.
    """
    if not sources:
        raise KernelError("there is no source of rows to sum")
    found = []
    for index, each in enumerate(sources):
        if each.size < 0:
            raise KernelError(f"source {index} has {each.size} rows")
        indices = view(each.indices, each.size * INDEX_BYTES, f"the indices of source {index}")
        found.append(RowSource(each.size, indices, view(each.values, each.size * row_bytes, f"source {index}")))
    return found


def check_sum_rows(
    out: object,
    rows: npt.NDArray[np.int64],
    sources: Sequence[RowSource],
    groups: Sequence[int],
    dtype: DType,
    width: int,
    divisor: int,
    widen: bool | None,
) -> tuple[memoryview, list[RowSource], DType, DType]:
    """Views of ``out`` and of the sources, what these hold and what that is to hold, once all is found right.

    Raises:
        KernelError: the first argument that is not right.
    """
    _check_kind(dtype, width)
    if widen is not None and dtype not in (DType.FLOAT16, DType.BFLOAT16):
        raise KernelError(f"{dtype.label} is no 16-bit float: there is nothing to convert")
    given = DType.FLOAT32 if widen is False else dtype
    made = DType.FLOAT32 if widen else dtype
    views = check_sources(sources, width * given.itemsize)
    if min(groups, default=0) < 1 or sum(groups) != len(sources):
        raise KernelError(f"groups {list(groups)} do not divide {len(sources)} sources into parts of at least one")
    if not 1 <= divisor <= MAX_DIVISOR:
        raise KernelError(f"divisor {divisor} is not from 1 to {MAX_DIVISOR}")
    _check_order(rows, "rows")
    target = view(out, len(rows) * width * made.itemsize, "out", writable=True)
    for each in views:
        _refuse_shared(target, each.values)
    return target, views, given, made


def check_fold_rows(
    out: object,
    values: object,
    order: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    dtype: DType,
    width: int,
) -> tuple[memoryview, memoryview]:
    """Views of ``out`` and ``values``, once all arguments are found right.

    Raises:
        KernelError: the first argument that is not right.
    """
    _check_kind(dtype, width)
    _check_order(order, "order")
    _check_order(sizes, "sizes")
    if (len(sizes) and int(sizes.min()) < 1) or int(sizes.sum()) != len(order):
        raise KernelError(f"sizes do not divide {len(order)} rows into parts of at least one")
    if len(order) and int(order.min()) < 0:
        raise KernelError(f"order names row {int(order.min())}")
    row_bytes = width * dtype.itemsize
    source = view(values, (int(order.max()) + 1) * row_bytes if len(order) else 0, "values")
    target = view(out, len(sizes) * row_bytes, "out", writable=True)
    _refuse_shared(target, source)
    return target, source


def _check_kind(dtype: DType, width: int) -> None:
    if not isinstance(dtype, DType):
        raise KernelError(f"dtype {dtype!r} is no byteps_py.types.DType")
    if width < 1:
        raise KernelError(f"a row of {width} elements")


def _check_order(numbers: npt.NDArray[np.int64], what: str) -> None:
    if numbers.dtype != np.int64 or numbers.ndim != 1 or not numbers.flags.c_contiguous:
        raise KernelError(f"{what} must be a C-contiguous array of int64 in one dimension")


def _refuse_shared(out: memoryview, source: Any) -> None:
    ours, theirs = (np.frombuffer(each, np.uint8) for each in (out, memoryview(source)))
    if np.may_share_memory(ours, theirs):
        raise KernelError(SHARED_MESSAGE.partition(",")[0])
