"""Data messages on their way out, from whichever thread has one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from byteps_py.transport.base import Buffer, Endpoint

__all__ = ["Outbox"]


class Outbox:
    """Sends at once what goes through shared memory, and what the owner of the sockets sends; the rest waits for it.

    Not thread-safe: the caller holds the worker's lock. The thread that makes it is the owner.

    Attributes:
        sent: messages so far, those that wait included.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.sent = 0
        self._endpoint = endpoint
        self._owner = threading.get_ident()
        self._deferred: list[tuple[bytes, Sequence[Buffer]]] = []

    @property
    def has_deferred(self) -> bool:
        """Whether messages wait for the owner's thread."""
        return bool(self._deferred)

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Send a message, or leave it to the owner's thread."""
        self.sent += 1
        if self._endpoint.is_lane(peer) or threading.get_ident() == self._owner:
            self._endpoint.send(peer, frames)
        else:
            self._deferred.append((peer, frames))

    def send_deferred(self) -> None:
        """Send what other threads have left. The owner's thread only."""
        deferred, self._deferred = self._deferred, []
        for peer, frames in deferred:
            self._endpoint.send(peer, frames)
