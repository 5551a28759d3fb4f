"""Whose traces go into a folder: jobs that run at the same time must not write over one another.

As long as a process of a job may write there it holds a lock (``flock``, shared among the processes of a job) on a
file that has the number of this run of the job.  The system lets go of it however the process ends, so what a job has
left that is over is nobody's, and the next one replaces it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Final

__all__ = ["IN_USE", "FolderLock", "lock_folder"]

IN_USE: Final = ".in-use"
_TRIES: Final = 100
_PAUSE_SECONDS: Final = 0.01


class FolderLock:
    """Held from :func:`lock_folder` to :meth:`release`. Not thread-safe."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def release(self) -> None:
        """Let go; the last process of the job removes the file. A second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        with contextlib.suppress(OSError):  # others of the job have it, or the folder is gone
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, self._path):
                self._path.unlink()
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may have the file open as well
        os.close(fd)


def lock_folder(folder: Path, job: int) -> FolderLock | None:
    """Say that ``job`` traces into ``folder``, which exists; None if another job that runs says so.

    Raises:
        OSError: nothing can be known, as where the file system has no locks.
    """
    path, name = folder / IN_USE, f"{job:016x}".encode()
    for _ in range(_TRIES):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        owner = b""
        try:
            owner = _owner(fd, path, name)
            if owner == name:
                return FolderLock(fd, path)
        finally:
            if owner != name:
                os.close(fd)
        if owner:
            return None
        time.sleep(_PAUSE_SECONDS)
    raise TimeoutError(f"{path} is locked all the time")


def _owner(fd: int, path: Path, name: bytes) -> bytes:
    """Whose the file is, with the lock shared; ``name`` if it was nobody's; empty if that is being decided."""
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                os.ftruncate(fd, 0)
                os.pwrite(fd, name, 0)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return b""
    # The lock may have been free between the two, and the file removed.
    return os.pread(fd, len(name), 0) if _is_at(fd, path) else b""


def _is_at(fd: int, path: Path) -> bool:
    """Whether the file is there still, and no other one."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
