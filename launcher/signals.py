"""Signals to the launcher: read from a descriptor, one byte each, so that its one loop waits for them as for output."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

__all__ = ["ENDING", "PASSED", "readable", "stop_here"]

ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""They end the job."""
PASSED = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""Their meaning is between the user and the command; batch systems announce the end of the allotted time with one."""


@contextlib.contextmanager
def readable() -> Iterator[int]:
    """Makes signals readable: yields a descriptor that gives their numbers. Main thread only."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # What was ignored when the launcher started (nohup, a shell's background job) stays ignored.
    asked = ENDING | PASSED | {signal.SIGTSTP}
    wanted = {each for each in asked if signal.getsignal(each) is not signal.SIG_IGN}
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _take_note) for number in wanted | {signal.SIGCHLD, signal.SIGCONT}}
    try:
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous)
        os.close(reading)
        os.close(writing)


def stop_here() -> None:
    """Stop this process as Ctrl-Z does; returns when it is continued, or at once where nobody could continue it."""
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, before)


def _take_note(number: int, frame: FrameType | None) -> None:
    """The number is in the pipe already."""
