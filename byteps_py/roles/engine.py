"""The threads of a server that sum.

The kernels run without the GIL, so several engines work at the same time as the thread that owns the sockets.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from byteps_py.core.aggregation import Sum
from byteps_py.kernels import Kernels
from byteps_py.telemetry.stages import SumTimes
from byteps_py.transport.base import Buffer

__all__ = ["INLINE_BYTES", "Engine", "Summed"]

INLINE_BYTES: Final = 65536
"""Below this many bytes per source, handing over to another thread costs more than the sum."""

Summed = tuple[int, int, memoryview]
"""Key, round and result of a finished sum."""


class Engine:
    """Performs :class:`~byteps_py.core.aggregation.Sum` actions on ``threads`` threads.

    Args:
        kernels: the summation kernels.
        threads: number of engine threads, at least 1.
        team: OpenMP threads of each.
        wake: called, from an engine thread, when a result is there to be collected.
        timed: whether to count and time the sums.

    Attributes:
        times: of each thread that sums; empty if they are not timed.
    """

    def __init__(
        self, kernels: Kernels, threads: int, team: int, wake: Callable[[], None], *, timed: bool = False
    ) -> None:
        self.times = tuple(SumTimes() for _ in range(threads + 1)) if timed else ()
        self._owners = self.times[-1] if timed else None
        self._kernels = kernels
        self._team = team
        self._wake = wake
        self._waiting: queue.SimpleQueue[tuple[Sum, float] | None] = queue.SimpleQueue()
        self._finished: deque[Summed | BaseException] = deque()
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(self.times[index] if timed else None,),
                name=f"byteps-engine-{index}",
                daemon=True,
            )
            for index in range(threads)
        ]
        for each in self._threads:
            each.start()

    def submit(self, action: Sum) -> Summed | None:
        """Sum now if that is quick, and return the result; else leave it to a thread. Only the owner's thread."""
        asked = 0.0 if self._owners is None else time.monotonic()
        if action.count * action.dtype.itemsize < INLINE_BYTES:
            return self._timed_sum(action, 1, self._owners, asked)
        self._waiting.put((action, asked))
        return None

    def collect(self) -> list[Summed]:
        """Results since the last call. Only the owner's thread.

        Raises:
            BaseException: what an engine thread raised.
        """
        results: list[Summed] = []
        while self._finished:
            each = self._finished.popleft()
            if isinstance(each, BaseException):
                raise each
            results.append(each)
        return results

    def close(self) -> None:
        """End the threads, after the sums that are waiting."""
        for _ in self._threads:
            self._waiting.put(None)
        for each in self._threads:
            each.join()

    def _run(self, times: SumTimes | None) -> None:
        while (waiting := self._waiting.get()) is not None:
            action, asked = waiting
            try:
                self._finished.append(self._timed_sum(action, self._team, times, asked))
            except BaseException as error:  # the owner raises it: an engine must not die in silence
                self._finished.append(error)
            self._wake()

    def _timed_sum(self, action: Sum, team: int, times: SumTimes | None, asked: float) -> Summed:
        if times is None:
            return self._sum(action, team)
        begun = time.monotonic()
        summed = self._sum(action, team)
        times.add(asked, begun)
        return summed

    def _sum(self, action: Sum, team: int) -> Summed:
        if action.count == 0:
            return action.key, action.round, memoryview(b"")
        out = self._output(action)
        self._kernels.sum_groups(out, action.sources, action.groups, action.dtype, action.count, action.divisor, team)
        return action.key, action.round, memoryview(out).cast("B")

    def _output(self, action: Sum) -> Buffer:
        """Where the result goes: over the first source, a received frame that is this process's own.

        The kernels finish a block of all sources before they write it, so this is right for every dtype, and it
        saves one stream through memory.
        """
        first = action.sources[0]
        if isinstance(first, memoryview) and not first.readonly:
            return first
        return np.empty(action.count * action.dtype.itemsize, dtype=np.uint8).data
