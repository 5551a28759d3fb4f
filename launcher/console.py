"""The launcher's two outputs, and those of its processes, which lead there: one place that moves all bytes."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Collection, Iterable
from typing import IO

from byteps_py.launcher.logfile import LogFile
from byteps_py.launcher.output import Sink, Stream

__all__ = ["Console"]


class Console:
    """Belongs to the launcher's only thread. Nothing here blocks but :meth:`wait`.

    Args:
        out, err: descriptors of the launcher's two outputs.  If they are one file, such as a terminal, there is one
            sink for both, which knows what line stands there unfinished.
    """

    def __init__(self, out: int = 1, err: int = 2) -> None:
        self._stdout = Sink(out)
        self._stderr = self._stdout if _is_same_file(out, err) else Sink(err)
        self._sinks = tuple(dict.fromkeys((self._stdout, self._stderr)))
        self._streams: dict[int, Stream] = {}
        self._error_streams: list[Stream] = []

    @property
    def is_listening(self) -> bool:
        """Whether there is an output of a process that has not ended."""
        return bool(self._streams)

    @property
    def is_waiting(self) -> bool:
        """Whether bytes wait for a reader of the launcher's outputs."""
        return any(sink.waiting for sink in self._sinks)

    @property
    def is_full(self) -> bool:
        """Whether a reader is so slow that processes have to wait for it."""
        return any(sink.full for sink in self._sinks)

    @property
    def has_lost_output(self) -> bool:
        """Whether something could not be written, for another reason than that nobody wants to read it."""
        return any(sink.problem for sink in self._sinks)

    @property
    def deadline(self) -> float | None:
        """When :meth:`wait` has something to do again, even if nothing happens."""
        return min((each.show_at for each in self._streams.values() if each.show_at is not None), default=None)

    def say(self, text: str) -> None:
        """Print a line of the launcher's own to standard error, between those of the processes."""
        self._stderr.put(self, b"", f"bpslaunch: {text}\n".encode(errors="surrogateescape"))
        self._stderr.flush()

    def listen(self, outputs: tuple[IO[bytes], IO[bytes]], label: str, log: LogFile | None) -> tuple[Stream, Stream]:
        """Begin to pass on a process's standard output and error; ``label`` starts each line, ``log`` gets all."""
        start = f"[{label}] ".encode() if label else b""
        out, err = (
            Stream(pipe, start, sink, log) for pipe, sink in zip(outputs, (self._stdout, self._stderr), strict=True)
        )
        self._streams |= {out.fd: out, err.fd: err}
        self._error_streams.append(err)
        return out, err

    def leave_out_interruptions(self) -> None:
        """The user has pressed Ctrl-C, and need not be told of it by every process."""
        for stream in self._error_streams:
            stream.put_screen()

    def wait(self, wakeup: int, deadline: float | None) -> bytes:
        """Wait until ``deadline``, moving output meanwhile; returns what ``wakeup`` gives, the numbers of signals."""
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        for fd, stream in self._streams.items():
            if not stream.sink.full:
                poll.register(fd, select.POLLIN)
        for sink in self._sinks:
            if sink.waiting:
                poll.register(sink.fd, select.POLLOUT)
        due = min((each for each in (deadline, self.deadline) if each is not None), default=None)
        timeout = None if due is None else max(0.0, due - time.monotonic()) * 1000 + 1
        ready = {fd for fd, _ in poll.poll(timeout)}
        self._move(ready)
        return os.read(wakeup, 1024) if wakeup in ready else b""

    def close_streams(self) -> None:
        """Nothing more is awaited; the kernel tells whoever still writes."""
        self._close(list(self._streams.values()))

    def _move(self, ready: Collection[int]) -> None:
        # In the order of listening, so that of what came together standard output goes before standard error.
        for fd in [each for each in self._streams if each in ready]:
            if not self._streams[fd].read():
                del self._streams[fd]
        now = time.monotonic()
        for stream in self._streams.values():
            if stream.show_at is not None and stream.show_at <= now:
                stream.flush()
        for sink in self._sinks:
            self._flush(sink)

    def _flush(self, sink: Sink) -> None:
        was_broken = sink.broken
        sink.flush()
        if sink.has_no_reader:
            # Nobody reads this output any more. The processes are to learn that as if no launcher was between; but if
            # the terminal is gone, SIGHUP tells them, and what they print while they save must not fail; nor must a
            # job because of a full disk.
            self._close([stream for stream in self._streams.values() if stream.sink is sink])
        if sink.problem and not was_broken and sink is not self._stderr:
            self.say(f"standard output cannot be written: {sink.problem}: it is lost from here on; the job goes on")

    def _close(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            stream.close()
            del self._streams[stream.fd]


def _is_same_file(one: int, other: int) -> bool:
    """Whether two descriptors lead to one terminal, pipe or file."""
    found = [os.fstat(each) for each in (one, other)]
    return len({(each.st_dev, each.st_ino, each.st_rdev) for each in found}) == 1
