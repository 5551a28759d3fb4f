"""What is known of one key: the open round, and the last result. For :mod:`byteps_py.core.aggregation`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from byteps_py.core.contributions import Contribution, Result
from byteps_py.core.members import Members
from byteps_py.core.rejections import Terms
from byteps_py.types import DType, Operation

__all__ = ["KeyState", "Phase"]


class Phase(enum.Enum):
    """Of the open round of a key; see the module."""

    COLLECTING = enum.auto()
    SUMMING = enum.auto()
    REJECTED = enum.auto()


@dataclass(slots=True)
class KeyState:
    """The open round of one key, and the last result.

    Attributes:
        members: whose contributions it collects.
        payloads: by rank; empty while they are handed out for a Sum, and after a rejection.
        arrived, wants, borrowed: one bit per rank: who contributed (or was told of the rejection), who wants the
            result, and whose payload is borrowed.
        first, terms: the first contributor, and what the others must agree with.
        contributors: number of workers whose payloads were handed out.
        partials: senders of partials, and of how many workers the payloads are in each.
        last: the result of the round before, until all have contributed to this one.
        form: who first contributed a payload, and its ``width``, with which the others must agree; None: nobody yet.
        rejection: reason, and rank of the worker that left (None for a disagreement).
    """

    members: Members
    payloads: list[object | None]
    round: int = 1
    phase: Phase = Phase.COLLECTING
    arrived: int = 0
    wants: int = 0
    borrowed: int = 0
    first: int = 0
    terms: Terms = (DType.FLOAT32, Operation.SUM, 0, 0, 0, 0)
    contributors: int = 0
    last: Result | None = None
    rejection: tuple[str, int | None] = ("", None)
    partials: dict[int, int] = field(default_factory=dict)
    form: tuple[int, int] | None = None

    @property
    def width(self) -> int:
        """Elements of a row, where the payloads are rows; else 0."""
        return 0 if self.form is None else self.form[1]

    def take(self, contribution: Contribution, covers: int) -> None:
        """It is here, for the ranks whose bits are set in ``covers``, and nothing speaks against it."""
        rank = contribution.participant
        self.arrived |= covers
        self.borrowed |= contribution.borrowed << rank
        self.payloads[rank] = contribution.payload
        if contribution.payload is not None and self.form is None:
            self.form = rank, contribution.width
        if contribution.partial:
            self.partials[rank] = contribution.contributors
