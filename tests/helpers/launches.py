"""Running ``bpslaunch`` in tests, and looking at what it has started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

PYTHON = sys.executable
LAUNCH_MARK = "BPS_TEST_LAUNCH"
"""A variable that is different for each launch, and stays when a process leaves its session."""
TRAIN = """
import sys, time
import numpy as np
import byteps_py as bps

bps.init()
steps = int(sys.argv[1])
for step in range(steps):
    total = bps.push_pull(np.full(100, bps.rank() + 1, np.float32), name="a", op=bps.SUM)
    if step == 0:
        print("first", flush=True)
    if steps > 100:
        time.sleep(0.05)
print("sum", total[0])
"""
"""Two workers sum 1 and 2; with more than 100 steps it goes on until it is ended."""
JOIN = "import byteps_py; byteps_py.init(); "
"""A command that never joins its job makes the launcher wait for the scheduler and the servers, which wait for it."""
FOR_EVER = (PYTHON, "-c", TRAIN, "1000000")
SLEEP = (PYTHON, "-c", "import time; print('up', flush=True); time.sleep(1000)")
OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
"""For Popen: a group of its own, as in a shell; in a session of its own it could not be stopped by SIGTSTP.

Python must not run anything in the forked child of a process with threads; before 3.11 there is no other way.
"""


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something that is bound to happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class Launch:
    """A running bpslaunch; its outputs go to files.

    Args:
        folder: where it runs, and where the files are.
        words: what follows its name.
        env: added to the environment of the tests.
        before: the words of a command that is to run it.
    """

    def __init__(
        self,
        folder: Path,
        words: tuple[str, ...],
        env: dict[str, str],
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | None = None,
        before: tuple[str, ...] = (),
    ) -> None:
        self._mark = uuid.uuid4().hex
        self.out_path, self.err_path = folder / "out", folder / "err"
        with self.out_path.open("wb") as out, self.err_path.open("wb") as err:
            self.process = subprocess.Popen(
                [*before, PYTHON, "-m", "byteps_py.launcher", *words],
                cwd=folder,
                env={**os.environ, **env, LAUNCH_MARK: self._mark},
                stdin=stdin,
                stdout=out if stdout is None else stdout,
                stderr=err,
                **OWN_GROUP,
            )

    @property
    def out(self) -> str:
        return self.out_path.read_text()

    @property
    def err(self) -> str:
        return self.err_path.read_text()

    @property
    def out_lines(self) -> list[str]:
        return self.out.splitlines()

    def wait(self, seconds: float = 30.0) -> int:
        return self.process.wait(seconds)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def processes(self) -> dict[int, str]:
        """All that is alive of it and of what it has started: commands by process id, without its own."""
        found = {}
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                is_alive = each.status() != psutil.STATUS_ZOMBIE
                if is_alive and each.environ().get(LAUNCH_MARK) == self._mark and each.pid != self.process.pid:
                    found[each.pid] = " ".join(each.cmdline())
        return found

    def end(self) -> None:
        """Kill it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def children(self) -> dict[str, psutil.Process]:
        """By what they are: ``scheduler``, ``server``, ``guard``, and ``worker 0`` ... in the order of their start."""
        found: dict[str, psutil.Process] = {}
        with contextlib.suppress(psutil.Error):
            for child in sorted(psutil.Process(self.process.pid).children(), key=lambda each: each.pid):
                words = child.cmdline()
                if words[-2:-1] == ["byteps_py"]:
                    found[words[-1]] = child
                elif any(word.endswith("sweep.py") for word in words):
                    found["guard"] = child
                elif "byteps_py.roles.herald" in words:
                    found["herald"] = child
                else:
                    found[f"worker {sum(name.startswith('worker') for name in found)}"] = child
        return found


@contextlib.contextmanager
def launches(folder: Path) -> Iterator[Callable[..., Launch]]:
    """A function that starts launches, each in a folder of its own below ``folder``; they are killed at the end."""
    started: list[Launch] = []

    def start(*words: str, env: dict[str, str] | None = None, **more: Any) -> Launch:
        own = folder / str(len(started))
        own.mkdir(exist_ok=True)
        started.append(Launch(own, words, env or {}, **more))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.end()


def running(launched: Launch) -> dict[str, psutil.Process]:
    """The processes of a job of two workers that has made its first step."""
    until(lambda: launched.out.count("first") == 2)
    return launched.children()


def still_there(processes: dict[str, psutil.Process]) -> list[str]:
    return [
        name for name, process in processes.items() if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]
