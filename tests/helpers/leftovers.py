"""Finds what a test has left behind: processes, sockets, shared memory, temporary files.

Processes are recognised in two ways: as descendants of the test process, and, where their parent has died and they
belong to nobody any more, by a variable in their environment that only this test run has. Shared memory has no such
mark, and other runs and users may have some at this moment; it is left over if it is this user's and no process has it
open or mapped.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

RUN_MARK = "BPS_TEST_RUN"
"""Environment variable that every process started by this test run inherits."""

SHARED_MEMORY = Path("/dev/shm")
_OWN_NAMES = ("byteps", "bps")
_THIRD_PARTY_SHARED_MEMORY = ("torch_", "sem.", "psm_")
_THIRD_PARTY_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True)
class Leftovers:
    """A picture of what exists: ``(pid, start time)`` with a description, and paths."""

    processes: dict[tuple[int, float], str]
    files: frozenset[str]

    def since(self, before: Leftovers) -> list[str]:
        """One line for each thing that was not there ``before``."""
        processes = [text for key, text in self.processes.items() if key not in before.processes]
        return sorted(processes) + sorted(self.files - before.files)


def look(mark: str) -> Leftovers:
    """What there is now; ``mark`` is the value of :data:`RUN_MARK` in this run."""
    return Leftovers(_processes(mark), frozenset(_shared_memory() | _temporary_files()))


def wait_until_gone(mark: str, before: Leftovers, seconds: float) -> list[str]:
    """Lines for what is still there, beyond ``before``, after at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        left = look(mark).since(before)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def end_processes(mark: str, before: Leftovers) -> None:
    """Kill what is left, so that one bad test does not spoil the others."""
    for pid, started in look(mark).processes.keys() - before.processes.keys():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.create_time() == started:
                process.kill()


def _processes(mark: str) -> dict[tuple[int, float], str]:
    found: dict[tuple[int, float], str] = {}
    own = psutil.Process()
    candidates = {each.pid: each for each in own.children(recursive=True)}
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if each.pid != own.pid and each.environ().get(RUN_MARK) == mark:
                candidates[each.pid] = each
    for each in candidates.values():
        with contextlib.suppress(psutil.Error):
            command = " ".join(each.cmdline()) or each.name()
            alive = each.status() != psutil.STATUS_ZOMBIE
            if alive and not any(known in command for known in _THIRD_PARTY_PROCESSES):
                found[each.pid, each.create_time()] = f"process {each.pid}: {command[:200]}"
    return found


def _shared_memory() -> set[str]:
    if not SHARED_MEMORY.is_dir():
        return set()
    own: set[str] = set()
    for entry in SHARED_MEMORY.iterdir():
        with contextlib.suppress(OSError):
            if entry.lstat().st_uid == os.getuid() and not entry.name.startswith(_THIRD_PARTY_SHARED_MEMORY):
                own.add(str(entry))
    return {f"shared memory {entry}" for entry in own - _in_use()} if own else set()


def _in_use() -> set[str]:
    """The shared memory that some process has open or mapped, as far as this user may see."""
    found: set[str] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            found.update(each.path for each in process.open_files())
        with contextlib.suppress(psutil.Error, OSError):
            found.update(each.path for each in process.memory_maps())
    return {each for each in found if each.startswith(f"{SHARED_MEMORY}/")}


def _temporary_files() -> set[str]:
    """Sockets and pipes of any name, and anything with a name of ours, in the temporary folder."""
    found: set[str] = set()
    for entry in os.scandir(tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode) or entry.name.lower().startswith(_OWN_NAMES):
                found.add(f"temporary file {entry.path}")
    return found
