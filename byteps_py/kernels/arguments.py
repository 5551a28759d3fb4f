"""Checks of arguments that both kernel implementations share, so that both refuse the same things in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from byteps_py.errors import KernelError
from byteps_py.types import DType

__all__ = ["MAX_DIVISOR", "OVERLAP_MESSAGE", "SHARED_MESSAGE", "check_converting", "check_copy", "check_sum", "view"]

MAX_DIVISOR = 1 << 24
"""float32 holds every whole number up to this one, so a float32 accumulator is divided by exactly what was asked."""

OVERLAP_MESSAGE = "out shares memory with a source; it may only be exactly the first source of a sum"
SHARED_MESSAGE = "out shares memory with a source, whose elements are of another type"


def view(buffer: object, nbytes: int, what: str, *, writable: bool = False) -> memoryview:
    """A view of ``buffer``, which must be C-contiguous and hold at least ``nbytes`` bytes.

    Raises:
        KernelError: naming the buffer by ``what``.
    """
    try:
        found = memoryview(cast(Any, buffer))
    except (TypeError, ValueError, BufferError) as error:
        raise KernelError(f"{what} is no buffer that can be read here: {error}") from None
    if not found.c_contiguous:
        raise KernelError(f"{what} is not C-contiguous; copy it first")
    if found.nbytes < nbytes:
        raise KernelError(f"{what} has {found.nbytes} bytes, but {nbytes} are needed")
    if writable and found.readonly:
        raise KernelError(f"{what} cannot be written to")
    return found


def check_sum(
    out: object,
    sources: Sequence[object],
    groups: Sequence[int],
    dtype: DType,
    count: int,
    divisor: int,
    threads: int,
) -> tuple[memoryview, list[memoryview]]:
    """Views of ``out`` and of the sources, once all arguments of a sum are found right.

    Raises:
        KernelError: the first one that is not.
    """
    _check_numbers(sources, groups, dtype, count, divisor, threads)
    return _views(out, count * dtype.itemsize, sources, count * dtype.itemsize)


def check_converting(
    out: object,
    sources: Sequence[object],
    groups: Sequence[int],
    dtype: DType,
    count: int,
    divisor: int,
    threads: int,
    widen: bool,
) -> tuple[memoryview, list[memoryview]]:
    """The same for a sum that begins or ends in float32.

    Raises:
        KernelError: the first argument that is not right.
    """
    _check_numbers(sources, groups, dtype, count, divisor, threads)
    if dtype not in (DType.FLOAT16, DType.BFLOAT16):
        raise KernelError(f"{dtype.label} is no 16-bit float: there is nothing to convert")
    narrow, wide = count * dtype.itemsize, count * DType.FLOAT32.itemsize
    return _views(out, wide if widen else narrow, sources, narrow if widen else wide)


def check_copy(out: object, source: object, nbytes: int, threads: int) -> tuple[memoryview, memoryview]:
    """Views of both buffers, once all arguments of a copy are found right.

    Raises:
        KernelError: the first one that is not.
    """
    _check_size("nbytes", nbytes, threads)
    return view(out, nbytes, "out", writable=True), view(source, nbytes, "source")


def _check_numbers(
    sources: Sequence[object], groups: Sequence[int], dtype: DType, count: int, divisor: int, threads: int
) -> None:
    if not isinstance(dtype, DType):
        raise KernelError(f"dtype {dtype!r} is no byteps_py.types.DType")
    if not sources:
        raise KernelError("there is no source to sum")
    if min(groups, default=0) < 1 or sum(groups) != len(sources):
        raise KernelError(f"groups {list(groups)} do not divide {len(sources)} sources into parts of at least one")
    if not 1 <= divisor <= MAX_DIVISOR:
        raise KernelError(f"divisor {divisor} is not from 1 to {MAX_DIVISOR}")
    _check_size("count", count, threads)


def _views(
    out: object, out_bytes: int, sources: Sequence[object], source_bytes: int
) -> tuple[memoryview, list[memoryview]]:
    views = [view(each, source_bytes, f"source {index}") for index, each in enumerate(sources)]
    return view(out, out_bytes, "out", writable=True), views


def _check_size(what: str, size: int, threads: int) -> None:
    if size < 0:
        raise KernelError(f"{what} {size} is negative")
    if threads < 1:
        raise KernelError(f"threads {threads} is less than 1")
