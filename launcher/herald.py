"""The launcher's voice at the scheduler: a process of its own, since the launcher has no socket and no time to wait.

The launcher is the parent of the workers, so it alone knows for certain that one lives, before it has called
``init()``, and that one has ended.  The herald (:mod:`byteps_py.roles.herald`) reads that from its standard input, one
line for each fact, and tells the scheduler:

======================  =================================================================================
line                    meaning
======================  =================================================================================
``vouch RANK PID``      the worker with this local rank lives; said again to the scheduler every second
``ended PID RANK N``    this process has ended with status N (-N: signal N); RANK is ``-`` if it is no worker
======================  =================================================================================

At the end of its input it ends itself, as soon as the scheduler has answered or after two seconds.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping

from byteps_py.launcher.processes import module_command

__all__ = ["JOB_ENDED", "SETTINGS_DIFFER", "Herald"]

JOB_ENDED = 3
"""Exit status of a herald that was told that the job has ended while workers it vouches for had not joined.

It has said why on standard error.  Those workers would wait for a scheduler that is gone, so the launcher ends them.
"""
SETTINGS_DIFFER = 4
"""The same, because settings of two processes do not agree."""


class Herald:
    """The launcher's handle on its herald. Belongs to the launcher's only thread; no method but the constructor raises.

    Args:
        environment: that of a process of the launch: it tells where the scheduler is, and which job and machine
            this is.

    Attributes:
        deadline: when :meth:`finish` will be over, in seconds of ``time.monotonic``; None before it was called.

    Raises:
        OSError: the herald cannot be started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.deadline: float | None = None
        # A session of its own, so that signals meant for the launcher's group do not reach it.
        self._process = subprocess.Popen(
            module_command("byteps_py.roles.herald"),
            env=environment,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        os.set_blocking(self._pipe.fileno(), False)

    @property
    def pid(self) -> int:
        """Process id of the herald."""
        return self._process.pid

    def vouch(self, pids: Mapping[int, int]) -> None:
        """These workers live and may take their time to call ``init()``: process ids by local rank."""
        for local_rank, pid in pids.items():
            self._say(f"vouch {local_rank} {pid}")

    def ended(self, pid: int, local_rank: int | None, status: int) -> None:
        """A process has ended and has not been reaped, so that ``/proc`` still tells when it was started.

        Args:
            pid: its id.
            local_rank: which worker it was, None for a server.
            status: -N for signal N.
        """
        self._say(f"ended {pid} {'-' if local_rank is None else local_rank} {status}")

    def finish(self, timeout: float) -> bool:
        """Let it say what it has to say and end. Does not wait: call it again until it returns True.

        Args:
            timeout: seconds, from the first call, after which it is not waited for any more.

        Returns:
            Whether it has ended, or the time is over.
        """
        if self.deadline is None:
            self.deadline = time.monotonic() + timeout
            self._close()
        return self.poll() is not None or time.monotonic() >= self.deadline

    def poll(self) -> int | None:
        """None while it lives; else its exit status, -N for signal N. See :data:`JOB_ENDED` and
        :data:`SETTINGS_DIFFER`."""
        return self._process.poll()

    def kill(self) -> None:
        """End it at once, and reap it."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _say(self, line: str) -> None:
        """A line is shorter than what a pipe takes whole; a herald that is gone or does not read hears nothing."""
        with contextlib.suppress(OSError, ValueError):
            os.write(self._pipe.fileno(), line.encode() + b"\n")

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.close()
