"""Who has shown a sign of life, and when to speak about what is waited for.

A process passes through three states.  *Alive*: heard from within :data:`SUSPECT_AFTER`.  *Suspect*: silent for
longer; it is named once, and nothing else changes.  *Lost*: silent for the lost timeout.  Only a lost process changes
anything, because a stopped or overloaded one may come back at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["SUSPECT_AFTER", "Liveness", "Reminder", "Silence"]

SUSPECT_AFTER: Final = 5.0
"""Seconds of silence after which a process is named."""
_FIRST_PERIOD: Final = 10.0
_LATER_PERIOD: Final = 60.0


@dataclass(frozen=True)
class Silence:
    """A process that has been silent for ``seconds``; ``lost`` where that is too long."""

    peer: bytes
    seconds: float
    lost: bool


class Liveness:
    """Last signs of life by peer.

    Args:
        lost_timeout: seconds of silence that count as a loss.
    """

    def __init__(self, lost_timeout: float) -> None:
        self._lost_timeout = lost_timeout
        self._seen: dict[bytes, float] = {}
        self._suspects: set[bytes] = set()
        self._checked: float | None = None

    def seen(self, peer: bytes, now: float) -> float | None:
        """Note a sign of life; returns the seconds of silence before it if ``peer`` was a suspect."""
        before = self._seen.get(peer, now)
        self._seen[peer] = now
        if peer not in self._suspects:
            return None
        self._suspects.discard(peer)
        return now - before

    def forget(self, peer: bytes) -> None:
        """Watch ``peer`` no more."""
        self._seen.pop(peer, None)
        self._suspects.discard(peer)

    def check(self, now: float) -> list[Silence]:
        """The processes that became suspect or lost since the last check; call it every second or so.

        A caller that was itself stopped for a while has not listened: that time is not held against anyone.
        """
        unwatched = 0.0 if self._checked is None else now - self._checked
        self._checked = now
        if unwatched > SUSPECT_AFTER:
            self._seen = {peer: min(now, seen + unwatched) for peer, seen in self._seen.items()}
        result = []
        for peer, seen in self._seen.items():
            silent = now - seen
            if silent >= self._lost_timeout:
                result.append(Silence(peer, silent, lost=True))
            elif silent >= SUSPECT_AFTER and peer not in self._suspects:
                self._suspects.add(peer)
                result.append(Silence(peer, silent, lost=False))
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
