"""What is said of results that do not come, without a clock; pushes and results are in ``test_worker.py``."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest

from byteps_py import kernels
from byteps_py.errors import TransportTimeout
from byteps_py.roles.envelope import Envelope
from byteps_py.roles.exchange import Exchange
from byteps_py.roles.pending import Pending
from byteps_py.roles.tensors import Tensor, TensorOperation
from byteps_py.settings import WorkerSettings
from byteps_py.transport.base import Message
from byteps_py.transport.loopback import LoopbackEndpoint, LoopbackNetwork
from byteps_py.types import DType, Operation, Participant, Partition, ServerInfo, TensorSpec, make_key
from byteps_py.wire.control import Placement, Welcome
from byteps_py.wire.header import RANK_ENTRY, Opcode, encode

SETTINGS = WorkerSettings(num_worker=2, num_server=1, root_uri="127.0.0.1", root_port=9, stall_timeout=100.0)
SERVER = Envelope(0, 77, 600, 1)
WORKERS = (Participant(0, 0, 0, 1, "host-a", 10, 500), Participant(1, 1, 0, 1, "host-b", 11, 501))
SILENT = "server 0 (pid 12 on host-c) at tcp://127.0.0.1:50001"
PARTITION = 4
"""Elements."""


class Bench:
    """An exchange at time 0, and tensors of several partitions."""

    def __init__(self, **changed: float) -> None:
        network = LoopbackNetwork()
        address = network.endpoint(b"server").listen("tcp://127.0.0.1:0")
        self.exchange = Exchange(
            network.endpoint(b"me"),
            settings=dataclasses.replace(SETTINGS, **changed),  # type: ignore[arg-type]
            welcome=Welcome(77, 1, 0, WORKERS, (ServerInfo(0, address, "host-c", 12, 600),)),
            incarnation=500,
            kernels=kernels.select("reference"),
            times=None,
            now=0.0,
        )
        self._placed = 0

    def submit(self, now: float, name: str, partitions: int = 1) -> Pending:
        tensor = Tensor(TensorSpec(name, DType.UINT8, (partitions * PARTITION,)))
        pieces = [Partition(make_key(self._placed, each), each * PARTITION, PARTITION, 0) for each in range(partitions)]
        tensor.placement = Placement(name, self._placed, tuple(pieces))
        self._placed += 1
        pending = Pending(tensor.spec, None)
        operation = TensorOperation(
            tensor,
            pending,
            operation=Operation.SUM,
            root=0,
            priority=0,
            step=0,
            staging=np.zeros(partitions * PARTITION, np.uint8),
        )
        self.exchange.submit(now, operation)
        return pending

    def answer(self, now: float, opcode: Opcode, tensor: int, partition: int, payload: bytes, **fields: object) -> None:
        header = SERVER.header(opcode, make_key(tensor, partition), 1, length=len(payload), **fields)
        frames = [memoryview(encode(header)), memoryview(bytearray(payload))]
        self.exchange.receive(now, Message(b"server-0", frames))

    def result(self, now: float, tensor: int, partition: int) -> None:
        fields = {"dtype": DType.UINT8, "offset": partition * PARTITION, "count": PARTITION, "detail": 2}
        self.answer(now, Opcode.RESULT, tensor, partition, bytes(PARTITION), **fields)

    def lacks(self, now: float, tensor: int, partition: int, rank: int) -> None:
        self.answer(now, Opcode.WAITING, tensor, partition, RANK_ENTRY.pack(rank), detail=1)


def spoken(bench: Bench, caplog: pytest.LogCaptureFixture, start: int, end: int) -> dict[int, str]:
    """One tick a second; what was said when."""
    said = {}
    for now in range(start, end):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "byteps_py.worker"):
            bench.exchange.tick(float(now))
        said[now] = " | ".join(record.getMessage() for record in caplog.records)
    return {now: text for now, text in said.items() if text}


def test_a_stalled_round_is_spoken_of_and_given_up(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.submit(0.0, "w")
    bench.lacks(1.0, 0, 0, 1)
    said = spoken(bench, caplog, 0, 100)
    assert list(said) == [10, 70]
    assert said[70] == "waiting 70 s for the result of 'w': missing worker 1 (pid 11 on host-b)"
    with pytest.raises(TransportTimeout, match=r"waiting 100 s for .*; giving up \(BYTEPS_STALL_TIMEOUT=100\)"):
        bench.exchange.tick(100.0)


def test_never_where_there_is_no_limit(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(stall_timeout=0.0)
    bench.submit(0.0, "w")
    assert len(spoken(bench, caplog, 0, 200)) == 4


def test_a_limit_below_ten_seconds_counts() -> None:
    bench = Bench(stall_timeout=3.0)
    bench.submit(0.0, "w")
    bench.exchange.tick(2.9)
    with pytest.raises(TransportTimeout, match="waiting 4 s"):
        bench.exchange.tick(4.0)


def test_one_that_stands_still_among_others_that_do_not(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.submit(0.0, "stuck")
    for now in range(1, 100):
        bench.submit(float(now), f"w{now}")
        bench.result(float(now), now, 0)
    said = spoken(bench, caplog, 99, 100)
    assert said[99].startswith("waiting 99 s for the result of 'stuck': missing")
    with pytest.raises(TransportTimeout, match="'stuck'"):
        bench.exchange.tick(100.0)


def test_a_large_tensor_that_moves_slowly_does_not_stand_still(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(partition_bytes=64)
    bench.submit(0.0, "large", partitions=60)
    for index in range(59):
        bench.result(9.0 * index, 0, index)
        assert spoken(bench, caplog, 9 * index, 9 * index + 9) == {}
    said = spoken(bench, caplog, 9 * 59, 9 * 59 + 10)
    assert list(said.values()) == [said[9 * 58 + 10]]


def test_what_was_missing_and_has_come_is_not_named_any_more(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.submit(0.0, "w", partitions=2)
    bench.lacks(1.0, 0, 0, 0)
    bench.lacks(1.0, 0, 1, 1)
    bench.result(2.0, 0, 0)
    assert spoken(bench, caplog, 2, 13)[12].endswith("missing worker 1 (pid 11 on host-b)")


def test_after_a_stall_that_ended_the_next_one_is_spoken_of_as_soon(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.submit(0.0, "w")
    assert list(spoken(bench, caplog, 0, 15)) == [10]
    bench.result(15.0, 0, 0)
    bench.submit(16.0, "v")
    assert list(spoken(bench, caplog, 16, 40)) == [26]


def test_a_server_that_cannot_be_reached_is_given_up_and_the_obstacle_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoopbackEndpoint, "obstacle", lambda self, peer: f"no way to {peer.decode()}")
    bench = Bench(lost_timeout=30.0)
    bench.submit(0.0, "w")
    said = spoken(bench, caplog, 0, 35)
    assert list(said) == [10]
    assert said[10].endswith(f"missing the acceptance of {SILENT} (no way to server-0)")
    with pytest.raises(TransportTimeout) as caught:
        bench.exchange.tick(35.0)
    name = SILENT.replace(" at ", " cannot be reached at ")
    assert str(caught.value).startswith(
        f"{name}, for 35 s now (BYTEPS_LOST_TIMEOUT): no way to server-0. The scheduler"
    )
    assert "DMLC_PORT or BYTEPS_PORT_RANGE" in str(caught.value)


def test_a_server_that_answers_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopbackEndpoint, "obstacle", lambda self, peer: "no way")
    bench = Bench(lost_timeout=30.0)
    bench.submit(0.0, "w")
    for now in range(90):
        bench.exchange.tick(float(now))
        bench.lacks(float(now), 0, 0, 1)
