"""A program at a terminal, driven as by a person: keys go in, and what it shows is waited for."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Terminal", "terminal"]

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|[\x07\x0f]")


class Terminal:
    """The person's side of it; see :func:`terminal`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.shown = ""
        """All that was shown so far, without control sequences."""

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._fd, keys.encode())

    def wait_for(self, text: str, timeout: float = 20.0) -> str:
        """Wait until ``text`` is shown; returns what was shown since the last call, up to and with it."""
        deadline = time.monotonic() + timeout
        while text not in self.shown:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._fd], [], [], max(0.0, left))
            assert ready, f"{text!r} was not shown:\n{self.shown}"
            self.shown = _CONTROL.sub("", self.shown + os.read(self._fd, 65536).decode(errors="replace"))
        seen, found, self.shown = self.shown.partition(text)
        return seen + found


@contextmanager
def terminal(argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Iterator[Terminal]:
    """Start a program at a terminal of its own; it is killed at the end of the block."""
    controller, device = pty.openpty()
    process = subprocess.Popen(
        argv, cwd=folder, env=environ, stdin=device, stdout=device, stderr=device, start_new_session=True
    )
    os.close(device)
    try:
        yield Terminal(controller)
    finally:
        process.kill()
        process.wait(10)
        os.close(controller)
