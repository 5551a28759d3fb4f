"""The seam between the roles and whatever moves their bytes.

An :class:`Endpoint` is one process's (or, in tests, one role's) place in the network.  It knows peers by a byte
string: the name that this side gave when it connected, or the identity that a peer which connected to us presented.
Messages of a peer that presents the name of one whom this side connected to are dropped.

Ownership: all methods belong to one thread, except :meth:`Endpoint.wake`, which any thread may call.
Buffers given to :meth:`Endpoint.send` must not change until the receiver has told, by the protocol above, that it
has the message; payloads that come out of :meth:`Endpoint.receive` belong to the receiver alone: it may write to
them, and they stay valid as long as they are referenced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

__all__ = ["Buffer", "Endpoint", "Message", "tcp_address"]

Buffer: TypeAlias = bytes | bytearray | memoryview


class Message(NamedTuple):
    """One multipart message and who sent it."""

    peer: bytes
    frames: list[memoryview]


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

    def connect(self, peer: bytes, address: str) -> None:
        """Open a connection that is called ``peer`` from now on. Returns at once; a peer that is not there yet, or
        whose name is not known yet, is tried again until :meth:`close`.

        Raises:
            TransportError: the address is of another form.
        """

    def diagnose(self, peer: bytes) -> str:
        """Why nothing is heard of ``peer``, to which :meth:`connect` was asked to connect, as part of a sentence.

        May take two seconds: only for a peer that is waited for anyway.  Empty if nothing can be said.
        """

    def obstacle(self, peer: bytes) -> str:
        """What keeps a connection to ``peer`` from being made, as :meth:`diagnose` says it; empty if one can be made,
        whoever answers there, or if that cannot be told.  May take two seconds as well."""

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        """Queue one message. False if ``peer`` has never been seen or is no longer connected."""

    def receive(self, timeout: float | None) -> list[Message]:
        """Messages that have arrived, in order per peer; waits up to ``timeout`` seconds (None: for ever) for the
        first one. Returns early, maybe with an empty list, after :meth:`wake`."""

    def wake(self) -> None:
        """Make a present or the next :meth:`receive` return. Any thread."""

    def close(self) -> None:
        """Close all sockets at once; messages not yet handed to the kernel may be lost. Idempotent."""


def tcp_address(host: str, port: int | str) -> str:
    """``tcp://host:port``, with the brackets that an IPv6 address needs."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
