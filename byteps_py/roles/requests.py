"""Questions of a worker to the scheduler, repeated until they are answered.

The scheduler answers everything, and a repetition is harmless; without an answer, the question or the answer was lost
with a connection, or a barrier is not complete.  Then the scheduler answers who is missing there.
Everything here belongs to the worker's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from byteps_py.errors import MembershipError, TransportTimeout
from byteps_py.roles.groups import Formed
from byteps_py.roles.member import SchedulerLink
from byteps_py.roles.pending import Signal
from byteps_py.roles.tensors import Tensor
from byteps_py.wire.control import Barrier, BarrierDone, Declare, Declared, FormGroup, GroupFormed, Waiting

__all__ = ["Requests"]

_log = logging.getLogger("byteps_py.worker")
REPEAT_SECONDS: Final = 5.0
FIRST_REPORT_SECONDS: Final = 10.0
REPORT_SECONDS: Final = 60.0
_RANKS_IN_MESSAGES: Final = 8


@dataclass
class _Question:
    """One question: what it is about, since when it is open, and when it is repeated and talked about next."""

    message: Declare | FormGroup | Barrier
    text: str
    since: float
    repeat_due: float
    report_due: float


class Requests:
    """Declarations, groups and barriers that are not answered yet.

    Args:
        link: the way to the scheduler.
        limit: seconds after which a question counts as stalled; 0: never.
    """

    def __init__(self, link: SchedulerLink, limit: float) -> None:
        self._link = link
        self._limit = limit
        self._last_declare = self._last_group = 0
        self._questions: dict[tuple[str, int], _Question] = {}
        self._tensors: dict[int, list[Tensor]] = {}
        self._signals: dict[int, Signal] = {}
        self._groups: dict[int, Formed] = {}

    @property
    def declaring(self) -> bool:
        """Whether a declaration is not answered."""
        return bool(self._tensors)

    def declare(self, now: float, tensors: Sequence[Tensor], link: int) -> None:
        """Ask for the placements of ``tensors``; ``link``: bytes per second, see
        :class:`~byteps_py.wire.control.Declare`."""
        self._last_declare += 1
        self._tensors[self._last_declare] = list(tensors)
        message = Declare(self._last_declare, tuple(each.spec for each in tensors), link)
        more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        self._ask(now, ("declare", self._last_declare), message, f"for the placement of {tensors[0].spec.name!r}{more}")

    def form(self, now: float, ranks: tuple[int, ...], signal: Formed) -> None:
        """Ask for the group of the workers ``ranks``, rising; ``signal`` is set when all servers know it."""
        self._last_group += 1
        self._groups[self._last_group] = signal
        shown = ", ".join(map(str, ranks[:_RANKS_IN_MESSAGES])) + (" ..." if len(ranks) > _RANKS_IN_MESSAGES else "")
        text = f"until all servers know the group of workers {shown}"
        self._ask(now, ("group", self._last_group), FormGroup(self._last_group, ranks), text)

    def answered(self, message: Declared | GroupFormed | BarrierDone | Waiting) -> None:
        """The scheduler has said something about a question; placements have been acted on."""
        if isinstance(message, Declared):
            self.declared(message.request)
        elif isinstance(message, GroupFormed):
            self.formed(message)
        elif isinstance(message, BarrierDone):
            self.barrier_done(message.number)
        else:
            self.barrier_waits(message.barrier, message.text)

    def formed(self, message: GroupFormed) -> None:
        """A group is known to all servers, or cannot be."""
        self._questions.pop(("group", message.request), None)
        signal = self._groups.pop(message.request, None)
        if signal is None:
            return
        if message.group:
            signal.group = message.group
            signal.complete()
        else:
            signal.fail(MembershipError(message.problem))

    def reach(self, now: float, number: int, signal: Signal) -> None:
        """Say that this worker is at barrier ``number``; ``signal`` is set when all are."""
        self._signals[number] = signal
        self._ask(now, ("barrier", number), Barrier(number), f"at barrier {number}")

    def barrier_waits(self, number: int, missing: str) -> None:
        """The scheduler said who is missing at barrier ``number``."""
        question = self._questions.get(("barrier", number))
        if question is not None:
            question.text = f"at barrier {number} for {missing}"

    def declared(self, request: int) -> None:
        """An answer to a declaration has been acted on; the question stays if it left a tensor without a word.

        That happens if a Conflict, which comes before the answer, was lost with a connection.
        """
        tensors = self._tensors.get(request, [])
        if all(each.placement is not None or each.error is not None for each in tensors):
            self._tensors.pop(request, None)
            self._questions.pop(("declare", request), None)

    def barrier_done(self, number: int) -> None:
        """All workers reached barrier ``number``."""
        self._questions.pop(("barrier", number), None)
        signal = self._signals.pop(number, None)
        if signal is not None:
            signal.complete()

    def repeat(self, now: float) -> None:
        """Ask again, and say what is waited for, where it is time.

        Raises:
            TransportTimeout: a question has been open for longer than the limit.
        """
        for question in self._questions.values():
            waited = now - question.since
            text = f"waiting {waited:.0f} s {question.text}"
            if self._limit and waited >= self._limit:
                raise TransportTimeout(f"{text}; giving up (BYTEPS_STALL_TIMEOUT={self._limit:g})")
            if now >= question.report_due:
                question.report_due = now + REPORT_SECONDS
                _log.warning("%s", text)
            if now >= question.repeat_due:
                question.repeat_due = now + REPEAT_SECONDS
                self._link.send(question.message)

    def fail(self, error: BaseException) -> None:
        """Nobody will answer any more."""
        for signal in (*self._signals.values(), *self._groups.values()):
            signal.fail(error)

    def _ask(self, now: float, key: tuple[str, int], message: Declare | FormGroup | Barrier, text: str) -> None:
        # Once at least before the limit, so that the answer to a barrier is known by then.
        repeat_due = now + min(REPEAT_SECONDS, self._limit / 2 or REPEAT_SECONDS)
        self._questions[key] = _Question(message, text, now, repeat_due, now + FIRST_REPORT_SECONDS)
        self._link.send(message)
