"""Which of several processes that fail at about the same time is the cause.  Pure.

When one fails, the others fail because of it, and may be found to have ended before it.  So after the first failure
there is a doubt for a moment:

* A scheduler or server that was told to end (Ctrl-C's or SIGTERM's status) is the cause: nobody else has told it to.
  The workers that fail with status 1 meanwhile complain about that.
* Another scheduler or server that ends by itself, without a signal, has been made to by a worker, if one fails too.
* Of all others the first is the cause.
"""

from __future__ import annotations

import signal
from collections.abc import Collection

__all__ = ["Verdict"]

_TOLD_TO_END = frozenset({-signal.SIGINT, 128 + signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGTERM})
_EXCEPTION = 1
"""The status of a program that ends with an exception, be it about its own fault or about that of another process."""


class Verdict:
    """Failures in the order in which the processes ended; statuses are -N for signal N.

    Args:
        workers: the numbers of those processes that are workers.
    """

    def __init__(self, workers: Collection[int]) -> None:
        self._workers = workers
        self._failures: list[tuple[int, int]] = []

    def failed(self, process: int, status: int) -> None:
        """A process was found to have ended, with a status other than 0."""
        self._failures.append((process, status))

    def cause(self) -> tuple[int, int] | None:
        """The number and status of the process that seems to be the cause; None while none has failed."""
        if not self._failures:
            return None
        told = [each for each in self._failures if self._was_told(*each)]
        others = [each for each in self._failures if not self._may_follow_a_worker(*each)]
        return (told or others or self._failures)[0]

    def is_certain(self, alive: Collection[int]) -> bool:
        """Whether none of the processes that are still ``alive`` can turn out to be the cause."""
        cause = self.cause()
        if cause is None or self._was_told(*cause):
            return cause is not None
        if self._may_follow_a_worker(*cause):
            return not any(each in self._workers for each in alive)
        doubtful = cause[0] in self._workers and cause[1] == _EXCEPTION
        return not doubtful or all(each in self._workers for each in alive)

    def _was_told(self, process: int, status: int) -> bool:
        return process not in self._workers and status in _TOLD_TO_END

    def _may_follow_a_worker(self, process: int, status: int) -> bool:
        return process not in self._workers and status > 0
