"""Rows of a tensor as a payload: which ones, and their values.

A PUSH or RESULT that is flagged ROWS carries, in one frame::

    number of rows n          8 bytes   unsigned
    elements of a row         8 bytes   unsigned: the product of the tensor's dimensions behind the first
    indices                   8 n       signed, strictly rising
    values                    n rows    one behind the other, of the header's dtype (float32 where a PARTIAL is)

A row belongs to the partition in which its first element lies, and travels with that as a whole, so partitions need
not end where a row does.  ``offset`` and ``count`` of the header are those of the partition, as ever.

Nothing in this module allocates according to a number that came from the network.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from byteps_py.errors import RemoteProtocolError
from byteps_py.types import DType
from byteps_py.wire.header import MAX_ELEMENTS, ROWS_HEAD, Flag, Header, Opcode, is_wide

__all__ = [
    "INDEX_BYTES",
    "RowsPayload",
    "check_rows",
    "count_rows",
    "first_row",
    "rows_bytes",
    "split_rows",
    "write_rows",
]

INDEX_BYTES: Final = 8
_HEAD_BYTES: Final = ROWS_HEAD.size


class RowsPayload(NamedTuple):
    """The parts of a payload, as views of it: ``size`` indices, int64, and the bytes of the values."""

    size: int
    indices: npt.NDArray[np.int64]
    values: memoryview


def rows_bytes(count: int, width: int, itemsize: int) -> int:
    """Bytes of a payload of ``count`` rows."""
    return _HEAD_BYTES + count * (INDEX_BYTES + width * itemsize)


def count_rows(nbytes: int, width: int, itemsize: int) -> int:
    """How many rows a payload of so many bytes has; a rest counts for nothing."""
    return max(0, nbytes - _HEAD_BYTES) // (INDEX_BYTES + width * itemsize)


def first_row(offset: int, width: int) -> int:
    """The first row that begins at element ``offset`` or later."""
    return -(-offset // width)


def write_rows(out: memoryview, count: int, width: int) -> RowsPayload:
    """Write the head of a payload, and give its parts, to be filled.

    Args:
        out: writable bytes, exactly as many as :func:`rows_bytes` says.
    """
    ROWS_HEAD.pack_into(out, 0, count, width)
    return _parts(out, count)


def split_rows(payload: memoryview, width: int, itemsize: int) -> RowsPayload:
    """The parts of a payload that :func:`check_rows` has found right.

    The head is not read again: where the payload is memory of its sender, that may have changed it since.
    """
    return _parts(payload, count_rows(payload.nbytes, width, itemsize))


def check_rows(header: Header, payload: memoryview | None) -> int:
    """Check a payload of rows against its header; returns the elements of a row.

    Args:
        header: of a PUSH or RESULT that is flagged ROWS.
        payload: as long as ``header.length`` says.

    Raises:
        RemoteProtocolError: the payload is not as long as its head says, or an index is not greater than the one
            before, or of no row of the partition.
    """
    view = memoryview(b"") if payload is None else payload
    if view.nbytes < _HEAD_BYTES:
        raise RemoteProtocolError(f"{header.opcode.name} of rows without the {_HEAD_BYTES} bytes that say how many")
    count, width = ROWS_HEAD.unpack_from(view)
    dtype = header.dtype
    if header.opcode is Opcode.PUSH and header.flags & Flag.PARTIAL and is_wide(dtype, header.detail):
        dtype = DType.FLOAT32
    if not 1 <= width <= MAX_ELEMENTS:
        raise RemoteProtocolError(f"{header.opcode.name} of rows of {width} elements")
    expected = rows_bytes(count, width, dtype.itemsize)
    if view.nbytes != expected:
        raise RemoteProtocolError(
            f"{header.opcode.name} of {count} rows of {width} {dtype.label} elements must carry {expected} payload "
            f"bytes, not {view.nbytes}"
        )
    if count:
        _check_indices(header, _parts(view, count).indices, width)
    return int(width)


def _check_indices(header: Header, indices: npt.NDArray[np.int64], width: int) -> None:
    first, last = int(indices[0]), int(indices[-1])
    begin, end = first_row(header.offset, width), first_row(header.offset + header.count, width)
    if first < begin or last >= end:
        raise RemoteProtocolError(
            f"{header.opcode.name} of rows {first} to {last}, and the partition has the rows {begin} to {end - 1}"
        )
    if not bool(np.all(indices[1:] > indices[:-1])):
        raise RemoteProtocolError(f"{header.opcode.name} of rows whose indices are not in rising order")


def _parts(payload: memoryview, count: int) -> RowsPayload:
    view = payload.cast("B")
    begin = _HEAD_BYTES + count * INDEX_BYTES
    return RowsPayload(count, np.frombuffer(view, np.dtype("<i8"), count, _HEAD_BYTES), view[begin:])
