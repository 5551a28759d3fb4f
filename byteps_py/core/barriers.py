"""Numbered barriers: one is open at a time, and asking again about any is harmless.

Every participant counts its own barriers from 1, so the number in a message tells a repetition from the next barrier.
"""

from __future__ import annotations

import enum

__all__ = ["Arrival", "Barriers"]


class Arrival(enum.Enum):
    """What the arrival of a participant at a barrier means."""

    PASSED = enum.auto()
    """That barrier was complete before: only the answer has to be repeated."""
    WAITING = enum.auto()
    """Others are still missing."""
    REPEATED = enum.auto()
    """It said so before; others are still missing."""
    COMPLETE = enum.auto()
    """It was the last one."""
    AHEAD = enum.auto()
    """No participant can be there yet: the barrier before it is not complete."""


class Barriers:
    """The barriers of one job with participants 0 to ``size`` - 1."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._arrived: set[int] = set()
        self.number = 1
        """The barrier that is open or comes next."""

    def arrive(self, rank: int, number: int) -> Arrival:
        """Participant ``rank`` says that it is at barrier ``number``."""
        if number != self.number:
            return Arrival.PASSED if number < self.number else Arrival.AHEAD
        if rank in self._arrived:
            return Arrival.REPEATED
        self._arrived.add(rank)
        if len(self._arrived) < self._size:
            return Arrival.WAITING
        self._arrived.clear()
        self.number += 1
        return Arrival.COMPLETE

    def arrived(self) -> list[int]:
        """Ranks at the open barrier; empty if nobody waits."""
        return sorted(self._arrived)

    def missing(self) -> list[int]:
        """Ranks that the open barrier waits for; empty if nobody waits."""
        return [rank for rank in range(self._size) if rank not in self._arrived] if self._arrived else []
