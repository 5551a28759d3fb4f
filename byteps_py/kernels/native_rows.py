"""The kernels for rows in C, from ``csrc/rows.c``; :mod:`byteps_py.kernels.native` has them as methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_py.errors import KernelError
from byteps_py.kernels._native import ffi, lib
from byteps_py.kernels.row_arguments import RowSource, check_fold_rows, check_sources, check_sum_rows
from byteps_py.types import DType

__all__ = ["NativeRows"]

_INDICES = "int64_t[]"
_FORMS = {None: lib.BYTEPS_PLAIN, True: lib.BYTEPS_WIDEN, False: lib.BYTEPS_NARROW}


class NativeRows:
    """The part of :class:`byteps_py.kernels.Kernels` that is about rows.

    Attributes:
        _level: number of the instruction set.
    """

    _level: int

    def merge_rows(self, sources: Sequence[RowSource]) -> npt.NDArray[np.int64]:
        """See :meth:`byteps_py.kernels.Kernels.merge_rows`."""
        views = check_sources(sources)
        out = np.empty(sum(each.size for each in views), np.int64)
        array, _kept = _array_of(views)
        found = lib.byteps_merge_rows(ffi.from_buffer(_INDICES, out), array, len(views))
        return out[:found]

    def sum_rows(
        self,
        out: object,
        rows: npt.NDArray[np.int64],
        sources: Sequence[RowSource],
        groups: Sequence[int],
        dtype: DType,
        width: int,
        divisor: int,
        *,
        widen: bool | None = None,
    ) -> None:
        """See :meth:`byteps_py.kernels.Kernels.sum_rows`."""
        target, views, given, _ = check_sum_rows(out, rows, sources, groups, dtype, width, divisor, widen)
        array, _kept = _array_of(views)
        status = lib.byteps_sum_rows(
            ffi.from_buffer(target),
            ffi.from_buffer(_INDICES, rows),
            len(rows),
            array,
            len(views),
            list(groups),
            len(groups),
            dtype,
            _FORMS[widen],
            width,
            divisor,
            ffi.from_buffer(bytes(width * given.itemsize)),
            ffi.new("void *[]", len(views)),
            self._level,
        )
        _check(status)

    def fold_rows(
        self,
        out: object,
        values: object,
        order: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        dtype: DType,
        width: int,
    ) -> None:
        """See :meth:`byteps_py.kernels.Kernels.fold_rows`."""
        target, source = check_fold_rows(out, values, order, sizes, dtype, width)
        status = lib.byteps_fold_rows(
            ffi.from_buffer(target),
            ffi.from_buffer(source),
            ffi.from_buffer(_INDICES, order),
            ffi.from_buffer("size_t[]", sizes),
            len(sizes),
            dtype,
            width,
            ffi.new("void *[]", int(sizes.max()) if len(sizes) else 1),
            self._level,
        )
        _check(status)


def _array_of(sources: Sequence[RowSource]) -> tuple[Any, list[Any]]:
    """The sources as C has them, and what must live as long as that."""
    array = ffi.new("struct byteps_rows[]", len(sources))
    kept: list[Any] = []
    for place, each in zip(array, sources, strict=True):
        indices, values = ffi.from_buffer(each.indices), ffi.from_buffer(each.values)
        place.indices, place.values, place.count = indices, values, each.size
        kept += (indices, values)
    return array, kept


def _check(status: int) -> None:
    if status != lib.BYTEPS_OK:
        raise KernelError(f"the C kernels refused rows with status {status}: a fault in byteps_py itself")
