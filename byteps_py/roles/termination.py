"""SIGTERM to a scheduler or a server: a request to end, which leaves time to those who need the process.

Batch systems send it some time before they kill.  The first one is a request, and is taken note of; a second one, at
least a second later, means at once (`timeout` and `make` deliver the first one twice within a moment).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final

__all__ = ["TERMINATED", "Termination"]

TERMINATED: Final = 128 + int(signal.SIGTERM)
"""Exit status of a process that was told to end, as in a shell."""
_REPEAT_SECONDS: Final = 1.0


class Termination:
    """Takes note of SIGTERM while it is entered; does nothing on another thread than the main one.

    Args:
        wake: makes the role's thread look; called on another thread.

    Attributes:
        requested: whether the process was told to end.
        urgent: whether it was told again.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.requested = False
        self.urgent = False
        self._wake = wake
        self._first = 0.0
        self._previous: signal._HANDLER | None = None

    def __enter__(self) -> Termination:
        # What was ignored when the process started stays ignored.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
            self._previous = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.requested:
            self._first = now
            self.requested = True
        elif not self.urgent and now >= self._first + _REPEAT_SECONDS:
            self.urgent = True
        else:
            # Nothing new; and the signal may have interrupted the lines below, whose lock cannot be taken twice.
            return
        # Whatever lock waking needs may be held by this very thread, which the handler has interrupted.
        threading.Thread(target=self._wake, daemon=True).start()
