"""One lane: a connection between two processes of one host that carries references into shared memory.

It is a Unix socket of the type SEQPACKET, which keeps packets apart and in order.  Both ends look at the credentials of
the other (SO_PEERCRED) and talk to their own user only.  What travels is described in
:mod:`byteps_py.transport.packets`; frames in the own :class:`~byteps_py.transport.arena.Arena` are referred to, others
are copied through the socket and so belong to the receiver.

=========  =====================================================  ================================================
state      what may arrive                                        then
=========  =====================================================  ================================================
new        a HELLO for this process                               greeted
greeted    a SEGMENT; a MESSAGE                                   greeted; filling if frames follow in parts
filling    a PART that fits                                       filling, greeted with the last one
=========  =====================================================  ================================================

Anything else, and anything wrong in these, is a :class:`~byteps_py.errors.RemoteProtocolError`, whereupon the owner
closes the lane.  Nothing that arrives is believed: a reference becomes a view only after all its numbers were checked
against the segment, whose real size and seals were looked at when it was mapped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections import deque
from collections.abc import Sequence
from typing import Final

from byteps_py.errors import RemoteProtocolError, TransportError
from byteps_py.transport import descriptors
from byteps_py.transport.arena import Arena, Segment, View, nbytes_of, view_of
from byteps_py.transport.base import Buffer, Message
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
    check_reference,
    decode_hello,
    decode_segment,
    encode_hello,
    encode_segment,
)

__all__ = ["Lane", "lane_name", "user_of"]

_ALWAYS_INLINE: Final = 1024
"""Shorter frames are copied, which costs less than to refer to them."""
_MAX_SEGMENTS: Final = 1 << 14
_DESCRIPTOR: Final = struct.Struct("i")
_INTEGER: Final = struct.Struct("i")
_CREDENTIALS: Final = struct.Struct("iII")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(4 * _DESCRIPTOR.size)
# Plain numbers: to join members of an enumeration takes longer than to receive.
_RECEIVE: Final = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_SEND: Final = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_TRUNCATED: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_BUFFER_BYTES: Final = 2 * LONGEST_PACKET
_LONGEST_NAME: Final = 96

_Packet = tuple[Sequence[Buffer], int]
"""The pieces of one packet, and the descriptor that travels with it or -1."""


def lane_name(identity: bytes) -> bytes:
    """Where the process of that transport identity listens for lanes: an abstract address, so it is gone when the
    process is, and another network namespace has another one.

    Raises:
        TransportError: the identity is too long.
    """
    if len(identity) > _LONGEST_NAME:
        raise TransportError(f"the identity {identity!r} is longer than {_LONGEST_NAME} bytes, too long for a lane")
    return b"\0byteps_py/" + identity


def user_of(connected: socket.socket) -> int:
    """The user that the process at the other end had when it connected or began to listen."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


class _Reference:
    """A :class:`~byteps_py.transport.base.Stamp` of one frame, and of those before it in the message."""

    __slots__ = ("_before", "_generation", "_view", "_word")

    def __init__(self, view: View, stamp: int, generation: int, before: _Reference | None) -> None:
        self._view = view
        self._word = stamp // 8
        self._generation = generation
        self._before = before

    def intact(self) -> bool:
        """See :meth:`byteps_py.transport.base.Stamp.intact`."""
        return self._view.words[self._word] == self._generation and (self._before is None or self._before.intact())


