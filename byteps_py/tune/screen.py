"""What a person sees meanwhile and at the end.  None of it is worth an experiment of hours: a terminal that is closed,
a pipe whose reader has gone, or a full disk makes the screen silent, and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Callable
from typing import TextIO

from byteps_py.tune.wording import plain

__all__ = ["Screen", "fill_descriptors", "is_terminal", "put_out"]

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
            _discard(self._stream)
            self._stream = None


def put_out(text: str, stream: TextIO | None) -> str:
    """Print what was asked for, with a newline behind it. Returns why it could not be, empty if it was.

    Nobody there to read it, because the stream was closed or its reader has gone, is no error: that was wanted.
    """
    if stream is None:
        return ""
    # A character that the locale does not have is no reason to print nothing.
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = (text + "\n").encode(encoding, "replace").decode(encoding)
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError) as error:
        gone = isinstance(error, BrokenPipeError) or _is_hung_up(error, stream)
        _discard(stream)
        return "" if gone else getattr(error, "strerror", None) or str(error)
    return ""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream, which may be closed or not be there, is a terminal."""
    with contextlib.suppress(OSError, ValueError):
        return stream is not None and stream.isatty()
    return False


def fill_descriptors() -> None:
    """Open ``/dev/null`` in the place of standard descriptors that are closed: the next file, such as a lock, would get
    the number, and whoever writes to standard error would write into it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free


def _is_hung_up(error: Exception, stream: TextIO) -> bool:
    """Whether the terminal behind a stream was closed; of a file the same number says that the disk is broken."""
    with contextlib.suppress(OSError, ValueError):
        is_device = stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
        return is_device and isinstance(error, OSError) and error.errno == errno.EIO
    return False


def _discard(stream: TextIO) -> None:
    """Let the rest of a stream go nowhere: Python tries to write it when it ends, and fails with status 120."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
