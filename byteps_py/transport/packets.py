"""What travels through a lane: packets of a SEQPACKET socket, little-endian, each read and checked as a whole.

=======  =====================================================================================================
packet   content
=======  =====================================================================================================
HELLO    ``kind magic version`` (1, 4 and 1 bytes), lengths of two identities (1 byte each); the sender's
         identity, the receiver's.  The first packet in either direction
SEGMENT  ``kind``, 3 zero bytes, segment number (4), bytes of the segment (8); with it one file descriptor.
         Precedes the first reference into the segment
MESSAGE  ``kind``, number of frames (1), 2 zero bytes, inline bytes (4); for each frame a descriptor; the inline
         bytes
PART     ``kind``, 3 zero bytes, number of bytes (4); the bytes
=======  =====================================================================================================

The descriptor of a frame: segment number (4), length (4), and for a reference its offset in the segment, the offset of
the stamp of its allocation, and the generation that the stamp showed (8 each), else zeros.  In place of the segment
number stands :data:`INLINE` for a frame among the inline bytes, which lie in the order of the frames without gaps, and
:data:`IN_PARTS` for one that follows in PARTs: these come next, all bytes of all such frames in order, and no PART has
bytes of two frames.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from byteps_py.errors import RemoteProtocolError

__all__ = [
    "DESCRIPTOR",
    "HEAD",
    "HELLO",
    "INLINE",
    "INLINE_BYTES",
    "IN_PARTS",
    "LONGEST_PACKET",
    "MAX_FRAMES",
    "MESSAGE",
    "PART",
    "SEGMENT",
    "Hello",
    "check_reference",
    "decode_hello",
    "decode_segment",
    "encode_hello",
    "encode_segment",
]

HELLO: Final = 1
SEGMENT: Final = 2
MESSAGE: Final = 3
PART: Final = 4
_MAGIC: Final = b"BPSL"
_VERSION: Final = 1

INLINE: Final = 0xFFFFFFFF
IN_PARTS: Final = 0xFFFFFFFE
INLINE_BYTES: Final = 128 << 10
"""Most inline bytes of a message, and most bytes of a PART."""
MAX_FRAMES: Final = 16
HEAD: Final = struct.Struct("<BBHI")
"""Of every packet but a HELLO: kind, number of frames or 0, 0, a number."""
DESCRIPTOR: Final = struct.Struct("<IIQQQ")
LONGEST_PACKET: Final = HEAD.size + MAX_FRAMES * DESCRIPTOR.size + INLINE_BYTES
_HELLO: Final = struct.Struct("<B4sBBB")
_SIZE: Final = struct.Struct("<Q")


class Hello(NamedTuple):
    """Who says hello, to whom."""

    sender: bytes
    receiver: bytes


def encode_hello(hello: Hello) -> bytes:
    """One HELLO; the identities have at most 255 bytes."""
    sender, receiver = hello
    return _HELLO.pack(HELLO, _MAGIC, _VERSION, len(sender), len(receiver)) + sender + receiver


def decode_hello(packet: memoryview) -> Hello:
    """Read a HELLO.

    Raises:
        RemoteProtocolError: it is none, or one of another version.
    """
    if len(packet) < _HELLO.size:
        raise RemoteProtocolError(f"a hello of {len(packet)} bytes")
    kind, magic, version, sender, receiver = _HELLO.unpack_from(packet)
    if kind != HELLO or magic != _MAGIC:
        raise RemoteProtocolError("the first packet is no hello")
    if version != _VERSION:
        raise RemoteProtocolError(
            f"lanes of version {version} there and {_VERSION} here: install one version of byteps_py"
        )
    if len(packet) != _HELLO.size + sender + receiver or not sender:
        raise RemoteProtocolError("the identities of a hello do not fill it")
    names = bytes(packet[_HELLO.size :])
    return Hello(names[:sender], names[sender:])


def encode_segment(number: int, nbytes: int) -> bytes:
    """One SEGMENT; its file descriptor travels beside it."""
    return HEAD.pack(SEGMENT, 0, 0, number) + _SIZE.pack(nbytes)


def decode_segment(packet: memoryview) -> tuple[int, int]:
    """Number and size that a SEGMENT tells.

    Raises:
        RemoteProtocolError: it is malformed.
    """
    if len(packet) != HEAD.size + _SIZE.size:
        raise RemoteProtocolError(f"the announcement of a segment has {len(packet)} bytes")
    _, none, zero, number = HEAD.unpack_from(packet)
    if none or zero or number in (INLINE, IN_PARTS):
        raise RemoteProtocolError("the announcement of a segment is malformed")
    return number, _SIZE.unpack_from(packet, HEAD.size)[0]


def check_reference(offset: int, length: int, stamp: int, nbytes: int) -> None:
    """Whether a frame of ``length`` bytes lies in a segment of ``nbytes``, behind its stamp.

    Raises:
        RemoteProtocolError: it does not.
    """
    if stamp % 64 or stamp + 64 > offset or length < 1 or offset + length > nbytes:
        raise RemoteProtocolError(
            f"a reference to {length} bytes at {offset} with the stamp at {stamp}, in a segment of {nbytes}"
        )
