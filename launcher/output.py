"""Lines of many processes on one terminal.

A :class:`Stream` reads one pipe of one process and hands whole lines to a :class:`Sink`, one of the launcher's own two
outputs.  Bytes are passed on as they are, with the label of the process at the start of each line.

* A line that is not finished yet is held back for a moment, since a line often arrives in several writes; then it is
  shown as it is (a prompt), and the stream may continue it.  If another process writes meanwhile, the sink breaks the
  line first, so labels are never wrong.
* A carriage return starts the line anew: progress bars keep working.
* Memory is bounded: a line longer than :data:`LONGEST_HELD` is passed on in pieces, and a sink that cannot get rid of
  its bytes is ``full``: its streams are not read until it can, so that the writing process waits.
* A sink never blocks the launcher, which must react to signals meanwhile: it writes no more than what a pipe takes at
  once when it says that it is writable.
"""

from __future__ import annotations

import os
import re
import select
import time
from typing import IO

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
        """Whether nobody reads this output any more."""
        self._pending = bytearray()
        self._unfinished: object | None = None
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
        if self._unfinished is not source:
            if self._unfinished is not None:
                self._pending += b"\n"
            if data[:1] != b"\r" or data[1:2] == b"\n":
                self._pending += label
        self._pending += _labelled(data, label) if label else data
        self._unfinished = None if data.endswith((b"\n", b"\r")) else source

    def flush(self) -> None:
        """Write what can be written at once."""
        while self._pending and self._poll.poll(0):
            # Whole lines, if possible: the other sink may lead to the same terminal.
            end = self._pending.rfind(b"\n", 0, _ATOMIC_BYTES) + 1 or _ATOMIC_BYTES
            try:
                written = os.write(self.fd, self._pending[:end])
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                self._pending.clear()
                return
            del self._pending[:written]


class Stream:
    """One output of one process.

    Args:
        pipe: the reading end; closed by :meth:`close` and at its end.
        label: put at the start of each line; may be empty.
        sink: where the lines go.
    """

    def __init__(self, pipe: IO[bytes], label: bytes, sink: Sink) -> None:
        self.fd = pipe.fileno()
        self.sink = sink
        self._pipe = pipe
        self._label = label
        self._held = b""
        self._last_read = 0.0

    @property
    def show_at(self) -> float | None:
        """When (monotonic seconds) :meth:`flush` is due; None while no unfinished line is held."""
        return self._last_read + QUIET_SECONDS if self._held else None

    def read(self) -> bool:
        """Read once, after the pipe was found readable; False at its end."""
        data = os.read(self.fd, _READ_BYTES)
        if not data:
            self.close()
            return False
        self._last_read = time.monotonic()
        # A held piece has no newline and a carriage return only as its first byte, so only the new bytes are searched.
        cut = max(data.rfind(b"\n") + 1, data.rfind(b"\r"))
        if cut or data.startswith(b"\r"):
            self.sink.put(self, self._label, self._held + data[:cut])
            self._held = data[cut:]
        else:
            self._held += data
        if len(self._held) >= LONGEST_HELD:
            self.flush()
        return True

    def flush(self) -> None:
        """Pass on the unfinished line."""
        self.sink.put(self, self._label, self._held)
        self._held = b""

    def close(self) -> None:
        """Pass on the unfinished line and close the pipe: the kernel tells whoever still writes to it."""
        self.flush()
        self._pipe.close()


def _labelled(data: bytes, label: bytes) -> bytes:
    if b"\r" not in data:
        return data[:-1].replace(b"\n", b"\n" + label) + data[-1:]
    return _NEW_LINE.sub(lambda found: found.group() + label, data)
