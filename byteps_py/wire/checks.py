"""What is wrong with lists in messages whose elements have the right types."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from byteps_py.types import Participant, ServerInfo

__all__ = ["list_problem", "local_rank_problem"]


def list_problem(what: str, members: Sequence[Participant | ServerInfo]) -> str | None:
    """Whoever is in a list has its place there as rank, and no number that cannot be."""
    for index, each in enumerate(members):
        numbers = [value for value in msgspec.structs.astuple(each) if isinstance(value, int)]
        if each.rank != index or min(numbers) < 0 or max(numbers) >= 1 << 64:
            return f"{what} {index} cannot be {each}"
        if isinstance(each, Participant) and each.local_size < 1:
            return f"{what} {index} is one of {each.local_size} processes of its machine"
    return None


def local_rank_problem(local_size: int, ranks: Sequence[int]) -> str | None:
    """The workers of one machine have different local ranks, below their number."""
    if len(set(ranks)) == len(ranks) and max(ranks, default=0) < local_size:
        return None
    return f"{local_size} workers of one machine cannot have the local ranks {ranks[:8]}"
