"""When and how the processes of one launch are ended, and with which exit status.  Pure: no process, clock or signal.

::

    phase        meaning                                            left
    RUNNING      workers are at work                                if all have ended well, one failed, or a signal came
    CLOSING      all workers ended well; the rest ends by itself    after 5 s: SIGTERM to the rest
    STOPPING     something failed or a signal came; each process    after 5 s (once no worker is left after 2 s, at once
                 has the time to say so and end by itself           if it was a signal): SIGTERM to the rest
    TERMINATED   SIGTERM was sent                                   after 3 s: SIGKILL
    KILLED       SIGKILL was sent                                   after 5 s: given up

The first failure decides the exit status.  A signal goes on to the workers only: servers must outlive them, so that a
worker can finish its step.  A second one, at least a second later, kills: `timeout` and `make` deliver the first one
twice within a moment.

Events are methods that return the actions to perform, in order; processes are numbered as in the constructor.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from byteps_py.launcher.processes import describe_status, exit_status
from byteps_py.types import Role

__all__ = ["Action", "Ending", "Phase", "Report", "Say", "Signal"]

CLOSING_SECONDS = 5.0
STOPPING_SECONDS = 5.0
AFTER_WORKERS_SECONDS = 2.0
TERMINATED_SECONDS = 3.0
KILLED_SECONDS = 5.0
REPEAT_SECONDS = 1.0
"""Signals that follow the first one sooner than this are the same one."""


class Phase(enum.Enum):
    """See the table above."""

    RUNNING = enum.auto()
    CLOSING = enum.auto()
    STOPPING = enum.auto()
    TERMINATED = enum.auto()
    KILLED = enum.auto()


@dataclass(frozen=True)
class Say:
    """Print a line to standard error."""

    text: str


@dataclass(frozen=True)
class Signal:
    """Send a signal to these processes, or to all of their process groups."""

    processes: tuple[int, ...]
    number: int
    group: bool


@dataclass(frozen=True)
class Report:
    """Tell the scheduler that this process has ended; ``status`` is -N for signal N."""

    process: int
    status: int


Action: TypeAlias = Say | Signal | Report


class Ending:
    """The state machine of one launch.

    Args:
        processes: role and name (``worker 1 (pid 4242)``) of each one that was started.
    """

    def __init__(self, processes: Sequence[tuple[Role, str]]) -> None:
        self._names = [name for _, name in processes]
        self._workers = frozenset(index for index, (role, _) in enumerate(processes) if role is Role.WORKER)
        self._alive = set(range(len(processes)))
        self._signalled_at: float | None = None
        self._given_up = False
        self.phase = Phase.RUNNING
        self.deadline: float | None = None
        """When :meth:`tick` is due."""
        self.status = 0
        """The exit status of the launch, as it stands."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to be done."""
        return not self._alive or self._given_up

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal asked for the end."""
        return self._signalled_at is not None

    def ended(self, now: float, statuses: Mapping[int, int]) -> list[Action]:
        """These processes were found to have ended, at one look; statuses are -N for signal N."""
        actions: list[Action] = []
        # Of those found together the workers come first: a server that aborts does so because of them.
        for index in sorted(statuses, key=lambda each: (each not in self._workers, each)):
            self._alive.discard(index)
            actions += self._one_ended(now, index, statuses[index])
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
            return [Say(f"{name}: ending what is left"), *self._terminate(now)]
        self.status = exit_status(-number)
        actions: list[Action] = [Say(f"{name}: ending the job")]
        workers = self._workers & self._alive
        if not workers:
            return [*actions, *self._terminate(now)]
        self._enter(Phase.STOPPING, now + STOPPING_SECONDS)
        # A terminal sends its signals to whole groups. SIGTERM asks for an orderly end, which the process itself
        # must lead: its helpers (data loaders) may be needed for that.
        return [*actions, _signal(workers, number, group=number != signal.SIGTERM)]

    def failed(self, now: float, status: int, text: str) -> list[Action]:
        """The launch itself failed: a process could not be started, or the guard is gone."""
        if self.phase in (Phase.RUNNING, Phase.CLOSING):
            self.status = status
        return [Say(text), *self._terminate(now)]

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if self.deadline is None or now < self.deadline or self.done:
            return []
        left = ", ".join(self._names[index] for index in sorted(self._alive))
        if self.phase in (Phase.CLOSING, Phase.STOPPING):
            return [Say(f"still running, and sent SIGTERM now: {left}"), *self._terminate(now)]
        if self.phase is Phase.TERMINATED:
            return [Say(f"still running, and killed now: {left}"), *self._kill(now)]
        self._given_up = True
        self.status = self.status or 1
        return [Say(f"could not be killed: {left}")]

    def _one_ended(self, now: float, index: int, status: int) -> list[Action]:
        text = f"{self._names[index]} {describe_status(status)}"
        if status == 0:
            return []
        if self.phase is Phase.CLOSING:
            return [Say(f"warning: {text} after all workers had ended well")]
        if self.phase is not Phase.RUNNING:
            return []
        self.status = exit_status(status)
        self._enter(Phase.STOPPING, now + STOPPING_SECONDS)
        return [Say(f"{text}: ending the job" if self._alive else text), Report(index, status)]

    def _workers_ended(self, now: float) -> list[Action]:
        if self.phase is Phase.RUNNING:
            self._enter(Phase.CLOSING, now + CLOSING_SECONDS)
        elif self.phase is Phase.STOPPING:
            if self._signalled_at is not None:
                return self._terminate(now)
            assert self.deadline is not None
            self.deadline = min(self.deadline, now + AFTER_WORKERS_SECONDS)
        return []

    def _terminate(self, now: float) -> list[Action]:
        if self.phase in (Phase.TERMINATED, Phase.KILLED):
            return []
        self._enter(Phase.TERMINATED, now + TERMINATED_SECONDS)
        return [_signal(self._alive, signal.SIGTERM, group=True)] if self._alive else []

    def _kill(self, now: float) -> list[Action]:
        if self.phase is Phase.KILLED:
            return []
        self._enter(Phase.KILLED, now + KILLED_SECONDS)
        return [_signal(self._alive, signal.SIGKILL, group=True)] if self._alive else []

    def _enter(self, phase: Phase, deadline: float) -> None:
        self.phase = phase
        self.deadline = deadline


def _signal(processes: Iterable[int], number: int, *, group: bool) -> Signal:
    return Signal(tuple(sorted(processes)), int(number), group)
