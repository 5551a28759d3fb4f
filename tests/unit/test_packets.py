"""What travels through a lane, on literal bytes."""

from __future__ import annotations

import pytest

from byteps_py.errors import RemoteProtocolError
from byteps_py.transport.packets import (
    DESCRIPTOR,
    HEAD,
    INLINE,
    MESSAGE,
    Hello,
    check_reference,
    decode_hello,
    decode_segment,
    encode_hello,
    encode_segment,
)

HELLO_BYTES = b"\x01BPSL\x01\x02\x03" + b"me" + b"you"
SEGMENT_BYTES = bytes.fromhex("02000000 07000000 0000000400000000")


def test_the_bytes_of_a_hello() -> None:
    assert encode_hello(Hello(b"me", b"you")) == HELLO_BYTES
    assert decode_hello(memoryview(HELLO_BYTES)) == Hello(b"me", b"you")


def test_the_bytes_of_a_segment() -> None:
    assert encode_segment(7, 64 << 20) == SEGMENT_BYTES
    assert decode_segment(memoryview(SEGMENT_BYTES)) == (7, 64 << 20)


def test_the_bytes_of_a_message() -> None:
    assert HEAD.pack(MESSAGE, 2, 0, 88) == bytes.fromhex("03020000 58000000")
    assert DESCRIPTOR.pack(INLINE, 88, 0, 0, 0) == bytes.fromhex("ffffffff 58000000") + bytes(24)
    assert DESCRIPTOR.pack(1, 2, 3, 4, 5) == b"".join(
        number.to_bytes(size, "little") for number, size in ((1, 4), (2, 4), (3, 8), (4, 8), (5, 8))
    )


@pytest.mark.parametrize(
    ("packet", "match"),
    [
        (b"", "a hello of 0 bytes"),
        (HELLO_BYTES[:7], "a hello of 7 bytes"),
        (HELLO_BYTES[:-1], "do not fill it"),
        (HELLO_BYTES + b"x", "do not fill it"),
        (b"\x01BPSL\x01\x00\x03you", "do not fill it"),
        (b"\x03" + HELLO_BYTES[1:], "no hello"),
        (HELLO_BYTES.replace(b"BPSL", b"BPSM"), "no hello"),
        (HELLO_BYTES.replace(b"L\x01", b"L\x02"), "version 2 there and 1 here"),
    ],
)
def test_a_bad_hello_is_refused(packet: bytes, match: str) -> None:
    with pytest.raises(RemoteProtocolError, match=match):
        decode_hello(memoryview(packet))


@pytest.mark.parametrize(
    "packet",
    [
        SEGMENT_BYTES[:-1],
        SEGMENT_BYTES + b"x",
        b"\x02\x01" + SEGMENT_BYTES[2:],
        b"\x02\x00\x01" + SEGMENT_BYTES[3:],
        b"\x02\x00\x00\x00\xff\xff\xff\xff" + SEGMENT_BYTES[8:],
        b"\x02\x00\x00\x00\xfe\xff\xff\xff" + SEGMENT_BYTES[8:],
    ],
)
def test_a_bad_announcement_is_refused(packet: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="announcement of a segment"):
        decode_segment(memoryview(packet))


@pytest.mark.parametrize(("offset", "length", "stamp"), [(64, 1, 0), (64, 4032, 0), (4095, 1, 0), (192, 5, 128)])
def test_a_good_reference_is_accepted(offset: int, length: int, stamp: int) -> None:
    check_reference(offset, length, stamp, 4096)


@pytest.mark.parametrize(
    ("offset", "length", "stamp"),
    [
        (64, 0, 0),
        (63, 1, 0),
        (64, 4033, 0),
        (4096, 1, 0),
        (1 << 63, 1, 0),
        (64, 1, 1),
        (64, 1, 8),
        (64, 1, 64),
        (64, 1, 1 << 63),
    ],
)
def test_a_bad_reference_is_refused(offset: int, length: int, stamp: int) -> None:
    with pytest.raises(RemoteProtocolError, match="a reference to"):
        check_reference(offset, length, stamp, 4096)
