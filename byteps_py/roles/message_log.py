"""Logs every message of a process: what ``PS_VERBOSE=2`` asks for.

It is a layer around the endpoint that is there only if such lines are wanted, so that it costs nothing otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from byteps_py.errors import RemoteProtocolError
from byteps_py.roles.envelope import is_bundle, open_bundle
from byteps_py.transport.base import Buffer, Endpoint, Message
from byteps_py.types import GROUP_TENSORS, group_of, split_key
from byteps_py.wire.control import decode_control
from byteps_py.wire.header import MAGIC, Opcode, decode

__all__ = ["describe", "log_messages"]


def log_messages(endpoint: Endpoint, log: logging.Logger) -> Endpoint:
    """``endpoint``, with a line in ``log`` for each message in either direction if it takes debug lines now."""
    return _LoggingEndpoint(endpoint, log) if log.isEnabledFor(logging.DEBUG) else endpoint


def describe(frames: Sequence[Buffer]) -> str:
    """What a message is: ``Heartbeat, 17 bytes``, ``PUSH of tensor 3, partition 0, round 7, 4096 bytes``."""
    size = sum(map(len, frames))
    try:
        if len(frames) == 1 and bytes(frames[0][: len(MAGIC)]) != MAGIC:
            return f"{type(decode_control(frames[0])).__name__}, {size} bytes"
        views = [memoryview(each) for each in frames]
        if is_bundle(views):
            many, _, _ = open_bundle(views)
            number = f", number {many.round}" if many.opcode is Opcode.PUSH_MANY else ""
            return f"{many.opcode.name} of {many.detail} tensors{number}, {many.length} bytes"
        header = decode(frames[0], len(frames[1]) if len(frames) > 1 else None)
    except (RemoteProtocolError, IndexError):
        return f"an unreadable message, {size} bytes"
    tensor_id, index = split_key(header.key)
    group = group_of(header.key)
    tensor = f"{tensor_id % GROUP_TENSORS} of group {group}" if group else str(tensor_id)
    return f"{header.opcode.name} of tensor {tensor}, partition {index}, round {header.round}, {header.length} bytes"


class _LoggingEndpoint:
    """An :class:`~byteps_py.transport.base.Endpoint` around another one."""

    def __init__(self, endpoint: Endpoint, log: logging.Logger) -> None:
        self._endpoint = endpoint
        self._log = log
        self.listen = endpoint.listen
        self.connect = endpoint.connect
        self.listen_lanes = endpoint.listen_lanes
        self.connect_lane = endpoint.connect_lane
        self.has_taken = endpoint.has_taken
        self.diagnose = endpoint.diagnose
        self.obstacle = endpoint.obstacle
        self.is_lane = endpoint.is_lane
        self.allocate = endpoint.allocate
        self.renew = endpoint.renew
        self.wait_lanes = endpoint.wait_lanes
        self.wake_lanes = endpoint.wake_lanes
        self.hold_lanes = endpoint.hold_lanes
        self.resume_lanes = endpoint.resume_lanes
        self.wake = endpoint.wake
        self.wake_in = endpoint.wake_in
        self.owns = endpoint.owns
        self.close = endpoint.close

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        sent = self._endpoint.send(peer, frames)
        lost = "" if sent else " (not sent: not connected)"
        self._log.debug("to %s: %s%s", repr(peer)[2:-1], describe(frames), lost)
        return sent

    def receive(self, timeout: float | None) -> list[Message]:
        return self._logged(self._endpoint.receive(timeout))

    def receive_lanes(self) -> list[Message]:
        return self._logged(self._endpoint.receive_lanes())

    def _logged(self, messages: list[Message]) -> list[Message]:
        for each in messages:
            self._log.debug("from %s: %s", repr(each.peer)[2:-1], describe(each.frames))
        return messages
