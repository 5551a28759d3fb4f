"""The header of a data message: 88 bytes, little-endian, followed by at most one payload frame (and, where a message
carries many small tensors, a table before that; see :mod:`byteps_py.wire.bundle`).

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
    "MAX_ENTRIES",
    "MAX_PROBE_BYTES",
    "MAX_REASON_BYTES",
    "PROTOCOL_VERSION",
    "RANK_ENTRY",
    "ROWS_HEAD",
    "Flag",
    "Header",
    "Opcode",
    "decode",
    "encode",
    "is_wide",
    "opcode_of",
]

MAGIC: Final = b"BPSy"
PROTOCOL_VERSION: Final = 1
_LAYOUT: Final = struct.Struct("<4sBBBBBBHIIIQQQQQQQQ")
HEADER_SIZE: Final = _LAYOUT.size
ACCEPT_ENTRY: Final = struct.Struct("<QQ")
"""One entry of an ACCEPT payload: key, round."""
RANK_ENTRY: Final = struct.Struct("<I")
"""One entry of a WAITING payload: the rank of a worker."""
ROWS_HEAD: Final = struct.Struct("<QQ")
"""What a payload of rows begins with: their number, and the elements of each."""

MAX_ELEMENTS: Final = 1 << 48
"""No tensor has more elements; sums and products of numbers up to it stay harmless everywhere."""
MAX_ENTRIES: Final = 1 << 16
"""Most entries of a PUSH_MANY or RESULT_MANY."""
MAX_REASON_BYTES: Final = 1 << 16
"""Longest reason of a REJECT."""
MAX_PROBE_BYTES: Final = 1 << 20
"""Longest PROBE."""


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
    the workers whose contributions are missing.  Worker to server: the sum of my node waits for these workers."""
    PUSH_MANY = 8
    """Worker to server: contributions of small tensors, see :mod:`byteps_py.wire.bundle`; ``round`` is the number that
    the worker gave the message."""
    RESULT_MANY = 9
    """Server to worker: results of small tensors, see :mod:`byteps_py.wire.bundle`."""
    PROBE = 10
    """Worker to server: bytes of no meaning, up to :data:`MAX_PROBE_BYTES`; ``round`` is their number."""
    PROBED = 11
    """Server to worker, at once: the PROBE of this ``round`` has arrived."""


class Flag(enum.IntFlag):
    """Bits of the header's ``flags`` byte."""

    NONE = 0
    ABSENT = 1
    """The contribution (or the result) is all zero and carries no payload."""
    WANT_RESULT = 2
    """The push carries the wish for the result: no PULL will follow."""
    PARTIAL = 4
    """A PUSH stands for all workers of the sender's node; a WAITING says that the server has what the workers of the
    node have contributed."""
    ROWS = 8
    """The payload is some rows of the tensor, see :mod:`byteps_py.wire.rows`; what it does not name is zero."""


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
        length: bytes of the payload frame; 0 where there is none, so also for a PUSH or RESULT of 0 elements. A PARTIAL
            PUSH of several contributions of 16-bit floats carries their sum in float32. That of ROWS depends on the
            rows, and :mod:`byteps_py.wire.rows` checks it.
        root: for BROADCAST and SEED, the rank whose contribution is the result.
        detail: for RESULT, the number of contributors (of a DIFFERENCE, its staleness), for a PARTIAL PUSH that of the
            node; for ACCEPT, WAITING, PUSH_MANY and RESULT_MANY, the number of entries; for REJECT, 1 if the cause is a
            worker that left and 0 if it is a disagreement; else 0.
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
            _OPCODES[opcode],
            sender,
            job,
            incarnation,
            epoch,
            key,
            round_,
            _DTYPES[dtype],
            _OPERATIONS[operation],
            _FLAGS[flags],
            codec,
            root,
            detail,
            step,
            offset,
            count,
            length,
        )
    except KeyError:
        raise RemoteProtocolError(
            f"a header field is out of range: opcode {opcode}, dtype {dtype}, operation {operation}"
        ) from None
    actual = payload_length or 0
    if length != actual:
        raise RemoteProtocolError(f"{header.opcode.name} announces {length} payload bytes and carries {actual}")
    problem = _problem(header)
    if problem is not None:
        raise RemoteProtocolError(problem)
    return header


_OPCODE_BYTE: Final = 5


def opcode_of(frame: bytes | bytearray | memoryview) -> int:
    """The opcode in what may be a header, before anything is checked; -1 if it is too short to have one."""
    return frame[_OPCODE_BYTE] if len(frame) == HEADER_SIZE else -1


