"""Sums of contributions that are rows: what an engine does for a Sum that has a ``width``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from byteps_py.core.aggregation import Sum
from byteps_py.kernels import Kernels, RowSource
from byteps_py.roles.lent import Lent
from byteps_py.transport.base import Buffer
from byteps_py.types import DType
from byteps_py.wire.header import is_wide
from byteps_py.wire.rows import count_rows, rows_bytes, split_rows, write_rows

__all__ = ["rows_bound", "sum_rows"]


def rows_bound(action: Sum) -> int:
    """Bytes that hold the result of a sum of rows: those of all sources, were they all different rows."""
    total = 0
    for place, each in enumerate(action.sources):
        payload = each.view if isinstance(each, Lent) else memoryview(each)  # type: ignore[arg-type]
        total += count_rows(payload.nbytes, action.width, _given(action, place).itemsize)
    return rows_bytes(total, action.width, _made(action).itemsize)


def sum_rows(kernels: Kernels, action: Sum, sources: Sequence[Any], out: Buffer | None) -> memoryview:
    """The result of a sum of rows, a payload as :mod:`byteps_py.wire.rows` has it.

    Args:
        kernels: the summation kernels.
        action: what to sum.
        sources: its payloads, which were checked when they came. If they have changed since, the result is worth
            nothing, and that is all.
        out: where it goes, if it is long enough; None: into new memory.
    """
    payloads = [split_rows(each, action.width, _given(action, place).itemsize) for place, each in enumerate(sources)]
    parts = [RowSource(each.size, each.indices, each.values) for each in payloads]
    groups: Sequence[int] = action.groups
    made = _made(action)
    widen = None if made is action.dtype else True
    if action.wide:
        parts, groups, widen = _wide_parts(kernels, action, parts), (1,) * len(groups), False
    rows = kernels.merge_rows(parts)
    nbytes = rows_bytes(len(rows), action.width, made.itemsize)
    whole = None if out is None else memoryview(out).cast("B")
    if whole is None or whole.nbytes < nbytes:
        whole = np.empty(nbytes, np.uint8).data
    payload = whole[:nbytes]
    _, indices, values = write_rows(payload, len(rows), action.width)
    indices[:] = rows
    if len(rows):
        kernels.sum_rows(values, rows, parts, groups, action.dtype, action.width, action.divisor, widen=widen)
    return payload


def _wide_parts(kernels: Kernels, action: Sum, parts: Sequence[RowSource]) -> list[RowSource]:
    """Bring the groups that are not in float32 there, so that all can be summed: the bits are as if none had been."""
    wide: list[RowSource] = []
    place = 0
    for size in action.groups:
        if place in action.wide:
            wide.append(parts[place])
        else:
            group = parts[place : place + size]
            rows = kernels.merge_rows(group)
            values = np.empty(len(rows) * action.width, np.float32)
            kernels.sum_rows(values, rows, group, (size,), action.dtype, action.width, 1, widen=True)
            wide.append(RowSource(len(rows), rows, values))
        place += size
    return wide


def _given(action: Sum, place: int) -> DType:
    return DType.FLOAT32 if place in action.wide else action.dtype


def _made(action: Sum) -> DType:
    return DType.FLOAT32 if action.partial and is_wide(action.dtype, len(action.sources)) else action.dtype
