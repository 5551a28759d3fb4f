"""Questions of a worker to the scheduler, repeated until they are answered.

The scheduler answers everything, and a repetition is harmless; without an answer, the question or the answer was lost
with a connection.  Everything here belongs to the worker's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from byteps_py.errors import TransportTimeout
from byteps_py.roles.member import SchedulerLink
from byteps_py.roles.pending import Signal
from byteps_py.types import TensorSpec
from byteps_py.wire.control import Barrier, Declare

__all__ = ["Requests"]

REPEAT_SECONDS: Final = 5.0


class Requests:
    """Declarations and barriers that are not answered yet.

    Args:
        link: the way to the scheduler.
        barrier_limit: seconds after which a barrier counts as stalled; 0: never.
    """

    def __init__(self, link: SchedulerLink, barrier_limit: float) -> None:
        self._link = link
        self._barrier_limit = barrier_limit
        self._declares: dict[int, Declare] = {}
        self._last_declare = 0
        self._barriers: dict[int, tuple[Signal, float]] = {}
        self._repeat_due = 0.0

    def declare(self, now: float, specs: Sequence[TensorSpec]) -> None:
        """Ask for the placements of ``specs``."""
        self._last_declare += 1
        message = Declare(self._last_declare, tuple(specs))
        self._link.send(message)
        self._declares[self._last_declare] = message
        self._repeat_due = now + REPEAT_SECONDS

    def reach(self, now: float, number: int, signal: Signal) -> None:
        """Say that this worker is at barrier ``number``; ``signal`` is set when all are."""
        self._link.send(Barrier(number))
        self._barriers[number] = signal, now
        self._repeat_due = now + REPEAT_SECONDS

    def declared(self, request: int) -> None:
        """A declaration was answered."""
        self._declares.pop(request, None)

    def barrier_done(self, number: int) -> None:
        """All workers reached barrier ``number``."""
        waiting = self._barriers.pop(number, None)
        if waiting is not None:
            waiting[0].complete()

    def repeat(self, now: float) -> None:
        """Ask again, if it is time.

        Raises:
            TransportTimeout: a barrier has been open for longer than the limit.
        """
        if now < self._repeat_due:
            return
        self._repeat_due = now + REPEAT_SECONDS
        for message in self._declares.values():
            self._link.send(message)
        limit = self._barrier_limit
        for number, (_, since) in self._barriers.items():
            if limit and now - since > limit:
                raise TransportTimeout(
                    f"waited {now - since:.0f} s at barrier {number} (BYTEPS_STALL_TIMEOUT={limit:g}); "
                    "the scheduler's log names the workers that did not reach it"
                )
            self._link.send(Barrier(number))

    def fail(self, error: BaseException) -> None:
        """Nobody will answer any more."""
        for signal, _ in self._barriers.values():
            signal.fail(error)
