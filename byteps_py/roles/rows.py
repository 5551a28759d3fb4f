"""Rows of a tensor on their way from a worker and back: a contribution that names its rows, and a result that does.

Each partition of the tensor gets those rows that begin in it, also where that is none, so that servers know of every
worker what it contributes.  The result of each partition has as many rows as all contributions to it have together;
they are put one behind the other when all are here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from byteps_py import kernels
from byteps_py.errors import KernelError, RemoteProtocolError, UnsupportedError
from byteps_py.settings import MAX_PARTITION_BYTES
from byteps_py.transport.base import Endpoint, Message
from byteps_py.types import DType, Partition, TensorSpec
from byteps_py.wire.header import Header
from byteps_py.wire.rows import check_rows, first_row, rows_bytes, split_rows, write_rows

__all__ = [
    "Rows",
    "check_room",
    "coalesce",
    "join_rows",
    "pack_rows",
    "received_rows",
    "row_share",
    "width_of",
]


class Rows(NamedTuple):
    """Some rows of a tensor, the others being zero.

    Attributes:
        indices: int64, strictly rising, one dimension.
        values: C-contiguous, of the storage of the tensor's dtype; ``values[i]`` is row ``indices[i]``.
    """

    indices: npt.NDArray[np.int64]
    values: npt.NDArray[Any]


def width_of(spec: TensorSpec) -> int:
    """Elements of a row of a tensor.

    Raises:
        UnsupportedError: it has no rows, or rows of no elements.
    """
    width = math.prod(spec.shape[1:])
    if not spec.shape or not width:
        raise UnsupportedError(f"tensor {spec.name!r} of shape {spec.shape} has no rows that could be pushed")
    return width


def row_share(nbytes: int, count: int) -> int:
    """What rows of ``nbytes`` take of the window, as bytes for each of the ``count`` elements that they stand for."""
    return -(-nbytes // max(1, count))


def coalesce(spec: TensorSpec, indices: npt.NDArray[Any], values: npt.NDArray[Any]) -> Rows:
    """Rows in rising order, each once, in new memory.

    Rows of one index are summed by a left fold in the order in which they are given; 16-bit floats are accumulated in
    float32 and rounded once, integers wrap around.

    Args:
        spec: of the tensor.
        indices: whole numbers, in one dimension, in any order, also several times.
        values: of ``spec.dtype.storage``; ``values[i]`` is row ``indices[i]``.

    Raises:
        UnsupportedError: ``indices`` or ``values`` are of another dtype or shape, or the tensor has no rows.
        ValueError: an index is of no row of the tensor.
    """
    width, what = width_of(spec), f"tensor {spec.name!r}"
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise UnsupportedError(
            f"{what}: indices must be whole numbers in one dimension, not {indices.dtype.name} {indices.shape}"
        )
    if values.dtype != spec.dtype.storage or values.shape != (len(indices), *spec.shape[1:]):
        raise UnsupportedError(
            f"{what} of shape {spec.shape}: values of {len(indices)} rows must be {spec.dtype.label} "
            f"{(len(indices), *spec.shape[1:])}, not {values.dtype.name} {values.shape}"
        )
    if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < spec.shape[0]):
        outside = int(indices.min()) if int(indices.min()) < 0 else int(indices.max())
        known = f"the rows 0 to {spec.shape[0] - 1}" if spec.shape[0] else "no rows"
        raise ValueError(f"{what} has {known}, and not row {outside}")
    places = indices.astype(np.int64)
    if bool(np.all(places[1:] > places[:-1])):
        return Rows(places, np.array(values, order="C"))
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sizes = np.diff(starts, append=len(ordered))
    folded = np.empty((len(starts), *spec.shape[1:]), spec.dtype.storage)
    _kernels().fold_rows(folded, np.ascontiguousarray(values), order, sizes, spec.dtype, width)
    return Rows(ordered[starts], folded)


def pack_rows(rows: Rows, width: int, partition: Partition, endpoint: Endpoint) -> npt.NDArray[np.uint8]:
    """The payload of one partition, in memory that servers of this machine read."""
    ends = [first_row(each, width) for each in (partition.offset, partition.offset + partition.count)]
    begin, end = np.searchsorted(rows.indices, ends).tolist()
    nbytes = rows_bytes(end - begin, width, rows.values.itemsize)
    buffer = endpoint.allocate(nbytes)[:nbytes]
    _, indices, values = write_rows(buffer.data, end - begin, width)
    indices[:] = rows.indices[begin:end]
    if end > begin:
        np.frombuffer(values, np.uint8)[:] = rows.values[begin:end].reshape(-1).view(np.uint8)
    return buffer


def check_room(spec: TensorSpec, partitions: Iterable[Partition]) -> UnsupportedError | None:
    """What is wrong where a partition could not travel with all of its rows, as a result may; None: nothing."""
    width, itemsize = width_of(spec), max(spec.dtype.itemsize, DType.FLOAT32.itemsize)
    counts = (first_row(each.offset + each.count, width) - first_row(each.offset, width) for each in partitions)
    nbytes = rows_bytes(max(counts), width, itemsize)
    if nbytes <= MAX_PARTITION_BYTES:  # no endpoint takes a longer frame
        return None
    return UnsupportedError(
        f"tensor {spec.name!r}: all rows of a partition, with their indices, would be a message of {nbytes} bytes, and "
        f"{MAX_PARTITION_BYTES} are the most: lower BYTEPS_PARTITION_BYTES, or push it dense"
    )


def received_rows(spec: TensorSpec, header: Header, payload: memoryview | None, message: Message) -> Rows:
    """A copy of the rows in the RESULT of one partition.

    Raises:
        RemoteProtocolError: they are none of this tensor, or changed while they were copied.
    """
    own = bytearray(b"" if payload is None else payload)
    if not message.intact():
        raise RemoteProtocolError("a result that changed while it was copied")
    view, width = memoryview(own), width_of(spec)
    found = check_rows(header, view)
    if found != width:
        raise RemoteProtocolError(f"a result for {spec.name!r} of rows of {found} elements, not {width}")
    parts = split_rows(view, width, spec.dtype.itemsize)
    values = np.frombuffer(parts.values, spec.dtype.storage)
    return Rows(parts.indices, values.reshape(parts.size, *spec.shape[1:]))


def join_rows(spec: TensorSpec, parts: Iterable[Rows]) -> Rows:
    """The rows of a whole tensor, of those of its partitions in their order: arrays of the caller's own."""
    found = list(parts)
    if not found:
        return Rows(np.empty(0, np.int64), np.empty((0, *spec.shape[1:]), spec.dtype.storage))
    if len(found) == 1:
        return found[0]
    return Rows(np.concatenate([each.indices for each in found]), np.concatenate([each.values for each in found]))


@functools.cache
def _kernels() -> kernels.Kernels:
    try:
        return kernels.select("native")
    except KernelError:  # not built; the others give the same bits
        return kernels.select("reference")
