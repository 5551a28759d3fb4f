"""Workers that have said goodbye, until the others are told of it.

A worker says goodbye just before its process ends, also if it ends by an error.  Whoever waits for it must be told,
and fails then.  The telling is held back for a moment, so that the process which is the cause ends first: a launcher
that watches both sees the right one, with its status, and reports it.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HOLD_SECONDS", "Departures"]

HOLD_SECONDS: Final = 1.0


class Departures:
    """Pure bookkeeping; ``now`` is seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._reasons: dict[bytes, str] = {}
        self._due: dict[bytes, float] = {}

    @property
    def pending(self) -> bool:
        """Whether there is somebody of whom the others do not know yet."""
        return bool(self._due)

    def add(self, now: float, peer: bytes, reason: str) -> None:
        """``peer`` leaves; ``reason`` is the error that it dies of, empty if it leaves in order."""
        self._reasons[peer] = reason
        self._due[peer] = now + HOLD_SECONDS

    def due(self, now: float) -> list[bytes]:
        """Of whom the others are to be told now; each is returned once."""
        peers = [peer for peer, due in self._due.items() if now >= due]
        for peer in peers:
            del self._due[peer]
        return peers

    def reason(self, peer: bytes) -> str:
        """The error that ``peer`` died of, empty if it left in order."""
        return self._reasons[peer]

    def failed(self) -> bytes | None:
        """The first that died of an error."""
        return next((peer for peer, reason in self._reasons.items() if reason), None)
