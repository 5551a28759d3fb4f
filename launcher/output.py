"""Lines of many processes on one terminal.

A :class:`Stream` reads one pipe of one process and hands whole lines to a :class:`Sink`, one of the launcher's own two
outputs.  Bytes are passed on as they are, with the label of the process at the start of each line.

* A line that is not finished yet is held back for a moment, since a line often arrives in several writes; then it is
  shown as it is (a prompt), and the stream may continue it.  If another process writes meanwhile, the sink breaks the
  line first, so labels are never wrong.
* A carriage return starts the line anew: progress bars keep working.
* Memory is bounded: a line longer than :data:`LONGEST_HELD` is passed on in pieces, and a sink that cannot get rid of
  its bytes is ``full``: its streams are not read until it can, so that the writing process waits.
* A :class:`~byteps_py.launcher.tracebacks.Screen` may leave out lines; a log gets all that is read, as it is.
* A sink never blocks the launcher, which must react to signals meanwhile: it writes no more than what a pipe takes at
  once when it says that it is writable.
"""

from __future__ import annotations

import errno
import os
import re
import select
import stat
import time
from typing import IO

from byteps_py.launcher.logfile import LogFile
from byteps_py.launcher.tracebacks import Screen

__all__ = ["Sink", "Stream"]

QUIET_SECONDS = 0.2
"""An unfinished line is shown when its process has written nothing for this long."""
LONGEST_HELD = 64 * 1024
_READ_BYTES = 64 * 1024
_FULL_BYTES = 1024 * 1024
_ATOMIC_BYTES = select.PIPE_BUF

_NEW_LINE = re.compile(rb"(?:\n|\r(?![\r\n]))(?=.)", re.DOTALL)
"""Where the next line begins, unless there is none yet."""


class Sink:
    """One output of the launcher, written without ever blocking. ``fd`` stays the caller's."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken = False
        """Whether nothing can be written any more: what comes is thrown away."""
        self.has_no_reader = False
        """Whether that is because the reader of a pipe is gone."""
        self.problem = ""
        """What else it is because of, such as a full disk; empty also if a terminal has hung up."""
        self._pending = bytearray()
        self._unfinished: object | None = None
        self._has_returned = False
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def waiting(self) -> bool:
        """Whether bytes wait to be written."""
        return bool(self._pending)

    @property
    def full(self) -> bool:
        """Whether so many bytes wait that no more should be added."""
        return len(self._pending) >= _FULL_BYTES

    def put(self, source: object, label: bytes, data: bytes) -> None:
        """Add what ``source`` wrote; each line that begins in ``data`` gets the label."""
        if self.broken or not data:
            return
        if self._unfinished is source:
            lacks_label = self._has_returned and data[:1] not in b"\r\n"
        else:
            lacks_label = data[:1] != b"\r" or data[1:2] == b"\n"
            if self._unfinished is not None:
                self._pending += b"\n"
        if lacks_label:
            self._pending += label
        self._pending += _labelled(data, label) if label else data
        self._unfinished = None if data.endswith(b"\n") else source
        # The line is still shown, and must not be written over by another process.
        self._has_returned = data.endswith(b"\r")

    def flush(self) -> None:
        """Write what can be written at once."""
        while self._pending and self._poll.poll(0):
            # Whole lines, if possible: others may write to the same terminal.
            end = self._pending.rfind(b"\n", 0, _ATOMIC_BYTES) + 1 or _ATOMIC_BYTES
            try:
                written = os.write(self.fd, self._pending[:end])
            except BlockingIOError:
                return
            except OSError as error:
                self._break(error)
                return
            del self._pending[:written]

    def _break(self, error: OSError) -> None:
        self.broken = True
        self._pending.clear()
        self.has_no_reader = error.errno in (errno.EPIPE, errno.ECONNRESET)
        has_hung_up = error.errno == errno.EIO and stat.S_ISCHR(os.fstat(self.fd).st_mode)
        if not self.has_no_reader and not has_hung_up:
            self.problem = error.strerror or str(error)


class Stream:
    """One output of one process.

    Args:
        pipe: the reading end; closed by :meth:`close` and at its end.
        label: put at the start of each line; may be empty.
        sink: where the lines go.
        log: gets all bytes; stays the caller's.
    """

    def __init__(self, pipe: IO[bytes], label: bytes, sink: Sink, log: LogFile | None = None) -> None:
        self.fd = pipe.fileno()
        self.sink = sink
        self._pipe = pipe
        self._label = label
        self._log = log
        self._held = b""
        self._last_read = 0.0
        self._screen: Screen | None = None
        self._is_hushed = False

    @property
    def show_at(self) -> float | None:
        """When (monotonic seconds) :meth:`flush` is due; None while nothing is held that it would show."""
        waits = self._screen.waits if self._screen is not None else False
        return self._last_read + QUIET_SECONDS if waits or self._holds_text else None

    @property
    def _holds_text(self) -> bool:
        """Whether an unfinished line is held that is known to be none of a traceback."""
        return bool(self._held) and not (self._screen is not None and self._screen.is_inside)

    def put_screen(self) -> None:
        """From now on, lines go through a screen."""
        self._screen = self._screen or Screen()

    def hush(self) -> None:
        """From now on, nothing is shown."""
        self._is_hushed = True

    def read(self) -> bool:
        """Read once, after the pipe was found readable; False at its end."""
        data = os.read(self.fd, _READ_BYTES)
        if not data:
            self.close()
            return False
        if self._log is not None:
            self._log.write(data)
        self._last_read = time.monotonic()
        # A held piece has no newline and a carriage return only as its first byte, so only the new bytes are searched.
        cut = data.rfind(b"\n") + 1
        if self._screen is None:
            cut = max(cut, data.rfind(b"\r"))
        if cut or (data.startswith(b"\r") and self._screen is None):
            self._put(self._held + data[:cut])
            self._held = data[cut:]
        else:
            self._held += data
        if len(self._held) >= LONGEST_HELD:
            self._show_held()
        return True

    def flush(self) -> None:
        """Nothing has come for a moment: pass on the unfinished line."""
        if self._screen is not None and self._screen.waits:
            self._show(self._screen.settle())
        if self._holds_text:
            self._show_held()

    def close(self) -> None:
        """Pass on what is held and close the pipe: the kernel tells whoever still writes to it."""
        if self._screen is not None and self._held:
            self._put(self._held)
            self._held = b""
        if self._screen is not None:
            self._show(self._screen.settle())
        self._show_held()
        self._pipe.close()

    def _show_held(self) -> None:
        self._show(self._held)
        self._held = b""

    def _put(self, lines: bytes) -> None:
        self._show(lines if self._screen is None else self._screen.feed(lines))

    def _show(self, data: bytes) -> None:
        if not self._is_hushed:
            self.sink.put(self, self._label, data)


def _labelled(data: bytes, label: bytes) -> bytes:
    if b"\r" not in data:
        return data[:-1].replace(b"\n", b"\n" + label) + data[-1:]
    return _NEW_LINE.sub(lambda found: found.group() + label, data)
