"""The parameters that a server holds in asynchronous training, and what the workers add to them.

Theory of operation
-------------------

A key is one partition of one tensor, as in :mod:`byteps_py.core.aggregation`; but its rounds are counted for each
participant by itself.  Round 1 is a SEED, in which all take part: the payload of the root becomes the *store* of the
key.  Every later round is a DIFFERENCE: what a worker has changed is added to the store, and its answer is the store as
it is then, with what others have added meanwhile.  Nobody waits for others, unless there is a bound.

A contribution (participant, key, round) counts once, however often it arrives.  An answer may get lost on its way, so
whoever asks again is given the same answer again: it is kept until the next contribution shows that it came.

The store of a key::

    phase      event                                       actions                                next phase
    ---------  ------------------------------------------  -------------------------------------  ----------
    SEEDING    SEED, others are missing                    Accept                                 SEEDING
    SEEDING    SEED, the last                              Accept, Sum of the root's payload      SUMMING
    SEEDING    a worker leaves                             as if its SEED was here; Reject to     unchanged,
                                                           all if it is the root and it was not   REJECTED
    IDLE       DIFFERENCE                                  Accept, Sum of the store and this      SUMMING
    SUMMING    DIFFERENCE                                  Accept; it waits for the next Sum      SUMMING
    IDLE,      DIFFERENCE without a payload                Accept, Reply (or hold it)             unchanged
    SUMMING
    SUMMING    summed, no difference waits                 Reply (or hold it) to all in the sum   IDLE
    SUMMING    summed, differences wait                    the same, and one Sum of them all      SUMMING
    SUMMING    a source changed meanwhile                  Reject to all who wait                 REJECTED
    any        what contradicts the others or the store    Reject to all who wait, and to it      REJECTED
    REJECTED   any push, or pull                           Reject                                 REJECTED

The rounds of a participant at a key, of which the last that was counted is r::

    push r + 1                            counted, see above
    push r, or earlier                    Accept; and the answer again, if it is of r and was given
    push r + 1, but r is not answered     Reject
    push beyond r + 1                     Reject
    pull r, answered                      the same answer again
    pull r, not answered                  Accept: it will be answered; :meth:`Parameters.missing` says for whom it waits
    pull beyond r                         Missing
    pull before r                         Reject

The bound s, if there is one, is that of stale synchronous parallel training (Ho et al., "More Effective Distributed ML
via a Stale Synchronous Parallel Parameter Server", NIPS 2013): the answer to round r of a worker is held back until
every member that has not left has pushed round r - s, or a later one.

The *staleness* of a difference is how many differences of others were counted between the answer that its sender had
last and its own arrival: what it was computed without.

Memory: a sum never writes over the store, which may be on its way to somebody; it writes into a buffer that
:meth:`Parameters.held` does not name.  A worker has what it was given until it pushes again, or leaves; so a key needs
two buffers more than there are members, at most.  Payloads of contributions are forgotten when their sum was made.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from byteps_py.core import rejections
from byteps_py.core.contributions import Accept, Action, Contribution, Missing, Reject, Reply, Sum
from byteps_py.core.members import Members, MemberTable
from byteps_py.core.rejections import Terms
from byteps_py.errors import LocalProtocolError
from byteps_py.types import Operation

__all__ = ["Parameters"]


class _Phase(enum.Enum):
    """Of a store; see the module."""

    SEEDING = enum.auto()
    IDLE = enum.auto()
    SUMMING = enum.auto()
    REJECTED = enum.auto()


class _Way(enum.Enum):
    """How far the last contribution of a member is."""

    COUNTED = enum.auto()
    """It is not in the store yet."""
    ADDED = enum.auto()
    """It is in the store; the answer is held back."""
    ANSWERED = enum.auto()


@dataclass(slots=True)
class _Member:
    """One participant at one key.

    Attributes:
        round: the last that was counted; 0 before the first.
        terms: of that contribution.
        way: how far it is.
        wants: whether its sender is to be sent the answer.
        staleness: of it.
        answer: what was given last, until the next contribution; None if nothing is kept.
        seen: how many differences were in what was given last.
    """

    round: int = 0
    terms: Terms | None = None
    way: _Way = _Way.ANSWERED
    wants: bool = False
    staleness: int = 0
    answer: object | None = None
    seen: int = 0


@dataclass(slots=True)
class _Store:
    """The parameters of one key.

    Attributes:
        members: who takes part.
        of: by rank, what is known of each of them.
        phase: see the module.
        terms: of the SEED.
        payload: the parameters; None before they are there.
        waiting: ranks and payloads of what is to be in the next sum: the root's SEED, or differences.
        summing: ranks whose contributions are in the sum that is being made.
        sums: number of sums so far, by which they are told apart.
        counted, added: numbers of differences that have arrived, and that are in the store.
        rejection: reason, and rank of the worker that left (None for a disagreement).
    """

    members: Members
    of: dict[int, _Member]
    phase: _Phase = _Phase.SEEDING
    terms: Terms | None = None
    payload: object | None = None
    waiting: list[tuple[int, object]] = field(default_factory=list)
    summing: list[int] = field(default_factory=list)
    sums: int = 0
    counted: int = 0
    added: int = 0
    rejection: tuple[str, int | None] = ("", None)


class Parameters:
    """All keys of one server whose parameters it holds.  Not thread-safe: one thread owns it.

    Args:
        members: who takes part in a key.
        bound: rounds that a worker may be ahead of the slowest one, at least 1; None: any number.

    Raises:
        ValueError: the bound is less than 1: that is synchronous training, of which this knows nothing.
    """

    def __init__(self, members: MemberTable, bound: int | None = None) -> None:
        if bound is not None and bound < 1:
            raise ValueError(f"a bound of {bound} rounds is none of asynchronous training, which takes 1 or more")
        self._members = members
        self._bound = bound
        self._stores: dict[int, _Store] = {}
        self._departed: set[int] = set()

    def knows(self, key: int) -> bool:
        """Whether the key is looked after here."""
        return key in self._stores

    def push(self, contribution: Contribution) -> list[Action]:
        """A contribution has arrived.  O(members)."""
        rank, key, round = contribution.participant, contribution.key, contribution.round
        store = self._stores.get(key)
        members = self._members.of(key) if store is None else store.members
        if members is None or not members.has(rank):
            return [Reject(rank, key, round, self._members.refusal(rank, key))]
        if round < 1:
            return [Reject(rank, key, round, rejections.uncounted(rank, round))]
        if store is None:
            store = _Store(members, {each: _Member() for each in members.ranks})
            if round == 1:
                self._stores[key] = store
        if store.phase is _Phase.REJECTED:
            return [Reject(rank, key, round, *store.rejection)]
        member = store.of[rank]
        if round <= member.round:
            return [Accept(rank, key, round), *self._again(key, rank, member, contribution)]
        open_round = member.round + (member.way is _Way.ANSWERED)  # who has no answer yet has no next round either
        if round > open_round:
            return [Reject(rank, key, round, rejections.ahead(rank, round, open_round))]
        objection = self._objection(store, contribution)
        if objection is not None:
            member.round, member.way = round, _Way.COUNTED
            return self._reject(key, store, *objection)
        self._count(store, member, contribution)
        return [Accept(rank, key, round), *self._proceed(key, store)]

    def pull(self, participant: int, key: int, round: int) -> list[Action]:
        """``participant`` asks for an answer, or for word of its contribution.  There is exactly one answer."""
        store = self._stores.get(key)
        if store is None:
            return [Missing(participant, key, round)]
        member = store.of.get(participant)
        if member is None:
            return [Reject(participant, key, round, self._members.refusal(participant, key))]
        if store.phase is _Phase.REJECTED:
            return [Reject(participant, key, round, *store.rejection)]
        if round > member.round:
            return [Missing(participant, key, round)]
        if round < member.round:
            return [Reject(participant, key, round, rejections.answered(participant, round, member.round))]
        if member.answer is not None:
            return [_reply(participant, key, member)]
        member.wants = True
        return [Accept(participant, key, round)]

    def summed(self, key: int, number: int, payload: object) -> list[Action]:
        """The Sum of this number (its ``round``) has been computed; ``payload`` is the store from now on.

        Raises:
            LocalProtocolError: no such Sum is being computed.
        """
        store = self._summing(key, number)
        if store.phase is _Phase.REJECTED:
            return []
        if store.payload is None:  # the SEED, which is everybody's first round
            done = [member for member in store.of.values() if member.round == 1]
        else:
            done = [store.of[rank] for rank in store.summing]
            store.added += len(done)
        for member in done:
            member.way = _Way.ADDED
        store.payload, store.summing, store.phase = payload, [], _Phase.IDLE
        return self._proceed(key, store)

    def changed(self, key: int, number: int, rank: int) -> list[Action]:
        """The Sum of this number has no result: worker ``rank`` changed the memory that it had lent for it.

        Raises:
            LocalProtocolError: no such Sum is being computed.
        """
        store = self._summing(key, number)
        if store.phase is _Phase.REJECTED:
            return []
        return self._reject(key, store, rejections.changed(rank, store.of[rank].round), None)

    def left(self, rank: int) -> list[Action]:
        """Worker ``rank`` has left in order: nobody waits for it any more, and what it was given is free.

        Repeating the call is harmless.
        """
        self._departed.add(rank)
        actions: list[Action] = []
        for key, store in self._stores.items():
            member = store.of.get(rank)
            if member is None or store.phase is _Phase.REJECTED:
                continue
            member.answer, member.wants = None, False
            if store.phase is _Phase.SEEDING and not member.round and store.terms and store.terms[2] == rank:
                actions += self._reject(key, store, rejections.departure(rank, 1), rank)
            else:
                actions += self._proceed(key, store)
        return actions

    def missing(self, key: int, rank: int) -> tuple[int, ...]:
        """Ranks for which the answer to the last contribution of worker ``rank`` waits; none if it is just computed."""
        store = self._stores.get(key)
        member = None if store is None else store.of.get(rank)
        if store is None or member is None:
            return ()
        if store.phase is _Phase.SEEDING:
            return tuple([each for each, other in store.of.items() if not other.round and each not in self._departed])
        if member.way is not _Way.ADDED or self._bound is None:
            return ()
        least = member.round - self._bound
        return tuple([each for each, other in store.of.items() if other.round < least and each not in self._departed])

    def held(self, key: int) -> list[object]:
        """The payloads of a key that must not change: the store, and what workers have, or may ask for again."""
        store = self._stores[key]
        held = [member.answer for member in store.of.values() if member.answer is not None]
        return held if store.payload is None else [store.payload, *held]

    def _summing(self, key: int, number: int) -> _Store:
        store = self._stores.get(key)
        if store is None or store.sums != number or store.phase in (_Phase.SEEDING, _Phase.IDLE):
            raise LocalProtocolError(f"sum {number} of key {key} was never asked for, or was given twice")
        return store

    def _again(self, key: int, rank: int, member: _Member, contribution: Contribution) -> list[Action]:
        """What follows the Accept of a contribution that was counted before."""
        if contribution.round < member.round or not contribution.want_result:
            return []
        member.wants = True
        return [] if member.answer is None else [_reply(rank, key, member)]

    def _objection(self, store: _Store, c: Contribution) -> tuple[str, int | None] | None:
        """Why ``c`` does not fit, as the last arguments of :meth:`_reject`; None if it does."""
        terms = _terms(c)
        if c.operation is Operation.DIFFERENCE and c.round == 1:
            return rejections.unseeded(c.participant), None
        if c.operation not in (Operation.SEED, Operation.DIFFERENCE) or (c.operation is Operation.SEED and c.round > 1):
            return rejections.held_by_servers(c.participant, c.operation), None
        if store.terms is None:
            if not store.members.has(c.root):
                return rejections.unknown_root(c.participant, terms, store.members.ranks), None
            if c.root in self._departed:
                return rejections.departure(c.root, 1), c.root
        elif c.operation is Operation.SEED:
            if terms != store.terms:
                first = next(rank for rank, member in store.of.items() if member.terms == store.terms)
                return rejections.disagreement(1, first, store.terms, c.participant, terms), None
        elif (c.dtype, c.offset, c.count) != (store.terms[0], *store.terms[4:]):
            return rejections.other_shape(c.participant, terms, store.terms), None
        if c.operation is Operation.SEED and c.participant == c.root and c.payload is None:
            return rejections.empty_seed(c.root), None
        return None

    def _count(self, store: _Store, member: _Member, c: Contribution) -> None:
        """It is here, and nothing speaks against it. By pushing, its sender shows that it has the answer before."""
        member.round, member.terms, member.wants, member.answer = c.round, _terms(c), c.want_result, None
        member.way, member.staleness = _Way.COUNTED, 0
        if c.operation is Operation.SEED:
            store.terms = store.terms or _terms(c)
            if c.participant == c.root and c.payload is not None:
                store.waiting.append((c.participant, c.payload))
        elif c.payload is None:
            member.way = _Way.ADDED
        else:
            member.staleness = store.counted - member.seen
            store.counted += 1
            store.waiting.append((c.participant, c.payload))

    def _proceed(self, key: int, store: _Store) -> list[Action]:
        """Answer whom the bound lets be answered, and begin what is to be computed."""
        actions: list[Action] = []
        if store.phase is not _Phase.SEEDING:
            actions += self._answer(key, store)
        elif any(not member.round and rank not in self._departed for rank, member in store.of.items()):
            return actions
        if store.waiting and store.phase is not _Phase.SUMMING:
            actions.append(self._begin(key, store))
        return actions

    def _answer(self, key: int, store: _Store) -> list[Action]:
        present = [member.round for rank, member in store.of.items() if rank not in self._departed]
        if not present or store.payload is None:
            return []
        most = None if self._bound is None else min(present) + self._bound
        actions: list[Action] = []
        for rank, member in store.of.items():
            if member.way is not _Way.ADDED or rank in self._departed or (most is not None and member.round > most):
                continue
            member.way, member.answer, member.seen = _Way.ANSWERED, store.payload, store.added
            if member.wants:
                actions.append(_reply(rank, key, member))
        return actions

    def _begin(self, key: int, store: _Store) -> Sum:
        """Sum what waits, in the order of arrival; a SEED is copied."""
        assert store.terms is not None
        payloads = [payload for _, payload in store.waiting]
        sources = tuple(payloads if store.payload is None else [store.payload, *payloads])
        operation = Operation.SEED if store.payload is None else Operation.DIFFERENCE
        store.summing = [rank for rank, _ in store.waiting]
        store.waiting = []
        store.phase = _Phase.SUMMING
        store.sums += 1
        return Sum(key, store.sums, store.terms[0], operation, store.terms[5], sources, (len(sources),), 1)

    def _reject(self, key: int, store: _Store, reason: str, departed: int | None) -> list[Action]:
        """The key is of no use any more: tell those who wait for an answer; the others are told when they come."""
        store.phase = _Phase.REJECTED
        store.rejection = (reason, departed)
        store.waiting = []
        waits = [rank for rank, each in store.of.items() if each.way is not _Way.ANSWERED]
        return [
            Reject(rank, key, store.of[rank].round, reason, departed) for rank in waits if rank not in self._departed
        ]


def _terms(c: Contribution) -> Terms:
    return c.dtype, c.operation, c.root, c.step, c.offset, c.count


def _reply(rank: int, key: int, member: _Member) -> Reply:
    """The answer that a member was given, for the first time or again."""
    assert member.terms is not None
    return Reply(rank, key, member.round, *member.terms, member.answer, member.staleness)
