"""Why a contribution was refused or a round cannot complete, in words: who, with which values, and what to do.

Pure text over plain values, for :mod:`byteps_py.core.aggregation` and :mod:`byteps_py.core.parameters`.  The receiver
knows the tensor's name and puts it in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from byteps_py.types import DType, Operation

__all__ = [
    "Terms",
    "ahead",
    "answered",
    "both_ways",
    "changed",
    "departure",
    "disagreement",
    "empty_seed",
    "forms",
    "gone",
    "held_by_servers",
    "other_shape",
    "outsider",
    "stranger",
    "summed_so_far",
    "uncounted",
    "unknown_group",
    "unknown_root",
    "unseeded",
]

Terms: TypeAlias = tuple[DType, Operation, int, int, int, int]
"""What contributions to one round agree on: dtype, operation, root, step, offset, count."""

_SAME_CALLS = "all workers must make the same calls on a tensor in the same order"

_SAME_WAY = "BYTEPS_LOCAL_REDUCE and BYTEPS_TRANSPORT must be equal in all processes of a machine"


def disagreement(round: int, rank: int, terms: Terms, other_rank: int, other_terms: Terms) -> str:
    """Two contributions to one round contradict each other; the lower rank is named first."""
    sides = [(rank, terms, other_terms), (other_rank, other_terms, terms)]
    first, second = (_side(*side) for side in sorted(sides, key=lambda side: side[0]))
    return f"workers disagree in round {round}: {first}, {second}; {_SAME_CALLS}"


def forms(round: int, rank: int, width: int, other_rank: int, other_width: int) -> str:
    """One contribution to a round is rows and another is not, or rows of another length; the lower rank comes first."""
    first, second = (
        f"worker {each} pushes {f'rows of {elements} elements' if elements else 'all elements, not rows of them'}"
        for each, elements in sorted([(rank, width), (other_rank, other_width)])
    )
    return (
        f"workers disagree in round {round}: {first}, {second}; a tensor is pushed by all workers as rows (a sparse "
        "gradient), or by all of them dense"
    )


def both_ways(round: int, rank: int, speaker: int | None, other: int) -> str:
    """A worker of a node pushes by itself and is in the node's sum too; ``speaker`` has sent such a sum before."""
    if speaker is None:
        text = f"worker {rank} pushes the sum of all workers of its machine, of whom worker {other} pushes by itself"
    else:
        text = (
            f"worker {speaker} has pushed the sum of all workers of its machine, of whom worker {rank} pushes another"
        )
    return f"in round {round}, {text}; {_SAME_WAY}"


def unknown_root(rank: int, terms: Terms, ranks: Sequence[int]) -> str:
    """A BROADCAST comes from nobody of those who contribute."""
    return f"{_side(rank, terms, terms)}, but contributions come from {_workers(ranks)}"


def departure(rank: int, round: int) -> str:
    """A worker left in order while others went on."""
    return (
        f"worker {rank} left the job before it contributed to round {round}, which therefore cannot complete; "
        f"{_SAME_CALLS} before they shut down"
    )


def ahead(rank: int, round: int, open_round: int) -> str:
    """A push for a round after the open one, which happens where a worker gave an operation up half-way."""
    return (
        f"worker {rank} pushes round {round} while round {open_round} is open: an earlier operation of this worker on "
        "the same tensor was not completed here; look for the first error that it reported"
    )


def changed(rank: int, round: int) -> str:
    """The memory that a worker had lent for its contribution was used for something else before that was allowed."""
    return (
        f"worker {rank} changed its contribution to round {round} while it was being summed; look for the first error "
        "that it reported"
    )


def gone(rank: int, round: int) -> str:
    """A pull for a result that was dropped.  (Missing as an answer would make the sender push and wait for ever.)"""
    return (
        f"worker {rank} asks for the result of round {round}, which is no longer kept: every worker has contributed to "
        "a later round, which shows that it had this result"
    )


def answered(rank: int, round: int, last: int) -> str:
    """A pull for an answer that its sender is known to have had."""
    return (
        f"worker {rank} asks for the answer to its round {round}, which is no longer kept: it has pushed round {last}, "
        "which shows that it had this answer"
    )


def unseeded(rank: int) -> str:
    """A difference from parameters that nobody has given to the server."""
    return (
        f"worker {rank} pushes a DIFFERENCE, but the server does not hold these parameters yet: the first operation on "
        "them is a SEED, in which all workers take part"
    )


def held_by_servers(rank: int, operation: Operation) -> str:
    """Something else than a difference for parameters that the server holds."""
    return (
        f"worker {rank} pushes {operation.name}, but the servers hold this tensor since its SEED, and take DIFFERENCEs "
        "of it only: give what is summed, or seeded anew, another name"
    )


def summed_so_far(rank: int, operation: Operation) -> str:
    """A seed, or a difference, for a tensor that workers sum or broadcast."""
    return (
        f"worker {rank} pushes {operation.name}, but workers have summed or broadcast this tensor before: give "
        "parameters that the servers hold a name of their own"
    )


def other_shape(rank: int, terms: Terms, seeded: Terms) -> str:
    """A difference of another shape or type than the parameters."""
    (dtype, _, _, _, offset, count), (held, _, _, _, begin, size) = terms, seeded
    return (
        f"worker {rank} pushes a DIFFERENCE of {count} {dtype.label} elements at offset {offset}, and the parameters "
        f"are {size} {held.label} elements at offset {begin}; {_SAME_CALLS}"
    )


def empty_seed(root: int) -> str:
    """A seed without elements where there should be some."""
    return f"worker {root}, whose parameters the servers are to hold, pushes a SEED without any: it must give its own"


def uncounted(rank: int, round: int) -> str:
    """A round number that no worker draws."""
    return f"worker {rank} names round {round}: rounds are counted from 1"


def stranger(rank: int, size: int) -> str:
    """A rank that the job does not have."""
    return f"worker {rank} is not in this job, which has the workers 0 to {size - 1}"


def outsider(rank: int, ranks: Sequence[int]) -> str:
    """A worker pushes what is not its own affair."""
    return (
        f"worker {rank} is not one of those who contribute, {_workers(ranks)}: a tensor of a group is pushed by the "
        "members of the group only"
    )


def unknown_group(rank: int, group: int) -> str:
    """A key of a group that nobody has formed."""
    return f"worker {rank} pushes a tensor of group {group}, which is not known here: form_group() gives out the groups"


def _workers(ranks: Sequence[int]) -> str:
    """``workers 0 to 3``, or ``workers 0, 2``."""
    first, last = ranks[0], ranks[-1]
    if len(ranks) > 1 and last - first == len(ranks) - 1:
        return f"workers {first} to {last}"
    return f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _side(rank: int, terms: Terms, others: Terms) -> str:
    """What ``rank`` pushes; root and offset only where they say something."""
    dtype, operation, root, step, offset, count = terms
    text = f"worker {rank} pushes {operation.name} of {count} {dtype.label} elements at step {step}"
    if operation in (Operation.BROADCAST, Operation.SEED) or root != others[2]:
        text += f" from root {root}"
    if offset != others[4]:
        text += f" at offset {offset}"
    return text
