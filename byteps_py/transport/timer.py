"""A file descriptor that becomes readable at a given time: a deadline set by one thread for another that sleeps.

Python has timerfd from 3.13 on only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Final

from byteps_py.errors import TransportError

__all__ = ["Timer"]

_CLOCK_MONOTONIC: Final = 1
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC


class _Setting(ctypes.Structure):
    """``struct itimerspec``."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class Timer:
    """One timer. Any thread may call :meth:`set`, one at a time.

    Raises:
        TransportError: there is no file descriptor left.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._library.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._descriptor < 0:
            raise TransportError(f"cannot make a timer: {os.strerror(ctypes.get_errno())}")
        self._setting = _Setting()

    def fileno(self) -> int:
        """The descriptor; readable from the time on until :meth:`read`."""
        return int(self._descriptor)

    def set(self, seconds: float) -> None:
        """Let it become readable so long from now, and not before."""
        nanoseconds = max(1, int(seconds * 1e9))
        self._setting.seconds, self._setting.nanoseconds = divmod(nanoseconds, 1_000_000_000)
        self._library.timerfd_settime(self._descriptor, 0, ctypes.byref(self._setting), None)

    def read(self) -> None:
        """Its time has come; it is set no more."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 8)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)
