"""One server's rounds: which contributions are here, what is to be summed, who is to be answered.

Theory of operation
-------------------

A *key* is one partition of one tensor.  Its rounds are counted from 1, and exactly one of them is *open*; a worker
pushes to round r+1 only after it has the result of round r, so nobody can be further ahead than the open round.
The open round collects one contribution of every participant.  When all are here, their sum is asked for; when that
is done, its result is sent to those who want it and kept, and the next round is open.  A contribution to the next
round proves that its sender had the result, so when *all* have contributed, the result is dropped.

An answer may get lost on its way, so whoever is in doubt asks (or pushes) again and is answered again; a contribution
counts once, however often it arrives.  What cannot complete any more (the contributions contradict one another, or a
worker has left) is rejected: for those who contributed at once, for everybody else as soon as they turn up.  A
rejected key stays so, because workers that once disagree about what they do cannot find back into step.

The open round, r, of a key::

    phase       event                                       actions                            next phase
    ----------  ------------------------------------------  ---------------------------------  ---------------------
    COLLECTING  push r, others are missing                  Accept                             COLLECTING
    COLLECTING  push r, the last; there is more to compute  Accept, Sum                        SUMMING
    COLLECTING  push r, the last; BROADCAST, or nothing or  Accept, Reply to all who want it   COLLECTING round r+1
                a single undivided payload to sum
    COLLECTING  push r that contradicts an earlier one      Reject to all contributors         REJECTED
    COLLECTING  push r, the first, but a worker has left,   Reject                             REJECTED
                or the root of a BROADCAST is not a worker
    COLLECTING  a worker leaves that has not pushed r       Reject to all contributors         REJECTED
    SUMMING     summed r                                    Reply to all who want it           COLLECTING round r+1
    any but     push r again (it is not counted again)      Accept                             unchanged
    REJECTED    push beyond r                               Reject                             unchanged
                pull r, the contribution is here            Accept; its sender wants it        unchanged
                pull r, or beyond, without contribution     Missing                            unchanged
    REJECTED    push or pull of r or beyond                 Reject                             REJECTED
    any         push of a finished round (not counted)      Accept, Reply if wanted and kept   unchanged
    any         pull of a finished round                    Reply, or Reject if not kept       unchanged

Memory: after a Sum was handed out its payloads are forgotten here, and the performer may write the result into the
memory of ``sources[0]``.  The payload of a Reply is shared by all Replies of the round and kept as the last result:
nobody may write into it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from byteps_py.core import rejections
from byteps_py.core.rejections import Terms
from byteps_py.errors import LocalProtocolError
from byteps_py.types import DType, Operation, Participant

__all__ = ["Accept", "Action", "Aggregation", "Contribution", "Missing", "OpenRound", "Reject", "Reply", "Sum"]


class Contribution(msgspec.Struct, frozen=True):
    """What one PUSH brings.

    Attributes:
        participant: rank of the sender.
        key, round: what it contributes to.
        dtype, operation, root, step, offset, count: must be equal within a round; ``offset`` and ``count`` in elements.
        payload: the elements, as an opaque object; None counts as zero (an absent contribution).  In a BROADCAST only
            the root's is looked at.
        want_result: whether the sender is to be sent the result without asking for it.
    """

    participant: int
    key: int
    round: int
    dtype: DType
    operation: Operation
    root: int
    step: int
    offset: int
    count: int
    payload: object | None
    want_result: bool


class Accept(msgspec.Struct, frozen=True, gc=False):
    """Tell ``participant`` that its contribution is here: its window opens again."""

    participant: int
    key: int
    round: int


class Sum(msgspec.Struct, frozen=True):
    """Compute a result, then call :meth:`Aggregation.summed` with it.

    Attributes:
        sources: payloads of ``count`` elements in the order of summation; ``sources[0]`` may be overwritten by the
            result if its memory is this process's own.
        groups: sizes of consecutive groups of sources (one per worker machine), each summed before they are summed.
        divisor: 1, or what the sum is divided by for AVERAGE: the number of participants, absent ones included.
    """

    key: int
    round: int
    dtype: DType
    operation: Operation
    count: int
    sources: tuple[object, ...]
    groups: tuple[int, ...]
    divisor: int


class Reply(msgspec.Struct, frozen=True):
    """Send the result of a round to ``participant``; ``payload`` None: it is all zero, since all were absent.

    ``contributors`` is the number of contributions that had a payload and went into the result.
    """

    participant: int
    key: int
    round: int
    dtype: DType
    operation: Operation
    root: int
    step: int
    offset: int
    count: int
    payload: object | None
    contributors: int


class Missing(msgspec.Struct, frozen=True, gc=False):
    """Tell ``participant`` that its contribution is not here: it must push (again)."""

    participant: int
    key: int
    round: int


class Reject(msgspec.Struct, frozen=True):
    """Tell ``participant`` that the round cannot complete, and why.

    ``departed`` is the rank of the worker whose leaving is the cause; None where workers disagree.
    """

    participant: int
    key: int
    round: int
    reason: str
    departed: int | None = None


Action: TypeAlias = Accept | Sum | Reply | Missing | Reject


class OpenRound(msgspec.Struct, frozen=True):
    """A round that waits for ``missing`` (ranks) while the contributions of ``present`` (ranks) are here."""

    key: int
    round: int
    present: tuple[int, ...]
    missing: tuple[int, ...]


class _Phase(enum.Enum):
    COLLECTING = enum.auto()
    SUMMING = enum.auto()
    REJECTED = enum.auto()


class _Result(msgspec.Struct, frozen=True):
    """The result of the round before the open one."""

    round: int
    terms: Terms
    payload: object | None
    contributors: int


@dataclass(slots=True)
class _KeyState:
    """The open round of one key, and the last result.

    Attributes:
        payloads: by rank; empty while they are handed out for a Sum, and after a rejection.
        arrived, wants: one bit per rank: who contributed (or was told of the rejection), and who wants the result.
        first, terms: the first contributor, and what the others must agree with.
        contributors: number of payloads that were handed out.
        last: the result of the round before, until all have contributed to this one.
        rejection: reason, and rank of the worker that left (None for a disagreement).
    """

    payloads: list[object | None]
    round: int = 1
    phase: _Phase = _Phase.COLLECTING
    arrived: int = 0
    wants: int = 0
    first: int = 0
    terms: Terms = (DType.FLOAT32, Operation.SUM, 0, 0, 0, 0)
    contributors: int = 0
    last: _Result | None = None
    rejection: tuple[str, int | None] = ("", None)


class Aggregation:
    """All keys of one server within one membership epoch.  Not thread-safe: one thread owns it.

    Args:
        participants: all workers; ``participants[i].rank`` is i.

    Raises:
        ValueError: the list is empty or not in the order of the ranks.
    """

    def __init__(self, participants: Sequence[Participant]) -> None:
        ranks = [each.rank for each in participants]
        if not ranks or ranks != list(range(len(ranks))):
            raise ValueError(f"participants must be listed by rank, from 0 and without a gap; these are {ranks}")
        self._size = len(ranks)
        self._everyone = (1 << self._size) - 1
        self._departed = 0
        self._keys: dict[int, _KeyState] = {}
        nodes: dict[int, list[int]] = {}
        for each in sorted(participants, key=lambda participant: (participant.node, participant.rank)):
            nodes.setdefault(each.node, []).append(each.rank)
        self._nodes = tuple(nodes.values())

    def push(self, contribution: Contribution) -> list[Action]:
        """A contribution has arrived.  O(1), and O(participants) for the last one of a round."""
        rank, key, round = contribution.participant, contribution.key, contribution.round
        if not 0 <= rank < self._size:
            return [Reject(rank, key, round, rejections.stranger(rank, self._size))]
        state = self._keys.get(key)
        if state is None:
            state = _KeyState([None] * self._size)
            if round == 1:
                self._keys[key] = state
        if round != state.round or state.phase is _Phase.REJECTED:
            return self._push_elsewhere(state, contribution)
        bit = 1 << rank
        if contribution.want_result:
            state.wants |= bit
        if state.arrived & bit:
            return [Accept(rank, key, round)]
        objection = self._objection(state, contribution)
        state.arrived |= bit
        if objection is not None:
            return self._reject(key, state, *objection)
        state.payloads[rank] = contribution.payload
        completion = self._complete(key, state) if state.arrived == self._everyone else ()
        return [Accept(rank, key, round), *completion]

    def pull(self, participant: int, key: int, round: int) -> list[Action]:
        """``participant`` asks for a result, or for word of its contribution.  There is exactly one answer."""
        if not 0 <= participant < self._size:
            return [Reject(participant, key, round, rejections.stranger(participant, self._size))]
        state = self._keys.get(key)
        if state is None:
            return [Missing(participant, key, round)]
        if round < state.round:
            if state.last is not None and state.last.round == round:
                return [_reply(participant, key, state.last)]
            return [Reject(participant, key, round, rejections.gone(participant, round))]
        if state.phase is _Phase.REJECTED:
            return [self._tell(participant, key, round, state)]
        bit = 1 << participant
        if round == state.round and state.arrived & bit:
            state.wants |= bit
            return [Accept(participant, key, round)]
        return [Missing(participant, key, round)]

    def summed(self, key: int, round: int, payload: object) -> list[Action]:
        """The Sum of ``(key, round)`` has been computed; ``payload`` is its result.

        Raises:
            LocalProtocolError: no such Sum is being computed.
        """
        state = self._keys.get(key)
        if state is None or state.round != round or state.phase is not _Phase.SUMMING:
            raise LocalProtocolError(f"the sum of key {key}, round {round}, was never asked for, or was given twice")
        return self._finish(key, state, payload, state.contributors)

    def left(self, rank: int) -> list[Action]:
        """Worker ``rank`` has left in order: what still lacks its contribution is rejected, now and later.

        Rounds that have its contribution go on, without an answer to it.  Repeating the call is harmless.

        Raises:
            ValueError: there is no such participant.
        """
        if not 0 <= rank < self._size:
            raise ValueError(f"worker {rank} cannot leave: this job has the workers 0 to {self._size - 1}")
        bit = 1 << rank
        self._departed |= bit
        actions: list[Action] = []
        for key, state in self._keys.items():
            if state.phase is _Phase.COLLECTING and state.arrived and not state.arrived & bit:
                actions.extend(self._reject(key, state, rejections.departure(rank, state.round), rank))
        return actions

    def missing(self, key: int) -> tuple[int, ...]:
        """Ranks whose contribution the open round of ``key`` waits for; none while it is summed, or rejected."""
        state = self._keys.get(key)
        if state is None or state.phase is not _Phase.COLLECTING:
            return ()
        return self._ranks(self._everyone & ~state.arrived)

    def waiting(self) -> list[OpenRound]:
        """The rounds that have some contributions and lack others, for messages about stalls.  O(keys)."""
        return [
            OpenRound(key, state.round, self._ranks(state.arrived), missing)
            for key, state in self._keys.items()
            if state.arrived and (missing := self.missing(key))
        ]

    def _push_elsewhere(self, state: _KeyState, contribution: Contribution) -> list[Action]:
        """A push to a rejected key, or to a round that is not the open one."""
        rank, key, round = contribution.participant, contribution.key, contribution.round
        if round < 1:
            return [Reject(rank, key, round, rejections.uncounted(rank, round))]
        if round < state.round:
            actions: list[Action] = [Accept(rank, key, round)]
            if contribution.want_result and state.last is not None and state.last.round == round:
                actions.append(_reply(rank, key, state.last))
            return actions
        if state.phase is _Phase.REJECTED:
            return [self._tell(rank, key, round, state)]
        return [Reject(rank, key, round, rejections.ahead(rank, round, state.round))]

    def _objection(self, state: _KeyState, c: Contribution) -> tuple[str, int | None] | None:
        """Why the round cannot complete with ``c``, as the last arguments of :meth:`_reject`; None if it can."""
        terms = (c.dtype, c.operation, c.root, c.step, c.offset, c.count)
        if state.arrived:
            if terms == state.terms:
                return None
            return rejections.disagreement(c.round, state.first, state.terms, c.participant, terms), None
        state.first = c.participant
        state.terms = terms
        if self._departed:
            rank = self._ranks(self._departed)[0]
            return rejections.departure(rank, c.round), rank
        if c.operation is Operation.BROADCAST and c.root >= self._size:
            return rejections.unknown_root(c.participant, terms, self._size), None
        return None

    def _complete(self, key: int, state: _KeyState) -> list[Action]:
        """Everybody has contributed, hence has the result before this one."""
        state.last = None
        dtype, operation, root, _, _, count = state.terms
        payloads = state.payloads
        if operation is Operation.BROADCAST:
            return self._finish(key, state, payloads[root], int(payloads[root] is not None))
        sources: list[object] = []
        groups: list[int] = []
        for node in self._nodes:
            # An absent contribution is left out instead of being added as zero, which would turn -0.0 into 0.0.
            present = [payload for rank in node if (payload := payloads[rank]) is not None]
            if present:
                sources += present
                groups.append(len(present))
        divisor = self._size if operation is Operation.AVERAGE else 1
        if not sources:
            return self._finish(key, state, None, 0)
        if len(sources) == 1 and divisor == 1:
            return self._finish(key, state, sources[0], 1)
        state.phase = _Phase.SUMMING
        state.payloads = []
        state.contributors = len(sources)
        return [Sum(key, state.round, dtype, operation, count, tuple(sources), tuple(groups), divisor)]

    def _finish(self, key: int, state: _KeyState, payload: object | None, contributors: int) -> list[Action]:
        """The open round has a result: answer those who want it, and open the next round."""
        state.last = result = _Result(state.round, state.terms, payload, contributors)
        wants = self._ranks(state.wants & ~self._departed)
        state.round += 1
        state.phase = _Phase.COLLECTING
        state.arrived = state.wants = 0
        state.payloads = [None] * self._size
        return [_reply(rank, key, result) for rank in wants]

    def _reject(self, key: int, state: _KeyState, reason: str, departed: int | None) -> list[Action]:
        """The open round can never complete: tell those who contributed, and remember the reason for the others."""
        state.phase = _Phase.REJECTED
        state.rejection = (reason, departed)
        state.payloads = []
        return [self._tell(rank, key, state.round, state) for rank in self._ranks(state.arrived)]

    def _tell(self, rank: int, key: int, round: int, state: _KeyState) -> Reject:
        """The rejection for one worker, which by asking for this round shows that it has the last result."""
        state.arrived |= 1 << rank
        if state.arrived | self._departed == self._everyone:
            state.last = None
        return Reject(rank, key, round, *state.rejection)

    def _ranks(self, bits: int) -> tuple[int, ...]:
        return tuple(rank for rank in range(self._size) if bits >> rank & 1)


def _reply(rank: int, key: int, result: _Result) -> Reply:
    return Reply(rank, key, result.round, *result.terms, result.payload, result.contributors)
