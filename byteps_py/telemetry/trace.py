"""The trace of a process: from the start of its role to ``BYTEPS_TRACE_DIR/.../comm.json``.

Where it is written: a worker to ``DIR/<local rank>/comm.json``, as BytePS did.  In a job of several machines that share
DIR the first one to come has that path, and the others write ``DIR/worker-<rank>/comm.json``.  A server writes
``DIR/server-<rank>/comm.json``.

When: as soon as all traced tensors have passed the last step, on a thread of its own, or else when the role ends,
however it does.  Nothing that is wrong with the file harms the job: it is told in one warning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from byteps_py.errors import SettingsError
from byteps_py.settings import TraceSettings
from byteps_py.telemetry.clock import ClockProbe, shift
from byteps_py.telemetry.timeline import Microseconds, Names
from byteps_py.telemetry.trace_file import FORMAT, Event, process_number, write_trace
from byteps_py.telemetry.tracks import Span, lay_out
from byteps_py.telemetry.window import MOST_SPANS, Window

__all__ = ["Owner", "Section", "Trace", "prepare_trace"]

_STRAGGLE_SECONDS: Final = 0.5
"""After the last tensor has passed, for what others of the process still have to do with the last step."""
_CLOSE_SECONDS: Final = 10.0
"""How long a thread that hangs in a write, as on a network drive, may hold a role that ends."""


class Owner(NamedTuple):
    """Whose trace it is.

    Attributes:
        role, rank: which process of the job.
        job: random 64-bit number of this run of it.
        num_worker, num_server: processes of the job.
        local_rank: of a worker.
        shares: whether workers on other machines have the same local rank, and may have the same folder.
    """

    role: str
    rank: int
    job: int
    num_worker: int
    num_server: int
    local_rank: int = 0
    shares: bool = False


Section = tuple[str, Callable[[Names, Microseconds, float], Iterable[Sequence[Span]]]]
"""Title of some tracks, and what gives their groups: from names, the clock, and the time of now."""


def prepare_trace(settings: TraceSettings) -> None:
    """See to it that there is a folder for traces, when a process starts; nothing if none is wanted.

    Raises:
        SettingsError: it cannot be made, or not be written to.
    """
    if not settings.trace_on:
        return
    folder = Path(settings.trace_dir).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "it must not be written to"
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        raise SettingsError(
            f"BYTEPS_TRACE_DIR={settings.trace_dir!r}: the folder {str(folder)!r} for traces cannot be used: {reason}"
        )


class Trace:
    """Records until all is passed and writes it once.  Any thread may call any method; a forked child does nothing.

    Args:
        settings: with traces on.
        log: of the role.
        most: spans that are kept.

    Attributes:
        window: says what is recorded.
        probe: asks for the scheduler's clock, by whoever is connected to it.
        names: of tensors, by their ids.
    """

    def __init__(self, settings: TraceSettings, log: logging.Logger, most: int = MOST_SPANS) -> None:
        self.window = Window(settings.trace_start_step, settings.trace_end_step, most, self._over)
        self._windows = [self.window]
        self._most = most
        self.probe = ClockProbe()
        self.names: dict[int, str] = {}
        self._settings = settings
        self._folder = Path(settings.trace_dir).absolute()  # now: the program may go elsewhere
        self._log = log
        self._pid = os.getpid()
        self._owner: Owner | None = None
        self._sections: Sequence[Section] = ()
        self._path: Path | None = None
        self._claim: Path | None = None
        self._lock = threading.Lock()
        self._written = False
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def further_window(self) -> Window:
        """For what is recorded beside the main thing, over the same steps; smaller."""
        settings = self._settings
        self._windows.append(Window(settings.trace_start_step, settings.trace_end_step, self._most // 4))
        return self._windows[-1]

    def begin(self, owner: Owner, sections: Sequence[Section]) -> None:
        """The job is complete; ``sections`` are asked when all is recorded."""
        self._owner = owner
        self._sections = sections
        try:
            self._path = self._choose_path(owner)
        except OSError as error:
            self._warn(error)

    def finish(self) -> None:
        """Write what there is, unless it is written; a second call does nothing."""
        if os.getpid() != self._pid:
            return
        self._ends.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_SECONDS)
        self._write()
        if self._claim is not None:
            with contextlib.suppress(OSError):
                self._claim.unlink(missing_ok=True)

    def _over(self) -> None:
        thread = threading.Thread(target=self._write_soon, name="byteps-trace", daemon=True)
        with contextlib.suppress(RuntimeError):  # none can be started: the interpreter ends, and finish() will write
            thread.start()
            self._thread = thread

    def _write_soon(self) -> None:
        self._ends.wait(_STRAGGLE_SECONDS)
        self._write()

    def _write(self) -> None:
        if not self._lock.acquire(timeout=_CLOSE_SECONDS):
            return
        try:
            owner, path = self._owner, self._path
            if self._written or owner is None or path is None:
                return
            self._written = True
            self.probe.stop()
            for window in self._windows:
                window.close()
            points, bound = self.probe.mapping()
            now = time.monotonic()

            def us(seconds: float) -> int:
                return shift(points, int(seconds * 1e9)) // 1000

            count = write_trace(path, self._about(owner), self._events(owner, us, now))
            error = "its own clock" if bound is None else f"the scheduler's clock, give or take {bound / 1000:.0f} µs"
            self._log.info("the trace is written: %s, %d events by %s", path, count, error)
            if dropped := self._dropped():
                text = "the trace is full: %d spans were left out; trace fewer steps (BYTEPS_TRACE_END_STEP)"
                self._log.warning(text, dropped)
        except Exception as error:  # a trace never harms the job, whatever is wrong with it
            self._warn(error)
        finally:
            self._lock.release()

    def _events(self, owner: Owner, us: Microseconds, now: float) -> Iterator[Event]:
        number = process_number(owner.role, owner.rank)
        name = f"{owner.role} {owner.rank}"
        yield Event("M", number, 0, "process_name", args={"name": name})
        yield Event("M", number, 0, "process_labels", args={"labels": socket.gethostname()})
        yield Event("M", number, 0, "process_sort_index", args={"sort_index": _place(owner)})
        track = 0
        for title, groups in self._sections:
            for index, spans in enumerate(lay_out(groups(self.names, us, now))):
                track += 2 if track + 1 == number else 1  # a viewer would take it for the main thread
                yield Event("M", number, track, "thread_name", args={"name": f"{title} {index}"})
                yield Event("M", number, track, "thread_sort_index", args={"sort_index": track})
                for begin, end, label, details in spans:
                    yield Event("X", number, track, label, "Comm", begin, end - begin, args=details)

    def _about(self, owner: Owner) -> dict[str, Any]:
        points, bound = self.probe.mapping()
        return {
            "byteps_py": FORMAT,
            "role": owner.role,
            "rank": owner.rank,
            "local_rank": owner.local_rank,
            "job": f"{owner.job:016x}",
            "num_worker": owner.num_worker,
            "num_server": owner.num_server,
            "host": socket.gethostname(),
            "pid": self._pid,
            "first_step": self.window.first,
            "last_step": self.window.until,
            "dropped": self._dropped(),
            "written": time.time(),
            "clock": {
                "of": "scheduler" if bound is not None else "itself",
                "error_us": None if bound is None else bound / 1000,
                "exchanges": self.probe.exchanges,
                "drift_us": (points[-1].offset - points[0].offset) / 1000,
            },
            "tensors": {str(tensor): name for tensor, name in self.names.items()},
        }

    def _dropped(self) -> int:
        return sum(each.dropped for each in self._windows)

    def _choose_path(self, owner: Owner) -> Path:
        if owner.role == "server":
            return self._folder / f"server-{owner.rank}" / "comm.json"
        path = self._folder / str(owner.local_rank) / "comm.json"
        if owner.shares:
            path.parent.mkdir(parents=True, exist_ok=True)
            claim = path.parent / f".job-{owner.job:016x}"
            try:
                os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
                self._claim = claim
            except FileExistsError:
                return self._folder / f"worker-{owner.rank}" / "comm.json"
        return path

    def _warn(self, error: Exception) -> None:
        reason = str(getattr(error, "strerror", None) or repr(error))
        where = self._path or self._folder
        self._log.warning("the trace of this process cannot be written, the job goes on: %s: %s", where, reason)


def _place(owner: Owner) -> int:
    """Servers first."""
    return owner.rank if owner.role == "server" else 65536 + owner.rank
