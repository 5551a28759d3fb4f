"""Who contributes to a key: all workers, those of a node, or a group of them.

A key names its group (:func:`byteps_py.types.group_of`), so nothing has to be known of a key but its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from byteps_py.core import rejections
from byteps_py.types import Participant, group_of

__all__ = ["MemberTable", "Members", "members_of"]


@dataclass(frozen=True, slots=True)
class Members:
    """Some workers of a job.

    Attributes:
        mask: one bit per rank.
        size: their number.
        nodes: their ranks by node, in the order in which contributions are summed.
        mates: by rank, the mask of those of the same node, itself included.
    """

    mask: int
    size: int
    nodes: tuple[tuple[int, ...], ...]
    mates: dict[int, int]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who they are, rising."""
        return tuple(sorted(self.mates))

    def has(self, rank: int) -> bool:
        """Whether worker ``rank`` is one of them."""
        return rank in self.mates


class MemberTable:
    """The groups of workers that are known.  Not thread-safe.

    Args:
        participants: all workers, by rank.
        everyone: who contributes to keys of no group.
    """

    def __init__(self, participants: Sequence[Participant], everyone: Members) -> None:
        self._participants = tuple(participants)
        self._groups = {0: everyone}
        self.everyone = everyone

    def form(self, group: int, ranks: Sequence[int]) -> None:
        """Keys of ``group`` are those of the workers ``ranks`` from now on.  Repeating the call is harmless.

        Args:
            group: at least 1.
            ranks: each once.

        Raises:
            ValueError: there is no such worker, or the group has other members.
        """
        size = len(self._participants)
        if not all(0 <= rank < size for rank in ranks):
            raise ValueError(f"group {group} cannot have the ranks {tuple(ranks)}: workers are 0 to {size - 1}")
        members = members_of(self._participants, ranks)
        known = self._groups.setdefault(group, members)
        if known != members:
            raise ValueError(f"group {group} has the ranks {known.ranks}, not {members.ranks}")

    def of(self, key: int) -> Members | None:
        """Who contributes to a key; None if it is of an unknown group."""
        return self._groups.get(group_of(key))

    def refusal(self, rank: int, key: int) -> str:
        """Why worker ``rank``, which does not contribute to ``key``, has nothing to do with it."""
        size, members = len(self._participants), self.of(key)
        if not 0 <= rank < size:
            return rejections.stranger(rank, size)
        if members is None:
            return rejections.unknown_group(rank, group_of(key))
        return rejections.outsider(rank, members.ranks)


def members_of(participants: Sequence[Participant], ranks: Iterable[int]) -> Members:
    """The participants of these ranks, each once.

    Args:
        participants: all workers, by rank.
    """
    nodes: dict[int, list[int]] = {}
    for each in sorted([participants[rank] for rank in ranks], key=lambda worker: (worker.node, worker.rank)):
        nodes.setdefault(each.node, []).append(each.rank)
    masks = [sum(1 << rank for rank in node) for node in nodes.values()]
    mates = {rank: mask for node, mask in zip(nodes.values(), masks, strict=True) for rank in node}
    return Members(sum(masks), len(mates), tuple(map(tuple, nodes.values())), mates)
