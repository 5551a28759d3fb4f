"""Whether the servers can be reached from here.

The scheduler finds out when a server is lost.  It cannot know of one that lives and that only this worker does not
reach: a firewall that lets the scheduler's port through and no other, an address that is another machine's.  Without
this module such a job would wait for ``BYTEPS_STALL_TIMEOUT``.

A server answers whatever it is sent, be it only by saying for whom it waits:

=========  =======================================================  ==================================================
state      what it means                                            it ends when
=========  =======================================================  ==================================================
quiet      everything has been answered                             something is sent
asked      since the first message that was not answered            anything is heard; or, after ``limit`` seconds, a
                                                                    new connection cannot be made: given up
slow       as asked, and a new connection can be made: the answer   anything is heard; looked at again, as in asked,
           takes its time, or the server is stopped, of which the   every ten seconds
           scheduler will know
=========  =======================================================  ==================================================

A look holds up the worker's thread, for two seconds at most if there is no answer at all.  That is on purpose: the
endpoint belongs to that thread, only a worker that waits in vain looks, and the heartbeats that come two seconds later
are early enough for any usual lost timeout.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from byteps_py.transport.base import Endpoint

__all__ = ["Obstacle", "Reach"]

_SCHEDULER_FIRST: Final = 5.0
"""Seconds that are left to the scheduler to tell everybody of a server that is lost, or that this worker is."""
_AGAIN: Final = 10.0


class Obstacle(NamedTuple):
    """Server ``rank`` has not answered for ``seconds``, and ``reason`` keeps connections to it from being made."""

    rank: int
    seconds: float
    reason: str


class Reach:
    """When each server was asked and heard. Belongs to the worker's thread.

    Args:
        endpoint: tries a connection.
        names: the peer of each server, by rank.
        lost_timeout: seconds after which the scheduler takes a silent process for lost.
    """

    def __init__(self, endpoint: Endpoint, names: list[bytes], lost_timeout: float) -> None:
        self._endpoint = endpoint
        self._names = names
        self._limit = lost_timeout + _SCHEDULER_FIRST
        self._asked: dict[int, float] = {}
        self._look_at: dict[int, float] = {}

    def asked(self, rank: int, now: float) -> None:
        """Something was sent to server ``rank``."""
        if rank not in self._asked:
            self._asked[rank] = now
            self._look_at[rank] = now + self._limit

    def heard(self, rank: int) -> None:
        """Server ``rank`` has said something."""
        self._asked.pop(rank, None)

    def check(self, now: float) -> Obstacle | None:
        """A server that has been silent for too long, if no connection to it can be made. May take two seconds."""
        for rank, since in self._asked.items():
            if now >= self._look_at[rank]:
                self._look_at[rank] = now + _AGAIN
                reason = self.why_not(rank)
                return Obstacle(rank, now - since, reason) if reason else None
        return None

    def why_not(self, rank: int) -> str:
        """What keeps connections to server ``rank`` from being made; empty if nothing. May take two seconds."""
        return self._endpoint.obstacle(self._names[rank])
