"""One lane, and whatever may come through it."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import random
import socket
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from byteps_py.errors import RemoteProtocolError, TransportError
from byteps_py.transport import mapping
from byteps_py.transport.arena import Arena
from byteps_py.transport.base import Message
from byteps_py.transport.packets import (
    DESCRIPTOR,
    HEAD,
    IN_PARTS,
    INLINE,
    INLINE_BYTES,
    LONGEST_PACKET,
    MAX_FRAMES,
    MESSAGE,
    PART,
    SEGMENT,
    Hello,
    encode_hello,
    encode_segment,
)
from byteps_py.transport.shm import Lane, lane_name

SPACE = memoryview(bytearray(LONGEST_PACKET))
Lanes = tuple[Lane, Lane, Arena]
SEGMENT_BYTES = 8192
LIMIT = 1 << 20


class Pair:
    """A lane, and the bare other end of it."""

    def __init__(self) -> None:
        self.other, connection = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.arena = Arena()
        self.lane = Lane(connection, b"me", self.arena, LIMIT)

    def put(self, packet: bytes, *descriptors: int) -> None:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
        self.other.sendmsg([packet], passed if descriptors else [])

    def read(self) -> list[Message]:
        messages: list[Message] = []
        assert self.lane.read(SPACE, messages)
        return messages

    def announce(self, number: int = 0) -> int:
        """Pass a sealed segment whose bytes are their own offset, mod 251."""
        descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(descriptor, (np.arange(SEGMENT_BYTES) % 251).astype(np.uint8).tobytes())
        os.pwrite(descriptor, struct.pack("<Q", 9), 0)
        fcntl.fcntl(descriptor, 1033, 2)
        self.put(encode_segment(number, SEGMENT_BYTES), descriptor)
        assert self.read() == []
        return descriptor


@pytest.fixture
def stranger() -> Iterator[Pair]:
    gc.collect()
    before = open_files()
    pair = Pair()
    yield pair
    pair.other.close()
    pair.lane.close()
    gc.collect()
    assert open_files() <= before, "a file descriptor was left open"


@pytest.fixture
def pair(stranger: Pair) -> Pair:
    stranger.put(encode_hello(Hello(b"you", b"me")))
    assert stranger.read() == []
    return stranger


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def message(*frames: tuple[int, int, int, int, int], inline: bytes = b"") -> bytes:
    return (
        HEAD.pack(MESSAGE, len(frames), 0, len(inline)) + b"".join(DESCRIPTOR.pack(*each) for each in frames) + inline
    )


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    """Two lanes that are connected and greeted; the first refers to frames in the arena."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    arena = Arena()
    first = Lane(one, b"first", arena, LIMIT, b"peer", b"second")
    second = Lane(other, b"second", Arena(), LIMIT)
    first.greet(b"second")
    second.read(SPACE, [])
    second.greet(b"first")
    first.read(SPACE, [])
    assert (second.peer, first.is_greeted, second.is_greeted) == (b"first", True, True)
    yield first, second, arena
    first.close()
    second.close()


def delivered(sender: Lane, receiver: Lane, frames: list[bytes | memoryview]) -> Message:
    messages: list[Message] = []
    sender.send(frames)
    while not messages:
        receiver.read(SPACE, messages)
        sender.flush()
    return messages[0]