class Lane:
    """One connection. Belongs to whoever calls, one thread at a time.

    Args:
        connection: connected, of this user on both ends; closed with the lane.
        own: the identity of this process.
        arena: where frames may lie that are referred to.
        max_message_bytes: a longer frame is a breach, as is a message whose parts are longer.
        peer: how the other is called in messages; None if by what it says in its HELLO.
        expected: the identity that its HELLO must show; None for any.

    Attributes:
        peer: None until a HELLO has given it.
        is_greeted: whether the HELLO of the other has come.
        is_full: whether packets wait for room in the socket.
    """

    def __init__(
        self,
        connection: socket.socket,
        own: bytes,
        arena: Arena,
        max_message_bytes: int,
        peer: bytes | None = None,
        expected: bytes | None = None,
    ) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self.peer = peer
        self.is_greeted = False
        self._socket = connection
        self._own = own
        self._expected = expected
        self._arena = arena
        self._max_message_bytes = max_message_bytes
        self._unsent: deque[_Packet] = deque()
        self._announced: set[int] = set()
        self._views: dict[int, View] = {}
        self._filling: deque[memoryview] = deque()
        self._unfilled: Message | None = None

    @property
    def is_full(self) -> bool:
        """See the class."""
        return bool(self._unsent)

    def is_taken(self) -> bool:
        """Whether the other end has read all that was sent."""
        if self._unsent:
            return False
        try:
            (unread,) = _INTEGER.unpack(fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(_INTEGER.size)))
        except OSError:
            return True  # the connection is gone
        return not unread

    def fileno(self) -> int:
        """Of the socket; -1 when closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection; what has arrived by reference stays readable. Idempotent."""
        self._socket.close()
        self._unsent.clear()
        self._views.clear()
        self._filling.clear()
        self._unfilled = None

    def greet(self, receiver: bytes) -> None:
        """Send the HELLO, which comes before everything else.

        Raises:
            OSError: the connection is gone.
        """
        self._transmit((encode_hello(Hello(self._own, receiver)),), -1)

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send one message, or queue it: it counts as sent.

        Raises:
            TransportError: there are too many frames.
            OSError: the connection is gone.
        """
        if not 1 <= len(frames) <= MAX_FRAMES:
            raise TransportError(f"a message of {len(frames)} frames; a lane carries 1 to {MAX_FRAMES}")
        pieces: list[Buffer] = [b""]
        inline: list[Buffer] = []
        parted: list[memoryview] = []
        room = INLINE_BYTES
        for each in frames:
            length = nbytes_of(each)
            place = self._arena.locate(each) if length >= _ALWAYS_INLINE else None
            if place is not None:
                segment = place.segment
                if segment.number not in self._announced:
                    self._announce(segment)
                pieces.append(DESCRIPTOR.pack(segment.number, length, place.offset, place.stamp, place.generation))
            elif length <= room:
                pieces.append(DESCRIPTOR.pack(INLINE, length, 0, 0, 0))
                inline.append(each)
                room -= length
            else:
                pieces.append(DESCRIPTOR.pack(IN_PARTS, length, 0, 0, 0))
                parted.append(memoryview(each).cast("B"))
        pieces[0] = HEAD.pack(MESSAGE, len(frames), 0, INLINE_BYTES - room)
        pieces += inline
        self._transmit((b"".join(pieces),), -1)
        for whole in parted:
            for start in range(0, len(whole), INLINE_BYTES):
                part = whole[start : start + INLINE_BYTES]
                self._transmit((HEAD.pack(PART, 0, 0, len(part)), part), -1)

    def flush(self) -> None:
        """Send what was queued, as far as there is room.

        Raises:
            OSError: the connection is gone.
        """
        while self._unsent and self._try(*self._unsent[0]):
            self._unsent.popleft()

    def read(self, space: memoryview, messages: list[Message]) -> bool:
        """Take one packet, if one is there; a message that is complete is appended to ``messages``.

        Args:
            space: at least :data:`LONGEST_PACKET` bytes to read into.

        Returns:
            False if the other end has closed.

        Raises:
            RemoteProtocolError: see the module.
            TransportError: this process has no room for the other's memory; no new lane could help.
            OSError: the connection is gone.
        """
        try:
            length, ancillary, flags, _ = self._socket.recvmsg_into((space,), _ANCILLARY_BYTES, _RECEIVE)
        except BlockingIOError:
            return True
        if ancillary or flags & _TRUNCATED:
            self._read_segment(space[:length], ancillary, flags)
        elif length == 0:
            return False
        elif self._unfilled is not None:
            self._fill(space[:length], messages)
        elif not self.is_greeted:
            self._meet(decode_hello(space[:length]))
        else:
            self._read_message(space, length, messages)
        return True

    def _meet(self, hello: Hello) -> None:
        if hello.receiver != self._own:
            raise RemoteProtocolError(f"it takes this process for {hello.receiver!r}")
        if self._expected is not None and hello.sender != self._expected:
            raise RemoteProtocolError(f"it is {hello.sender!r}, not {self._expected!r}")
        if self.peer is None:
            self.peer = hello.sender
        self.is_greeted = True

    def _announce(self, segment: Segment) -> None:
        self._transmit((encode_segment(segment.number, segment.nbytes),), segment.descriptor)
        self._announced.add(segment.number)

    def _read_segment(self, packet: memoryview, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        passed = [
            descriptor
            for level, kind, content in ancillary
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
            for (descriptor,) in _DESCRIPTOR.iter_unpack(content[: len(content) // 4 * 4])
        ]
        try:
            if flags & _TRUNCATED:
                raise RemoteProtocolError("a packet is too long, or the limit of open files is reached")
            if len(passed) != 1 or not self.is_greeted or self._unfilled is not None or packet[:1] != bytes([SEGMENT]):
                raise RemoteProtocolError(f"{len(passed)} file descriptors came where none may")
            number, nbytes = decode_segment(packet)
            if number in self._views or len(self._views) >= _MAX_SEGMENTS:
                raise RemoteProtocolError(f"segment {number} was announced before, or too many were")
            self._views[number] = view_of(passed[0], nbytes)
        finally:
            for each in passed:
                os.close(each)
        with contextlib.suppress(TransportError):  # then the next one is lost, and the reason is told
            descriptors.need(descriptors.SEGMENT)

    def _read_message(self, space: memoryview, length: int, messages: list[Message]) -> None:
        if length < HEAD.size:
            raise RemoteProtocolError(f"a packet of {length} bytes")
        kind, count, zero, inline = HEAD.unpack_from(space)
        at = HEAD.size + count * DESCRIPTOR.size
        if kind != MESSAGE or zero or not 1 <= count <= MAX_FRAMES or at + inline != length:
            raise RemoteProtocolError(f"a packet of kind {kind} and {length} bytes is none, or not at this time")
        own = memoryview(bytearray(space[at:length]))
        frames: list[memoryview] = []
        used = 0
        stamp: _Reference | None = None
        for start in range(HEAD.size, at, DESCRIPTOR.size):
            number, nbytes, offset, where, generation = DESCRIPTOR.unpack_from(space, start)
            if number == INLINE:
                frames.append(own[used : used + nbytes])
                used += nbytes
                continue
            if nbytes > self._max_message_bytes:
                raise RemoteProtocolError(f"a frame of {nbytes} bytes; at most {self._max_message_bytes} are taken")
            if number == IN_PARTS:
                frames.append(self._unfilled_frame(nbytes))
                continue
            view = self._views.get(number)
            if view is None:
                raise RemoteProtocolError(f"a reference into segment {number}, which was not announced")
            check_reference(offset, nbytes, where, view.nbytes)
            frames.append(view.content[offset : offset + nbytes])
            stamp = _Reference(view, where, generation, stamp)
        if used != inline:
            raise RemoteProtocolError(f"{inline} inline bytes for frames of {used}")
        assert self.peer is not None
        message = Message(self.peer, frames, stamp)
        if self._filling:
            self._unfilled = message
        else:
            messages.append(message)

    def _unfilled_frame(self, nbytes: int) -> memoryview:
        if not 0 < nbytes <= self._max_message_bytes - sum(map(len, self._filling)):
            raise RemoteProtocolError(f"a frame in parts of {nbytes} bytes")
        frame = memoryview(bytearray(nbytes))
        self._filling.append(frame)
        return frame

    def _fill(self, packet: memoryview, messages: list[Message]) -> None:
        target = self._filling[0]
        content = packet[HEAD.size :]
        expected = HEAD.pack(PART, 0, 0, len(content))
        if packet[: HEAD.size] != expected or not 0 < len(content) <= min(len(target), INLINE_BYTES):
            raise RemoteProtocolError(f"{len(packet)} bytes that are not the next part of a frame")
        target[: len(content)] = content
        if len(content) < len(target):
            self._filling[0] = target[len(content) :]
            return
        self._filling.popleft()
        if not self._filling and self._unfilled is not None:
            messages.append(self._unfilled)
            self._unfilled = None

    def _transmit(self, pieces: Sequence[Buffer], descriptor: int) -> None:
        if self._unsent or not self._try(pieces, descriptor):
            self._unsent.append((pieces, descriptor))

    def _try(self, pieces: Sequence[Buffer], descriptor: int) -> bool:
        """False if there is no room."""
        try:
            if descriptor >= 0:
                passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor))]
                self._socket.sendmsg(pieces, passed, _SEND)
            elif len(pieces) == 1:
                self._socket.send(pieces[0], _SEND)
            else:
                self._socket.sendmsg(pieces, (), _SEND)
        except BlockingIOError:
            return False
        return True
