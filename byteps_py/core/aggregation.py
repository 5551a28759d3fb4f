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
                a single undivided payload to sum, in
                memory that is this process's own
    COLLECTING  push r that contradicts an earlier one, or  Reject to all contributors         REJECTED
                of a worker for whom its node has spoken,
                or for a node of which somebody has
    COLLECTING  push r, the first, but a worker has left,   Reject                             REJECTED
                or a BROADCAST is of somebody else
    COLLECTING  a worker leaves that has not pushed r       Reject to all contributors         REJECTED
    SUMMING     summed r                                    Reply to all who want it           COLLECTING round r+1
    SUMMING     a source of r changed meanwhile             Reject to all                      REJECTED
    any but     push r again (it is not counted again)      Accept                             unchanged
    REJECTED    push beyond r                               Reject                             unchanged
                pull r, the contribution is here            Accept; its sender wants it        unchanged
                pull r, or beyond, without contribution     Missing                            unchanged
    REJECTED    push or pull of r or beyond                 Reject                             REJECTED
    any         push of a finished round (not counted)      Accept, Reply if wanted and kept   unchanged
    any         pull of a finished round                    Reply, or Reject if not kept       unchanged

Memory: after a Sum was handed out its payloads are forgotten here, and the performer may write the result into the
memory of ``sources[0]`` if that is this process's own.  The payload of a Reply is shared by all Replies of the round
and kept as the last result: nobody may write into it.  A *borrowed* payload lies in memory of its sender, which keeps
it as it is until it has the result, and no longer: so it never becomes the result itself, but is copied by a Sum.

A *partial* is a contribution that stands for all workers of the sender's node, whose payloads were summed there.  It
counts as theirs, is one source of the Sum, and its sender alone is answered.

A key may be one of a *group* of workers, which its number says (:func:`byteps_py.types.group_of`).  Then "all" are the
members of that group; nobody else may push or pull, and nobody else's leaving matters.

