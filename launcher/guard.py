"""Ends the process groups of a launch when the launcher itself is killed.

SIGKILL cannot be caught, so somebody else has to clean up after it.  The launcher holds one end of a pipe, this small
process reads the other.  A forked child writes its process id into the pipe before it executes its program, and until
then holds the pipe open, so that the guard never sees the end of the pipe before it has seen every group.
When the pipe ends, the guard sends SIGTERM to every group, and SIGKILL to those that are still there a little later;
the word ``done`` before the end means that nothing is left to do.

This file is also the program of that process, run by its path: it imports only from the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

__all__ = ["Guard"]

GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""
_LOOK_SECONDS = 0.1


class Guard:
    """The launcher's handle on its guard. Belongs to the launcher's only thread.

    Raises:
        OSError: the guard cannot be started.
    """

    def __init__(self) -> None:
        reading, self._pipe = os.pipe()
        try:
            # Isolated, so that nothing in the user's environment or folder gets in; a session of its own, so that
            # signals meant for the launcher's group do not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(os.getpid())],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(reading)

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid

    def enrol(self) -> None:
        """Called in a forked child that leads a process group: from now on the group is guarded."""
        os.write(self._pipe, b"%d\n" % os.getpid())

    def poll(self) -> int | None:
        """None while the guard lives, as it should; else its exit status, -N for signal N."""
        return self._process.poll()

    def dismiss(self) -> None:
        """Every group has ended: the guard is not needed any more."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, b"done\n")
        os.close(self._pipe)
        self._process.wait()


def end_groups(groups: Iterable[int], grace: float = GRACE_SECONDS) -> None:
    """SIGTERM to each group, and SIGKILL to those that still exist after ``grace`` seconds."""
    left = [group for group in groups if _signal(group, signal.SIGTERM)]
    deadline = time.monotonic() + grace
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        left = [group for group in left if _signal(group, 0)]
    for group in left:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Whether there was anybody to signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _watch() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    words = sys.stdin.buffer.read().split()
    if b"done" not in words:
        with contextlib.suppress(OSError):
            os.write(2, b"bpslaunch (pid %s) was killed: ending its processes\n" % sys.argv[1].encode())
        end_groups(int(word) for word in words)


if __name__ == "__main__":
    _watch()
