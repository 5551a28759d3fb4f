"""The threads of a server, or of a worker that sums for its node, that do it.

The kernels run without the GIL, so several engines work at the same time as the thread that owns the sockets.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from byteps_py.core.aggregation import Sum
from byteps_py.kernels import Kernels
from byteps_py.roles.lent import Lent
from byteps_py.roles.row_sums import rows_bound, sum_rows
from byteps_py.telemetry.stages import SumTimes
from byteps_py.transport.base import Buffer
from byteps_py.types import DType
from byteps_py.wire.header import is_wide

__all__ = ["INLINE_BYTES", "Engine", "Summed", "result_bytes"]

INLINE_BYTES: Final = 65536
"""Below this many bytes per source, handing over to another thread costs more than the sum."""


def result_bytes(action: Sum) -> int:
    """Bytes of what a sum makes; of rows, whose number is known afterwards, at most."""
    if action.width:
        return rows_bound(action)
    wide = action.partial and is_wide(action.dtype, len(action.sources))
    return action.count * (DType.FLOAT32 if wide else action.dtype).itemsize


class Summed(NamedTuple):
    """A finished sum.

    Attributes:
        payload: the result; worth nothing if somebody changed a source.
        changed: rank of a worker that changed the memory it had lent before it was read; None: nobody did.
    """

    key: int
    round: int
    payload: memoryview
    changed: int | None = None


class Engine:
    """Performs :class:`~byteps_py.core.aggregation.Sum` actions on ``threads`` threads.

    Args:
        kernels: the summation kernels.
        threads: number of engine threads, at least 1.
        team: OpenMP threads of each.
        wake: called, from an engine thread, when a result is there to be collected.
        timed: whether to count and time the sums.
        make_times: makes what does so.

    Attributes:
        kernels, team: as given.
        times: of each thread that sums; empty if they are not timed.
    """

    def __init__(
        self,
        kernels: Kernels,
        threads: int,
        team: int,
        wake: Callable[[], None],
        *,
        timed: bool = False,
        make_times: Callable[[], SumTimes] = SumTimes,
    ) -> None:
        self.times = tuple(make_times() for _ in range(threads + 1)) if timed else ()
        self._owners = self.times[-1] if timed else None
        self.kernels = kernels
        self.team = team
        self._wake = wake
        self._waiting: queue.SimpleQueue[tuple[Sum, Buffer | None, float] | None] = queue.SimpleQueue()
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

    def submit(self, action: Sum, out: Buffer | None = None) -> Summed | None:
        """Sum now if that is quick, and return the result; else leave it to a thread. Only the owner's thread.

        Args:
            action: its sources are buffers, or :class:`~byteps_py.roles.lent.Lent`.
            out: where the result goes, of at least :func:`result_bytes`; None: over the first source if that may be,
                else into new memory.
        """
        asked = 0.0 if self._owners is None else time.monotonic()
        if (rows_bound(action) if action.width else action.count * action.dtype.itemsize) < INLINE_BYTES:
            return self._timed_sum(action, out, 1, self._owners, asked)
        self._waiting.put((action, out, asked))
        return None

    def count_own(self, begun: float) -> None:
        """The owner has made sums by itself, begun then (monotonic seconds); they count as one that waited for
        nobody. Only the owner's thread."""
        if self._owners is not None:
            self._owners.add(begun, begun)

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
            action, out, asked = waiting
            try:
                self._finished.append(self._timed_sum(action, out, self.team, times, asked))
            except BaseException as error:  # the owner raises it: an engine must not die in silence
                self._finished.append(error)
            self._wake()

    def _timed_sum(self, action: Sum, out: Buffer | None, team: int, times: SumTimes | None, asked: float) -> Summed:
        if times is None:
            return self._sum(action, out, team)
        begun = time.monotonic()
        summed = self._sum(action, out, team)
        times.add(asked, begun, action.key, action.round)
        return summed

    def _sum(self, action: Sum, out: Buffer | None, team: int) -> Summed:
        lent = [each for each in action.sources if isinstance(each, Lent)]
        sources = [each.view if isinstance(each, Lent) else each for each in action.sources]
        payload = memoryview(b"")
        copies = len(sources) == 1 and action.divisor == 1 and not action.wide
        if action.width and not copies:
            payload = sum_rows(self.kernels, action, sources, out)
        elif (action.count or action.width) and sources:
            converts = bool(action.wide) or is_wide(action.dtype, len(sources) * action.partial)
            nbytes = result_bytes(action)  # a copy of rows has as many as these
            target = self._output(sources[0], nbytes, over=not copies and not converts) if out is None else out
            if copies:  # with all its bits, where a sum would change some NaNs
                self.kernels.copy(target, sources[0], nbytes, team)
            elif action.wide:
                self._sum_wide(target, action, sources, team)
            elif converts:
                self.kernels.sum_converting(
                    target, sources, action.groups, action.dtype, action.count, 1, team, widen=True
                )
            else:
                self.kernels.sum_groups(
                    target, sources, action.groups, action.dtype, action.count, action.divisor, team
                )
            payload = memoryview(target).cast("B")[:nbytes]
        changed = next((each.rank for each in lent if not each.message.intact()), None)
        return Summed(action.key, action.round, payload, changed)

    def _sum_wide(self, target: Buffer, action: Sum, sources: Sequence[object], team: int) -> None:
        """Bring the groups that are not in float32 there, then sum all: the bits are as if none had been."""
        sums: list[object] = []
        place = 0
        for size in action.groups:
            if place in action.wide:
                sums.append(sources[place])
            else:
                sums.append(np.empty(action.count, np.float32))
                group = sources[place : place + size]
                self.kernels.sum_converting(sums[-1], group, (size,), action.dtype, action.count, 1, team, widen=True)
            place += size
        ones = (1,) * len(sums)
        self.kernels.sum_converting(target, sums, ones, action.dtype, action.count, action.divisor, team, widen=False)

    def _output(self, first: object, nbytes: int, *, over: bool) -> Buffer:
        """Over the first source, if it may be ``over`` it and it is a received frame that is this process's own.

        The kernels finish a block of all sources before they write it, so this is right for every dtype, and it
        saves one stream through memory.
        """
        if over and isinstance(first, memoryview) and not first.readonly:
            return first
        return np.empty(nbytes, dtype=np.uint8).data
