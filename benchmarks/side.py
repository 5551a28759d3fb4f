"""One side of a comparison: the processes of one job, their phases, what they use, and their end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from benchmarks import phases, usage
from benchmarks.environment import ROOT

_POLL = 0.01
_PSS_INTERVAL = 0.1
_LAST_LINES = 30
_END_SECONDS = 30.0
_KILL_SECONDS = 5.0


class SideError(Exception):
    """A process has failed, or not ended, or not answered; the message ends with the last lines of output.

    Attributes:
        status: the exit status that a benchmark ends with: 2 if a process has refused its settings with that, else 1.
    """

    def __init__(self, message: str, ended: int = 1) -> None:
        super().__init__(message)
        self.status = 2 if ended == 2 else 1


def perform(program: str, body: Callable[[], None], *failures: type[Exception]) -> int:
    """Do ``body``, which is all that a benchmark does, ended in order by SIGTERM and Ctrl-C; its exit status.

    Args:
        program: named before the message of what has failed.
        failures: exceptions beside :class:`SideError` that are failures, with status 1; others are errors of ours.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        body()
    except (SideError, *failures) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.status if isinstance(error, SideError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


@dataclass(frozen=True)
class Program:
    """A process to start.

    Attributes:
        command: its words. ``{folder}`` in one becomes the folder of the phases.
        environ: variables beside those of this process.
    """

    command: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)


class Side:
    """A running job. A context manager: when it is left, no process of the job is.

    Args:
        name: for messages.
        programs: what is started, in this order.
        workers: how many processes among them and their descendants take part in the phases.
        work: what the workers find in ``work.json``.

    Attributes:
        cpu: user and system seconds of the last phase, by role (``worker``, ``server``, ``scheduler``, ``launcher``).
        peaks: peak PSS in MB by process name, see :func:`benchmarks.usage.note_pss`.
    """

    def __init__(self, name: str, programs: Sequence[Program], workers: int, work: Mapping[str, Any]) -> None:
        self.name = name
        self.cpu: dict[str, tuple[float, float]] = {}
        self.peaks: dict[str, float] = {}
        self._workers = workers
        self._number = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._seen: set[psutil.Process] = set()  # also those whose parent has died since
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="bps-benchmark-"))
        phases.write(self._folder / "work.json", {**work, "driver": os.getpid(), "workers": workers})

    def __enter__(self) -> Side:
        try:
            for index, program in enumerate(self._programs):
                words = [word.replace("{folder}", os.fspath(self._folder)) for word in program.command]
                with (self._folder / f"output-{index}").open("wb") as output:
                    self._processes.append(
                        subprocess.Popen(
                            words,
                            cwd=ROOT,
                            env={**os.environ, **program.environ},
                            stdin=subprocess.DEVNULL,
                            stdout=output,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,  # a Ctrl-C ends this process, and this one its sides
                        )
                    )
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._end()
        finally:
            self._kill()

    def phase(self, do: str, *, limit: float = 120.0, watch_memory: bool = False, **order: Any) -> list[dict[str, Any]]:
        """Have all workers do something, and wait for them.

        Args:
            do: what, see the workers.
            limit: seconds after which this fails.
            watch_memory: note every process's memory meanwhile, which takes time from it.
            order: further words for the workers.

        Returns:
            What each worker has reported, by rank.

        Raises:
            SideError: a process has ended, or the time is up.
        """
        answers = [self._folder / f"done-{self._number}-{rank}.json" for rank in range(self._workers)]
        before = usage.cpu_seconds(self._family())
        phases.write(self._folder / f"phase-{self._number}.json", {"do": do, **order})
        self._number += 1
        self._wait(lambda: all(each.exists() for each in answers), do, limit, watch_memory)
        self._account(before)
        return [phases.read(each) for each in answers]

    def pids(self) -> list[int]:
        """Of all processes of the job."""
        return [each.pid for each in self._family()]

    def path(self, name: str) -> Path:
        """A file in the folder of the phases; workers may put others there."""
        return self._folder / name

    def _account(self, before: usage.CpuTimes) -> None:
        processes = self._family()
        spent, names = usage.spent(before, usage.cpu_seconds(processes)), usage.names(processes)
        self.cpu = {}
        for pid, (user, system) in spent.items():
            role = names.get(pid, "other").partition("-")[0]
            sums = self.cpu.get(role, (0.0, 0.0))
            self.cpu[role] = sums[0] + user, sums[1] + system

    def _family(self) -> list[psutil.Process]:
        found = usage.family(each.pid for each in self._processes)
        self._seen.update(found)
        return found

    def note_memory(self) -> None:
        """Take every process's memory into :attr:`peaks`."""
        processes = self._family()
        names = usage.names(processes)
        found: dict[int, float] = {}
        usage.note_pss(found, processes)
        for pid, pss in found.items():
            name = names.get(pid, "other")
            self.peaks[name] = max(pss, self.peaks.get(name, 0.0))

    def _wait(self, condition: Callable[[], bool], what: str, limit: float, watch_memory: bool = False) -> None:
        deadline = time.monotonic() + limit
        next_look = time.monotonic() + _PSS_INTERVAL
        while not condition():
            now = time.monotonic()
            ended = [each.returncode for each in self._processes if each.poll() is not None]
            if ended and not condition():
                raise SideError(
                    f"{self.name}: a process has ended with status {ended[0]} in {what!r}{self._said()}", ended[0]
                )
            if now > deadline:
                raise SideError(f"{self.name}: {what!r} took more than {limit:.0f} s{self._said()}")
            if watch_memory and now > next_look:
                self.note_memory()
                next_look = time.monotonic() + _PSS_INTERVAL
            time.sleep(_POLL)

    def _end(self) -> None:
        phases.write(self._folder / f"phase-{self._number}.json", {"do": "end"})
        deadline = time.monotonic() + _END_SECONDS
        for each in self._processes:
            try:
                status = each.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise SideError(f"{self.name}: a process does not end{self._said()}") from None
            if status:
                raise SideError(
                    f"{self.name}: a process has ended with status {status} at the end{self._said()}", status
                )

    def _said(self) -> str:
        lines: list[str] = []
        for each in sorted(self._folder.glob("output-*")):
            lines += each.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        return "; it said:\n" + "\n".join(lines) if lines else "; it said nothing"

    def _kill(self) -> None:
        """End what still lives, and remove the folder."""
        self._family()
        for process in self._seen:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for each in self._processes:
            each.wait()
        psutil.wait_procs(self._seen, timeout=_KILL_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)
