"""Counters that are cheap enough to be always on."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["SpeedRecord"]

_INTERVAL_SECONDS: Final = 10.0
_MOST_POINTS: Final = 1024
_NO_POINT: Final = (0, -5.0)
"""What BytePS returns while there is nothing to report."""


class SpeedRecord:
    """Megabytes per second of finished tensors, in points of ten seconds, as ``get_pushpull_speed`` reports them.

    BytePS divided by ten however long the interval really was; here it is divided by the seconds that passed.
    Appending and taking may happen on two threads.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._bytes = 0
        self._points: deque[tuple[int, float]] = deque(maxlen=_MOST_POINTS)

    def add(self, now: float, wall_milliseconds: int, nbytes: int) -> None:
        """Count a finished tensor at ``now`` (seconds, monotonic), which is ``wall_milliseconds`` since the epoch."""
        self._bytes += nbytes
        elapsed = now - self._since
        if elapsed >= _INTERVAL_SECONDS:
            self._points.append((wall_milliseconds, self._bytes / 1e6 / elapsed))
            self._since, self._bytes = now, 0

    def take(self) -> tuple[int, float]:
        """Remove and return the oldest point: milliseconds since the epoch and MB/s; ``(0, -5.0)`` if there is none."""
        return self._points.popleft() if self._points else _NO_POINT
