"""A worker's rows: coalesced, split by partition, and put together again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import byteps_py
from byteps_py.errors import RemoteProtocolError, UnsupportedError
from byteps_py.roles.rows import Rows, check_room, coalesce, join_rows, pack_rows, received_rows, row_share
from byteps_py.transport.base import Message
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.types import DType, Partition, TensorSpec
from byteps_py.wire.header import Flag, Header, Opcode

SPEC = TensorSpec("table", DType.FLOAT32, (10, 3))


def header(partition: Partition, nbytes: int) -> Header:
    place = {"offset": partition.offset, "count": partition.count, "length": nbytes}
    return Header(Opcode.RESULT, 0, 1, 2, 0, partition.key, 1, flags=Flag.ROWS, **place)


@given(st.sets(st.integers(0, 9)), st.integers(1, 30))
def test_what_is_split_by_partition_is_put_together_again(which: set[int], size: int) -> None:
    endpoint = LoopbackNetwork().endpoint(b"worker")
    indices = np.array(sorted(which), np.int64)
    values = np.arange(len(indices) * 3, dtype=np.float32).reshape(-1, 3)
    partitions = [Partition(key, start, min(size, 30 - start), 0) for key, start in enumerate(range(0, 30, size))]
    parts = []
    for each in partitions:
        packed = pack_rows(Rows(indices, values), 3, each, endpoint)
        message = Message(b"server", [packed.data])
        parts.append(received_rows(SPEC, header(each, packed.nbytes), packed.data, message))
    found = join_rows(SPEC, parts)
    assert found.indices.tolist() == indices.tolist()
    assert found.values.tolist() == values.tolist()
    assert sum(len(each.indices) for each in parts) == len(indices), "each row is in one partition"


def test_rows_of_another_length_are_refused() -> None:
    packed = pack_rows(
        Rows(np.array([1]), np.ones((1, 2), np.float32)), 2, Partition(0, 0, 30, 0), LoopbackNetwork().endpoint(b"w")
    )
    with pytest.raises(RemoteProtocolError, match="a result for 'table' of rows of 2 elements, not 3"):
        received_rows(SPEC, header(Partition(0, 0, 30, 0), packed.nbytes), packed.data, Message(b"", [packed.data]))


class _Changed:
    def intact(self) -> bool:
        return False


def test_rows_that_change_while_they_are_copied_are_refused() -> None:
    message = Message(b"server", [memoryview(b"x")], _Changed())
    with pytest.raises(RemoteProtocolError, match="changed while it was copied"):
        received_rows(SPEC, header(Partition(0, 0, 30, 0), 1), message.frames[0], message)


def test_doubled_rows_are_added_in_their_order() -> None:
    values = np.array([[1e8], [1.0], [-1e8], [5.0]], np.float32)
    found = coalesce(TensorSpec("x", DType.FLOAT32, (9, 1)), np.array([7, 7, 7, 2], np.int32), values)
    assert found.indices.tolist() == [2, 7]
    assert found.values.tolist() == [[5.0], [np.float32(np.float32(1e8) + np.float32(1)) - np.float32(1e8)]]


def test_halves_are_added_in_float32() -> None:
    values = np.array([[2048.0], [1.0], [1.0]], np.float16)  # 2048 + 1 would be 2048
    found = coalesce(TensorSpec("x", DType.FLOAT16, (9, 1)), np.array([3, 3, 3]), values)
    assert found.values.tolist() == [[2050.0]]


def test_rows_in_order_are_copied() -> None:
    indices, values = np.array([1, 4]), np.array([[-0.0] * 3, [np.nan] * 3], np.float32)
    found = coalesce(SPEC, indices, values)
    assert found.values.tobytes() == values.tobytes()
    values[:] = 7
    indices[:] = 0
    assert found.indices.tolist() == [1, 4]
    assert not (found.values == 7).any()


@pytest.mark.parametrize(
    ("indices", "values", "shape", "text"),
    [
        ([[0]], np.ones((1, 3)), (10, 3), "whole numbers in one dimension, not int64"),
        ([0.5], np.ones((1, 3)), (10, 3), "whole numbers in one dimension, not float64"),
        ([0], np.ones((1, 2)), (10, 3), r"values of 1 rows must be float32 \(1, 3\), not float32 \(1, 2\)"),
        ([0, 1], np.ones((1, 3)), (10, 3), r"must be float32 \(2, 3\), not float32 \(1, 3\)"),
        ([0], np.ones((1, 0)), (10, 0), "has no rows that could be pushed"),
        ([0], np.ones(1), (), "has no rows that could be pushed"),
    ],
)
def test_what_are_no_rows_is_refused(indices: Any, values: Any, shape: tuple[int, ...], text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        coalesce(TensorSpec("x", DType.FLOAT32, shape), np.array(indices), values.astype(np.float32))


@pytest.mark.parametrize("index", [10, -1])
def test_a_row_that_is_not_there(index: int) -> None:
    with pytest.raises(ValueError, match=f"has the rows 0 to 9, and not row {index}"):
        coalesce(SPEC, np.array([3, index]), np.ones((2, 3), np.float32))


def test_a_row_of_a_tensor_that_has_none() -> None:
    with pytest.raises(ValueError, match="'x' has no rows, and not row 0"):
        coalesce(TensorSpec("x", DType.FLOAT32, (0, 3)), np.array([0]), np.ones((1, 3), np.float32))


@pytest.mark.usefixtures("alone")
def test_a_number_of_rows_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="tensor 'x': rows=-5 is no number of rows"):
        byteps_py.push_pull_rows([0], np.ones((1, 2), np.float32), -5, "x")


def test_partitions_whose_rows_no_message_could_carry() -> None:
    spec = TensorSpec("x", DType.INT8, (1 << 30, 1))
    assert check_room(SPEC, [Partition(0, 0, 30, 0)]) is None
    error = check_room(spec, [Partition(0, 0, 1 << 30, 0)])
    assert error is not None
    assert "lower BYTEPS_PARTITION_BYTES" in str(error)
    assert check_room(spec, [Partition(0, 0, 1 << 22, 0)]) is None


def test_the_share_of_the_window_is_never_less_than_the_bytes() -> None:
    assert [row_share(nbytes, 100) * 100 >= nbytes for nbytes in (0, 1, 99, 100, 101, 5000)] == [True] * 6
    assert row_share(0, 0) == 0
