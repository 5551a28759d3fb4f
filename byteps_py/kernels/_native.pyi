"""Types of the extension that csrc/build_kernels.py builds."""

from collections.abc import Sequence
from typing import NewType, Protocol

_Pointer = NewType("_Pointer", object)

class _FFI(Protocol):
    def from_buffer(self, buffer: memoryview, /) -> _Pointer:
        """The address of a buffer, which it keeps alive."""

class _Library(Protocol):
    BYTEPS_OK: int
    BYTEPS_BAD_DTYPE: int
    BYTEPS_BAD_LEVEL: int
    BYTEPS_BAD_GROUPS: int
    BYTEPS_BAD_DIVISOR: int
    BYTEPS_BAD_THREADS: int
    BYTEPS_OVERLAP: int
    BYTEPS_MAX_DIVISOR: int
    def byteps_best_level(self) -> int: ...
    def byteps_farewell(self, fd: int, milliseconds: int, /) -> int: ...
    def byteps_no_farewell(self) -> None: ...
    def byteps_given_team(self, threads: int, /) -> int: ...
    def byteps_team_size(self, n_bytes: int, threads: int, /) -> int: ...
    def byteps_copy(self, out: _Pointer, source: _Pointer, n_bytes: int, threads: int, /) -> int: ...
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

ffi: _FFI
lib: _Library
