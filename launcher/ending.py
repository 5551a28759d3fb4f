"""When and how the processes of one launch are ended, and with which exit status.  Pure: no process, clock or signal.

::

    phase        meaning                                            left
    RUNNING      workers are at work                                if all have ended well, one failed, or a signal came
    CLOSING      all workers ended well; the rest ends by itself    after 1 s: SIGTERM to the rest, without a word
    STOPPING     something failed, or Ctrl-C came; each process     after 3 s (1 s after the last worker, at once if it
                 has the time to say so and end by itself           was a signal): SIGTERM to the rest
    SAVING       SIGTERM or SIGHUP came and went on to the          if all workers have ended; at the end of the grace
                 workers, which have the grace period to save       period they are killed
    LEAVING      after that: what the workers have left running     if nothing of it is left: SIGTERM to the rest
                 has what is left of the grace period
    TERMINATED   SIGTERM was sent                                   after 1 s: SIGKILL
    KILLED       SIGKILL was sent                                   after 5 s: given up

Without a grace period everything has ended 5 s after the decision.  The first failure decides the exit status
(:mod:`~byteps_py.launcher.verdict` says which is the first).  A signal goes on to the workers only: servers must
outlive them, so that a worker can finish its step; a launch without workers passes it on to what there is.  A second
one, at least a second later, kills: `timeout` and `make` deliver the first one twice within a moment.

The scheduler has to learn of every process that fails, and of a worker that ends well while others run on: it may not
have joined.  That is told a little later, since workers often end one after the other.

Events are methods that return the actions to perform, in order; processes are numbered as in the constructor.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from byteps_py.launcher.processes import describe_status, exit_status
from byteps_py.launcher.verdict import Verdict
from byteps_py.role import Role

__all__ = ["Action", "EndRest", "Ending", "Hush", "Phase", "Reach", "Report", "Say", "Signal"]

ABORTED = 1
"""Exit status of a scheduler whose job was aborted."""
DISAGREED = 2
"""The same, because of settings that do not agree."""
CLOSING_SECONDS = 1.0
STOPPING_SECONDS = 3.0
AFTER_WORKERS_SECONDS = 1.0
TERMINATED_SECONDS = 1.0
KILLED_SECONDS = 5.0
VERDICT_SECONDS = 1.0
"""How long it may be in doubt which process is the cause."""
LEFT_WELL_SECONDS = 2.0
"""After a worker ended well: when the scheduler is told, if others still run."""
REPEAT_SECONDS = 1.0
"""Signals that follow the first one sooner than this are the same one."""


class Phase(enum.Enum):
    """See the table above."""

    RUNNING = enum.auto()
    CLOSING = enum.auto()
    STOPPING = enum.auto()
    SAVING = enum.auto()
    LEAVING = enum.auto()
    TERMINATED = enum.auto()
    KILLED = enum.auto()


class Reach(enum.Enum):
    """Who gets a signal: the process itself, its process group, or everyone in its session."""

    PROCESS = enum.auto()
    GROUP = enum.auto()
    SESSION = enum.auto()


@dataclass(frozen=True)
class Say:
    """Print a line to standard error."""

    text: str


@dataclass(frozen=True)
class Signal:
    """Send a signal to these processes."""

    processes: tuple[int, ...]
    number: int
    reach: Reach


@dataclass(frozen=True)
class Report:
    """Tell the scheduler that this process has ended; ``status`` is -N for signal N."""

    process: int
    status: int


@dataclass(frozen=True)
class EndRest:
    """End what the workers have left running, from ``kill_at`` on with SIGKILL; then :meth:`Ending.rest_ended`."""

    kill_at: float


@dataclass(frozen=True)
class Hush:
    """What these complain about from now on is of no interest."""

    processes: tuple[int, ...]


Action: TypeAlias = Say | Signal | Report | EndRest | Hush


class Ending:
    """The state machine of one launch.

    Args:
        processes: role and name (``worker 1 (pid 4242)``) of each one that was started.
        grace_period: seconds that SIGTERM leaves to the workers.
    """

    def __init__(self, processes: Sequence[tuple[Role, str]], grace_period: float = 20.0) -> None:
        self._names = [name for _, name in processes]
        everyone = range(len(processes))
        workers = frozenset(each for each in everyone if processes[each][0] is Role.WORKER)
        self._workers = workers or frozenset(everyone)
        self._schedulers = frozenset(each for each in everyone if processes[each][0] is Role.SCHEDULER)
        self._alive = set(everyone)
        self._grace_period = grace_period
        # Schedulers and servers wait for workers elsewhere as long as that, and end after it.
        self._services_more = 0.0 if workers else STOPPING_SECONDS
        self._verdict = Verdict(self._workers)
        self._verdict_at: float | None = None
        self._left_well: dict[int, float] = {}
        self._phase_ends: float | None = None
        self._grace_ends = 0.0
        self._signalled_at: float | None = None
        self._given_up = False
        self._workers_ended_well = False
        self.phase = Phase.RUNNING
        self.status = 0
        """The exit status of the launch, as it stands."""

    @property
    def deadline(self) -> float | None:
        """When :meth:`tick` is due."""
        due = (self._phase_ends, self._verdict_at, *self._left_well.values())
        return min((each for each in due if each is not None), default=None)

    @property
    def done(self) -> bool:
        """Whether nothing is left to be done."""
        return self._given_up or (not self._alive and self.phase is not Phase.LEAVING)

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal asked for the end."""
        return self._signalled_at is not None

    def ended(self, now: float, statuses: Mapping[int, int]) -> list[Action]:
        """These processes were found to have ended, in this order; statuses are -N for signal N."""
        actions: list[Action] = []
        self._alive -= statuses.keys()
        for index, status in statuses.items():
            actions += self._one_ended(now, index, status)
        if self._verdict_at is not None and self._verdict.is_certain(self._alive):
            actions += self._pronounce()
        if not self._workers & self._alive:
            actions += self._workers_ended(now)
        return actions

    def interrupted(self, now: float, number: int) -> list[Action]:
        """A signal that ends the launch has arrived."""
        if self._signalled_at is not None:
            if now - self._signalled_at < REPEAT_SECONDS:
                return []
            return [Say("interrupted again: killing what is left"), *self._kill(now)]
        self._signalled_at = now
        name = signal.Signals(number).name
        if self.phase not in (Phase.RUNNING, Phase.CLOSING):
            return [*self._pronounce(), Say(f"{name}: ending what is left"), *self._terminate(now)]
        self.status = exit_status(-number)
        workers = self._workers & self._alive
        if not workers:
            return [Say(f"{name}: ending the job"), *self._terminate(now)]
        self._left_well.clear()
        if number in (signal.SIGTERM, signal.SIGHUP):
            self._grace_ends = now + self._grace_period + self._services_more
            self._enter(Phase.SAVING, self._grace_ends)
            # Asks for an orderly end, which the process itself must lead: its helpers (data loaders) may be needed.
            told = _signal(workers, signal.SIGTERM, Reach.PROCESS)
            return [Say(f"{name}: {self._describe_grace(workers)} (BYTEPS_GRACE_PERIOD)"), told]
        self._enter(Phase.STOPPING, now + STOPPING_SECONDS)
        # A terminal sends its signals to whole groups.
        return [Say(f"{name}: ending the job"), _signal(workers, number, Reach.GROUP)]

    def failed(self, now: float, status: int, text: str) -> list[Action]:
        """The launch itself failed: a process could not be started, or the guard is gone."""
        if self.phase in (Phase.RUNNING, Phase.CLOSING):
            self.status = status
        return [*self._pronounce(), Say(text), *self._terminate(now)]

    def rest_ended(self, now: float) -> list[Action]:
        """Nothing that the workers have left running is left, or it cannot be killed."""
        return self._terminate(now) if self.phase is Phase.LEAVING else []

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if self.done:
            return []
        actions: list[Action] = []
        for index in [each for each, due in self._left_well.items() if due <= now]:
            del self._left_well[index]
            actions.append(Report(index, 0))
        if self._verdict_at is not None and now >= self._verdict_at:
            actions += self._pronounce()
        if self._phase_ends is not None and now >= self._phase_ends:
            actions += self._phase_ended(now)
        return actions

    def _one_ended(self, now: float, index: int, status: int) -> list[Action]:
        if self.phase is Phase.SAVING and index in self._workers:
            # A shell ends at once and leaves the program that it has run, which has not heard of the signal.
            return [Report(index, status), _signal([index], signal.SIGTERM, Reach.SESSION)]
        if status == 0:
            if self.phase is Phase.RUNNING and index in self._workers:
                self._left_well[index] = now + LEFT_WELL_SECONDS
            return []
        if self._workers_ended_well and index in self._schedulers and status in (ABORTED, DISAGREED):
            # A worker's process may hide its end, such as a shell whose last command is `echo done`.
            self.status = self.status or status
            text = "the job was aborted, although its workers have ended with status 0"
            return [Say(f"{self._describe(index, status)}: {text}")]
        if self.phase is Phase.CLOSING:
            return [Say(f"warning: {self._describe(index, status)} after all workers had ended well")]
        is_told = index in self._workers or self.phase in (Phase.RUNNING, Phase.STOPPING)
        actions: list[Action] = [Report(index, status)] if is_told else []
        if self.phase is Phase.RUNNING:
            self._left_well.clear()
            self._enter(Phase.STOPPING, now + STOPPING_SECONDS)
            self._verdict_at = now + VERDICT_SECONDS
            if self._alive:
                # Who is stopped could not take notice of the end of the job.
                actions.append(_signal(self._alive, signal.SIGCONT, Reach.SESSION))
        if self._verdict_at is not None:
            self._verdict.failed(index, status)
            self.status = exit_status((self._verdict.cause() or (index, status))[1])
        return actions

    def _pronounce(self) -> list[Action]:
        """Name the cause, if that is still to be done."""
        cause = self._verdict.cause()
        if self._verdict_at is None or cause is None:
            return []
        self._verdict_at = None
        text = self._describe(*cause)
        if cause[0] not in self._workers and cause[1] == ABORTED:
            # A scheduler or server that ends so has told why, and mostly somebody else is at fault.
            text = "the scheduler or a server gave up, for the reason above"
        return [Say(text + (": ending the job" if self._alive else ""))]

    def _workers_ended(self, now: float) -> list[Action]:
        if self.phase is Phase.RUNNING:
            self._workers_ended_well = True
            self._enter(Phase.CLOSING, now + CLOSING_SECONDS)
            late, self._left_well = self._left_well, {}
            return [Report(index, 0) for index in late]
        if self.phase is Phase.SAVING:
            self._enter(Phase.LEAVING, None)
            return [EndRest(self._grace_ends)]
        if self.phase is Phase.STOPPING:
            if self.is_interrupted:
                return self._terminate(now)
            assert self._phase_ends is not None
            self._phase_ends = min(self._phase_ends, now + AFTER_WORKERS_SECONDS)
        return []

    def _phase_ended(self, now: float) -> list[Action]:
        left = ", ".join(self._names[index] for index in sorted(self._alive))
        # Without workers there is nothing to tell: the scheduler and the servers have no end of their own.
        spoken = bool(self._workers & self._alive)
        if self.phase in (Phase.CLOSING, Phase.STOPPING):
            said = [Say(f"still running, and sent SIGTERM now: {left}")] if spoken else []
            # After workers that all ended well, what the scheduler says is news: none of them may have called init().
            heard = self._schedulers if self.phase is Phase.CLOSING else frozenset()
            return [*said, *self._terminate(now, heard=heard)]
        if self.phase is Phase.TERMINATED:
            said = [Say(f"still running, and killed now: {left}")] if spoken else []
            return [*said, *self._kill(now)]
        if self.phase is Phase.SAVING and now < self._grace_ends + KILLED_SECONDS:
            self._phase_ends = self._grace_ends + KILLED_SECONDS
            workers = self._workers & self._alive
            left = ", ".join(self._names[index] for index in sorted(workers))
            text = f"still running after {self._grace_period + self._services_more:g} s, and killed now: {left}"
            return [Say(text), _signal(workers, signal.SIGKILL, Reach.SESSION)]
        self._given_up = True
        self.status = self.status or 1
        return [Say(f"could not be killed: {left}")]

    def _terminate(self, now: float, *, heard: frozenset[int] = frozenset()) -> list[Action]:
        """SIGTERM to all that is left; once no worker is left, nobody is heard any more but those."""
        if self.phase in (Phase.TERMINATED, Phase.KILLED):
            return []
        self._enter(Phase.TERMINATED, now + TERMINATED_SECONDS)
        if not self._alive:
            return []
        hushed = () if self._workers & self._alive else tuple(sorted(self._alive - heard))
        return [*([Hush(hushed)] if hushed else []), _signal(self._alive, signal.SIGTERM, Reach.SESSION)]

    def _kill(self, now: float) -> list[Action]:
        if self.phase is Phase.KILLED:
            return []
        self._enter(Phase.KILLED, now + KILLED_SECONDS)
        return [_signal(self._alive, signal.SIGKILL, Reach.SESSION)] if self._alive else []

    def _enter(self, phase: Phase, ends: float | None) -> None:
        self.phase = phase
        self._phase_ends = ends

    def _describe_grace(self, told: Iterable[int]) -> str:
        """What happens within the grace period."""
        if not self._services_more:
            return f"ending the job; its workers have {self._grace_period:g} s to save"
        names = ", ".join(self._names[index] for index in sorted(told))
        return f"ending {names}, which serves until the workers have left, at most {self._grace_period:g} s"

    def _describe(self, index: int, status: int) -> str:
        return f"{self._names[index]} {describe_status(status)}"


def _signal(processes: Iterable[int], number: int, reach: Reach) -> Signal:
    return Signal(tuple(sorted(processes)), int(number), reach)
