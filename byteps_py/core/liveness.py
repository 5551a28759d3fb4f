"""Who has shown a sign of life, and when to speak about what is waited for.

A process passes through three states.  *Alive*: heard from within :data:`SUSPECT_AFTER`.  *Suspect*: silent for
longer; it is named once, and nothing else changes.  *Lost*: silent for the lost timeout.  Only a lost process changes
anything, because a stopped or overloaded one may come back at any time.

A suspect that is seen to run is not lost, however silent: Python threads say nothing while another one holds the
interpreter's lock.  It is named again every minute.  A process about which there is a *doubt*, on the other hand, is
lost as soon as it is a suspect.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

__all__ = ["SUSPECT_AFTER", "Liveness", "Reminder", "Silence"]

SUSPECT_AFTER: Final = 5.0
"""Seconds of silence after which a process is named."""
_FIRST_PERIOD: Final = 10.0
_LATER_PERIOD: Final = 60.0


@dataclass(frozen=True)
class Silence:
    """A process that has been silent for ``seconds``; ``lost`` where that is too long, unless it ``runs``."""

    peer: bytes
    seconds: float
    lost: bool = False
    runs: bool = False


class Liveness:
    """Last signs of life by peer.

    Args:
        lost_timeout: seconds of silence that count as a loss.
    """

    def __init__(self, lost_timeout: float) -> None:
        self._lost_timeout = lost_timeout
        self._seen: dict[bytes, float] = {}
        self._suspects: dict[bytes, float] = {}  # when to name it again
        self._doubted: set[bytes] = set()
        self._checked: float | None = None

    def seen(self, peer: bytes, now: float) -> float | None:
        """Note a sign of life; returns the seconds of silence before it if ``peer`` was a suspect."""
        before = self._seen.get(peer, now)
        self._seen[peer] = now
        return None if self._suspects.pop(peer, None) is None else now - before

    def doubt(self, peer: bytes) -> None:
        """There is a sign that ``peer`` has ended: little silence is enough from now on."""
        self._doubted.add(peer)

    def silent(self, now: float) -> frozenset[bytes]:
        """Those that :meth:`check` may have something to say about."""
        limit = min(SUSPECT_AFTER, self._lost_timeout)
        return frozenset(peer for peer, seen in self._seen.items() if now - seen >= limit)

    def forget(self, peer: bytes) -> None:
        """Watch ``peer`` no more."""
        self._seen.pop(peer, None)
        self._suspects.pop(peer, None)
        self._doubted.discard(peer)

    def check(self, now: float, running: Collection[bytes] = ()) -> list[Silence]:
        """The processes that became suspect or lost since the last check; call it every second or so.

        A caller that was itself stopped for a while has not listened: that time is not held against anyone.

        Args:
            now: seconds.
            running: those of :meth:`silent` that are known to run.
        """
        unwatched = 0.0 if self._checked is None else now - self._checked
        self._checked = now
        if unwatched > SUSPECT_AFTER:
            self._seen = {peer: min(now, seen + unwatched) for peer, seen in self._seen.items()}
        result = []
        for peer, seen in self._seen.items():
            silent = now - seen
            limit = SUSPECT_AFTER if peer in self._doubted else self._lost_timeout
            if silent >= limit and peer not in running:
                result.append(Silence(peer, silent, lost=True))
            elif silent >= SUSPECT_AFTER and now >= self._suspects.get(peer, now):
                again = _LATER_PERIOD if peer in self._suspects else max(1.0, self._lost_timeout - silent)
                self._suspects[peer] = now + again
                result.append(Silence(peer, silent, runs=peer in running))
        return result


class Reminder:
    """Says when a wait should be spoken of: every 10 s, from ``calm_after`` seconds on every minute.

    Args:
        now: when the wait began.
        calm_after: None keeps to every 10 s.
    """

    def __init__(self, now: float, calm_after: float | None = 60.0) -> None:
        self.started = now
        self._calm_after = calm_after
        self._next = now + _FIRST_PERIOD

    def due(self, now: float) -> float | None:
        """The seconds waited so far, if this is a time to speak."""
        if now < self._next:
            return None
        while self._next <= now:
            calm = self._calm_after is not None and self._next - self.started >= self._calm_after
            self._next += _LATER_PERIOD if calm else _FIRST_PERIOD
        return now - self.started
