"""The threads of a server that sum.

The kernels run without the GIL, so several engines work at the same time as the thread that owns the sockets.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from byteps_py.core.aggregation import Sum
from byteps_py.kernels import Kernels
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
    """

    def __init__(self, kernels: Kernels, threads: int, team: int, wake: Callable[[], None]) -> None:
        self._kernels = kernels
        self._team = team
        self._wake = wake
        self._waiting: queue.SimpleQueue[Sum | None] = queue.SimpleQueue()
        self._finished: deque[Summed | BaseException] = deque()
        self._threads = [
            threading.Thread(target=self._run, name=f"byteps-engine-{index}", daemon=True) for index in range(threads)
        ]
        for each in self._threads:
            each.start()

    def submit(self, action: Sum) -> Summed | None:
        """Sum now if that is quick, and return the result; else leave it to a thread. Only the owner's thread."""
        if action.count * action.dtype.itemsize < INLINE_BYTES:
            return self._sum(action, 1)
        self._waiting.put(action)
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

    def _run(self) -> None:
        while (action := self._waiting.get()) is not None:
            try:
                self._finished.append(self._sum(action, self._team))
            except BaseException as error:  # the owner raises it: an engine must not die in silence
                self._finished.append(error)
            self._wake()

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
