"""With debug lines wanted every message is logged, with the peer and what it is; without, nothing stands between."""

from __future__ import annotations

import logging

import pytest

from byteps_py.roles.message_log import describe, log_messages
from byteps_py.transport.base import Message
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.types import make_key, make_tensor_id
from byteps_py.wire.control import Heartbeat, encode_control
from byteps_py.wire.header import Header, Opcode, encode
from tests.helpers.messages import BUNDLES

HEARTBEAT = encode_control(Heartbeat())
PUSH = encode(
    Header(opcode=Opcode.PUSH, sender=0, job=1, incarnation=2, epoch=0, key=make_key(3, 1), round=7, count=2, length=8)
)

OF_A_GROUP = encode(
    Header(
        opcode=Opcode.PULL, sender=0, job=1, incarnation=2, epoch=0, key=make_key(make_tensor_id(8191, 3), 1), round=7
    )
)


def many(name: str) -> list[bytes]:
    header, table, payload = BUNDLES[name]
    return [encode(header), table, payload]


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([HEARTBEAT], f"Heartbeat, {len(HEARTBEAT)} bytes"),
        ([PUSH, memoryview(bytes(8))], "PUSH of tensor 3, partition 1, round 7, 8 bytes"),
        ([OF_A_GROUP], "PULL of tensor 3 of group 8191, partition 1, round 7, 0 bytes"),
        (many("push-many"), "PUSH_MANY of 2 tensors, number 17, 8 bytes"),
        (many("result-many"), "RESULT_MANY of 2 tensors, 16 bytes"),
        (many("push-many")[:2], "an unreadable message, 168 bytes"),
        ([PUSH], f"an unreadable message, {len(PUSH)} bytes"),
        ([b"\xff\xff"], "an unreadable message, 2 bytes"),
        ([b"", b"", b""], "an unreadable message, 0 bytes"),
        ([], "an unreadable message, 0 bytes"),
    ],
)
def test_describe(frames: list[bytes], text: str) -> None:
    assert describe(frames) == text


def test_both_directions(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("byteps_py"), "propagate", True)
    log = logging.getLogger("byteps_py.test_message_log")
    caplog.set_level(logging.DEBUG, logger=log.name)
    network = LoopbackNetwork()
    server = log_messages(network.endpoint(b"server"), log)
    worker = network.endpoint(b"worker-1")
    worker.connect(b"server-0", server.listen("tcp://127.0.0.1:0"))
    assert worker.send(b"server-0", [PUSH, bytes(8)])
    (message,) = server.receive(1)
    assert message.peer == b"worker-1"
    assert server.send(b"worker-1", [HEARTBEAT])
    assert not server.send(b"nobody", [HEARTBEAT])
    size = len(HEARTBEAT)
    assert caplog.messages == [
        "from worker-1: PUSH of tensor 3, partition 1, round 7, 8 bytes",
        f"to worker-1: Heartbeat, {size} bytes",
        f"to nobody: Heartbeat, {size} bytes (not sent: not connected)",
    ]
    server.close()
    worker.close()


def test_nothing_stands_between_without_debug_lines() -> None:
    log = logging.getLogger("byteps_py.test_message_log_off")
    log.setLevel(logging.INFO)
    endpoint = LoopbackNetwork().endpoint(b"server")
    assert log_messages(endpoint, log) is endpoint


def test_what_has_to_do_with_lanes_is_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("byteps_py.test_message_log")
    caplog.set_level(logging.DEBUG, logger=log.name)
    own = LoopbackNetwork().endpoint(b"worker")
    endpoint = log_messages(own, log)
    arrived = Message(b"server-0", [memoryview(HEARTBEAT)])
    own.receive_lanes = lambda: [arrived]  # type: ignore[method-assign]
    assert endpoint.receive_lanes() == [arrived]
    assert caplog.messages == [f"from server-0: Heartbeat, {len(HEARTBEAT)} bytes"]
    assert endpoint.allocate(100).nbytes == 100
    endpoint.renew(endpoint.allocate(1))
    endpoint.wake_lanes()
    assert endpoint.wait_lanes(10) is True
    assert endpoint.is_lane(b"server-0") is False
    endpoint.hold_lanes()
    endpoint.resume_lanes()
    endpoint.close()
