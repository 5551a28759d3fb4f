"""The servers of earlier generations of a job that the current one does not use."""

from __future__ import annotations

from collections.abc import Iterator

from byteps_py.core.liveness import Liveness
from byteps_py.core.places import Member

__all__ = ["Reserve"]


class Reserve:
    """Who is in it, and which of them can be used: those that have forgotten the generation before. Not thread-safe.

    Args:
        lost_timeout: seconds without a sign of life after which a process counts as lost.

    Attributes:
        liveness: of those in it.
    """

    def __init__(self, lost_timeout: float) -> None:
        self.liveness = Liveness(lost_timeout)
        self._members: dict[bytes, Member] = {}
        self._ready: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._members)

    def __contains__(self, peer: object) -> bool:
        return peer in self._members

    def __getitem__(self, peer: bytes) -> Member:
        return self._members[peer]

    def add(self, now: float, member: Member) -> None:
        """A server is not used any more."""
        self._members[member.peer] = member
        self.liveness.seen(member.peer, now)

    def take(self, peer: bytes) -> Member:
        """A server is used again, or gone."""
        self.liveness.forget(peer)
        self._ready.discard(peer)
        return self._members.pop(peer)

    def make_ready(self, peer: bytes) -> None:
        """A server has registered again, which shows that it has forgotten the generation before."""
        self._ready.add(peer)

    def is_ready(self, peer: bytes) -> bool:
        """Whether it has."""
        return peer in self._ready

    def first_ready(self) -> bytes | None:
        """The one that is to be used next; None if none can be."""
        return next((each for each in self._members if each in self._ready), None)
