"""What a server is told about the rounds of its keys, and what it is to do: plain values.

Given to and by :class:`byteps_py.core.aggregation.Aggregation` and :class:`byteps_py.core.parameters.Parameters`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from byteps_py.core.rejections import Terms
from byteps_py.types import DType, Operation

__all__ = ["Accept", "Action", "Contribution", "Missing", "OpenRound", "Reject", "Reply", "Result", "Sum"]


class Contribution(msgspec.Struct, frozen=True):
    """What one PUSH brings.

    Attributes:
        participant: rank of the sender.
        key, round: what it contributes to.
        dtype, operation, root, step, offset, count: must be equal within a round; ``offset`` and ``count`` in elements.
        payload: the elements, as an opaque object; None counts as zero (an absent contribution).  In a BROADCAST only
            the root's is looked at.
        want_result: whether the sender is to be sent the result without asking for it.
        borrowed: whether the payload lies in memory of its sender, which keeps it until it has the result.
        width: elements of a row, where the payload is rows (:mod:`byteps_py.wire.rows`); 0: it is all elements.
        partial: 0; or, where it stands for all workers of the sender's node (a *partial*), 1 and how many of them had a
            payload: the payload is their sum then, for 16-bit floats in float32 if there were several.
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
    borrowed: bool = False
    partial: int = 0
    width: int = 0

    @property
    def contributors(self) -> int:
        """How many workers' payloads are in it."""
        return self.partial - 1 if self.partial else int(self.payload is not None)


class Result(msgspec.Struct, frozen=True):
    """The result of a finished round; ``width`` as of the contributions."""

    round: int
    terms: Terms
    payload: object | None
    contributors: int
    width: int = 0


class Accept(msgspec.Struct, frozen=True, gc=False):
    """Tell ``participant`` that its contribution is here: its window opens again."""

    participant: int
    key: int
    round: int


class Sum(msgspec.Struct, frozen=True):
    """Compute a result, then call :meth:`.Aggregation.summed` with it, or :meth:`.Aggregation.changed`.

    Attributes:
        sources: payloads of ``count`` elements in the order of summation; ``sources[0]`` may be overwritten by the
            result if its memory is this process's own.  One source with the divisor 1 is to be copied bit by bit.
        groups: sizes of consecutive groups of sources (one per worker machine), each summed before they are summed.
        divisor: 1, or what the sum is divided by for AVERAGE: the number of members of the key, absent ones included.
        wide: places of sources that are sums in float32 although ``dtype`` has 16 bits.
        partial: whether this is the sum of a node: not divided; of several 16-bit floats in float32; and of no source
            at all if all of its workers were absent.
        width: 0; or the elements of a row, where the sources are rows: the result is the rows that some source has,
            and a source that lacks one of them counts as zeros there.
    """

    key: int
    round: int
    dtype: DType
    operation: Operation
    count: int
    sources: tuple[object, ...]
    groups: tuple[int, ...]
    divisor: int
    wide: tuple[int, ...] = ()
    partial: bool = False
    width: int = 0


class Reply(msgspec.Struct, frozen=True):
    """Send the result of a round to ``participant``; ``payload`` None: it is all zero, since all were absent.

    ``contributors`` is the number of contributions that had a payload and went into the result; for a DIFFERENCE its
    staleness, see :mod:`byteps_py.core.parameters`.  ``width`` is as theirs.
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
    width: int = 0


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
