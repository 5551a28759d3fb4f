"""The rounds of one node: what its workers contribute is summed here before it goes to a server.

The machine is that of :mod:`byteps_py.core.aggregation` with the workers of one node, by the ranks that they have in
the job.  It differs in what happens when all have contributed::

    phase       event                                       actions                            next phase
    ----------  ------------------------------------------  ---------------------------------  ---------------------
    COLLECTING  push r, the last one of the node            Accept, Sum (``partial``)          SUMMING
    SUMMING     the server's result of r is here: summed    Reply to all who want it           COLLECTING round r+1
    SUMMING     the server has rejected r                   Reject to all                      REJECTED

A Sum is always asked for, even one of nothing: what the server is sent is made of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from byteps_py.core.aggregation import Action, Aggregation, Sum
from byteps_py.core.key_state import KeyState, Phase
from byteps_py.core.members import Members, MemberTable, members_of
from byteps_py.core.rejections import Terms
from byteps_py.types import Operation, Participant

__all__ = ["NodeSums"]


class NodeSums(Aggregation):
    """All keys that one process sums for its node.  Not thread-safe: one thread owns it.

    Args:
        participants: all workers of the job, by rank.
        node: whose workers push here; nobody else may.
    """

    def __init__(self, participants: Sequence[Participant], node: int) -> None:
        super().__init__(participants)
        self._givers = [each.rank for each in participants if each.node == node]
        self.members = MemberTable(participants, members_of(participants, self._givers))

    def terms(self, key: int) -> Terms:
        """What the contributions to the open round of a known key agree on, if there are any."""
        return self._keys[key].terms

    def result(self, key: int, round: int, payload: object | None, contributors: int, width: int = 0) -> list[Action]:
        """The server has sent a result that is waited for; it may be rows (of ``width`` elements) where the workers of
        this node were all absent."""
        state = self._summing(key, round)
        state.form = None if payload is None else (self._givers[0], width)
        return self._finish(key, state, payload, contributors)

    def refused(self, key: int, round: int, reason: str, departed: int | None) -> list[Action]:
        """The server has rejected a round whose result is waited for."""
        return self._reject(key, self._summing(key, round), reason, departed)

    def has_open(self, rank: int) -> bool:
        """Whether a round with a contribution of ``rank`` has no result yet.  O(keys)."""
        bit = 1 << rank
        return any(each.arrived & bit and each.phase is not Phase.REJECTED for each in self._keys.values())

    def _may_be_root(self, members: Members, rank: int) -> bool:
        return 0 <= rank < self._size  # of whichever node

    def _complete(self, key: int, state: KeyState) -> list[Action]:
        state.last = None
        dtype, operation, root, _, _, count = state.terms
        givers = self._givers
        if operation is Operation.BROADCAST:
            givers = [rank for rank in givers if rank == root]
        sources = tuple([state.payloads[rank] for rank in givers if state.payloads[rank] is not None])
        groups = (len(sources),) if sources else ()
        state.phase = Phase.SUMMING
        state.payloads = []
        state.contributors = len(sources)
        return [Sum(key, state.round, dtype, operation, count, sources, groups, 1, partial=True, width=state.width)]
