"""The seam between the roles and whatever moves their bytes.

An :class:`Endpoint` is one process's (or, in tests, one role's) place in the network.  It knows peers by a byte
string: the name that this side gave when it connected, or the identity that a peer which connected to us presented.
Messages of a peer that presents the name of one whom this side connected to are dropped.

Messages travel over sockets or, between processes of one host, over *lanes*: these carry small frames themselves and
large ones as references into memory that both sides have mapped, the *arena* of the sender.

Ownership: all methods belong to one thread, except where they say otherwise.  Buffers given to :meth:`Endpoint.send`
must stay and not change until the receiver has told, by the protocol above, that it has read the message.  Payloads
that come out of :meth:`Endpoint.receive` stay valid as long as they are referenced.  One that is writable belongs to
the receiver alone; one that is read-only may be the sender's memory, and :meth:`Message.intact` tells whether the
sender has left it as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from byteps_py.errors import TransportError
from byteps_py.transport.available import OutOfMemory, need

__all__ = [
    "ALIGNMENT",
    "Buffer",
    "Endpoint",
    "LaneError",
    "Message",
    "Stamp",
    "WithoutLanes",
    "plain_memory",
    "tcp_address",
]

ALIGNMENT: Final = 64
"""Bytes to which the memory of :meth:`Endpoint.allocate` is aligned: a cache line."""

Buffer: TypeAlias = bytes | bytearray | memoryview


class LaneError(TransportError):
    """A lane is demanded, and there is nobody at the other end."""


class Stamp(Protocol):
    """What tells whether memory still holds what was sent."""

    def intact(self) -> bool:
        """Whether the sender has not begun to change or to reuse the memory since. Any thread."""


class Message(NamedTuple):
    """One multipart message and who sent it; ``stamp`` only if some of its frames are the sender's memory."""

    peer: bytes
    frames: list[memoryview]
    stamp: Stamp | None = None

    def intact(self) -> bool:
        """Whether the frames hold what was sent. Asked before a read-only frame is used and once more afterwards:
        what was computed in between is worth nothing if the second answer is no. Any thread."""
        return self.stamp is None or self.stamp.intact()


