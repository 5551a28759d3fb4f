"""The small tensors of a server: which of them the ledger keeps, and which the general machine.

A key is kept by one of the two at any time.  The ledger takes whole tables in C, as long as nothing out of the ordinary
happens; whatever else comes for a key takes it to the :class:`~byteps_py.core.aggregation.Aggregation`, with what has
arrived by then (:meth:`Bundles.claim`).  From there it goes back when a PUSH_MANY brings the first contribution to a
round.  So results are the same however workers group their tensors, and whether they group them at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from byteps_py.core import rejections
from byteps_py.core.aggregation import Accept, Action, Aggregation, Contribution, Missing, Reject, Reply, Result
from byteps_py.errors import RemoteProtocolError
from byteps_py.kernels import ledger
from byteps_py.roles.lent import Bundle, Lent, borrow
from byteps_py.types import DType, Operation, Participant, split_key
from byteps_py.wire.bundle import LIGHT_BYTES, PLACE_ALIGNMENT
from byteps_py.wire.header import Flag

__all__ = ["Bundles", "Taken", "contribution_of"]

Taken = ledger.Taken


class Bundles:
    """The ledger, and the ways between it and an aggregation.  Not thread-safe: one thread owns both.

    Args:
        kernels: ``"native"`` or ``"reference"``.
        participants: all workers, by rank.
        aggregation: the general machine.
    """

    def __init__(self, kernels: str, participants: Sequence[Participant], aggregation: Aggregation) -> None:
        self._aggregation = aggregation
        self._size = len(participants)
        self._ledger = ledger.make(kernels, _groups(participants))
        # Were the workers of a node not listed one behind the other, the ledger would sum in another order.
        self._closed = any(after.node < before.node for before, after in pairwise(participants))
        self._claimed: set[int] = set()
        self._kept: dict[int, Result] = {}

    def take(self, bundle: Bundle, payload: memoryview) -> Taken:
        """Take the entries of a PUSH_MANY that are in order; the others are left to the caller.

        ``payload`` and ``bundle`` are kept until :meth:`finish` has summed what it holds.  While rows are complete,
        only this method and :meth:`finish` may be called.
        """
        if self._closed:
            return Taken(list(range(len(bundle.entries))), 0, 0)
        taken = self._take(bundle, bundle.entries, payload)
        if not taken.irregular:
            return taken
        returned = [index for index in taken.irregular if self._return(int(bundle.entries["key"][index]))]
        if not returned:
            return taken
        again = self._take(bundle, bundle.entries[returned], payload)
        left = set(taken.irregular).difference(returned).union(returned[index] for index in again.irregular)
        return Taken(sorted(left), again.complete, again.nbytes)

    def finish(self, out: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.void], list[Bundle]]:
        """Sum the complete rows.

        Returns:
            The table of the results, and the bundles whose payloads were read.
        """
        table, read = self._ledger.finish(out)
        if self._kept:
            for key in table["key"].tolist():
                self._kept.pop(key, None)
        return table, [each for each in read if isinstance(each, Bundle)]

    def claim(self, key: int) -> list[tuple[int, int, float | None]]:
        """See to it that the general machine looks after ``key``. Nothing to do if it does already.

        Returns:
            What it takes over: round, rank, and when the contribution arrived; None for an absent one.
        """
        if key in self._claimed or not _can_have_a_row(key):
            return []
        self._claimed.add(key)
        row = self._ledger.evict(key)
        last = self._last(row)
        self._kept.pop(key, None)
        if row.round > 1 or row.payloads:
            self._aggregation.adopt(key, row.round, _contributions(row), last)
        return [(row.round, rank, _arrival(row.stamps.get(rank))) for rank in row.payloads]

    def forget(self, key: int) -> None:
        """What is kept of ``key`` is worth nothing; the general machine must be told of the key by the caller."""
        self._claimed.add(key)
        self._kept.pop(key, None)
        self._ledger.evict(key)

    def close(self) -> None:
        """From now on the general machine looks after all keys: a worker has left, which is not in order."""
        self._closed = True
        for key in list(self._ledger.keys()):
            self.claim(key)

    def pull(self, rank: int, key: int, round_: int) -> list[Action] | None:
        """What :meth:`byteps_py.core.aggregation.Aggregation.pull` says, for a key that is kept here; None for another.

        The key stays here.
        """
        row = None if key in self._claimed else self._ledger.row(key)
        if row is None:
            return None
        if round_ == row.round and rank in row.payloads:
            return [Accept(rank, key, round_)]
        if round_ >= row.round:
            return [Missing(rank, key, round_)]
        last = self._last(row)
        if last is None or last.round != round_:
            return [Reject(rank, key, round_, rejections.gone(rank, round_))]
        return [Reply(rank, key, round_, *last.terms, last.payload, last.contributors, last.width)]

    def missing(self, key: int) -> tuple[int, ...] | None:
        """Ranks whose contribution the open round of ``key`` waits for; None if the key is not kept here."""
        row = None if key in self._claimed else self._ledger.row(key)
        return None if row is None else tuple(rank for rank in range(self._size) if rank not in row.payloads)

    def _take(self, bundle: Bundle, entries: npt.NDArray[np.void], payload: memoryview) -> Taken:
        return self._ledger.take(bundle.rank, entries.view(np.uint8).data, payload, bundle)

    def _return(self, key: int) -> bool:
        """Give a key back to the ledger if the general machine lets it go."""
        released = self._aggregation.release(key) if key in self._claimed else None
        if released is None:
            return False
        round_, last = released
        self._ledger.admit(key, round_)
        self._claimed.discard(key)
        if last is not None:
            self._kept[key] = last
        return True

    def _last(self, row: ledger.Row) -> Result | None:
        """The last result of a row, which may have come about before the ledger had the key."""
        if row.result is None:
            return self._kept.get(row.key)
        (_, _, step, _, count, contributors, dtype, operation, _, _) = row.result.entry[0].item()
        payload = None if row.result.data is None else row.result.data.data
        terms = (DType(dtype), Operation(operation), 0, step, 0, count)
        return Result(row.result.round, terms, payload, contributors)


def contribution_of(bundle: Bundle, index: int, payload: memoryview) -> Contribution:
    """One entry of a PUSH_MANY, as a PUSH would bring it.

    Raises:
        RemoteProtocolError: it breaks a rule of :mod:`byteps_py.wire.bundle`.
    """
    key, round_, step, place, count, root, dtype, operation, flags, padding = bundle.entries[index].item()
    problem = f"entry {index} of a PUSH_MANY, for key {key}"
    try:
        element, kind = DType(dtype), Operation(operation)
    except ValueError as error:
        raise RemoteProtocolError(f"{problem}: {error}") from error
    if round_ < 1:
        raise RemoteProtocolError(f"{problem}: round {round_}: rounds are counted from 1")
    nbytes = count * element.itemsize
    absent = bool(flags & Flag.ABSENT)
    is_sum = kind is Operation.SUM or kind is Operation.AVERAGE
    if split_key(key)[1] or root or any(padding) or not is_sum or nbytes >= LIGHT_BYTES:
        raise RemoteProtocolError(f"{problem}: what it is about must not travel with others")
    if flags | Flag.ABSENT != Flag.ABSENT | Flag.WANT_RESULT:
        raise RemoteProtocolError(f"{problem}: flags {flags:#04x}")
    if not absent and (place % PLACE_ALIGNMENT or place + nbytes > payload.nbytes):
        raise RemoteProtocolError(f"{problem}: its {nbytes} bytes are not at {place} of {payload.nbytes}")
    found = None if absent else borrow(payload[place : place + nbytes], bundle.rank, bundle.message)
    return Contribution(
        participant=bundle.rank,
        key=key,
        round=round_,
        dtype=element,
        operation=kind,
        root=0,
        step=step,
        offset=0,
        count=count,
        payload=found,
        want_result=True,
        borrowed=isinstance(found, Lent),
    )


def _arrival(stamp: object) -> float | None:
    return stamp.arrived if isinstance(stamp, Bundle) else None


def _contributions(row: ledger.Row) -> list[Contribution]:
    """What the open round of a row has."""
    found: list[Contribution] = []
    terms = row.terms
    if terms is None:
        return found
    for rank, view in row.payloads.items():
        bundle = row.stamps.get(rank)
        payload = borrow(view, rank, bundle.message) if isinstance(bundle, Bundle) else view
        agreed = (terms.dtype, terms.operation, 0, terms.step, 0, terms.count)
        found.append(Contribution(rank, row.key, row.round, *agreed, payload, True, isinstance(payload, Lent)))
    return found


def _groups(participants: Sequence[Participant]) -> list[int]:
    """Sizes of consecutive groups of workers of one node."""
    nodes = [each.node for each in participants]
    ends = [index for index in range(1, len(nodes) + 1) if index == len(nodes) or nodes[index] != nodes[index - 1]]
    return [end - start for start, end in pairwise([0, *ends])]


def _can_have_a_row(key: int) -> bool:
    tensor, index = split_key(key)
    return index == 0 and tensor < ledger.MAX_TENSORS