class TestMessages:
    def test_small_frames_are_copied(self, lanes: Lanes) -> None:
        first, second, arena = lanes
        mine = arena.allocate(100)
        mine[:] = 5
        got = delivered(first, second, [b"head", mine.data, b""])
        mine[:] = 6
        assert [bytes(each) for each in got.frames] == [b"head", b"\5" * 100, b""]
        assert got.stamp is None
        assert got.intact()
        got.frames[1][0] = 1

    def test_a_large_frame_is_the_senders_memory(self, lanes: Lanes) -> None:
        first, second, arena = lanes
        mine = arena.allocate(100_000)
        mine[:] = 5
        got = delivered(first, second, [b"head", mine.data[10_000:], mine.data[:2000]])
        mine[20_000] = 6
        assert (got.frames[1].readonly, got.frames[1].nbytes, got.frames[2].nbytes) == (True, 90_000, 2000)
        assert got.frames[1][10_000] == 6
        assert got.intact()
        arena.renew(mine)
        assert not got.intact()

    def test_a_reference_is_void_when_its_memory_is_used_again(self, lanes: Lanes) -> None:
        first, second, arena = lanes
        mine = arena.allocate(100_000)
        got = delivered(first, second, [mine.data])
        del mine
        assert got.intact()
        again = arena.allocate(100_000)
        assert not got.intact()
        assert got.frames[0].nbytes == again.nbytes

    @pytest.mark.parametrize("nbytes", [INLINE_BYTES - 4, INLINE_BYTES - 3, INLINE_BYTES + 1, 5 * INLINE_BYTES, LIMIT])
    def test_a_large_frame_of_other_memory_is_copied(self, lanes: Lanes, nbytes: int) -> None:
        first, second, _ = lanes
        content = bytearray(random.Random(nbytes).randbytes(nbytes))
        got = delivered(first, second, [b"head", content, b"tail"])
        assert [bytes(each) for each in got.frames] == [b"head", bytes(content), b"tail"]
        assert got.stamp is None
        got.frames[1][0] ^= 1

    def test_many_frames_of_all_kinds_keep_their_order(self, lanes: Lanes) -> None:
        first, second, arena = lanes
        mine = arena.allocate(50_000)
        mine[:] = np.arange(50_000) % 251
        frames: list[bytes | memoryview] = [mine.data[each : each + 3000] for each in range(0, 40_000, 5000)]
        frames[2:2] = [bytes([each]) * 100_000 for each in range(5)]
        got = delivered(first, second, frames)
        assert [bytes(each) for each in got.frames] == [bytes(each) for each in frames]
        arena.renew(mine)
        assert not got.intact()

    def test_elements_of_any_type_are_bytes(self, lanes: Lanes) -> None:
        first, second, arena = lanes
        mine = arena.allocate(400_000).view(np.float32)
        mine[:] = 1.5
        foreign = np.full(100_000, 2.5, np.float32)
        got = delivered(first, second, [mine.data, foreign.data, foreign[:10].data])
        assert [bytes(each) for each in got.frames] == [mine.tobytes(), foreign.tobytes(), foreign[:10].tobytes()]

    @pytest.mark.parametrize("count", [0, MAX_FRAMES + 1])
    def test_the_number_of_frames_is_bounded(self, lanes: Lanes, count: int) -> None:
        first, _, _ = lanes
        with pytest.raises(TransportError, match=f"a message of {count} frames"):
            first.send([b"x"] * count)

    def test_every_segment_is_passed_once_and_stays_when_the_sender_is_gone(self, lanes: Lanes) -> None:
        first, second, arena = lanes
        gc.collect()
        before = open_files()
        mine = [arena.allocate(40 << 20) for _ in range(3)]
        for each in mine:
            each[-1] = 7
        got = [delivered(first, second, [each.data[-5000:]]) for each in mine * 2]
        assert open_files() == before + 3  # one of the owner each; a mapping keeps none
        first.close()
        assert second.read(SPACE, []) is False
        second.close()
        assert [each.frames[0][-1] for each in got] == [7] * 6

    def test_what_does_not_fit_waits_and_keeps_its_order(self, lanes: Lanes) -> None:
        first, second, _ = lanes
        for number in range(3000):
            first.send([b"%d" % number, bytes(number)])
        assert first.is_full
        messages: list[Message] = []
        while len(messages) < 3000:
            second.read(SPACE, messages)
            first.flush()
        assert not first.is_full
        assert [int(bytes(each.frames[0])) for each in messages] == list(range(3000))
        assert [each.frames[1].nbytes for each in messages] == list(range(3000))

    def test_a_name_that_is_too_long_is_told(self) -> None:
        assert lane_name(b"server-1") == b"\0byteps_py/server-1"
        with pytest.raises(TransportError, match="too long"):
            lane_name(b"x" * 97)


