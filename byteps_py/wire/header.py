"""The header of a data message: 88 bytes, little-endian, followed by at most one payload frame.

Encoding, decoding and checking stand side by side; ``docs/protocol.md`` draws the same layout and
``tests/golden/`` holds example bytes.  Any change here changes those two in the same commit.

Nothing in this module allocates according to a number that came from the network.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

import msgspec

from byteps_py.errors import LocalProtocolError, RemoteProtocolError
from byteps_py.types import DType, Operation

__all__ = [
    "ACCEPT_ENTRY",
    "HEADER_SIZE",
    "MAGIC",
    "MAX_ELEMENTS",
    "MAX_REASON_BYTES",
    "PROTOCOL_VERSION",
    "RANK_ENTRY",
    "Flag",
    "Header",
    "Opcode",
    "decode",
    "encode",
]

MAGIC: Final = b"BPSy"
PROTOCOL_VERSION: Final = 1
_LAYOUT: Final = struct.Struct("<4sBBBBBBHIIIQQQQQQQQ")
HEADER_SIZE: Final = _LAYOUT.size
ACCEPT_ENTRY: Final = struct.Struct("<QQ")
"""One entry of an ACCEPT payload: key, round."""
RANK_ENTRY: Final = struct.Struct("<I")
"""One entry of a WAITING payload: the rank of a worker."""

MAX_ELEMENTS: Final = 1 << 48
"""No tensor has more elements; sums and products of numbers up to it stay harmless everywhere."""
MAX_REASON_BYTES: Final = 1 << 16
"""Longest reason of a REJECT."""


class Opcode(enum.IntEnum):
    """What a data message asks for or brings."""

    PUSH = 1
    """Worker to server: a contribution."""
    PULL = 2
    """Worker to server: the result of a round, or word of what is missing for it."""
    ACCEPT = 3
    """Server to worker: contributions have arrived; the payload lists (key, round) pairs."""
    RESULT = 4
    """Server to worker: the result of a round."""
    MISSING = 5
    """Server to worker: your contribution to this round is not here; push it (again)."""
    REJECT = 6
    """Server to worker: this round cannot complete; the payload is the reason in UTF-8."""
    WAITING = 7
    """Server to worker, after a PULL: your contribution is here, the result not yet; the payload lists the ranks of
    the workers whose contributions are missing."""


class Flag(enum.IntFlag):
    """Bits of the header's ``flags`` byte."""

    NONE = 0
    ABSENT = 1
    """The contribution (or the result) is all zero and carries no payload."""
    WANT_RESULT = 2
    """The push carries the wish for the result: no PULL will follow."""


class Header(msgspec.Struct, frozen=True):
    """The fields of one data message.

    Attributes:
        opcode: what the message is.
        sender: rank of the sending worker or server, within its role.
        job: the scheduler's 64-bit nonce for this run of the job.
        incarnation: 64-bit number drawn by the sending process at its start.
        epoch: membership epoch.
        key: tensor id and partition index, see :func:`byteps_py.types.make_key`.
        round: counter of the key's rounds within the epoch, from 1.
        step: the training step the contribution belongs to, as the caller counts it; must agree within a round.
        offset, count: place in the flat tensor and number of elements.
        codec: how the payload is compressed; only 0, not at all, is known.
        length: bytes of the payload frame; 0 where there is none, so also for a PUSH or RESULT of 0 elements.
        root: for BROADCAST, the rank whose contribution is the result.
        detail: for RESULT, the number of contributors; for ACCEPT and WAITING, the number of entries; for REJECT, 1 if
            the cause is a worker that left and 0 if it is a disagreement; else 0.
    """

    opcode: Opcode
    sender: int
    job: int
    incarnation: int
    epoch: int
    key: int
    round: int
    dtype: DType = DType.FLOAT32
    operation: Operation = Operation.SUM
    flags: Flag = Flag.NONE
    codec: int = 0
    root: int = 0
    detail: int = 0
    step: int = 0
    offset: int = 0
    count: int = 0
    length: int = 0


def encode(header: Header) -> bytes:
    """The 88 bytes of ``header``.

    Raises:
        LocalProtocolError: a field does not fit its place, or fields contradict each other.
    """
    problem = _problem(header)
    if problem is not None:
        raise LocalProtocolError(f"{problem}: {header}")
    try:
        return _LAYOUT.pack(
            MAGIC,
            PROTOCOL_VERSION,
            header.opcode,
            header.flags,
            header.dtype,
            header.operation,
            header.codec,
            header.root,
            header.sender,
            header.epoch,
            header.detail,
            header.job,
            header.incarnation,
            header.key,
            header.round,
            header.step,
            header.offset,
            header.count,
            header.length,
        )
    except struct.error as error:
        raise LocalProtocolError(f"a header field is out of range ({error}): {header}") from error


