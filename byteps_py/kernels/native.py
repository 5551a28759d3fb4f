"""The kernels in C: the extension ``_native``, built from ``csrc/``.

cffi releases the GIL during a call.  Importing this module raises ImportError where the extension was not built.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from byteps_py.errors import KernelError
from byteps_py.kernels._native import ffi, lib
from byteps_py.kernels.arguments import OVERLAP_MESSAGE, SHARED_MESSAGE, check_converting, check_copy, check_sum
from byteps_py.kernels.native_rows import NativeRows
from byteps_py.types import DType

__all__ = ["LEVELS", "NativeKernels"]

LEVELS: tuple[str, ...] = ("baseline", "avx2", "avx512")
"""Instruction sets by the number they have in C (``enum byteps_level``)."""

_ITEM_BYTES = (0, *(dtype.itemsize for dtype in sorted(DType)))
"""The length of an element by the number of its type."""

_BYTES = ffi.typeof("char[]")
_UNFIT = (TypeError, ValueError, BufferError, OverflowError)
"""What cffi raises for a buffer or a number that C cannot take."""


class NativeKernels(NativeRows):
    """:class:`byteps_py.kernels.Kernels` in C.

    Args:
        level: instruction set, one of :data:`LEVELS`; the best one of this processor if None.  All give the same bits.

    Raises:
        KernelError: this processor does not have that instruction set.
    """

    name = "native"

    def __init__(self, level: str | None = None) -> None:
        best = lib.byteps_best_level()
        available = LEVELS[: best + 1]
        if level is not None and level not in available:
            raise KernelError(f"no kernels for {level!r} on this processor; it can use {', '.join(available)}")
        self._level = best if level is None else LEVELS.index(level)

    @property
    def level(self) -> str:
        """The instruction set in use."""
        return LEVELS[self._level]

    def sum_groups(
        self,
        out: object,
        sources: Sequence[object],
        groups: Sequence[int],
        dtype: DType,
        count: int,
        divisor: int,
        threads: int,
    ) -> None:
        """See :meth:`byteps_py.kernels.Kernels.sum_groups`."""
        # Calls with small buffers are many, so only what C cannot see is checked here: the lengths of the buffers. The
        # checks with their messages follow when something was wrong; C has written nothing then.
        status = lib.BYTEPS_BAD_DTYPE
        problem: Exception | None = None
        target: Any = None
        operands: list[Any] = []
        try:
            if isinstance(dtype, DType):
                target = ffi.from_buffer(_BYTES, out, True)
                operands = [ffi.from_buffer(_BYTES, each) for each in sources]
                if min(len(target), *map(len, operands)) >= count * _ITEM_BYTES[dtype]:
                    status = lib.byteps_sum_groups(
                        target,
                        operands,
                        len(operands),
                        tuple(groups),
                        len(groups),
                        dtype,
                        count,
                        divisor,
                        threads,
                        self._level,
                    )
        except _UNFIT as error:
            problem = error
        if status != lib.BYTEPS_OK:
            target, operands = None, []  # in a traceback they would outlive cffi as the interpreter ends: a crash
            check_sum(out, sources, groups, dtype, count, divisor, threads)
            _raise_for(status, problem)

    def sum_converting(
        self,
        out: object,
        sources: Sequence[object],
        groups: Sequence[int],
        dtype: DType,
        count: int,
        divisor: int,
        threads: int,
        *,
        widen: bool,
    ) -> None:
        """See :meth:`byteps_py.kernels.Kernels.sum_converting`."""
        target, views = check_converting(out, sources, groups, dtype, count, divisor, threads, widen)
        addresses = [ffi.from_buffer(each) for each in views]
        status = lib.byteps_sum_converting(
            ffi.from_buffer(target),
            addresses,
            len(addresses),
            list(groups),
            len(groups),
            dtype,
            widen,
            count,
            divisor,
            threads,
            self._level,
        )
        if status != lib.BYTEPS_OK:
            addresses.clear()
            _raise_for(status, KernelError(SHARED_MESSAGE) if status == lib.BYTEPS_OVERLAP else None)

    def copy(self, out: object, source: object, nbytes: int, threads: int, *, far: bool = False) -> None:
        """See :meth:`byteps_py.kernels.Kernels.copy`."""
        status = lib.BYTEPS_BAD_THREADS
        problem: Exception | None = None
        target: Any = None
        origin: Any = None
        try:
            target, origin = ffi.from_buffer(_BYTES, out, True), ffi.from_buffer(_BYTES, source)
            if len(target) >= nbytes <= len(origin):
                status = lib.byteps_copy(target, origin, nbytes, threads, far)
        except _UNFIT as error:
            problem = error
        if status != lib.BYTEPS_OK:
            target = origin = None
            check_copy(out, source, nbytes, threads)
            _raise_for(status, problem)

    def team(self, threads: int) -> int:
        """See :meth:`byteps_py.kernels.Kernels.team`.

        OpenMP keeps a team for the thread that has asked for it, which under an active policy would spin from now on:
        so that thread is one that ends.
        """
        if threads == 1:
            return 1
        given: list[int] = []
        asking = threading.Thread(target=lambda: given.append(lib.byteps_given_team(threads)), name="byteps-team")
        try:
            asking.start()
        except RuntimeError:  # there are too many threads
            return 0
        asking.join()
        return given[0]


def _raise_for(status: int, problem: Exception | None) -> NoReturn:
    """Ends a call that failed, though the checks of its arguments found nothing wrong."""
    if problem is not None:
        raise problem
    if status == lib.BYTEPS_OVERLAP:
        raise KernelError(OVERLAP_MESSAGE)
    raise KernelError(f"the C kernels refused their arguments with status {status}: a fault in byteps_py itself")
