"""One process of a launch: how it is described, started, signalled and found to have ended.

Every process leads a session of its own.  So its children can be found, and a Ctrl-C typed at the terminal reaches the
launcher alone, which passes it on once.

A process that has ended stays a zombie until :meth:`Child.reap`.  Until then its id cannot be given to another
process, so that its group can be signalled without the danger of hitting a stranger, and ``/proc`` still tells when
it was started, which proves to the scheduler who it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from byteps_py import errors
from byteps_py.launcher.advice import explain_absence, how_to_run
from byteps_py.launcher.guard import Guard
from byteps_py.role import Role

__all__ = [
    "CANNOT_RUN",
    "NOT_FOUND",
    "Child",
    "CommandError",
    "Ends",
    "ProcessSpec",
    "describe_status",
    "exit_status",
    "find",
    "module_command",
]

CANNOT_RUN = 126
"""Exit status if the command cannot be executed, as in a shell."""
NOT_FOUND = 127
"""Exit status if there is no such command, as in a shell."""


class CommandError(Exception):
    """The command cannot be run; ``status`` is the launcher's exit status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class ProcessSpec:
    """A process that is to be started.

    Attributes:
        role: what it is in the job.
        label: how messages and lines of output call it: ``worker 0``.
        argv: the command, word by word; no shell is involved.
        environment: all of its environment.
        read_stdin: whether it inherits the launcher's standard input, else it reads from ``/dev/null``.
        cores: numbers of the processor cores that it is bound to; None for all that the launcher may use.
    """

    role: Role
    label: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    read_stdin: bool = False
    cores: frozenset[int] | None = None


class Child:
    """A started process. Belongs to the launcher's only thread.

    Args:
        spec: what to start.
        guard: told of the new process before the command runs.
        capture: whether standard output and error become pipes, else they are the launcher's own.

    Raises:
        OSError: the command cannot be executed.
    """

    def __init__(self, spec: ProcessSpec, guard: Guard, *, capture: bool) -> None:
        self.spec = spec
        self.status: int | None = None
        """None while it runs; then its exit status, -N for signal N."""

        def prepare() -> None:
            guard.enrol()
            if spec.cores is not None:
                os.sched_setaffinity(0, spec.cores)

        # The launcher has one thread, so the function that runs between fork and exec is safe.
        try:
            self._process = subprocess.Popen(
                spec.argv,
                env=spec.environment,
                bufsize=0,
                stdin=None if spec.read_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE if capture else None,
                stderr=subprocess.PIPE if capture else None,
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509
            )
        except subprocess.SubprocessError as error:  # what the function raises is not passed on
            reason = "the launcher's guard is gone, or the process may not be bound to its cores (BYTEPS_NUMA_ON=0?)"
            raise OSError(errno.EPERM, reason) from error

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its process group and session."""
        return self._process.pid

    @property
    def name(self) -> str:
        """For messages: ``worker 1 (pid 4242)``."""
        return f"{self.spec.label} (pid {self.pid})"

    def outputs(self) -> tuple[IO[bytes], IO[bytes]] | None:
        """Its standard output and error, where they are captured; the caller closes them."""
        if self._process.stdout is None or self._process.stderr is None:
            return None
        return self._process.stdout, self._process.stderr

    def poll(self) -> int | None:
        """Look whether it has ended, without reaping it; returns :attr:`status`."""
        if self.status is None:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self.status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        return self.status

    def signal(self, number: int, *, group: bool) -> None:
        """Send a signal to it, or to its whole process group, stopped or not. Harmless after its end."""
        send = os.killpg if group else os.kill
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(self.pid, number)
            if number in (signal.SIGINT, signal.SIGTERM):
                send(self.pid, signal.SIGCONT)

    def reap(self) -> None:
        """Forget a process that has ended; its id is free from now on. Does nothing while it runs."""
        if self.poll() is not None:
            self._process.wait()


class Ends:
    """Tells in which order processes end; where the kernel is too old for that, or descriptors are short, in none.

    A descriptor of each process becomes readable when it ends, and the kernel queues those events as they come.
    """

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}
        self._epoll = select.epoll()

    def watch(self, pid: int) -> None:
        """Begin to watch a child that has not been reaped."""
        # Python has no such function where it was built with old headers.
        with contextlib.suppress(OSError, AttributeError):
            descriptor = os.pidfd_open(pid)
            self._descriptors[descriptor] = pid
            self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def take(self) -> list[int]:
        """The process ids of those that ended since the last call, the first first."""
        events = self._epoll.poll(0, max(1, len(self._descriptors)))
        pids = [self._descriptors.pop(descriptor) for descriptor, _ in events]
        for descriptor, _ in events:
            os.close(descriptor)
        return pids

    def close(self) -> None:
        """Give the descriptors back."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._epoll.close()


def find(word: str, path: str | None) -> None:
    """Look whether there is such a command, before anything else is started.

    Args:
        word: the first word of the command.
        path: the value of ``PATH``; None for the system's default.

    Raises:
        CommandError: there is none, or it is no executable file.
    """
    if shutil.which(word, path=path) is not None:
        return
    if os.sep in word and os.path.isdir(word):
        raise CommandError(CANNOT_RUN, f"{word!r} is a folder: a command is needed that does something with it")
    if os.sep in word and os.path.exists(word):
        advice = f": {how_to_run(word)}, or chmod +x it" if os.path.isfile(word) else ""
        raise CommandError(CANNOT_RUN, f"{word!r} is not an executable file{advice}")
    raise CommandError(NOT_FOUND, f"there is no command {word!r}{explain_absence(word, path)}")


def exit_status(status: int) -> int:
    """The exit status by which a shell would tell ``status``: 128+N for -N."""
    return 128 - status if status < 0 else status


def describe_status(status: int) -> str:
    """``exited with status 3``, or ``was killed by signal 9 (SIGKILL)`` for -9.

    A shell tells of the end of its command by a status above 128: ``exited with status 137 (as by SIGKILL)``.
    """
    if status >= 0:
        name = _signal_name(status - 128)
        return f"exited with status {status}" + (f" (as by {name})" if name else "")
    name = _signal_name(-status)
    return f"was killed by signal {-status}" + (f" ({name})" if name else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs ``module`` of this very package.

    ``python -m`` would look in the working folder first, where a user's ``queue.py``, or another copy of this
    package, may lie.
    """
    # runpy is imported after the working folder has left the path: it needs modules of common names, such as types.
    code = "import sys; sys.path[:1] = []; import runpy; sys.path.append(sys.argv.pop(1)); "
    code += "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    root = str(Path(errors.__file__).parent.parent)
    return (sys.executable, "-c", code, root, module, *arguments)
