"""What a person sees meanwhile and at the end.  None of it is worth an experiment of hours: a terminal that is closed,
a pipe whose reader has gone, or a full disk makes the screen silent, and nothing else.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import TextIO

from byteps_py.standard_output import discard, is_terminal
from byteps_py.tune.wording import plain

__all__ = ["Screen", "fill_descriptors"]

_REFRESH_SECONDS = 0.5
_END_COLUMNS = 38


class Screen:
    """Lines for a person: one for each run, and on a terminal one below them that changes.

    What does not print, such as the sequences that move a cursor, is replaced: some of it comes from the user's script.
    After a line that could not be written no other is tried.

    Args:
        stream: where to; a terminal or not. None: nowhere.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._is_terminal = is_terminal(stream)
        self._shown = ""
        self._refreshed = 0.0

    def say(self, text: str) -> None:
        """Print lines that stay."""
        self._write(self._blank() + "\n".join(map(plain, text.split("\n"))) + "\n")
        self._shown = ""
        self._refreshed = 0.0

    def show(self, text: Callable[[], str]) -> None:
        """Replace the line that changes, if there is one and it is old enough."""
        now = time.monotonic()
        if not self._is_terminal or now - self._refreshed < _REFRESH_SECONDS:
            return
        self._refreshed = now
        line = plain(text())
        # One column less: a line that fills the terminal would begin another one. What changes is at its end.
        room = shutil.get_terminal_size().columns - 1
        if len(line) > room:
            kept = min(_END_COLUMNS, room // 2)
            line = f"{line[: room - kept - 3]}...{line[-kept:]}"[:room]
        self._write("\r" + line + " " * (len(self._shown) - len(line)))
        self._shown = line

    def _blank(self) -> str:
        return "\r" + " " * len(self._shown) + "\r" if self._shown else ""

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            discard(self._stream)
            self._stream = None


def fill_descriptors() -> None:
    """Open ``/dev/null`` in the place of standard descriptors that are closed: the next file, such as a lock, would get
    the number, and whoever writes to standard error would write into it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
