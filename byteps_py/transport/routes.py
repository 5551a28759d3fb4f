"""Several connections between two processes: how they are told apart, and which one a message takes.

Who connects presents itself as ``NAME`` on the first connection, as ``NAME/1`` on the next one, and so on; who listens
takes them all for ``NAME``.  On each but the first an empty message, which is not delivered, comes before all others,
also when the connection is made again: so an answer may take it, whatever has come by it.

====================== ===============================================================================
message                connection
====================== ===============================================================================
a frame of 64 KiB      the next one in turn that is there
all others             the first one; of an answer, if that is gone, another one
====================== ===============================================================================

So there is no order among the messages of one peer, and what was on its way on a connection that is cut is lost while
later messages arrive; the protocol above takes both as they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from byteps_py.network_settings import MAX_CONNECTIONS
from byteps_py.transport.base import Buffer

__all__ = ["LARGE_BYTES", "Routes", "is_large", "nbytes_of", "owner", "route"]

LARGE_BYTES: Final = 65536
_MOST_PEERS: Final = 1 << 16
"""Peers of which further connections are remembered: more than a job has, and strangers may come."""
_NUMBERS: Final = frozenset(b"%d" % number for number in range(1, MAX_CONNECTIONS))


def route(identity: bytes, number: int) -> bytes:
    """How ``identity`` presents itself on a connection, counted from 0."""
    return identity + b"/%d" % number if number else identity


def owner(route: bytes) -> bytes:
    """Whose connection it is that presents itself as ``route``."""
    identity, slash, number = route.rpartition(b"/")
    return identity if slash and number in _NUMBERS else route


def nbytes_of(frame: Buffer) -> int:
    """Its size."""
    return frame.nbytes if isinstance(frame, memoryview) else len(frame)


def is_large(frames: Sequence[Buffer]) -> bool:
    """Whether a message takes the connections in turn."""
    return any(nbytes_of(each) >= LARGE_BYTES for each in frames)


class Routes:
    """The connections of the peers that came by more than one. Belongs to the thread that owns the endpoint."""

    def __init__(self) -> None:
        self._routes: dict[bytes, deque[bytes]] = {}

    def add(self, peer: bytes, route: bytes) -> None:
        """``peer`` has a connection beside its first one, which needs no word; a repetition changes nothing."""
        routes = self._routes.get(peer)
        if routes is None:
            if len(self._routes) < _MOST_PEERS:
                self._routes[peer] = deque((peer, route))
        elif route not in routes:
            routes.append(route)

    def drop(self, route: bytes) -> None:
        """The connection is gone. The first one stays in the list: it is not said when it is there again."""
        peer = owner(route)
        routes = self._routes.get(peer)
        if routes is not None and route != peer and route in routes:
            routes.remove(route)
            if len(routes) == 1:
                del self._routes[peer]

    def candidates(self, peer: bytes, frames: Sequence[Buffer]) -> Sequence[bytes]:
        """The connections for an answer, in the order in which they are to be tried."""
        routes = self._routes.get(peer)
        if routes is None:
            return (peer,)
        if is_large(frames):
            routes.rotate(-1)
            return tuple(routes)
        return (peer, *(each for each in routes if each != peer))
