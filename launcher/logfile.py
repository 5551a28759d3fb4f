"""The output of one process in a file: both streams, byte for byte, as they come."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

__all__ = ["LogFile"]


class LogFile:
    """One file, replaced if it exists. Everything is written at once, so that ``tail -f`` shows it.

    A disk that is full, or a file system that is gone, is told once and does not stop the job; what cannot be written
    is missing in the file.

    Args:
        path: its folder is made if need be.
        complain: prints a line.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        self._path = path
        self._complain: Callable[[str], None] | None = complain
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True)
        # Appending, so that somebody else may empty the file meanwhile; without waiting for the reader of a pipe.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = os.open(path, flags, 0o666)
        if stat.S_ISFIFO(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise OSError(errno.EINVAL, "it is a pipe, whose reader the job would have to wait for", str(path))

    def write(self, data: bytes) -> None:
        """Add what a process has printed."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            if self._complain is not None:
                self._complain(f"{self._path}: {error.strerror}: output is missing there; the job goes on")
                self._complain = None

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)