class TestNonsense:
    """Whatever comes, it is a message or a RemoteProtocolError."""

    def refused(self, pair: Pair, match: str) -> None:
        with pytest.raises(RemoteProtocolError, match=match):
            pair.read()

    def test_a_message_before_the_hello(self, stranger: Pair) -> None:
        stranger.put(message((INLINE, 1, 0, 0, 0), inline=b"x"))
        self.refused(stranger, "no hello")

    def test_a_hello_for_another(self, stranger: Pair) -> None:
        stranger.put(encode_hello(Hello(b"you", b"him")))
        self.refused(stranger, "takes this process for b'him'")

    def test_a_hello_of_another(self) -> None:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lane = Lane(one, b"me", Arena(), LIMIT, b"peer", b"you")
        other.send(encode_hello(Hello(b"him", b"me")))
        with pytest.raises(RemoteProtocolError, match="it is b'him', not b'you'"):
            lane.read(SPACE, [])
        lane.close()
        other.close()

    @pytest.mark.parametrize(
        ("packet", "match"),
        [
            (b"\x03", "a packet of 1 bytes"),
            (encode_hello(Hello(b"you", b"me")), "a packet of kind 1"),
            (encode_segment(0, SEGMENT_BYTES), "a packet of kind 2"),
            (HEAD.pack(PART, 0, 0, 1) + b"x", "a packet of kind 4"),
            (HEAD.pack(9, 1, 0, 0), "a packet of kind 9"),
            (HEAD.pack(MESSAGE, 0, 0, 0), "a packet of kind 3"),
            (HEAD.pack(MESSAGE, 1, 1, 0) + DESCRIPTOR.pack(INLINE, 0, 0, 0, 0), "a packet of kind 3"),
            (HEAD.pack(MESSAGE, 255, 0, 0), "a packet of kind 3"),
            (message(*[(INLINE, 0, 0, 0, 0)] * (MAX_FRAMES + 1)), "a packet of kind 3"),
            (message((INLINE, 1, 0, 0, 0), inline=b"xy"), "2 inline bytes for frames of 1"),
            (message((INLINE, 3, 0, 0, 0), inline=b"xy"), "2 inline bytes for frames of 3"),
            (message((INLINE, 0xFFFFFFFF, 0, 0, 0), (INLINE, 3, 0, 0, 0), inline=b"xyz"), "for frames of"),
            (message((IN_PARTS, 0, 0, 0, 0)), "a frame in parts of 0 bytes"),
            (message((IN_PARTS, LIMIT + 1, 0, 0, 0)), "at most 1048576 are taken"),
            (message(*[(IN_PARTS, LIMIT // 2 + 1, 0, 0, 0)] * 2), "a frame in parts"),
            (message((5, 100, 64, 0, 0)), "segment 5, which was not announced"),
            (message((0, 100, 8100, 0, 9)), "a reference to 100 bytes at 8100"),
            (message((0, 100, 63, 0, 9)), "a reference to"),
            (message((0, 100, 64, 8, 9)), "a reference to"),
            (message((0, 0, 64, 0, 9)), "a reference to 0 bytes"),
            (message((0, 0xFFFFFF, 64, 0, 9)), "at most 1048576 are taken"),
            (bytes(LONGEST_PACKET + 1), "a packet is too long"),
        ],
    )
    def test_a_malformed_packet(self, pair: Pair, packet: bytes, match: str) -> None:
        os.close(pair.announce())
        pair.put(packet)
        self.refused(pair, match)

    def test_a_good_reference_among_them(self, pair: Pair) -> None:
        os.close(pair.announce())
        pair.put(message((0, 100, 1000, 0, 9), (0, 1, 64, 0, 8)))
        (got,) = pair.read()
        assert list(got.frames[0]) == [each % 251 for each in range(1000, 1100)]
        assert not got.intact()
        pair.put(message((0, 100, 1000, 0, 9)))
        assert pair.read()[0].intact()

    @pytest.mark.parametrize(
        "part",
        [
            HEAD.pack(PART, 0, 0, 0),
            HEAD.pack(PART, 0, 0, 11) + b"x" * 11,
            HEAD.pack(PART, 0, 0, 4) + b"x" * 3,
            HEAD.pack(PART, 1, 0, 3) + b"x" * 3,
            message((INLINE, 1, 0, 0, 0), inline=b"x"),
            b"\x04",
        ],
    )
    def test_a_wrong_part(self, pair: Pair, part: bytes) -> None:
        pair.put(message((IN_PARTS, 10, 0, 0, 0)))
        assert pair.read() == []
        pair.put(part)
        self.refused(pair, "not the next part")

    def test_a_segment_that_is_announced_twice(self, pair: Pair) -> None:
        descriptor = pair.announce()
        pair.put(encode_segment(0, SEGMENT_BYTES), descriptor)
        os.close(descriptor)
        self.refused(pair, "announced before")

    def test_a_segment_for_which_there_is_no_room_is_not_the_fault_of_the_other(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_room(*_: object) -> int:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        descriptor = pair.announce()
        pair.put(encode_segment(1, SEGMENT_BYTES), descriptor)
        os.close(descriptor)
        monkeypatch.setattr(mapping, "_map", no_room)
        with pytest.raises(TransportError, match=r"memory cannot be mapped: Cannot allocate memory: .*ulimit -v"):
            pair.read()

    def test_a_segment_that_could_shrink(self, pair: Pair) -> None:
        descriptor = os.memfd_create("test")
        os.ftruncate(descriptor, SEGMENT_BYTES)
        pair.put(encode_segment(0, SEGMENT_BYTES), descriptor)
        os.close(descriptor)
        self.refused(pair, "not sealed")

    @pytest.mark.parametrize("count", [1, 2, 4, 5, 60])
    def test_files_that_nobody_asked_for_are_closed(self, pair: Pair, count: int) -> None:
        """More than there is room for: the system keeps the rest, and says so."""
        reading, writing = os.pipe()
        pair.put(message((INLINE, 1, 0, 0, 0), inline=b"x"), *[reading] * count)
        os.close(reading)
        os.close(writing)
        self.refused(pair, "file descriptors came" if count <= 4 else "limit of open files")

    def test_files_with_an_empty_packet_or_before_the_hello(self, stranger: Pair) -> None:
        reading, writing = os.pipe()
        stranger.put(encode_segment(0, SEGMENT_BYTES), reading)
        self.refused(stranger, "file descriptors came")
        stranger.put(b"", reading)
        self.refused(stranger, "file descriptors came")
        os.close(reading)
        os.close(writing)

    def test_anything(self, pair: Pair) -> None:
        """Random packets, and good ones of which some bytes are changed."""
        chance = random.Random(7)
        os.close(pair.announce())
        good = [
            message((0, 100, 1000, 0, 9), (INLINE, 3, 0, 0, 0), inline=b"abc"),
            message((IN_PARTS, 3, 0, 0, 0)),
            HEAD.pack(PART, 0, 0, 3) + b"abc",
            encode_segment(1, SEGMENT_BYTES),
            encode_hello(Hello(b"you", b"me")),
            bytes([SEGMENT]) * 40,
        ]
        outcomes = set()
        for _ in range(5000):
            packet = bytearray(chance.choice(good))
            for _ in range(chance.randrange(3)):
                packet[chance.randrange(len(packet))] = chance.choice([0, 1, 255, chance.randrange(256)])
            pair.put(bytes(packet[: chance.choice([len(packet), len(packet), chance.randrange(1, len(packet) + 1)])]))
            try:
                for each in pair.read():
                    assert all(frame.nbytes == len(bytes(frame)) for frame in each.frames)
                    outcomes.add("message")
            except RemoteProtocolError:
                outcomes.add("refused")
        assert outcomes == {"message", "refused"}
