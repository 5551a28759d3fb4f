"""Where the partitions of large contributions wait for their results."""

from __future__ import annotations

import struct

import numpy as np

from byteps_py import kernels
from byteps_py.roles.pending import Pending
from byteps_py.roles.pieces import Pieces
from byteps_py.roles.rows import Rows
from byteps_py.roles.tensors import Tensor, TensorOperation, rows_operation
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.types import DType, Operation, Partition, TensorSpec, make_key

SPEC = TensorSpec("w", DType.FLOAT32, (6,))
FRONT, BACK = (Partition(make_key(0, index), 3 * index, 3, 0) for index in (0, 1))


LANE, SOCKET = b"on this machine", b"elsewhere"


def pieces() -> Pieces:
    endpoint = LoopbackNetwork().endpoint(b"me")
    endpoint.is_lane = LANE.__eq__  # type: ignore[method-assign]
    return Pieces(endpoint, kernels.select("reference"), 1)


def operation(lent: np.ndarray | None = None, staging: np.ndarray | None = None) -> TensorOperation:  # type: ignore[type-arg]
    return TensorOperation(
        Tensor(SPEC),
        Pending(SPEC, None),
        operation=Operation.SUM,
        root=0,
        priority=0,
        step=0,
        staging=None if staging is None else staging.view(np.uint8),
        lent=None if lent is None else lent.view(np.uint8),
    )


def values(payload: memoryview) -> list[float]:
    found: list[float] = np.frombuffer(payload, np.float32).tolist()
    return found


def test_a_partition_is_copied_when_it_is_pushed_and_once() -> None:
    source = np.arange(6, dtype=np.float32)
    mine, lent = pieces(), operation(lent=source)
    first = mine.payload(lent, FRONT, LANE)
    source[:] = 9  # as the result of another partition would
    assert values(first) == [0, 1, 2]
    assert values(mine.payload(lent, FRONT, LANE)) == [0, 1, 2]
    assert values(mine.payload(lent, BACK, LANE)) == [9, 9, 9]
    assert lent.copied > 0


def test_what_goes_through_a_socket_is_sent_from_where_it_lies() -> None:
    source = np.arange(6, dtype=np.float32)
    mine, lent = pieces(), operation(lent=source)
    payload = mine.payload(lent, BACK, SOCKET)
    assert np.frombuffer(payload, np.uint8).ctypes.data == source[3:].ctypes.data
    assert (lent.pieces, lent.copied) == ({}, 0)
    mine.payload(lent, BACK, LANE)
    source[:] = 9
    assert values(mine.payload(lent, BACK, SOCKET)) == [3, 4, 5]  # there is a copy already


def test_the_buffer_that_was_used_last_is_used_next() -> None:
    source = np.arange(6, dtype=np.float32)
    mine, lent = pieces(), operation(lent=source)
    places = [np.frombuffer(mine.payload(lent, each, LANE), np.uint8).ctypes.data for each in (FRONT, BACK)]
    mine.finished(lent, FRONT.key)
    mine.finished(lent, BACK.key)
    mine.finished(lent, BACK.key)
    again = operation(lent=source)
    found = [np.frombuffer(mine.payload(again, each, LANE), np.uint8).ctypes.data for each in (FRONT, BACK)]
    assert found == places[::-1]


def test_what_was_copied_before_is_pushed_from_there() -> None:
    staging = np.arange(6, dtype=np.float32)
    mine, staged = pieces(), operation(staging=staging)
    payload = mine.payload(staged, BACK, LANE)
    assert np.frombuffer(payload, np.uint8).ctypes.data == staging[3:].ctypes.data
    mine.finished(staged, BACK.key)
    assert staged.contributes
    assert not operation().contributes


def test_rows_are_packed_once_for_each_partition() -> None:
    spec = TensorSpec("w", DType.FLOAT32, (3, 2))
    rows = Rows(np.array([0, 1]), np.array([[1, 2], [3, 4]], np.float32))
    made = rows_operation(Tensor(spec), Pending(spec, np.empty(0, np.float32)), rows, Operation.SUM, 0, 0)
    mine = pieces()
    front, back = (mine.payload(made, each, LANE) for each in (FRONT, BACK))
    assert bytes(front) == struct.pack("<2Q2q4f", 2, 2, 0, 1, 1, 2, 3, 4)
    assert bytes(back) == struct.pack("<2Q", 0, 2), "a row belongs to where it begins"
    assert mine.payload(made, FRONT, LANE).obj is front.obj, "what is pushed again is the same memory"
    mine.finished(made, FRONT.key)
    assert FRONT.key not in made.pieces