class Endpoint(Protocol):
    """Sends and receives multipart messages; reconnects by itself; never blocks in :meth:`send`."""

    def listen(self, address: str, ports: Sequence[int] = ()) -> str:
        """Accept peers at ``address`` (``tcp://host:port``); returns the real address.

        Args:
            address: where; ``*`` is all of this machine.
            ports: if the port in ``address`` is 0, the first free one of these is taken; without any, any free one.

        Raises:
            TransportError: the address cannot be bound; the message names it, the reason, and who holds the port.
        """

    def connect(self, peer: bytes, address: str, identity: bytes = b"", connections: int = 1) -> None:
        """Open a connection that is called ``peer`` from now on. Returns at once; a peer that is not there yet, or
        whose name is not known yet, is tried again until :meth:`close`.

        Args:
            peer: the name.
            address: ``tcp://host:port``.
            identity: how the peer's own endpoint presents itself. If it listens for lanes on this host under that
                name, the connection is a lane; else, and without it, it is a socket.
            connections: how many, 1 to 16, if it is a socket.  Messages take one of them each, in either direction:
                those of one peer then arrive in any order.

        Raises:
            LaneError: a lane is demanded, and there is nobody at the other end.
            TransportError: the address is of another form, or a lane is demanded and this process cannot make it.
        """

    def listen_lanes(self) -> None:
        """Accept lanes from now on, under the own identity; needless after :meth:`listen`.

        Raises:
            TransportError: that cannot be done, or lanes are forbidden.
        """

    def connect_lane(self, peer: bytes, identity: bytes) -> None:
        """Open a lane that is called ``peer`` from now on.

        Args:
            peer: the name.
            identity: how the peer presents itself, and listens for lanes; this endpoint may be its own peer.

        Raises:
            TransportError: it cannot be made, or lanes are forbidden.
        """

    def has_taken(self, peer: bytes) -> bool:
        """Whether ``peer``, who has connected by a lane, has taken all that was sent to it, or its lane is gone. As
        :meth:`send` to it."""

    def diagnose(self, peer: bytes) -> str:
        """Why nothing is heard of ``peer``, to which :meth:`connect` was asked to connect, as part of a sentence.

        May take two seconds: only for a peer that is waited for anyway.  Empty if nothing can be said.
        """

    def obstacle(self, peer: bytes) -> str:
        """What keeps a connection to ``peer`` from being made, as :meth:`diagnose` says it; empty if one can be made,
        whoever answers there, or if that cannot be told.  May take two seconds as well."""

    def is_lane(self, peer: bytes) -> bool:
        """Whether messages to ``peer`` go by a lane. Any thread."""

    def allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Writable memory of ``nbytes``, aligned to :data:`ALIGNMENT`, with any content; in the own arena if this
        endpoint may have lanes.

        What lies there, or is a part of it, travels through a lane without being copied.  It is freed when the last
        view of it is gone, and then used again.  Valid after :meth:`close`; not in a forked child, which has no
        mapping of it.  Any thread.

        Raises:
            TransportError: there is no memory or no file descriptor left.
        """

    def renew(self, buffer: npt.NDArray[Any] | memoryview) -> None:
        """The content of the allocation in which ``buffer`` lies is about to change: messages that referred to it
        are no longer intact. Nothing for other memory. Any thread that may write there."""

    def owns(self, buffer: npt.NDArray[Any]) -> bool:
        """Whether ``buffer`` lies in the own arena, so that it travels through a lane without being copied. Any
        thread."""

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        """Queue one message. False if ``peer`` has never been seen or is no longer connected.

        To the peer of a lane any thread may send, one at a time, not during :meth:`connect` or :meth:`receive_lanes`.
        """

    def receive(self, timeout: float | None) -> list[Message]:
        """Messages that have arrived, in order per connection; waits up to ``timeout`` seconds (None: for ever) for the
        first one. Returns early, maybe with an empty list, after :meth:`wake` and when something happens to a lane.

        Of an endpoint whose lanes are read apart, the messages of lanes are not among them.
        """

    def receive_lanes(self) -> list[Message]:
        """Messages that have arrived in lanes, in order per peer, without waiting, though maybe not all of them; also
        sends what was queued since a lane was full. Any thread, one at a time, not during :meth:`connect` or a
        :meth:`send` to the peer of a lane."""

    def wait_lanes(self, timeout: float | None) -> bool:
        """Wait until a lane needs :meth:`receive_lanes`, or :meth:`wake_lanes` is called; up to ``timeout`` seconds
        (None: for ever). False if the time was up. Any thread, one at a time, at the same time as any other method
        but :meth:`close`."""

    def wake_lanes(self) -> None:
        """Make a present or the next :meth:`wait_lanes` return. Any thread."""

    def hold_lanes(self) -> None:
        """What arrives in lanes does not end :meth:`receive` from now on: another thread waits for it. Any thread."""

    def resume_lanes(self) -> None:
        """End :meth:`hold_lanes`; what has arrived meanwhile ends a present :meth:`receive`. Any thread."""

    def wake(self) -> None:
        """Make a present or the next :meth:`receive` return. Any thread."""

    def wake_in(self, seconds: float) -> None:
        """Make a :meth:`receive` return that late from now; the last call counts. Any thread, one at a time."""

    def close(self) -> None:
        """Close all sockets at once; messages not yet handed to the kernel may be lost. Idempotent."""


def tcp_address(host: str, port: int | str) -> str:
    """``tcp://host:port``, with the brackets that an IPv6 address needs."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


class WithoutLanes:
    """The part of an :class:`Endpoint` that has to do with lanes, where there are none."""

    def __init__(self) -> None:
        self._lanes_woken = threading.Event()

    def is_lane(self, peer: bytes) -> bool:
        """No."""
        return False

    def listen_lanes(self) -> None:
        """There are none."""
        raise TransportError("this endpoint has no lanes")

    def connect_lane(self, peer: bytes, identity: bytes) -> None:
        """There are none."""
        raise TransportError("this endpoint has no lanes")

    def has_taken(self, peer: bytes) -> bool:
        """There is no lane."""
        return True

    def allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Plain memory; see :meth:`Endpoint.allocate`."""
        return plain_memory(nbytes)

    def renew(self, buffer: npt.NDArray[Any] | memoryview) -> None:
        """Nothing refers to plain memory."""

    def owns(self, buffer: npt.NDArray[Any]) -> bool:
        """No."""
        return False

    def receive_lanes(self) -> list[Message]:
        """Nothing."""
        return []

    def wait_lanes(self, timeout: float | None) -> bool:
        """Only :meth:`wake_lanes` ends it before the time is up."""
        woken = self._lanes_woken.wait(timeout)
        self._lanes_woken.clear()
        return woken

    def wake_lanes(self) -> None:
        """See :meth:`Endpoint.wake_lanes`."""
        self._lanes_woken.set()

    def hold_lanes(self) -> None:
        """Nothing to hold."""

    def resume_lanes(self) -> None:
        """Nothing was held."""


def plain_memory(nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory of this process alone, with any content, aligned to :data:`ALIGNMENT`.

    Raises:
        OutOfMemory: there is no memory left.
    """
    need(nbytes)
    try:
        whole = np.empty(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # where the system does not say what it has
        raise OutOfMemory(f"there is no memory left for {nbytes} bytes: {error}") from error
    start = -int(whole.ctypes.data) % ALIGNMENT
    return whole[start : start + nbytes]
