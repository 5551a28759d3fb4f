"""The ledger in C (``csrc/ledger.c``), over memory that is held here.

Importing this module raises ImportError where the extension was not built.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from byteps_py.errors import KernelError
from byteps_py.kernels._native import ffi, lib
from byteps_py.kernels.arguments import OVERLAP_MESSAGE, view
from byteps_py.kernels.ledger_row import MAX_TENSORS, Result, Row, Taken, Terms, check_table, entry_of, tensor_of
from byteps_py.types import DType, Operation, make_key
from byteps_py.wire.bundle import ENTRY, PLACE_ALIGNMENT
from byteps_py.wire.header import Flag

__all__ = ["NativeLedger"]

_T = TypeVar("_T")
_FIRST_ROWS: Final = 256
_FIRST_SLOTS: Final = 64


class _Array:
    """Zeroed memory for C, which can grow.

    NumPy's, because that of rows that are not used is not touched.

    Attributes:
        items: the memory as C sees it, and an index away for Python; void after ``grow``.
    """

    def __init__(self, kind: str, length: int) -> None:
        self._kind = kind
        self._memory = np.zeros(length * ffi.sizeof(kind), np.uint8)
        self.items: Any = ffi.from_buffer(f"{kind}[]", self._memory)

    def grow(self, length: int) -> None:
        """Make it longer."""
        memory = np.zeros(length * ffi.sizeof(self._kind), np.uint8)
        memory[: self._memory.size] = self._memory
        self._memory = memory
        self.items = ffi.from_buffer(f"{self._kind}[]", memory)

    def column(self, member: str) -> npt.NDArray[np.uint8]:
        """A member of one byte, of all items."""
        return self._memory.reshape(-1, ffi.sizeof(self._kind))[:, ffi.offsetof(self._kind, member)]


class _Slots(Generic[_T]):
    """Objects by number, for C to speak of them; numbers are used again. ``free`` are those below the length."""

    def __init__(self, first: int, length: int) -> None:
        self.objects: list[_T | None] = [None] * length
        self.free = list(range(length - 1, first - 1, -1))

    def grow(self) -> int:
        """Double the length, and return it."""
        length = len(self.objects)
        self.free += range(2 * length - 1, length - 1, -1)
        self.objects += [None] * length
        return 2 * length

    def put(self, number: int, value: _T) -> None:
        """Use the last of the free numbers, which is ``number``."""
        self.free.pop()
        self.objects[number] = value

    def get(self, number: int) -> _T:
        """The object that is there."""
        found = self.objects[number]
        assert found is not None
        return found

    def drop(self, number: int) -> None:
        """Let go of the object that is there."""
        self.objects[number] = None
        self.free.append(number)


_Frame = tuple[memoryview, object, object]
"""A payload, its stamp, and what keeps its memory for C."""


class NativeLedger:
    """:class:`byteps_py.kernels.ledger.Ledger` in C; see :func:`byteps_py.kernels.ledger.make`."""

    name = "native"

    def __init__(self, groups: Sequence[int], limit: int = MAX_TENSORS) -> None:
        self._size = sum(groups)
        self._limit = limit
        self._frames: _Slots[_Frame] = _Slots(lib.BYTEPS_FIRST_FRAME, _FIRST_SLOTS)
        self._buffers: _Slots[memoryview] = _Slots(1, _FIRST_SLOTS)
        capacity = min(_FIRST_ROWS, limit)
        self._arrays = {
            "rows": _Array("struct byteps_row", capacity),
            "shares": _Array("struct byteps_share", capacity * self._size),
            "frames": _Array("struct byteps_frame", _FIRST_SLOTS),
            "buffers": _Array("uint32_t", _FIRST_SLOTS),
            "sources": _Array("void *", self._size),
            "sizes": _Array("size_t", len(groups)),
            "complete": _Array("uint32_t", lib.BYTEPS_MAX_ENTRIES),
            "irregular": _Array("uint32_t", lib.BYTEPS_MAX_ENTRIES),
            "released": _Array("uint32_t", lib.BYTEPS_MAX_ENTRIES),
            "read": _Array("uint32_t", _FIRST_SLOTS),
        }
        self._groups = ffi.new("size_t[]", list(groups))
        self._state = state = ffi.new("struct byteps_ledger *")
        state.workers, state.n_groups, state.groups = self._size, len(groups), self._groups
        state.limit, state.capacity, state.level = limit, capacity, lib.byteps_best_level()
        for name, array in self._arrays.items():
            setattr(state, name, array.items)

    def _grow(self, length: int, *names: str) -> None:
        for name in names:
            self._arrays[name].grow(length)
            setattr(self._state, name, self._arrays[name].items)

    def _grow_rows(self) -> None:
        self._state.capacity = capacity = min(2 * self._state.capacity, self._limit)
        self._grow(capacity, "rows")
        self._grow(capacity * self._size, "shares")

    def take(self, rank: int, table: memoryview, payload: memoryview, stamp: object) -> Taken:
        """See :meth:`byteps_py.kernels.ledger.Ledger.take`."""
        state = self._state
        entries, content = view(table, 0, "table"), view(payload, 0, "payload")
        last = check_table(rank, self._size, entries.nbytes, state.n_complete)
        if not self._frames.free:
            self._grow(self._frames.grow(), "frames", "read")
        frame = self._frames.free[-1]
        where, start = ffi.from_buffer(entries), ffi.from_buffer(content)
        first = lib.byteps_ledger_take(state, rank, where, 0, last, frame, start, content.nbytes)
        while first < last:
            self._grow_rows()
            first = lib.byteps_ledger_take(state, rank, where, first, last, frame, start, content.nbytes)
        if state.frames[frame].uses:
            self._frames.put(frame, (content, stamp, start))
        for buffer in ffi.unpack(state.released, state.n_released):
            self._buffers.drop(buffer)
        return Taken(ffi.unpack(state.irregular, state.n_irregular), state.n_complete, state.n_bytes)

    def finish(self, out: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.void], list[object]]:
        """See :meth:`byteps_py.kernels.ledger.Ledger.finish`."""
        state = self._state
        target = view(out, state.n_bytes, "out", writable=True)
        table = np.empty(state.n_complete, ENTRY)
        if not self._buffers.free:
            self._grow(self._buffers.grow(), "buffers")
        buffer = self._buffers.free[-1]
        status = lib.byteps_ledger_finish(state, ffi.from_buffer(target), buffer, ffi.from_buffer(table))
        if status == lib.BYTEPS_OVERLAP:
            raise KernelError(OVERLAP_MESSAGE)
        if status != lib.BYTEPS_OK:  # everything else was checked before the call
            raise KernelError(f"the ledger in C answered with status {status}: a fault in byteps_py itself")
        if state.buffers[buffer]:
            self._buffers.put(buffer, target)
        stamps = []
        for frame in ffi.unpack(state.read, state.n_read):
            stamps.append(self._frames.get(frame)[1])
            if not state.frames[frame].uses:
                self._frames.drop(frame)
        return table, stamps

    def row(self, key: int) -> Row | None:
        """See :meth:`byteps_py.kernels.ledger.Ledger.row`."""
        tensor = tensor_of(key, self._limit)
        if tensor is None or tensor >= self._state.capacity:
            return None
        row = self._state.rows[tensor]
        return self._show(key, tensor, row) if row.state == lib.BYTEPS_ROW_KEPT else None

    def _show(self, key: int, tensor: int, row: Any) -> Row:
        terms = None
        if row.arrived:
            terms = Terms(DType(row.dtype), Operation(row.operation), row.step, row.count)
        payloads: dict[int, memoryview | None] = {}
        stamps: dict[int, object] = {}
        for rank in range(self._size):
            share = self._state.shares[tensor * self._size + rank]
            if share.frame >= lib.BYTEPS_FIRST_FRAME:
                payload, stamps[rank], _ = self._frames.get(share.frame)
                payloads[rank] = payload.cast("B")[share.place :][: row.count * DType(row.dtype).itemsize]
            elif share.frame == lib.BYTEPS_ABSENT_FRAME:
                payloads[rank] = None
        result = self._result(row) if row.has_result else None
        return Row(key, row.round, terms, payloads, stamps, result)

    def _result(self, row: Any) -> Result:
        found = row.result
        dtype = DType(found.dtype)
        entry = entry_of(
            found.key, found.round, found.step, 0, found.count, found.root, dtype, found.operation, found.flags
        )
        if found.flags & Flag.ABSENT:
            return Result(found.round, entry, None)
        # A result without bytes is in no buffer.
        buffer = self._buffers.get(row.buffer).cast("B") if row.buffer else memoryview(b"")
        return Result(found.round, entry, np.asarray(buffer[found.place :][: found.count * dtype.itemsize]))

    def evict(self, key: int) -> Row:
        """See :meth:`byteps_py.kernels.ledger.Ledger.evict`."""
        tensor = tensor_of(key, self._limit)
        if tensor is None:
            return Row(key, 1, None, {}, {}, None)
        row = self._reach(tensor)
        if row.state == lib.BYTEPS_ROW_EVICTED:
            raise KernelError(f"key {key} has been evicted before: it must be admitted first")
        if row.state == lib.BYTEPS_ROW_NEW:
            row.round = 1
        found = self._show(key, tensor, row)
        if row.arrived == self._size:
            self._withdraw(tensor, row)
        for rank in range(self._size):
            share = self._state.shares[tensor * self._size + rank]
            if share.frame >= lib.BYTEPS_FIRST_FRAME:
                frame = self._state.frames[share.frame]
                frame.uses -= 1
                if not frame.uses:
                    self._frames.drop(share.frame)
            share.frame = lib.BYTEPS_NO_FRAME
        if row.buffer:
            self._state.buffers[row.buffer] -= 1
            if not self._state.buffers[row.buffer]:
                self._buffers.drop(row.buffer)
        row.arrived = row.present = row.buffer = row.has_result = 0
        row.state = lib.BYTEPS_ROW_EVICTED
        return found

    def _reach(self, tensor: int) -> Any:
        """The row of a tensor id below the limit."""
        while tensor >= self._state.capacity:
            self._grow_rows()
        return self._state.rows[tensor]

    def _withdraw(self, tensor: int, row: Any) -> None:
        """Take a row off the list of complete ones."""
        state = self._state
        listed = ffi.unpack(state.complete, state.n_complete)
        listed.remove(tensor)
        state.n_complete -= 1
        state.complete[0 : state.n_complete] = listed
        if row.present:
            nbytes = row.count * DType(row.dtype).itemsize
            state.n_bytes -= nbytes + -nbytes % PLACE_ALIGNMENT

    def admit(self, key: int, round: int) -> None:
        """See :meth:`byteps_py.kernels.ledger.Ledger.admit`."""
        tensor = tensor_of(key, self._limit)
        row = None if tensor is None else self._reach(tensor)
        if row is None or row.state == lib.BYTEPS_ROW_KEPT or round < 1:
            raise KernelError(f"key {key} cannot be admitted with round {round}: it is here, or can never be")
        row.round = round
        row.state = lib.BYTEPS_ROW_KEPT

    def keys(self) -> Iterable[int]:
        """See :meth:`byteps_py.kernels.ledger.Ledger.keys`."""
        kept = np.flatnonzero(self._arrays["rows"].column("state") == lib.BYTEPS_ROW_KEPT)
        return [make_key(tensor, 0) for tensor in kept.tolist()]
