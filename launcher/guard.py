"""The guard of a launch: it ends everything that belongs to it when the launcher itself is killed.

SIGKILL cannot be caught, so somebody else has to clean up after it.  The launcher holds one end of a pipe, a small
process reads the other.  A forked child writes who it is into the pipe before it executes its program, and until then
holds the pipe open, so that the guard never sees the end of the pipe before it has seen every child.  When the pipe
ends, the guard ends the launch as :mod:`~byteps_py.launcher.sweep` describes; the word ``done`` before the end means
that nothing is left to do.

Should launcher and guard be killed together, each child still gets SIGTERM from the kernel, and its own children do
not: those that have joined the job end because the scheduler does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

from byteps_py.launcher import sweep

__all__ = ["Guard"]

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class Guard:
    """The launcher's handle on its guard. Belongs to the launcher's only thread.

    Args:
        mark: what the processes of the launch carry in their environment.
        since: when the launcher was started, in clock ticks since boot.

    Raises:
        OSError: the guard cannot be started.
    """

    def __init__(self, mark: str, since: int) -> None:
        reading, self._pipe = os.pipe()
        try:
            # Isolated, so that nothing in the user's environment or folder gets in; a session of its own, so that
            # signals meant for the launcher's group do not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", sweep.__file__, str(os.getpid()), str(since), mark],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid

    def enrol(self) -> None:
        """Called in a forked child that leads a session: from now on that is guarded."""
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        os.write(self._pipe, b"%d %d\n" % (os.getpid(), sweep.read_started(os.getpid())))

    def poll(self) -> int | None:
        """None while the guard lives, as it should; else its exit status, -N for signal N."""
        return self._process.poll()

    def dismiss(self) -> None:
        """Everything has ended: the guard is not needed any more."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, b"done\n")
        os.close(self._pipe)
        self._process.wait()
