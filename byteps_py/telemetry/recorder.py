"""The record of a process: what it is, and in samples how many steps it made, its CPU time and its stage times.

``BYTEPS_AB_RECORD/CELL/JOB/ROLE-RANK.jsonl``: one JSON object a line, each written at once and in one piece, so
whatever ends the process, all lines but the last are whole.  JOB is the random number of this run of the job, 16 digits
of base 16, so neither several runs of one cell nor several experiments ever share a file.  The first line tells what
does not change::

    {"kind":"start","version":1,"role":"server","rank":0,"job":"00c0ffee00c0ffee","cell":"passive","block":0,
     "host":"a","pid":4242,"cores":2,"team":2,"policy":"passive","engines":1,"num_worker":2,"num_server":1,
     "warmup":20,"steps":100,"wall":1764400000.0,"monotonic":1000.0}

``team`` is the number of threads that an OpenMP team of this process really has (0 for a scheduler, which has none),
``policy`` what ``OMP_WAIT_POLICY`` said when it began (empty: nothing), ``engines`` the number of a server's threads
with such a team.  Every other line is a sample; all its numbers are sums since the process started, times in seconds::

    {"kind":"sample","wall":1764400000.1,"monotonic":1000.1,"cpu":1.25,"steps":20,"samples":640,"stepped":1000.1,
     "stages":{"push":[40,0.125]}}

``stepped`` is when the last step was done, by the monotonic clock, 0 before the first.
A worker takes its samples in ``bps.step()``: exactly at the steps after which the measured ones begin and end, and else
when a tenth of a second has passed.  A server and a scheduler have a thread for that.  Each takes a last one when its
role ends.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from byteps_py.errors import SettingsError
from byteps_py.settings import RecordSettings, environment
from byteps_py.telemetry.stages import Stages

__all__ = ["INTERVAL_SECONDS", "Member", "Recorder", "prepare"]

INTERVAL_SECONDS: Final = 0.1
_VERSION: Final = 1
_CLOSE_SECONDS: Final = 1.0
"""How long a thread that hangs in a write, as on a network drive, may hold a role that ends. The last write itself has
no limit."""


class Member(NamedTuple):
    """Whose record it is.

    Attributes:
        role, rank: which process of the job.
        job: random 64-bit number of this run of it.
        num_worker, num_server: processes of the job.
        team: threads of an OpenMP team as the process really has them.
        engines: engine threads of a server.
    """

    role: str
    rank: int
    job: int
    num_worker: int
    num_server: int
    team: int = 0
    engines: int = 0


def prepare(settings: RecordSettings) -> None:
    """Make the folder of the cell, when a process starts; nothing if no record is wanted.

    Raises:
        SettingsError: that is impossible.
    """
    if settings.record is None:
        return
    folder = _folder(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"BYTEPS_AB_RECORD={settings.record!r}: the folder {str(folder)!r} for records cannot be made: "
            f"{error.strerror}"
        ) from error


class Recorder:
    """Writes the record of this process, from now until :meth:`close`.

    What goes wrong with the file is told in one warning, and then there is no record: the job goes on.  Any thread may
    call any method.  A forked child has no record, and leaves its parent's alone.

    Args:
        settings: with a folder.
        member: whose record it is.
        stages: tells the stage times; called by whichever thread takes a sample.
    """

    def __init__(self, settings: RecordSettings, member: Member, stages: Callable[[], Stages]) -> None:
        self._stages = stages
        self._log = logging.getLogger(f"byteps_py.{member.role}")
        self._pid = os.getpid()
        self._steps = self._samples = 0
        self._stepped = 0.0
        warmup, measured = settings.warmup_steps, settings.measured_steps
        self._marks = frozenset((warmup, warmup + measured) if measured else (warmup,))
        # Reentrant: a signal handler of the program may leave the job while its own thread writes.
        self._lock = threading.RLock()
        self._file: io.FileIO | None = None
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._path = _folder(settings) / f"{member.job:016x}" / f"{member.role}-{member.rank}.jsonl"
        try:
            self._path.parent.mkdir(exist_ok=True)
            self._file = io.FileIO(self._path, "x")
        except OSError as error:
            self._give_up(error)
        now = time.monotonic()
        self._due = now + INTERVAL_SECONDS
        self._write(lambda: _start(settings, member, now))

    def step(self, steps: int, samples: int) -> None:
        """So many steps are done, with so many samples: take note, and a sample if it is time.

        Called with 0 when the session begins, since the measured steps may begin there.
        """
        self._steps, self._samples = steps, samples
        now = time.monotonic()
        if steps:
            self._stepped = now
        if steps in self._marks or now >= self._due:
            self.sample()

    def watch(self) -> None:
        """Take samples on a thread from now on, where nobody calls :meth:`step`."""
        self.sample()
        if self._file is not None:
            thread = threading.Thread(target=self._watch, name="byteps-record", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there are too many
                self._give_up(error)
            else:
                self._thread = thread

    def sample(self) -> None:
        """Take one now."""
        if os.getpid() != self._pid or self._file is None:
            return
        with self._lock:
            now = time.monotonic()
            self._due = now + INTERVAL_SECONDS
            self._write(
                lambda: {
                    "kind": "sample",
                    "wall": time.time(),
                    "monotonic": now,
                    "cpu": time.process_time(),
                    "steps": self._steps,
                    "samples": self._samples,
                    "stepped": self._stepped,
                    "stages": self._stages(),
                }
            )

    def close(self) -> None:
        """Take the last sample and end the record. A second call does nothing."""
        if os.getpid() != self._pid:
            return
        self._ends.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
        if self._lock.acquire(timeout=_CLOSE_SECONDS):
            try:
                self.sample()
                error = self._drop()
                if error is not None:
                    text = "the record of this process may be incomplete"
                    self._log.warning("%s: %s: %s", text, self._path, _reason(error))
            finally:
                self._lock.release()

    def _watch(self) -> None:
        while not self._ends.wait(INTERVAL_SECONDS) and self._file is not None:
            self.sample()

    def _write(self, line: Callable[[], Mapping[str, Any]]) -> None:
        file = self._file
        if file is None:
            return
        try:
            encoded = msgspec.json.encode(line()) + b"\n"
            if file.write(encoded) != len(encoded):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except Exception as error:  # a record never harms the job, whatever is wrong with it
            if self._file is not None:  # else a signal handler has just closed it
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Whatever came after a line in pieces could not be read."""
        self._drop()
        self._log.warning("no record is written any more: %s: %s", self._path, _reason(error))

    def _drop(self) -> Exception | None:
        """Close the file; returns what was wrong with it, such as a full disk, as some file systems say only now."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            return error
        return None


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _start(settings: RecordSettings, member: Member, now: float) -> dict[str, Any]:
    """The first line."""
    return {
        "kind": "start",
        "version": _VERSION,
        "role": member.role,
        "rank": member.rank,
        "job": f"{member.job:016x}",
        "cell": settings.cell,
        "block": settings.block,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "cores": len(os.sched_getaffinity(0)),
        "team": member.team,
        "policy": ascii(environment().get("OMP_WAIT_POLICY", "").strip().lower())[1:-1],
        "engines": member.engines,
        "num_worker": member.num_worker,
        "num_server": member.num_server,
        "warmup": settings.warmup_steps,
        "steps": settings.measured_steps,
        "wall": time.time(),
        "monotonic": now,
    }


def _folder(settings: RecordSettings) -> Path:
    """That of the cell, whose name may hold blanks, and must neither be hidden nor mean another folder."""
    assert settings.record is not None
    name = re.sub(r"[^A-Za-z0-9_.=+,-]+", "-", settings.cell).lstrip(".")
    return Path(settings.record).absolute() / (name or "cell")
