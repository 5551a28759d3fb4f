"""The groups of workers that this process has formed, by their members and by their ids."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from byteps_py.roles.pending import Signal
from byteps_py.types import Operation, TensorSpec

__all__ = ["Formed", "KnownGroups"]


class Formed(Signal):
    """Set when all servers know a group, whose id is ``group`` then."""

    __slots__ = ("group",)

    def __init__(self) -> None:
        super().__init__()
        self.group = 0


class KnownGroups:
    """What a worker need not ask again.  Any thread.

    Args:
        rank, size: of the worker, and of its job.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._ids: dict[tuple[int, ...], int] = {tuple(range(size)): 0}
        self._members: dict[int, frozenset[int]] = {}

    def form(self, ranks: Sequence[int], ask: Callable[[tuple[int, ...]], int]) -> int:
        """The id of the group of these workers.

        Args:
            ranks: in any order.
            ask: has the group formed of ranks that are rising; returns its id.

        Raises:
            ValueError: they are no group that this worker is in.
            TypeError: they are no whole numbers.
        """
        members = tuple(sorted(map(operator.index, ranks)))
        self._check_ranks(members)
        known = self._ids.get(members)
        if known is not None:
            return known
        group = ask(members)
        self._members[group] = frozenset(members)
        self._ids[members] = group
        return group

    def check(self, spec: TensorSpec, operation: Operation = Operation.SUM, root: int = 0) -> None:
        """Whether this worker may have to do with a tensor of a group.

        Raises:
            ValueError: it has not formed the group, or the root of a BROADCAST or a SEED is not in it.
        """
        members = self._members.get(spec.group)
        if members is None:
            raise ValueError(
                f"tensor {spec.name!r} is of group {spec.group}, which this process has not formed: form_group() gives "
                "out the ids of groups"
            )
        if operation in (Operation.BROADCAST, Operation.SEED) and root not in members:
            raise ValueError(f"root {root} is not one of the ranks of group {spec.group}: {sorted(members)}")

    def _check_ranks(self, members: tuple[int, ...]) -> None:
        if not members:
            raise ValueError("a group needs at least one rank, this process's own")
        if not 0 <= members[0] <= members[-1] < self._size:
            raise ValueError(f"a group cannot have the ranks {members}: ranks are 0 to {self._size - 1}")
        if len(set(members)) < len(members):
            raise ValueError(f"a group has each of its ranks once, not {members}")
        if self._rank not in members:
            raise ValueError(
                f"worker {self._rank} cannot form the group of ranks {members}, in which it is not: its members do"
            )
