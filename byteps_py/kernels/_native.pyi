"""Types of the extension that csrc/build_kernels.py builds."""

from collections.abc import Sequence
from typing import Any, NewType, Protocol, overload

import numpy.typing as npt

_Type = NewType("_Type", object)

class _Pointer(Protocol):
    def __len__(self) -> int: ...

class _FFI(Protocol):
    def typeof(self, declaration: str, /) -> _Type: ...
    @overload
    def from_buffer(self, buffer: object, /) -> _Pointer:
        """The address of a buffer, which it keeps alive."""
    @overload
    def from_buffer(self, declaration: str, buffer: npt.NDArray[Any], /) -> Any:
        """The same as an array of C, whose items can be read and written."""
    @overload
    def from_buffer(self, as_type: _Type, buffer: object, require_writable: bool = False, /) -> _Pointer: ...
    def new(self, declaration: str, initial: object = None, /) -> Any:
        """New memory, zero unless told otherwise, which the object that is returned keeps alive."""
    def unpack(self, numbers: Any, length: int, /) -> list[int]: ...
    def sizeof(self, declaration: str, /) -> int: ...
    def offsetof(self, declaration: str, member: str, /) -> int: ...

class _Library(Protocol):
    BYTEPS_OK: int
    BYTEPS_BAD_DTYPE: int
    BYTEPS_BAD_LEVEL: int
    BYTEPS_BAD_GROUPS: int
    BYTEPS_BAD_DIVISOR: int
    BYTEPS_BAD_THREADS: int
    BYTEPS_OVERLAP: int
    BYTEPS_MAX_DIVISOR: int
    BYTEPS_MAX_ENTRIES: int
    BYTEPS_ROW_NEW: int
    BYTEPS_ROW_KEPT: int
    BYTEPS_ROW_EVICTED: int
    BYTEPS_NO_FRAME: int
    BYTEPS_ABSENT_FRAME: int
    BYTEPS_FIRST_FRAME: int
    BYTEPS_PAST_CACHES: int
    BYTEPS_PLAIN: int
    BYTEPS_WIDEN: int
    BYTEPS_NARROW: int
    def byteps_best_level(self) -> int: ...
    def byteps_farewell(self, fd: int, milliseconds: int, /) -> int: ...
    def byteps_no_farewell(self) -> None: ...
    def byteps_given_team(self, threads: int, /) -> int: ...
    def byteps_team_size(self, n_bytes: int, threads: int, /) -> int: ...
    def byteps_stream_copy(self, out: _Pointer, source: _Pointer, n_bytes: int, past_caches: int, /) -> None: ...
    def byteps_stream_add(
        self, out: _Pointer, left: _Pointer, right: _Pointer, count: int, past_caches: int, /
    ) -> None: ...
    def byteps_copy(self, out: _Pointer, source: _Pointer, n_bytes: int, threads: int, is_far: bool, /) -> int: ...
    def byteps_sum_groups(
        self,
        out: _Pointer,
        sources: Sequence[_Pointer],
        n_sources: int,
        groups: Sequence[int],
        n_groups: int,
        dtype: int,
        count: int,
        divisor: int,
        threads: int,
        level: int,
        /,
    ) -> int: ...
    def byteps_sum_converting(
        self,
        out: _Pointer,
        sources: Sequence[_Pointer],
        n_sources: int,
        groups: Sequence[int],
        n_groups: int,
        dtype: int,
        widen: int,
        count: int,
        divisor: int,
        threads: int,
        level: int,
        /,
    ) -> int: ...
    def byteps_merge_rows(self, out: _Pointer, sources: Any, n_sources: int, /) -> int: ...
    def byteps_sum_rows(
        self,
        out: _Pointer,
        rows: _Pointer,
        n_rows: int,
        sources: Any,
        n_sources: int,
        groups: Sequence[int],
        n_groups: int,
        dtype: int,
        form: int,
        width: int,
        divisor: int,
        zeros: _Pointer,
        operands: Any,
        level: int,
        /,
    ) -> int: ...
    def byteps_fold_rows(
        self,
        out: _Pointer,
        values: _Pointer,
        order: _Pointer,
        sizes: _Pointer,
        n_rows: int,
        dtype: int,
        width: int,
        operands: Any,
        level: int,
        /,
    ) -> int: ...
    def byteps_ledger_take(
        self,
        ledger: Any,
        rank: int,
        table: _Pointer,
        first: int,
        last: int,
        frame: int,
        payload: _Pointer,
        n_bytes: int,
        /,
    ) -> int: ...
    def byteps_ledger_finish(self, ledger: Any, out: _Pointer, buffer: int, table: _Pointer, /) -> int: ...

ffi: _FFI
lib: _Library
