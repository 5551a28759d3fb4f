"""The ledger in Python and NumPy: slow, short, and what the C one is held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from byteps_py.errors import KernelError
from byteps_py.kernels.arguments import view
from byteps_py.kernels.ledger_row import MAX_TENSORS, Result, Row, Taken, Terms, check_table, entry_of, tensor_of
from byteps_py.kernels.reference import ReferenceKernels
from byteps_py.types import DType, Operation, make_key
from byteps_py.wire.bundle import ENTRY, LIGHT_BYTES, PLACE_ALIGNMENT
from byteps_py.wire.header import Flag

__all__ = ["ReferenceLedger"]

_DTYPES = {int(each): each for each in DType}
_OPERATIONS = {int(each): each for each in (Operation.SUM, Operation.AVERAGE)}
_FLAGS = (int(Flag.WANT_RESULT), int(Flag.WANT_RESULT | Flag.ABSENT))


@dataclass(slots=True, eq=False)
class _Frame:
    """A payload; two that look the same are two."""

    payload: memoryview
    stamp: object


@dataclass(slots=True)
class _State:
    """One row; a share is the frame and the bytes in it, or None if it is absent."""

    round: int
    terms: Terms | None = None
    shares: dict[int, tuple[_Frame, memoryview] | None] = field(default_factory=dict)
    result: Result | None = None

    def room(self) -> int:
        """What the result, for which all are here, takes in a buffer."""
        nbytes = max((share[1].nbytes for share in self.shares.values() if share is not None), default=0)
        return nbytes + -nbytes % PLACE_ALIGNMENT


class ReferenceLedger:
    """:class:`byteps_py.kernels.ledger.Ledger` in Python and NumPy; see :func:`byteps_py.kernels.ledger.make`."""

    name = "reference"

    def __init__(self, groups: Sequence[int], limit: int = MAX_TENSORS) -> None:
        self._groups = tuple(groups)
        self._size = sum(groups)
        self._limit = limit
        self._rows: dict[int, _State] = {}
        self._evicted: set[int] = set()
        self._complete: list[int] = []
        self._kernels = ReferenceKernels()

    def take(self, rank: int, table: memoryview, payload: memoryview, stamp: object) -> Taken:
        """See :meth:`byteps_py.kernels.ledger.Ledger.take`."""
        entries = view(table, 0, "table")
        length = check_table(rank, self._size, entries.nbytes, len(self._complete))
        frame = _Frame(view(payload, 0, "payload").cast("B"), stamp)
        taken = [self._take(rank, frame, *entry) for entry in np.ndarray(length, ENTRY, entries).tolist()]
        irregular = [index for index, regular in enumerate(taken) if not regular]
        return Taken(irregular, len(self._complete), self._room())

    def _take(
        self,
        rank: int,
        frame: _Frame,
        key: int,
        round: int,
        step: int,
        place: int,
        count: int,
        root: int,
        dtype: int,
        operation: int,
        flags: int,
        padding: bytes,
    ) -> bool:
        """Take one entry, if it is regular; whether it is."""
        tensor = tensor_of(key, self._limit)
        if tensor is None or tensor in self._evicted or root or any(padding) or flags not in _FLAGS:
            return False
        if dtype not in _DTYPES or operation not in _OPERATIONS:
            return False
        terms = Terms(_DTYPES[dtype], _OPERATIONS[operation], step, count)
        nbytes = count * terms.dtype.itemsize
        absent = bool(flags & Flag.ABSENT)
        fits = absent or (place % PLACE_ALIGNMENT == 0 and place + nbytes <= frame.payload.nbytes)
        state = self._rows.get(tensor) or _State(1)
        if nbytes >= LIGHT_BYTES or not fits or round != state.round or rank in state.shares:
            return False
        if state.shares and terms != state.terms:
            return False
        self._rows[tensor] = state
        state.terms = terms
        state.shares[rank] = None if absent else (frame, frame.payload[place : place + nbytes])
        if len(state.shares) == self._size:
            state.result = None
            self._complete.append(tensor)
        return True

    def _room(self) -> int:
        return sum(self._rows[tensor].room() for tensor in self._complete)

    def finish(self, out: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.void], list[object]]:
        """See :meth:`byteps_py.kernels.ledger.Ledger.finish`."""
        target = np.asarray(view(out, self._room(), "out", writable=True).cast("B"))
        place, contributors = 0, []
        for tensor in self._complete:
            state = self._rows[tensor]
            contributors.append(self._sum(state, target[place:]))
            place += state.room()
        place, read, entries = 0, dict[_Frame, None](), np.empty(len(self._complete), ENTRY)
        for index, (tensor, present) in enumerate(zip(self._complete, contributors, strict=True)):
            state = self._rows[tensor]
            room = state.room()
            read |= dict.fromkeys(share[0] for _, share in sorted(state.shares.items()) if share is not None)
            entries[index : index + 1] = self._close(tensor, state, present, target[place:])
            entries["place"][index] = place if present else 0
            place += room
        self._complete = []
        return entries, [frame.stamp for frame in read]

    def _sum(self, state: _State, out: npt.NDArray[np.uint8]) -> int:
        """Write the result of a complete row; the number of contributors."""
        assert state.terms is not None
        terms = state.terms
        ranks = iter(range(self._size))
        nodes = [[state.shares[next(ranks)] for _ in range(size)] for size in self._groups]
        present = [[share[1] for share in node if share is not None] for node in nodes]
        sources = [source for node in present for source in node]
        divisor = self._size if terms.operation is Operation.AVERAGE else 1
        if len(sources) == 1 and divisor == 1:
            self._kernels.copy(out, sources[0], sources[0].nbytes, 1)
        elif sources:
            sizes = [len(node) for node in present if node]
            self._kernels.sum_groups(out, sources, sizes, terms.dtype, terms.count, divisor, 1)
        return len(sources)

    def _close(self, tensor: int, state: _State, contributors: int, out: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
        """Make the open round of a row its last result, and open the next one; the entry, with place 0."""
        assert state.terms is not None
        dtype, operation, count = state.terms.dtype, state.terms.operation, state.terms.count
        flags = Flag.NONE if contributors else Flag.ABSENT
        key = make_key(tensor, 0)
        entry = entry_of(key, state.round, state.terms.step, 0, count, contributors, dtype, operation, flags)
        data = out[: count * dtype.itemsize] if contributors else None
        state.result = Result(state.round, entry, data)
        state.round += 1
        state.terms = None
        state.shares = {}
        return entry

    def row(self, key: int) -> Row | None:
        """See :meth:`byteps_py.kernels.ledger.Ledger.row`."""
        tensor = tensor_of(key, self._limit)
        state = None if tensor is None else self._rows.get(tensor)
        return None if state is None else self._show(key, state)

    @staticmethod
    def _show(key: int, state: _State) -> Row:
        shares = sorted(state.shares.items())
        payloads = {rank: None if share is None else share[1] for rank, share in shares}
        stamps = {rank: share[0].stamp for rank, share in shares if share is not None}
        return Row(key, state.round, state.terms, payloads, stamps, state.result)

    def evict(self, key: int) -> Row:
        """See :meth:`byteps_py.kernels.ledger.Ledger.evict`."""
        tensor = tensor_of(key, self._limit)
        if tensor is None:
            return self._show(key, _State(1))
        if tensor in self._evicted:
            raise KernelError(f"key {key} has been evicted before: it must be admitted first")
        self._evicted.add(tensor)
        if tensor in self._complete:
            self._complete.remove(tensor)
        return self._show(key, self._rows.pop(tensor, _State(1)))

    def admit(self, key: int, round: int) -> None:
        """See :meth:`byteps_py.kernels.ledger.Ledger.admit`."""
        tensor = tensor_of(key, self._limit)
        if tensor is None or tensor in self._rows or round < 1:
            raise KernelError(f"key {key} cannot be admitted with round {round}: it is here, or can never be")
        self._evicted.discard(tensor)
        self._rows[tensor] = _State(round)

    def keys(self) -> Iterable[int]:
        """See :meth:`byteps_py.kernels.ledger.Ledger.keys`."""
        return [make_key(tensor, 0) for tensor in sorted(self._rows)]
