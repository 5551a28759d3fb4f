"""Contributions that a server reads where they lie: in the memory of a worker, or in a message that carries many."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from byteps_py.core.aggregation import Contribution
from byteps_py.transport.base import Message
from byteps_py.wire.bundle import ENTRY
from byteps_py.wire.header import Flag, Header
from byteps_py.wire.rows import check_rows

__all__ = ["Bundle", "Lent", "borrow", "pushed"]

_ABSENT: Final = int(Flag.ABSENT)
_WANT_RESULT: Final = int(Flag.WANT_RESULT)
_PARTIAL: Final = int(Flag.PARTIAL)
_ROWS: Final = int(Flag.ROWS)


class Lent(NamedTuple):
    """A payload in the memory of worker ``rank``: it is what was sent as long as ``message`` is intact."""

    view: memoryview
    rank: int
    message: Message


class Bundle:
    """One PUSH_MANY, as long as a part of it is needed.

    Args:
        rank: of the sender.
        number: that the sender gave it.
        message: as it came.
        table: in memory of this process.
        arrived: when it came, in monotonic seconds.

    Attributes:
        entries: the table, dtype :data:`~byteps_py.wire.bundle.ENTRY`, checked by nobody yet.
        due: when the sender is to be told that it is here, unless it has its answers by then.
        accepted: whether the sender was told that it is here.
        apart: key and round of the entries that are looked after one by one.
    """

    __slots__ = ("accepted", "apart", "arrived", "due", "entries", "message", "number", "rank")

    def __init__(self, rank: int, number: int, message: Message, table: memoryview | bytes, arrived: float) -> None:
        self.rank = rank
        self.number = number
        self.message = message
        self.entries: npt.NDArray[np.void] = np.frombuffer(table, ENTRY)
        self.arrived = arrived
        self.due = 0.0
        self.accepted = False
        self.apart: list[tuple[int, int]] = []


def borrow(view: memoryview | None, rank: int, message: Message) -> object | None:
    """``view`` as the payload of a contribution: a :class:`Lent` if it lies in the memory of the sender."""
    return view if view is None or message.stamp is None or not view.readonly else Lent(view, rank, message)


def pushed(header: Header, payload: memoryview | None, message: Message) -> Contribution:
    """What a PUSH brings; its payload is a :class:`~byteps_py.roles.lent.Lent` if it lies in the sender's memory.

    Raises:
        RemoteProtocolError: it is to be rows and is not.
    """
    flags = int(header.flags)
    width = check_rows(header, payload) if flags & _ROWS else 0
    found = None if flags & _ABSENT else borrow(memoryview(b"") if payload is None else payload, header.sender, message)
    return Contribution(
        participant=header.sender,
        key=header.key,
        round=header.round,
        dtype=header.dtype,
        operation=header.operation,
        root=header.root,
        step=header.step,
        offset=header.offset,
        count=header.count,
        payload=found,
        want_result=bool(flags & _WANT_RESULT),
        borrowed=isinstance(found, Lent),
        partial=1 + header.detail if flags & _PARTIAL else 0,
        width=width,
    )
