"""The kernels for rows in NumPy; :mod:`byteps_py.kernels.reference` has them as methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_py.kernels.row_arguments import RowSource, check_fold_rows, check_sources, check_sum_rows
from byteps_py.types import DType

__all__ = ["ReferenceRows"]

_Array = npt.NDArray[Any]


class ReferenceRows:
    """The part of :class:`byteps_py.kernels.Kernels` that is about rows.

    Attributes:
        sum_groups, sum_converting: dense sums.
    """

    sum_groups: Callable[..., None]
    sum_converting: Callable[..., None]

    def merge_rows(self, sources: Sequence[RowSource]) -> npt.NDArray[np.int64]:
        """See :meth:`byteps_py.kernels.Kernels.merge_rows`."""
        return np.unique(np.concatenate([_indices(each) for each in check_sources(sources)]))

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
        dense = [_spread(rows, each, given, width) for each in views]
        count = len(rows) * width
        if widen is None:
            self.sum_groups(target, dense, groups, dtype, count, divisor, 1)
        else:
            self.sum_converting(target, dense, groups, dtype, count, divisor, 1, widen=widen)

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
        if not len(sizes):
            return
        given = np.frombuffer(source, dtype.storage)
        given = given[: len(given) // width * width].reshape(-1, width)
        made = np.frombuffer(target, dtype.storage, len(sizes) * width).reshape(-1, width)
        starts = np.cumsum(sizes) - sizes
        for size in np.unique(sizes).tolist():  # those that are made of equally many rows are folded together
            which = np.flatnonzero(sizes == size)
            parts = [np.ascontiguousarray(given[order[starts[which] + place]]) for place in range(size)]
            if size > 1:
                folded = np.empty_like(parts[0])
                self.sum_groups(folded, parts, (size,), dtype, folded.size, 1, 1)
                made[which] = folded
            else:
                made[which] = parts[0]


def _indices(source: RowSource) -> npt.NDArray[np.int64]:
    return np.frombuffer(source.indices, np.int64, source.size)  # type: ignore[call-overload, no-any-return]


def _spread(rows: npt.NDArray[np.int64], source: RowSource, dtype: DType, width: int) -> _Array:
    """The source's elements of ``rows``, zero where it lacks one."""
    spread = np.zeros((len(rows), width), dtype.storage)
    has = np.isin(rows, _indices(source))
    values: _Array = np.frombuffer(source.values, dtype.storage, source.size * width)  # type: ignore[call-overload]
    places = np.searchsorted(_indices(source), rows[has])
    spread[has] = values.reshape(-1, width)[places]
    return spread
