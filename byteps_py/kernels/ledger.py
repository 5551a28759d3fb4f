"""The open rounds of small tensors on one server: in C (:mod:`.native_ledger`), or in Python and NumPy
(:mod:`.reference_ledger`) with the same results.

A ledger does what :class:`byteps_py.core.aggregation.Aggregation` and the kernels do together, for contributions that
are *regular*, and a whole table of them at a time (:mod:`byteps_py.wire.bundle`).  It judges nobody: an entry that is
not regular is left alone, and the caller hands it to the general machine, along with what the row holds by then
(:meth:`Ledger.evict`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from byteps_py.errors import KernelError
from byteps_py.kernels.ledger_row import MAX_TENSORS, MAX_WORKERS, Result, Row, Taken, Terms

__all__ = ["MAX_TENSORS", "MAX_WORKERS", "Ledger", "Result", "Row", "Taken", "Terms", "make"]


class Ledger(Protocol):
    """What both implementations do.  Not thread-safe: one thread owns a ledger.

    A key that was never seen becomes a row when its first regular entry comes, which is one of round 1.
    """

    @property
    def name(self) -> str:
        """``"native"`` or ``"reference"``."""

    def take(self, rank: int, table: memoryview, payload: memoryview, stamp: object) -> Taken:
        """Take the regular entries of one PUSH_MANY of worker ``rank``; costs well below a microsecond for each.

        An entry is regular if all of this is so:

        * its key is that of partition 0 of a tensor id below the limit, and was not evicted;
        * its round is the open one, to which this worker has not contributed yet (round 1 for a new key);
        * dtype is valid, operation is SUM or AVERAGE, root and padding are 0, flags are WANT_RESULT, maybe with ABSENT;
        * it has fewer bytes than :data:`~byteps_py.wire.bundle.LIGHT_BYTES`; unless it is absent, its place is a
          multiple of 8, and from there on its elements lie within the payload;
        * dtype, operation, step and count are those of the first contribution to the round.

        Args:
            rank: of the sender, which the caller has checked.
            table: entries of 40 bytes; read once, so it may lie in memory that others write to.
            payload: C-contiguous; kept, and left where it is, until all entries that were taken from it are summed or
                evicted.
            stamp: given back with what was read from the payload.

        Raises:
            KernelError: there is no such rank, the table is no whole number of entries, or with the rows that are
                complete already it has more than :data:`~byteps_py.wire.header.MAX_ENTRIES`.
        """

    def finish(self, out: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.void], list[object]]:
        """Sum all complete rows one behind the other, each at a multiple of 8, and open their next rounds.

        A sum is what Aggregation asks for: a left fold within the workers of a node, another over the nodes, absent
        contributions left out; AVERAGE divides by the number of all workers.  A single contribution that need not be
        divided is copied.

        Args:
            out: C-contiguous and writable, at least as many bytes as :class:`Taken` says; shares nothing with a
                payload.  It is kept while a row has its last result in it, and not written to again.

        Returns:
            The entries of the results in the order in which the rows were completed (dtype
            :data:`~byteps_py.wire.bundle.ENTRY`; ``root`` is the number of contributors), new memory; and the stamps of
            the payloads that were read, once each, in the order in which they were first read.

        Raises:
            KernelError: ``out`` is not such a buffer.  Nothing has changed then, but the content of ``out``.
        """

    def row(self, key: int) -> Row | None:
        """How ``key`` stands; None if it is not here: never seen, evicted, or beyond the limit."""

    def evict(self, key: int) -> Row:
        """Let go of ``key``: from now on its entries are irregular.

        A key without a row counts as one whose round 1 is open; so does one that cannot have a row.

        Raises:
            KernelError: it has been evicted before.
        """

    def admit(self, key: int, round: int) -> None:
        """Keep ``key`` here (again), with ``round`` (from 1) open, nothing arrived and no last result.

        Raises:
            KernelError: it is here already, cannot have a row, or ``round`` is less than 1.
        """

    def keys(self) -> Iterable[int]:
        """The keys that have a row here, ascending."""


def make(name: str, groups: Sequence[int], limit: int = MAX_TENSORS) -> Ledger:
    """A new ledger.

    Args:
        name: ``"native"`` or ``"reference"``.
        groups: number of workers of each node, in the order of the ranks.
        limit: tensor ids from this one on have no row.

    Raises:
        KernelError: there is none of this name, the C extension was not built, or the numbers of workers are no such.
    """
    if min(groups, default=0) < 1 or sum(groups) > MAX_WORKERS:
        raise KernelError(f"groups {list(groups)} are no parts of 1 to {MAX_WORKERS} workers")
    if name == "reference":
        from byteps_py.kernels.reference_ledger import ReferenceLedger

        return ReferenceLedger(groups, limit)
    if name != "native":
        raise KernelError(f"there is no ledger {name!r}; choose native or reference")
    try:
        from byteps_py.kernels.native_ledger import NativeLedger
    except ImportError as error:
        raise KernelError(
            "the C kernels of byteps_py are not built: run `pip install -e .` in the source tree, or set "
            f"BYTEPS_KERNELS=reference to sum in NumPy ({error})"
        ) from None
    return NativeLedger(groups, limit)