# Every message is encoded and decoded in Python, so numbers are looked up here: to call an enumeration, or to take a
# member out of it, costs several times as much.
_OPCODES: Final = {int(each): each for each in Opcode}
_DTYPES: Final = {int(each): each for each in DType}
_OPERATIONS: Final = {int(each): each for each in Operation}
_ALL_FLAGS: Final = int(Flag.ABSENT | Flag.WANT_RESULT | Flag.PARTIAL | Flag.ROWS)
_FLAGS: Final = {number: Flag(number) for number in range(_ALL_FLAGS + 1)}
_ITEM_BYTES: Final = {each: each.itemsize for each in DType}
_ABSENT: Final = int(Flag.ABSENT)
_PARTIAL: Final = int(Flag.PARTIAL)
_ROWS: Final = int(Flag.ROWS)
_WITH_ELEMENTS: Final = frozenset((Opcode.PUSH, Opcode.RESULT))
_MANY: Final = frozenset((Opcode.PUSH_MANY, Opcode.RESULT_MANY))
_LISTS: Final = {Opcode.ACCEPT: ACCEPT_ENTRY.size, Opcode.WAITING: RANK_ENTRY.size}
"""Bytes of an entry."""
_PUSH: Final = Opcode.PUSH
_BROADCAST: Final = Operation.BROADCAST
_SUMS: Final = frozenset((Operation.SUM, Operation.AVERAGE))
_HALVES: Final = frozenset((DType.FLOAT16, DType.BFLOAT16))
_WIDE_BYTES: Final = DType.FLOAT32.itemsize
_WITHOUT_ROUND: Final = Opcode.ACCEPT
_TEXTS: Final = {Opcode.REJECT: MAX_REASON_BYTES, Opcode.PROBE: MAX_PROBE_BYTES}
"""Most bytes of a payload that has at least one, whatever they are."""
_FLAGS_OF: Final = {Opcode.PUSH: _ALL_FLAGS, Opcode.RESULT: _ABSENT | _ROWS, Opcode.WAITING: _PARTIAL}
"""Flags that a message may carry; the others carry none."""
_ANY: Final = 2**32 - 1
_MOST_WORKERS: Final = 65535
_DETAIL_OF: Final = {
    Opcode.RESULT: _ANY,
    Opcode.ACCEPT: _ANY,
    Opcode.WAITING: _ANY,
    Opcode.REJECT: 1,
    Opcode.PUSH_MANY: MAX_ENTRIES,
    Opcode.RESULT_MANY: MAX_ENTRIES,
}
"""Largest ``detail`` of a message; the others carry 0."""


def _problem(header: Header) -> str | None:
    """What is wrong with fields that each fit their place, in what is sent and in what is received; None: nothing."""
    opcode = header.opcode
    if int(header.flags) & ~_FLAGS_OF.get(opcode, 0):
        return f"{opcode.name} must not carry flags {int(header.flags):#04x}"
    if int(header.flags) & _PARTIAL and opcode is _PUSH:
        problem = _partial_problem(header)
        if problem is not None:
            return problem
    elif header.detail > _DETAIL_OF.get(opcode, 0):
        return f"{opcode.name} must not carry the detail {header.detail}"
    if int(header.flags) & _ROWS and (int(header.flags) & _ABSENT or header.operation not in _SUMS):
        return f"{opcode.name} of rows for {header.operation.name} with flags {int(header.flags):#04x}"
    if header.codec:
        return f"unknown codec {header.codec}"
    if header.round < 1 and opcode is not _WITHOUT_ROUND:
        return f"{opcode.name} of round {header.round}: rounds are counted from 1"
    if header.offset + header.count > MAX_ELEMENTS:
        return f"element range {header.offset}+{header.count} is beyond any tensor"
    expected = _expected_length(header)
    if header.length == expected:
        return None
    if expected is None:
        return f"{opcode.name} of 0 entries"
    what = _what_it_carries(header)
    return f"{opcode.name} of {what} must carry {expected} payload bytes, not {header.length}"


def is_wide(dtype: DType, contributors: int) -> bool:
    """Whether the PARTIAL of so many contributions is in float32, since it would have to be rounded else."""
    return contributors > 1 and dtype in _HALVES


def _partial_problem(header: Header) -> str | None:
    """What is wrong with the contributions in a PARTIAL PUSH."""
    detail, flags = header.detail, int(header.flags)
    if (detail > 0) == bool(flags & _ABSENT) or detail > _MOST_WORKERS:
        return f"a PARTIAL PUSH of {detail} contributions with flags {flags:#04x}"
    if header.operation.is_asynchronous:
        return f"a PARTIAL PUSH of a {header.operation.name}, which each worker pushes by itself"
    if header.operation is _BROADCAST and detail > 1:
        return f"a PARTIAL PUSH of {detail} contributions to a BROADCAST, which has one"
    return None


def _expected_length(header: Header) -> int | None:
    """The payload length that the other fields demand; None where there is none that would be right."""
    opcode = header.opcode
    if opcode in _WITH_ELEMENTS:
        if int(header.flags) & _ABSENT:
            return 0
        if int(header.flags) & _ROWS:
            return max(header.length, ROWS_HEAD.size)
        wide = header.detail > 1 and opcode is _PUSH and header.dtype in _HALVES
        return header.count * (_WIDE_BYTES if wide else _ITEM_BYTES[header.dtype])
    if opcode in _LISTS:
        return header.detail * _LISTS[opcode] if header.detail or opcode is not _WITHOUT_ROUND else None
    if opcode in _MANY:
        return header.length if header.detail else None
    if opcode in _TEXTS:
        return min(max(1, header.length), _TEXTS[opcode])
    return 0


def _what_it_carries(header: Header) -> str:
    opcode = header.opcode
    if int(header.flags) & _ROWS:
        return "rows"
    if opcode in _WITH_ELEMENTS:
        return f"{header.count} {header.dtype.label} elements"
    if opcode in _LISTS:
        return f"{header.detail} {'entries' if opcode is _WITHOUT_ROUND else 'ranks'}"
    return {Opcode.REJECT: "a reason", Opcode.PROBE: "anything"}.get(opcode, "nothing")
