"""The kernels in C: the extension ``_native``, built from ``csrc/``.

cffi releases the GIL during a call.  Importing this module raises ImportError where the extension was not built.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from byteps_py.errors import KernelError
from byteps_py.kernels._native import ffi, lib
from byteps_py.kernels.arguments import OVERLAP_MESSAGE, check_copy, check_sum
from byteps_py.types import DType

__all__ = ["LEVELS", "NativeKernels"]

LEVELS: tuple[str, ...] = ("baseline", "avx2", "avx512")
"""Instruction sets by the number they have in C (``enum byteps_level``)."""


class NativeKernels:
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
        target, views = check_sum(out, sources, groups, dtype, count, divisor, threads)
        addresses = [ffi.from_buffer(each) for each in views]
        status = lib.byteps_sum_groups(
            ffi.from_buffer(target),
            addresses,
            len(addresses),
            list(groups),
            len(groups),
            dtype,
            count,
            divisor,
            threads,
            self._level,
        )
        _raise_for(status)

    def copy(self, out: object, source: object, nbytes: int, threads: int) -> None:
        """See :meth:`byteps_py.kernels.Kernels.copy`."""
        target, origin = check_copy(out, source, nbytes, threads)
        _raise_for(lib.byteps_copy(ffi.from_buffer(target), ffi.from_buffer(origin), nbytes, threads))

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


def _raise_for(status: int) -> None:
    if status == lib.BYTEPS_OVERLAP:
        raise KernelError(OVERLAP_MESSAGE)
    if status != lib.BYTEPS_OK:  # everything else was checked before the call
        raise KernelError(f"the C kernels refused their arguments with status {status}: a fault in byteps_py itself")
