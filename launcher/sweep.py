"""Finds every process of a launch and ends it.

To a launch belongs

* who is in the session of a process that the launcher started, whatever its process group: `timeout` and a shell's job
  control (`set -m`) make groups of their own;
* who carries the launch's mark in its environment: `setsid` and daemons leave their session, but keep that;
* whose parent belongs to it, who is in a session that one of these leads, and who was once found to belong to it.

A process is known by its id and its start time, so that nobody is signalled who has been given the id of one that
ended.

New processes may appear while others are being ended, and lose what they are known by when their parents end.  So it
is done in rounds, until none is found; and before they get a signal, all are stopped, until a look shows nobody new.
Who has got SIGTERM may start helpers in order to save; those are left alone until all are killed.

This file is also the program of the guard (see :mod:`~byteps_py.launcher.guard`), which runs it by its path: it
imports only from the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

__all__ = ["MARK", "Family", "Process", "Sweep", "are_stopped", "read_started", "send", "stop"]

MARK = "BYTEPS_LAUNCH_ID"
"""The variable in the environment of every process of a launch."""
ROUND_SECONDS = 0.1
"""Between two rounds."""
GRACE_SECONDS = 3.0
"""What the guard leaves between SIGTERM and SIGKILL."""
STOP_SECONDS = 1.0
"""How long it is tried to stop everyone at once."""
STUBBORN_SECONDS = 5.0
"""After SIGKILL for this long, what is left cannot be killed."""

_ENDED_STATES = "ZXx"
_STOPPED_STATES = "Tt"


class Process(NamedTuple):
    """``started`` is in clock ticks since boot."""

    pid: int
    started: int


class _Entry(NamedTuple):
    """What matters of ``/proc/PID/stat``."""

    pid: int
    state: str
    parent: int
    session: int
    started: int

    @property
    def process(self) -> Process:
        return Process(self.pid, self.started)


class Family:
    """The processes of one launch. Belongs to one thread.

    Args:
        mark: the value of :data:`MARK` in their environment.
        since: when the launcher was started; what is older does not belong to the launch.
    """

    def __init__(self, mark: str, since: int) -> None:
        self._entry = f"{MARK}={mark}".encode()
        self._since = since
        self._leaders: dict[int, int] = {}
        self._known: set[Process] = set()

    def enrol(self, pid: int, started: int) -> None:
        """A process that leads a session of its own was started."""
        self._leaders[pid] = started

    def sessions(self, leaders: Collection[int]) -> set[Process]:
        """Who is alive in the sessions of these leaders, which have not been reaped yet."""
        return {
            each.process for each in _look(self._since) if each.session in leaders and each.state not in _ENDED_STATES
        }

    def find(self, without: Collection[int] = ()) -> dict[Process, int]:
        """Everyone who is alive, with the id of its parent; ``without`` those whose session is one of these."""
        entries = {each.pid: each for each in _look(self._since)}
        candidates = [
            each
            for each in entries.values()
            if each.state not in _ENDED_STATES and each.session not in without and each.pid != os.getpid()
        ]
        found: dict[int, _Entry] = {}
        marked = {each.pid for each in candidates if each.process in self._known or self._is_marked(each.pid)}
        grown = True
        while grown:
            more = [
                each
                for each in candidates
                if each.pid not in found
                and (each.pid in marked or each.parent in found or self._is_led(each.session, entries))
            ]
            for each in more:
                found[each.pid] = each
                if each.session == each.pid:
                    self.enrol(each.pid, each.started)
            grown = bool(more)
        self._known |= {each.process for each in found.values()}
        return {each.process: each.parent for each in found.values()}

    def _is_led(self, session: int, entries: Mapping[int, _Entry]) -> bool:
        """Whether a member leads this session, or has led it: its id is not given away while somebody is in there."""
        leader = entries.get(session)
        return session in self._leaders and (leader is None or leader.started == self._leaders[session])

    def _is_marked(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return self._entry in file.read().split(b"\0")
        except OSError:
            return False


class Sweep:
    """Ends what is found, in rounds.

    Args:
        find: who is there, and the process ids of their parents.
        kill_at: time of :func:`time.monotonic` from which on it is SIGKILL instead of SIGTERM.
        told: who has had SIGTERM already, which nobody gets twice; filled here.
    """

    def __init__(self, find: Callable[[], dict[Process, int]], kill_at: float, told: set[Process]) -> None:
        self._find = find
        self._told = told
        self.kill_at = kill_at
        self.left: set[Process] = set()
        """Who was there at the last round."""

    def round(self, now: float) -> bool:
        """Signal everyone; returns whether nobody is left, or only what cannot be killed."""
        # The table of processes changes while it is read: only if nobody is there twice, nobody is.
        found = self._find() or self._find()
        self.left = set(found)
        if now >= self.kill_at:
            self.left |= stop(self._find)
            send(self.left, signal.SIGKILL)
        elif self._untold(found):
            stopped = stop(self._find, self._told)
            new = self._untold(self._find())
            self._told |= new
            send(new, signal.SIGTERM)
            send(new | stopped, signal.SIGCONT)
        return not self.left or now >= self.kill_at + STUBBORN_SECONDS

    def _untold(self, found: Mapping[Process, int]) -> set[Process]:
        """Who is to be told, and is no helper of one that was told: those count as told with it."""
        new = found.keys() - self._told
        grown = True
        while grown:
            told = {each.pid for each in self._told}
            helpers = {each for each in new if found[each] in told}
            self._told |= helpers
            new -= helpers
            grown = bool(helpers)
        return new


def stop(find: Callable[[], dict[Process, int]], others: Collection[Process] = ()) -> set[Process]:
    """Stop everyone but ``others``, until a look shows nobody new; returns who was stopped.

    It may take a moment until they have taken notice: see :func:`are_stopped`.  What belongs to another user cannot be
    stopped, and may start new processes for ever, so this has an end.
    """
    stopped: set[Process] = set()
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline and (found := find().keys() - stopped - set(others)):
        send(found, signal.SIGSTOP)
        stopped |= found
    return stopped


def are_stopped(processes: Iterable[Process]) -> bool:
    """Whether these have stopped, or ended."""
    entries = (_read(each.pid) for each in processes)
    return all(each is None or each.state in _STOPPED_STATES + _ENDED_STATES for each in entries)


def send(processes: Iterable[Process], number: int) -> None:
    """Signal these, unless their ids belong to others by now."""
    for each in processes:
        if read_started(each.pid) != each.started:
            continue
        # It may be gone, or belong to another user.
        with contextlib.suppress(OSError):
            os.kill(each.pid, number)


def read_started(pid: int) -> int:
    """When a process was started, in clock ticks since boot; 0 if there is none or ``/proc`` does not tell."""
    entry = _read(pid)
    return 0 if entry is None else entry.started


def _look(since: int) -> list[_Entry]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    entries = (_read(int(name)) for name in names if name.isdigit())
    return [each for each in entries if each is not None and each.started >= since]


def _read(pid: int) -> _Entry | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name of the program, in parentheses, may hold anything. Then: state, parent, group, session, ... start time.
    fields = text.rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    return _Entry(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def _guard() -> None:
    """See :mod:`~byteps_py.launcher.guard`; the words are the launcher's process id and start time, and the mark."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    launcher, since, mark = sys.argv[1:]
    lines = sys.stdin.buffer.read().split(b"\n")
    if b"done" in lines:
        return
    family = Family(mark, int(since))
    for line in lines[:-1]:
        pid, started = line.split()
        family.enrol(int(pid), int(started))
    _say(f"bpslaunch (pid {launcher}) was killed: ending its processes")
    sweep = Sweep(family.find, time.monotonic() + GRACE_SECONDS, set())
    while not sweep.round(time.monotonic()):
        time.sleep(ROUND_SECONDS)
    if sweep.left:
        _say(f"could not be killed: {', '.join(str(each.pid) for each in sorted(sweep.left))}")


def _say(text: str) -> None:
    """Say it if somebody listens: a pipe that is full and that nobody reads must not keep the guard from its work."""
    poll = select.poll()
    with contextlib.suppress(OSError):
        poll.register(2, select.POLLOUT)
        if poll.poll(0):
            os.write(2, f"{text}\n".encode())


if __name__ == "__main__":
    _guard()
