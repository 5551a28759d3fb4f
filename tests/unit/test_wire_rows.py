"""Payloads of rows: what is written is read, and what breaks a rule is refused."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_py.errors import LocalProtocolError, RemoteProtocolError
from byteps_py.types import DType, Operation
from byteps_py.wire.header import Flag, Header, Opcode, decode, encode
from byteps_py.wire.rows import check_rows, count_rows, first_row, rows_bytes, split_rows, write_rows

# Rows of 3 elements of a partition from element 10 to 21: rows 4, 5 and 6 begin there.
HEADER = Header(Opcode.PUSH, 0, 1, 2, 0, 3, 1, flags=Flag.WANT_RESULT | Flag.ROWS, offset=10, count=11)


def payload(indices: list[int], width: int = 3, itemsize: int = 4) -> bytes:
    count = len(indices)
    made = bytearray(rows_bytes(count, width, itemsize))
    _, which, values = write_rows(memoryview(made), count, width)
    which[:] = indices
    values[:] = bytes(range(len(values)))
    return bytes(made)


def check(data: bytes, **fields: Any) -> int:
    header = msgspec.structs.replace(HEADER, length=len(data), **fields)
    decode(encode(header), len(data))
    return check_rows(header, memoryview(data))


@pytest.mark.parametrize("indices", [[], [4], [6], [4, 6], [4, 5, 6]], ids=str)
def test_what_is_written_is_read(indices: list[int]) -> None:
    data = payload(indices)
    assert check(data) == 3
    parts = split_rows(memoryview(data), 3, 4)
    assert (parts.size, parts.indices.tolist()) == (len(indices), indices)
    assert parts.values == bytes(range(12 * len(indices)))
    assert count_rows(len(data), 3, 4) == len(indices)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "must carry 16 payload bytes, not 0"),
        (b"123", "must carry 16 payload bytes, not 3"),
        (payload([4])[:-1], r"1 rows of 3 float32 elements must carry 36 payload bytes, not 35"),
        (payload([4]) + b"x", r"must carry 36 payload bytes, not 37"),
        (struct.pack("<QQ", 2**64 - 1, 2**64 - 1), "rows of 18446744073709551615 elements"),
        (struct.pack("<QQ", 2**60, 1), "must carry"),
        (struct.pack("<QQ", 0, 0), "rows of 0 elements"),
        (payload([3]), "rows 3 to 3, and the partition has the rows 4 to 6"),
        (payload([5, 7]), "rows 5 to 7"),
        (payload([-1, 5]), "rows -1 to 5"),
        (payload([4, 4]), "not in rising order"),
        (payload([4, 6, 5, 6]), "not in rising order"),
    ],
)
def test_what_breaks_a_rule_is_refused(data: bytes, text: str) -> None:
    with pytest.raises((RemoteProtocolError, LocalProtocolError), match=text):
        check(data)


def test_a_sum_of_halves_is_in_float32() -> None:
    fields = {"dtype": DType.FLOAT16, "flags": HEADER.flags | Flag.PARTIAL, "detail": 2}
    assert check(payload([4, 5]), **fields) == 3
    with pytest.raises(RemoteProtocolError, match="float32 elements must carry 36"):
        check(payload([4], itemsize=2), **fields)
    assert check(payload([4], itemsize=2), **fields | {"detail": 1}) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"flags": Flag.ROWS | Flag.ABSENT},
        {"operation": Operation.BROADCAST},
        {"operation": Operation.SEED},
        {"operation": Operation.DIFFERENCE},
        {"opcode": Opcode.PULL, "flags": Flag.ROWS, "length": 0},
    ],
    ids=str,
)
def test_rows_where_there_must_be_none(fields: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        encode(msgspec.structs.replace(HEADER, **{"length": 16} | fields))


@given(st.binary(max_size=120))
def test_any_bytes_are_rows_or_refused(data: bytes) -> None:
    header = msgspec.structs.replace(HEADER, length=len(data))
    try:
        width = check_rows(header, memoryview(data))
    except RemoteProtocolError:
        return
    parts = split_rows(memoryview(data), width, 4)
    assert len(parts.values) == parts.size * width * 4
    assert bool(np.all(np.diff(parts.indices) > 0))


def test_each_row_begins_in_one_partition() -> None:
    for width in (1, 3, 7, 40):
        ends = [first_row(offset, width) for offset in (0, 10, 21, 22, 50)]
        assert ends[0] == 0
        assert ends == sorted(ends)
        for offset, end in zip((0, 10, 21, 22, 50), ends, strict=True):
            assert (end - 1) * width < offset <= end * width