A key may be looked after elsewhere while nothing out of the ordinary happens to it (a server keeps small tensors in
arrays that C walks).  It comes here with what has arrived (:meth:`Aggregation.adopt`), and may go again between two
rounds (:meth:`Aggregation.release`).
"""

from __future__ import annotations

from collections.abc import Sequence

from byteps_py.core import rejections
from byteps_py.core.contributions import (
    Accept,
    Action,
    Contribution,
    Missing,
    OpenRound,
    Reject,
    Reply,
    Result,
    Sum,
)
from byteps_py.core.key_state import KeyState, Phase
from byteps_py.core.members import Members, MemberTable, members_of
from byteps_py.core.rejections import Terms
from byteps_py.errors import LocalProtocolError
from byteps_py.types import Operation, Participant
from byteps_py.wire.header import is_wide

__all__ = [
    "Accept",
    "Action",
    "Aggregation",
    "Contribution",
    "Missing",
    "OpenRound",
    "Reject",
    "Reply",
    "Result",
    "Sum",
]


class Aggregation:
    """All keys of one server within one membership epoch.  Not thread-safe: one thread owns it.

    Args:
        participants: all workers; ``participants[i].rank`` is i.

    Attributes:
        members: who contributes to a key.

    Raises:
        ValueError: the list is empty or not in the order of the ranks.
    """

    def __init__(self, participants: Sequence[Participant]) -> None:
        ranks = [each.rank for each in participants]
        if not ranks or ranks != list(range(len(ranks))):
            raise ValueError(f"participants must be listed by rank, from 0 and without a gap; these are {ranks}")
        self._size = len(ranks)
        self.members = MemberTable(participants, members_of(participants, ranks))
        self._departed = 0
        self._keys: dict[int, KeyState] = {}

    def push(self, contribution: Contribution) -> list[Action]:
        """A contribution has arrived.  O(1), and O(participants) for the last one of a round."""
        rank, key, round = contribution.participant, contribution.key, contribution.round
        state = self._keys.get(key)
        members = self.members.of(key) if state is None else state.members
        if members is None or rank not in members.mates:
            return [Reject(rank, key, round, self.members.refusal(rank, key))]
        if state is None:
            state = self._fresh(members)
            if round == 1:
                self._keys[key] = state
        if round != state.round or state.phase is Phase.REJECTED:
            return self._push_elsewhere(state, contribution)
        bit = 1 << rank
        if contribution.want_result:
            state.wants |= bit
        if state.arrived & bit and self._repeats(state, contribution):
            return [Accept(rank, key, round)]
        objection = self._objection(state, contribution)
        if objection is not None:
            return self._reject(key, state, *objection, bit)
        state.take(contribution, members.mates[rank] if contribution.partial else bit)
        completion = self._complete(key, state) if state.arrived == members.mask else ()
        return [Accept(rank, key, round), *completion]

    def pull(self, participant: int, key: int, round: int) -> list[Action]:
        """``participant`` asks for a result, or for word of its contribution.  There is exactly one answer."""
        state = self._keys.get(key)
        members = self.members.of(key) if state is None else state.members
        if members is None or participant not in members.mates:
            return [Reject(participant, key, round, self.members.refusal(participant, key))]
        if state is None:
            return [Missing(participant, key, round)]
        if round < state.round:
            if state.last is not None and state.last.round == round:
                return [_reply(participant, key, state.last)]
            return [Reject(participant, key, round, rejections.gone(participant, round))]
        if state.phase is Phase.REJECTED:
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
        state = self._summing(key, round)
        return self._finish(key, state, payload, state.contributors)

    def changed(self, key: int, round: int, rank: int) -> list[Action]:
        """The sum of ``(key, round)`` has no result: worker ``rank`` changed the memory that it had lent for it.

        A key that is not known here was summed elsewhere, and is looked after here from now on.

        Raises:
            LocalProtocolError: the key is known here, and no such Sum is being computed.
        """
        if key not in self._keys:
            members = self.members.everyone
            self._keys[key] = KeyState(members, [], round, Phase.SUMMING, members.mask)
        return self._reject(key, self._summing(key, round), rejections.changed(rank, round), None)

    def adopt(self, key: int, round: int, contributions: Sequence[Contribution], last: Result | None) -> None:
        """Look after a key from now on; those who have contributed have been told, or will be, by the caller.

        Args:
            key: not known here, and of no group.
            round: the open one.
            contributions: what it has, at most one of each participant, not all, each agreeing with the others.
            last: the result of the round before, if it is still kept.

        Raises:
            LocalProtocolError: the key is known here.
        """
        if key in self._keys:
            raise LocalProtocolError(f"key {key} cannot be adopted: its round {self._keys[key].round} is open here")
        state = self._keys[key] = self._fresh(self.members.everyone)
        state.round, state.last = round, last
        for each in contributions:
            if not state.arrived:
                state.first, state.terms = each.participant, _terms(each)
            state.take(each, 1 << each.participant)
            state.wants |= each.want_result << each.participant

    def release(self, key: int) -> tuple[int, Result | None] | None:
        """Forget a key if nothing has arrived for its open round, it is not rejected, and no worker has left.

        Returns:
            The open round and the last result; None if the key stays here, or is not known.
        """
        state = self._keys.get(key)
        if state is None or state.arrived or state.phase is not Phase.COLLECTING or self._departed:
            return None
        del self._keys[key]
        return state.round, state.last

    def knows(self, key: int) -> bool:
        """Whether the key is looked after here."""
        return key in self._keys

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
            lacks = bit & state.members.mask & ~state.arrived
            if lacks and state.arrived and state.phase is Phase.COLLECTING:
                actions.extend(self._reject(key, state, rejections.departure(rank, state.round), rank))
        return actions

    def missing(self, key: int) -> tuple[int, ...]:
        """Ranks whose contribution the open round of ``key`` waits for; none while it is summed, or rejected."""
        state = self._keys.get(key)
        if state is None or state.phase is not Phase.COLLECTING:
            return ()
        return self._ranks(state.members.mask & ~state.arrived)

    def waiting(self) -> list[OpenRound]:
        """The rounds that have some contributions and lack others, for messages about stalls.  O(keys)."""
        return [
            OpenRound(key, state.round, self._ranks(state.arrived), missing)
            for key, state in self._keys.items()
            if state.arrived and (missing := self.missing(key))
        ]

    def _fresh(self, members: Members) -> KeyState:
        """What is known of a key before its first contribution."""
        return KeyState(members, [None] * self._size)

    def _summing(self, key: int, round: int) -> KeyState:
        state = self._keys.get(key)
        if state is None or state.round != round or state.phase is not Phase.SUMMING:
            raise LocalProtocolError(f"the sum of key {key}, round {round}, was never asked for, or was given twice")
        return state

    def _push_elsewhere(self, state: KeyState, contribution: Contribution) -> list[Action]:
        """A push to a rejected key, or to a round that is not the open one."""
        rank, key, round = contribution.participant, contribution.key, contribution.round
        if round < 1:
            return [Reject(rank, key, round, rejections.uncounted(rank, round))]
        if round < state.round:
            actions: list[Action] = [Accept(rank, key, round)]
            if contribution.want_result and state.last is not None and state.last.round == round:
                actions.append(_reply(rank, key, state.last))
            return actions
        if state.phase is Phase.REJECTED:
            if contribution.partial:
                state.partials.setdefault(rank, 0)
            return [self._tell(rank, key, round, state)]
        return [Reject(rank, key, round, rejections.ahead(rank, round, state.round))]

    def _repeats(self, state: KeyState, c: Contribution) -> bool:
        """Whether a contribution of one who has contributed came in the same way as this one: by itself, or not."""
        return c.participant in state.partials if c.partial else self._speaker(state, c.participant) is None

    def _speaker(self, state: KeyState, rank: int) -> int | None:
        """Who has sent a partial for ``rank``."""
        return next((sender for sender in state.partials if state.members.mates[sender] >> rank & 1), None)

    def _objection(self, state: KeyState, c: Contribution) -> tuple[str, int | None] | None:
        """Why the round cannot complete with ``c``, as the last arguments of :meth:`_reject`; None if it can."""
        terms = _terms(c)
        if state.arrived:
            mates = state.members.mates[c.participant]
            if state.arrived & (mates if c.partial else 1 << c.participant):
                other = next(rank for rank in self._ranks(state.arrived & mates))
                return rejections.both_ways(c.round, c.participant, self._speaker(state, c.participant), other), None
            if terms != state.terms:
                return rejections.disagreement(c.round, state.first, state.terms, c.participant, terms), None
            if c.payload is not None and state.form is not None and state.width != c.width:
                return rejections.forms(c.round, *state.form, c.participant, c.width), None
            return None
        state.first = c.participant
        state.terms = terms
        members = state.members
        if c.operation.is_asynchronous:
            return rejections.summed_so_far(c.participant, c.operation), None
        if self._departed & members.mask:
            rank = self._ranks(self._departed & members.mask)[0]
            return rejections.departure(rank, c.round), rank
        if c.operation is Operation.BROADCAST and not self._may_be_root(members, c.root):
            return rejections.unknown_root(c.participant, terms, members.ranks), None
        return None

    def _may_be_root(self, members: Members, rank: int) -> bool:
        """Whether one of ``members`` may expect a BROADCAST of worker ``rank``."""
        return members.has(rank)

    def _complete(self, key: int, state: KeyState) -> list[Action]:
        """Everybody has contributed, hence has the result before this one."""
        state.last = None
        dtype, operation, root, _, _, count = state.terms
        payloads = state.payloads
        nodes: Sequence[Sequence[int]] = ([root],) if operation is Operation.BROADCAST else state.members.nodes
        if state.partials:
            nodes = [list(dict.fromkeys(self._who_pushed(state, rank) for rank in node)) for node in nodes]
        # An absent contribution is left out instead of being added as zero, which would turn -0.0 into 0.0.
        present = [[rank for rank in node if payloads[rank] is not None] for node in nodes]
        ranks = [rank for node in present for rank in node]
        sources = tuple([payloads[rank] for rank in ranks])
        groups = tuple([len(node) for node in present if node])
        divisor = state.members.size if operation is Operation.AVERAGE else 1
        contributors = sum([state.partials.get(rank, 1) for rank in ranks])
        wide = tuple([place for place, rank in enumerate(ranks) if is_wide(dtype, state.partials.get(rank, 1))])
        if not ranks:
            return self._finish(key, state, None, 0)
        if len(ranks) == 1 and divisor == 1 and not wide and not state.borrowed >> ranks[0] & 1:
            return self._finish(key, state, sources[0], contributors)
        state.phase = Phase.SUMMING
        state.payloads = []
        state.contributors = contributors
        return [Sum(key, state.round, dtype, operation, count, sources, groups, divisor, wide, width=state.width)]

    def _who_pushed(self, state: KeyState, rank: int) -> int:
        """Who has sent what counts as the contribution of ``rank``."""
        speaker = self._speaker(state, rank)
        return rank if speaker is None else speaker

    def _finish(self, key: int, state: KeyState, payload: object | None, contributors: int) -> list[Action]:
        """The open round has a result: answer those who want it, and open the next round."""
        state.last = result = Result(state.round, state.terms, payload, contributors, state.width)
        wants = self._ranks(state.wants & ~self._departed)
        state.round += 1
        state.phase = Phase.COLLECTING
        state.arrived = state.wants = state.borrowed = 0
        state.partials.clear()
        state.form = None
        state.payloads = [None] * self._size
        return [_reply(rank, key, result) for rank in wants]

    def _reject(self, key: int, state: KeyState, reason: str, departed: int | None, also: int = 0) -> list[Action]:
        """The open round can never complete: tell those who contributed, and remember the reason for the others."""
        state.phase = Phase.REJECTED
        state.rejection = (reason, departed)
        state.payloads = []
        told = state.arrived
        for sender in state.partials:
            told &= ~state.members.mates[sender] | 1 << sender
        return [self._tell(rank, key, state.round, state) for rank in self._ranks(told | also)]

    def _tell(self, rank: int, key: int, round: int, state: KeyState) -> Reject:
        """The rejection for one worker, which by asking for this round shows that it has the last result."""
        members = state.members
        state.arrived |= members.mates[rank] if rank in state.partials else 1 << rank
        if not members.mask & ~(state.arrived | self._departed):
            state.last = None
        return Reject(rank, key, round, *state.rejection)

    def _ranks(self, bits: int) -> tuple[int, ...]:
        return tuple([rank for rank in range(bits.bit_length()) if bits >> rank & 1])


def _terms(c: Contribution) -> Terms:
    return c.dtype, c.operation, c.root, c.step, c.offset, c.count


def _reply(rank: int, key: int, result: Result) -> Reply:
    return Reply(rank, key, result.round, *result.terms, result.payload, result.contributors, result.width)
