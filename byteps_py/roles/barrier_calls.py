"""The barriers that the threads of a worker process come to, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

from byteps_py.roles.pending import Signal

__all__ = ["BarrierCalls"]


class BarrierCalls:
    """Counts them. Any thread.

    Args:
        reach: has it told that this worker is at the barrier of this number, and the signal set when all are; raises
            if nobody can be told any more.
    """

    def __init__(self, reach: Callable[[int, Signal], None]) -> None:
        self._reach = reach
        self._lock = threading.Lock()
        self._last: Signal | None = None
        self._number = 0

    def wait(self) -> None:
        """Wait until every worker has called this as often as this one; see :meth:`Signal.wait`."""
        with self._lock:
            if self._last is not None:
                self._last.wait()  # a call before this one was interrupted; barriers come one after the other
            signal = Signal()
            number = self._number + 1
            self._reach(number, signal)
            # Only what was posted will ever be signalled, so only that may be waited for by a later call.
            self._number, self._last = number, signal
            signal.wait()
