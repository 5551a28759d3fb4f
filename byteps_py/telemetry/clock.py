"""What the scheduler's clock says at a time of this process's own, and how sure that is.

A process asks now and then, and never waits for the answer.  Of an exchange it knows four times: when it asked (s) and
when it had the answer (e), by its own clock; when the question came (r) and the answer was given (p), by the
scheduler's.  The scheduler's clock is ahead by ((r - s) + (p - e)) / 2, and that is wrong by at most half the time that
was spent on the way, ((e - s) - (p - r)) / 2, whatever part of it went which way (D. L. Mills, "Internet Time
Synchronization: The Network Time Protocol", 1991).  Of several exchanges the one with the least bound counts.

Clocks of two machines also run at different speeds.  So the best of the first exchanges is kept beside the best of the
latest ones.  Where their bounds do not allow that both are right, the clock has drifted, and what lies between is
interpolated; else the better of the two holds for all times.

Nanoseconds throughout, so that nothing is lost in the digits of a float.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["ASK_SECONDS", "FIRST_EXCHANGES", "ClockProbe", "Exchanged", "shift"]

FIRST_EXCHANGES: Final = 16
"""So many follow one another, then there is one in ``ASK_SECONDS``."""
ASK_SECONDS: Final = 1.0
_LATEST: Final = 16
_MOST_OPEN: Final = 64
"""Questions without an answer that are remembered."""
_NANOSECONDS: Final = 1_000_000_000


class Exchanged(NamedTuple):
    """What one exchange has shown, in nanoseconds.

    Attributes:
        when: by the own clock.
        offset: what is to be added to the own clock.
        bound: by how much that may be wrong.
    """

    when: int
    offset: int
    bound: int


class ClockProbe:
    """The exchanges of one process. :meth:`ask` and :meth:`take` belong to one thread; any may read.

    Args:
        clock: the own one, nanoseconds since any moment, never set.
        wall: the same by the clock that people see, for processes that have no scheduler.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns, wall: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._own = wall() - clock()
        self._open: dict[int, int] = {}
        self._last_number = 0
        self._due = 0
        self._taken = 0
        self._first: Exchanged | None = None
        self._latest: deque[Exchanged] = deque(maxlen=_LATEST)
        self._is_over = False

    def stop(self) -> None:
        """Nothing is asked any more. Any thread."""
        self._is_over = True

    def ask(self) -> int | None:
        """The number of a question that is to be sent now; None if none is."""
        now = self._clock()
        if self._is_over or now < self._due:
            return None
        self._last_number += 1
        self._due = now + int(ASK_SECONDS * _NANOSECONDS)
        if len(self._open) >= _MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._open[self._last_number] = now
        return self._last_number

    def wait(self) -> float:
        """Seconds until there is something to ask."""
        return 3600.0 if self._is_over else max(0.0, (self._due - self._clock()) / _NANOSECONDS)

    def take(self, number: int, received: int, replied: int) -> None:
        """An answer is here; one to a question that was not asked, or was answered before, changes nothing."""
        asked, now = self._open.pop(number, None), self._clock()
        if asked is None:
            return
        bound = max(0, (now - asked) - (replied - received)) // 2 + 1
        found = Exchanged((asked + now) // 2, ((received - asked) + (replied - now)) // 2, bound)
        self._taken += 1
        if self._taken <= FIRST_EXCHANGES:
            self._due = now if self._taken < FIRST_EXCHANGES else self._due
            if self._first is None or found.bound < self._first.bound:
                self._first = found
        self._latest.append(found)

    @property
    def exchanges(self) -> int:
        """How many answers have come."""
        return self._taken

    def mapping(self) -> tuple[tuple[Exchanged, ...], int | None]:
        """What holds by now.

        Returns:
            One offset for all times, or two between which the clock has drifted; and the bound of the error, None where
            no scheduler has answered and the offset is that of the own wall clock.
        """
        first, latest = self._first, min(list(self._latest), key=lambda each: each.bound, default=None)
        if first is None or latest is None:
            return (Exchanged(0, self._own, 0),), None
        if abs(latest.offset - first.offset) <= first.bound + latest.bound:
            best = min(first, latest, key=lambda each: each.bound)
            return (best,), best.bound
        return (first, latest), max(first.bound, latest.bound)


def shift(points: tuple[Exchanged, ...], when: int) -> int:
    """The time on the scheduler's clock when the own one says ``when``, both in nanoseconds.

    Never decreases with ``when`` unless the clocks differ in speed by a factor of two.
    """
    first, last = points[0], points[-1]
    if when <= first.when or first is last:
        return when + first.offset
    if when >= last.when:
        return when + last.offset
    return when + first.offset + (last.offset - first.offset) * (when - first.when) // (last.when - first.when)
