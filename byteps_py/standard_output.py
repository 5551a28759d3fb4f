"""Standard output of a command, which may be closed, a pipe whose reader has gone, or a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from typing import TextIO

from byteps_py.errors import OutputError

__all__ = ["discard", "is_terminal", "put_out", "settle", "show"]


def show(text: str) -> None:
    """Print what a command was asked for.

    Raises:
        OutputError: it could not be written, as in :func:`put_out`.
    """
    problem = put_out(text, sys.stdout)
    if problem:
        raise OutputError(f"standard output: {problem}")


def settle() -> None:
    """Write what others printed, such as a page of help; what cannot be written is given up, so that the end of the
    process does not complain."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except (OSError, ValueError):
                discard(stream)


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
        discard(stream)
        return "" if gone else getattr(error, "strerror", None) or str(error)
    return ""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream, which may be closed or not be there, is a terminal."""
    with contextlib.suppress(OSError, ValueError):
        return stream is not None and stream.isatty()
    return False


def _is_hung_up(error: Exception, stream: TextIO) -> bool:
    """Whether the terminal behind a stream was closed; of a file the same number says that the disk is broken."""
    with contextlib.suppress(OSError, ValueError):
        is_device = stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
        return is_device and isinstance(error, OSError) and error.errno == errno.EIO
    return False


def discard(stream: TextIO) -> None:
    """Let the rest of a stream go nowhere: Python tries to write it when it ends, and fails with status 120."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