def decode(frame: bytes | bytearray | memoryview, payload_length: int | None) -> Header:
    """Parse and check a header against the payload that came with it.

    Args:
        frame: the first frame of the message.
        payload_length: bytes of the second frame, None if there was none; an empty frame counts as none.

    Raises:
        RemoteProtocolError: for anything that :func:`encode` would not have produced, and for a payload of another
            length than the header announces.
    """
    if len(frame) != HEADER_SIZE:
        raise RemoteProtocolError(f"a data header has {HEADER_SIZE} bytes, this one has {len(frame)}")
    (magic, version, opcode, flags, dtype, operation, codec, root, sender, epoch, detail, *wide) = _LAYOUT.unpack(frame)
    job, incarnation, key, round_, step, offset, count, length = wide
    if magic != MAGIC:
        raise RemoteProtocolError(f"not a byteps_py message: it starts with {magic!r} instead of {MAGIC!r}")
    if version != PROTOCOL_VERSION:
        raise RemoteProtocolError(
            f"the peer speaks protocol version {version}, this process {PROTOCOL_VERSION}: "
            "install the same byteps_py everywhere"
        )
    if flags & ~_ALL_FLAGS:
        raise RemoteProtocolError(f"unknown flags {flags:#04x}")
    try:
        header = Header(
            opcode=Opcode(opcode),
            sender=sender,
            job=job,
            incarnation=incarnation,
            epoch=epoch,
            key=key,
            round=round_,
            dtype=DType(dtype),
            operation=Operation(operation),
            flags=Flag(flags),
            codec=codec,
            root=root,
            detail=detail,
            step=step,
            offset=offset,
            count=count,
            length=length,
        )
    except ValueError as error:
        raise RemoteProtocolError(f"a header field is out of range: {error}") from error
    actual = payload_length or 0
    if length != actual:
        raise RemoteProtocolError(f"{header.opcode.name} announces {length} payload bytes and carries {actual}")
    problem = _problem(header)
    if problem is not None:
        raise RemoteProtocolError(problem)
    return header


_ALL_FLAGS: Final = int(Flag.ABSENT | Flag.WANT_RESULT)
_FLAGS_OF: Final = {Opcode.PUSH: _ALL_FLAGS, Opcode.RESULT: int(Flag.ABSENT)}
"""Flags that a message may carry; the others carry none."""
_ANY: Final = 2**32 - 1
_DETAIL_OF: Final = {Opcode.RESULT: _ANY, Opcode.ACCEPT: _ANY, Opcode.WAITING: _ANY, Opcode.REJECT: 1}
"""Largest ``detail`` of a message; the others carry 0."""


def _problem(header: Header) -> str | None:
    """What is wrong with fields that each fit their place, in what is sent and in what is received; None: nothing."""
    name = header.opcode.name
    if int(header.flags) & ~_FLAGS_OF.get(header.opcode, 0):
        return f"{name} must not carry flags {int(header.flags):#04x}"
    if header.detail > _DETAIL_OF.get(header.opcode, 0):
        return f"{name} must not carry the detail {header.detail}"
    if header.codec:
        return f"unknown codec {header.codec}"
    if header.round < 1 and header.opcode is not Opcode.ACCEPT:
        return f"{name} of round {header.round}: rounds are counted from 1"
    if header.offset + header.count > MAX_ELEMENTS:
        return f"element range {header.offset}+{header.count} is beyond any tensor"
    return _length_problem(header)


def _length_problem(header: Header) -> str | None:
    """What is wrong with the announced payload length, given the other fields."""
    opcode, length = header.opcode, header.length
    if opcode is Opcode.PUSH or opcode is Opcode.RESULT:
        expected = 0 if int(header.flags) & int(Flag.ABSENT) else header.count * header.dtype.itemsize
        what = f"{header.count} {header.dtype.label} elements"
    elif opcode is Opcode.ACCEPT:
        if not header.detail:
            return "ACCEPT of 0 entries"
        expected, what = header.detail * ACCEPT_ENTRY.size, f"{header.detail} entries"
    elif opcode is Opcode.WAITING:
        expected, what = header.detail * RANK_ENTRY.size, f"{header.detail} ranks"
    elif opcode is Opcode.REJECT:
        expected, what = min(max(1, length), MAX_REASON_BYTES), "a reason"
    else:
        expected, what = 0, "nothing"
    return None if length == expected else f"{opcode.name} of {what} must carry {expected} payload bytes, not {length}"
