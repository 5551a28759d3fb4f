"""What data messages of both sides have in common: who sends, in which run of the job."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from byteps_py.errors import RemoteProtocolError
from byteps_py.wire.bundle import check_table
from byteps_py.wire.control import Inquiry, Register, decode_control
from byteps_py.wire.header import Header, Opcode, decode, opcode_of

__all__ = ["Complaints", "Envelope", "asks_to_join", "is_bundle", "open_bundle", "open_frames"]

_MOST_PEERS: Final = 1000


class Envelope(msgspec.Struct, frozen=True):
    """The fields that are equal in all data headers of one process."""

    sender: int
    job: int
    incarnation: int
    epoch: int

    def header(self, opcode: Opcode, key: int, round_: int, **fields: Any) -> Header:
        """A header of this process; ``fields`` are those of :class:`~byteps_py.wire.header.Header`."""
        return Header(
            opcode=opcode,
            sender=self.sender,
            job=self.job,
            incarnation=self.incarnation,
            epoch=self.epoch,
            key=key,
            round=round_,
            **fields,
        )

    def check_run(self, header: Header) -> None:
        """A message must belong to this very run of the job.

        Raises:
            RemoteProtocolError: it does not.
        """
        if header.job != self.job or header.epoch != self.epoch:
            raise RemoteProtocolError("a message of another job, or of an earlier epoch")


def open_bundle(frames: Sequence[memoryview]) -> tuple[Header, memoryview, memoryview]:
    """Header, table and payload of a data message of three frames: PUSH_MANY or RESULT_MANY.

    The payload may be empty, and its frame then missing.  The entries of the table are not looked at.

    Raises:
        RemoteProtocolError: they are not one.
    """
    payload = frames[2] if len(frames) == 3 else _NOTHING
    header = decode(frames[0], payload.nbytes)
    check_table(header, frames[1])
    return header, frames[1], payload


_NOTHING: Final = memoryview(b"")


def is_bundle(frames: Sequence[memoryview]) -> bool:
    """Whether :func:`open_bundle` is the function for these frames, rather than :func:`open_frames`."""
    return 2 <= len(frames) <= 3 and opcode_of(frames[0]) in (Opcode.PUSH_MANY, Opcode.RESULT_MANY)


def open_frames(frames: Sequence[memoryview]) -> tuple[Header, memoryview | None]:
    """Header and payload of a data message about one partition.

    Raises:
        RemoteProtocolError: they are not one.
    """
    if not 1 <= len(frames) <= 2:
        raise RemoteProtocolError(f"a data message has 1 or 2 frames, this one has {len(frames)}")
    payload = frames[1] if len(frames) == 2 else None
    header = decode(frames[0], None if payload is None else payload.nbytes)
    if header.opcode in (Opcode.PUSH_MANY, Opcode.RESULT_MANY):
        raise RemoteProtocolError(f"{header.opcode.name} without its table")
    return header, payload


def asks_to_join(frames: Sequence[memoryview]) -> bool:
    """Whether a message that is no data message is a registration or an inquiry, which only a scheduler can answer."""
    try:
        return len(frames) == 1 and isinstance(decode_control(frames[0]), (Register, Inquiry))
    except RemoteProtocolError:
        return False


class Complaints:
    """Logs what a peer did wrong, once per peer: a flood of bad bytes must not become a flood of lines."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._peers: set[bytes] = set()

    def add(self, peer: bytes, problem: object) -> None:
        """Report ``problem`` unless ``peer`` was reported before."""
        if peer not in self._peers and len(self._peers) < _MOST_PEERS:
            self._peers.add(peer)
            self._log.warning("ignored from %s: %s", repr(peer)[2:-1], problem)
