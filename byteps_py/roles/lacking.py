"""Which workers of a node its sum waits for, as far as a server was told: so that it names those, and not all of them.

Told by workers of the node, in a WAITING; needed only for messages about what stands still.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from byteps_py.types import Participant

__all__ = ["Lacking"]


class Lacking:
    """What was told last of each key and node.  Not thread-safe.

    Args:
        participants: all workers, by rank.
    """

    def __init__(self, participants: Sequence[Participant]) -> None:
        self._nodes = [each.node for each in participants]
        self._told: dict[int, dict[int, tuple[int, frozenset[int]]]] = {}

    def note(self, sender: int, key: int, round_: int, ranks: Iterable[int]) -> None:
        """The sum of the sender's node for ``(key, round_)`` waits for ``ranks``; those of other nodes are ignored."""
        node = self._nodes[sender]
        own = frozenset([rank for rank in ranks if rank < len(self._nodes) and self._nodes[rank] == node])
        if own:
            self._told.setdefault(key, {})[node] = round_, own

    def narrow(self, key: int, round_: int, missing: Sequence[int]) -> Sequence[int]:
        """Those of the ranks ``missing`` in ``(key, round_)`` that their nodes wait for, too."""
        told = self._told.get(key)
        if told is None:
            return missing
        known = {node: ranks for node, (told_round, ranks) in told.items() if told_round == round_}
        return [rank for rank in missing if rank in known.get(self._nodes[rank], (rank,))]
