"""What keeps servers with much work and servers with little in step.

Acceptances come from all servers equally fast, so without a rule each gets equally many bytes: one with a third of the
work would have all of its own early, and the others' links are idle for what they could have had meanwhile.  A queue
therefore waits while it is further through its work than the one that is furthest behind, by more than a little.

Work is counted from when all queues were empty.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Pace"]

_UNEVEN = 1.25
"""Where the largest work is this many times the least, queues have to wait for each other."""


class Pace:
    """How far each queue is. Not thread-safe.

    Args:
        count: number of queues.

    Attributes:
        matters: whether queues have so different work that they have to wait.
    """

    def __init__(self, count: int) -> None:
        self.matters = False
        self._work = [0] * count
        self._done = [0] * count
        self._left = 0

    def add(self, queue: int, nbytes: int) -> None:
        """Work comes into a queue; :meth:`settle` is to be called after all of it."""
        self._work[queue] += nbytes
        self._left += nbytes

    def settle(self) -> None:
        """Look how different the work is."""
        given = [each for each in self._work if each]
        self.matters = len(given) > 1 and max(given) > _UNEVEN * min(given)

    def take(self, queue: int, nbytes: int) -> None:
        """Work leaves a queue, done or dropped; after the last of all queues, nothing is remembered."""
        self._done[queue] += nbytes
        self._left -= nbytes
        if not self._left:
            self._work = [0] * len(self._work)
            self._done = [0] * len(self._done)
            self.matters = False

    def must_wait(self, queue: int, nbytes: int, others: Sequence[Sequence[object]]) -> bool:
        """Whether a queue is ahead of one that is not empty by more than two times ``nbytes``, its next piece.

        The one that is furthest behind never has to.

        Args:
            queue: the queue.
            nbytes: of what is first in it.
            others: all queues; only whether they are empty is looked at.
        """
        work, done = self._work, self._done
        slowest = min(
            (done[each] / work[each] for each, queued in enumerate(others) if queued and work[each]), default=1.0
        )
        return done[queue] > slowest * work[queue] + 2 * nbytes + 1
