"""The trace of a process: from the start of its role to ``BYTEPS_TRACE_DIR/.../comm.json``.

Where it is written: a worker to ``DIR/<local rank>/comm.json``, as BytePS did.  In a job of several machines that share
DIR the first one to come has that path, and the others write ``DIR/worker-<rank>/comm.json``.  A server writes
``DIR/server-<rank>/comm.json``.  Where another job that runs at the same time traces into DIR, all that is in
``DIR/job-<number>`` instead.

When: as soon as all traced tensors have passed the last step, or else when the role ends, however it does.  A thread
that waits for that from the start writes, and nobody else: at the end of an interpreter no thread can be started any
more.  While the role works it writes in slices, and rests between them, since Python lets one thread run at a time.
Nothing that is wrong with the file harms the job: it is told in one warning.
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
from typing import Any, Final, NamedTuple, TypeVar

from byteps_py.settings import TraceSettings
from byteps_py.telemetry.clock import ClockProbe, shift
from byteps_py.telemetry.timeline import Microseconds, Names
from byteps_py.telemetry.trace_file import FORMAT, Event, process_number, temporary_name, write_trace
from byteps_py.telemetry.trace_folder import FolderLock, lock_folder
from byteps_py.telemetry.tracks import Span, lay_out
from byteps_py.telemetry.window import MOST_SPANS, Window

__all__ = ["Owner", "Section", "Trace"]

_STRAGGLE_SECONDS: Final = 0.5
"""After the last tensor has passed, for what others of the process still have to do with the last step."""
_CLOSE_SECONDS: Final = 10.0
"""How long writing, which may hang as on a network drive, may hold a role that ends: in all, however often asked."""
_SLICE: Final = 250
"""So many groups or events are handled at a time: a millisecond or two, less than another thread waits for its turn
anyway (:func:`sys.getswitchinterval`)."""
_REST_SECONDS: Final = 0.005
"""Between two slices, while the role works."""

_Item = TypeVar("_Item")


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


def _nothing() -> None:
    """Nothing was recorded."""


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
        self._wanted = threading.Event()
        self._ends = threading.Event()
        self.window = Window(settings.trace_start_step, settings.trace_end_step, most, self._wanted.set)
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
        self._lock: FolderLock | None = None
        self._forget: Callable[[], None] = _nothing
        self._deadline: float | None = None
        self._thread: threading.Thread | None = None

    def further_window(self) -> Window:
        """For what is recorded beside the main thing, over the same steps; smaller."""
        settings = self._settings
        self._windows.append(Window(settings.trace_start_step, settings.trace_end_step, self._most // 4))
        return self._windows[-1]

    def begin(self, owner: Owner, sections: Sequence[Section], forget: Callable[[], None] = _nothing) -> None:
        """The job is complete.

        Args:
            owner: of the trace.
            sections: asked on the thread that writes, when all is recorded.
            forget: called there when that is over, to free what was recorded.
        """
        self._owner, self._sections, self._forget = owner, sections, forget
        try:
            self._enter(owner)
            self._path = self._choose_path(owner)
            _remove_remains(self._path)
        except OSError as error:
            self._warn(error)
        thread = threading.Thread(target=self._run, name="byteps-trace", daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError as error:
            self._warn(error)

    def finish(self) -> None:
        """Wait until what there is is written, for some seconds at most; a second call gives no further ones."""
        if os.getpid() != self._pid:
            return
        self._ends.set()
        self._wanted.set()
        is_first = self._deadline is None
        if self._deadline is None:
            self._deadline = time.monotonic() + _CLOSE_SECONDS
        if self._thread is None:
            self._stop()
            self._forget()
        else:
            self._thread.join(max(0.0, self._deadline - time.monotonic()))
            if is_first and self._thread.is_alive():
                text = "the trace of this process is lost if the process ends now: writing %s has taken more than %g s"
                self._log.warning(text, self._path, _CLOSE_SECONDS)
        if self._claim is not None:
            with contextlib.suppress(OSError):
                self._claim.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.release()

    def _run(self) -> None:
        self._wanted.wait()
        self._ends.wait(_STRAGGLE_SECONDS)
        self._stop()
        try:
            if self._owner is not None and self._path is not None:
                self._write(self._owner, self._path)
        except Exception as error:  # a trace never harms the job, whatever is wrong with it
            self._warn(error)
        finally:
            self._sections = ()
            self._forget()

    def _stop(self) -> None:
        """Record nothing further."""
        self.probe.stop()
        for window in self._windows:
            window.close()

    def _write(self, owner: Owner, path: Path) -> None:
        points, bound = self.probe.mapping()
        offset = points[0].offset
        now = time.monotonic()
        names = dict(self.names)  # tensors may be placed meanwhile

        def us(seconds: float) -> int:
            nanoseconds = int(seconds * 1e9)
            return (nanoseconds + offset if len(points) == 1 else shift(points, nanoseconds)) // 1000

        count = write_trace(path, self._about(owner, names), self._paced(self._events(owner, names, us, now)))
        error = "its own clock" if bound is None else f"the scheduler's clock, give or take {bound / 1000:.0f} µs"
        self._log.info("the trace is written: %s, %d events by %s", path, count, error)
        if dropped := self._dropped():
            text = "the trace is full: %d spans were left out; trace fewer steps (BYTEPS_TRACE_END_STEP)"
            self._log.warning(text, dropped)

    def _paced(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """The same, with a rest now and then until the role ends."""
        for number, each in enumerate(items, 1):
            if number % _SLICE == 0:
                self._ends.wait(_REST_SECONDS)
            yield each

    def _events(self, owner: Owner, names: Names, us: Microseconds, now: float) -> Iterator[Event]:
        number = process_number(owner.role, owner.rank)
        name = f"{owner.role} {owner.rank}"
        yield Event("M", number, 0, "process_name", args={"name": name})
        yield Event("M", number, 0, "process_labels", args={"labels": socket.gethostname()})
        yield Event("M", number, 0, "process_sort_index", args={"sort_index": _place(owner)})
        track = 0
        for title, groups in self._sections:
            for index, spans in enumerate(lay_out(self._paced(groups(names, us, now)))):
                track += 2 if track + 1 == number else 1  # a viewer would take it for the main thread
                yield Event("M", number, track, "thread_name", args={"name": f"{title} {index}"})
                yield Event("M", number, track, "thread_sort_index", args={"sort_index": track})
                for begin, end, label, details in spans:
                    yield Event("X", number, track, label, "Comm", begin, end - begin, args=details)

    def _about(self, owner: Owner, names: Names) -> dict[str, Any]:
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
            "tensors": {str(tensor): name for tensor, name in names.items()},
        }

    def _dropped(self) -> int:
        return sum(each.dropped for each in self._windows)

    def _enter(self, owner: Owner) -> None:
        """Say that this job traces into the folder, or go to one of its own if another one does; the first process
        that comes there tells the user."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = lock_folder(self._folder, owner.job)
        except OSError as error:  # as on a network drive without locks
            self._log.debug("whether another job traces into %s is not known: %s", self._folder, error)
            return
        if self._lock is None:
            taken, self._folder = self._folder, self._folder / f"job-{owner.job:016x}"
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir()
                self._log.warning(
                    "another job that runs now traces into %s: the traces of this one go to %s, where `bps trace` "
                    "finds them; set BYTEPS_TRACE_DIR to a folder of its own for each job",
                    taken,
                    self._folder,
                )

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


def _remove_remains(path: Path) -> None:
    """Remove what processes of this host have left that were killed while they wrote ``path``."""
    head, tail = temporary_name(path, 0).rsplit("0", 1)
    for each in path.parent.glob(f".{path.name}.*{tail}"):
        pid = each.name.removeprefix(head).removesuffix(tail)
        if pid.isascii() and pid.isdigit() and not _is_alive(int(pid)):
            each.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    return True
