"""Summation and copying of buffers: in C (:mod:`.native`), or in NumPy (:mod:`.reference`) with the same results.

Both give the same bits for the same arguments, whatever the processor, the number of threads and the place of an
element in its buffer.  What they compute is told in :meth:`Kernels.sum_groups`; docs/kernels.md says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from byteps_py.errors import KernelError
from byteps_py.kernels.row_arguments import RowSource
from byteps_py.types import DType

__all__ = ["Kernels", "RowSource", "select"]


class Kernels(Protocol):
    """What both implementations do.  Objects keep no state: any number of threads may share one.

    A buffer is any C-contiguous object with the buffer protocol (bytes, memoryview, ndarray, a received frame) at any
    address, aligned or not.  No reference to it is kept.
    """

    @property
    def name(self) -> str:
        """``"native"`` or ``"reference"``."""

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
        """Write ``sum(sources) / divisor`` to ``out``, in a fixed order.

        The sources are folded from the left within each group, and the groups' sums from the left again.  float16 and
        bfloat16 are accumulated in float32, across groups too, and rounded once, to nearest even.  The division is
        done on the accumulator, before that rounding.  Integers wrap around in their own type and then divide by
        floor.  Every NaN is written as the positive quiet NaN; infinities, subnormals and -0.0 are kept.

        Args:
            out: writable buffer of at least ``count`` elements; exactly the memory of ``sources[0]``, or memory that
                shares nothing with any source.
            sources: at least one buffer of at least ``count`` elements each.
            groups: sizes (each at least 1) of consecutive groups of sources; their sum is ``len(sources)``.
            dtype: element type; bfloat16 lies in its 16 bits of storage.
            count: number of elements, 0 or more.
            divisor: 1 for a sum, more for an average, at most 2**24.
            threads: how many threads may share the work, at least 1; small work stays on the caller's.

        Raises:
            KernelError: an argument breaks one of these rules.
        """

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
        """:meth:`sum_groups` of float16 or bfloat16 in two steps, with the same bits as in one.

        The first step sums some of the groups: with ``widen`` the sources hold ``dtype`` and ``out`` float32.  The
        second sums what the first has made: without it the sources hold float32 and ``out`` ``dtype``, rounded once.

        Args:
            out: as for :meth:`sum_groups`, but it shares nothing with any source.
            sources, groups, dtype, count, divisor, threads: as for :meth:`sum_groups`.
            widen: which step.

        Raises:
            KernelError: an argument breaks one of these rules.
        """

    def merge_rows(self, sources: Sequence[RowSource]) -> npt.NDArray[np.int64]:
        """The indices that some source has, each once, in rising order: a new array.

        Args:
            sources: at least one. Where indices are not in rising order, the result is some of them, in some order.

        Raises:
            KernelError: an argument breaks one of these rules.
        """

    def sum_rows(
        self,
        out: object,
        rows: npt.NDArray[np.int64],
        sources: Sequence[RowSource],
        groups: Sequence[int],
        dtype: DType,
        width: int,
        divisor: int,
        *,
        widen: bool | None = None,
    ) -> None:
        """Write the sums of ``rows``, one behind the other, to ``out``: bit for bit those rows of a dense sum.

        A source that lacks a row has zeros there.  So a row of -0.0 that one source has and another lacks becomes 0.0.
        Runs on the caller's thread.

        Args:
            out: writable buffer of at least ``len(rows) * width`` elements, which shares nothing with any source.
            rows: what :meth:`merge_rows` has made of ``sources``.
            sources: as for :meth:`merge_rows`.
            groups, dtype, divisor: as for :meth:`sum_groups`.
            width: elements of a row, at least 1.
            widen: None: sources and ``out`` hold ``dtype``; else as for :meth:`sum_converting`.

        Raises:
            KernelError: an argument breaks one of these rules.
        """

    def fold_rows(
        self,
        out: object,
        values: object,
        order: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        dtype: DType,
        width: int,
    ) -> None:
        """Sum rows of one buffer: row ``r`` of ``out`` is the left fold of the next ``sizes[r]`` rows in ``order``.

        One alone is copied bit by bit; else float16 and bfloat16 are accumulated in float32 and rounded once, and a NaN
        is the positive quiet one.  Runs on the caller's thread.

        Args:
            out: writable buffer of at least ``len(sizes) * width`` elements, which shares nothing with ``values``.
            values: buffer of rows.
            order: C-contiguous places of rows in ``values``.
            sizes: C-contiguous, each at least 1; their sum is ``len(order)``.
            dtype: element type.
            width: elements of a row, at least 1.

        Raises:
            KernelError: an argument breaks one of these rules.
        """

    def copy(self, out: object, source: object, nbytes: int, threads: int, *, far: bool = False) -> None:
        """Copy the first ``nbytes`` bytes of ``source`` to ``out``; the two must not overlap.

        Args:
            far: ``out`` is a part of more than the caches hold, and is written past them.

        Raises:
            KernelError: a buffer is too short or not writable, or they overlap.
        """

    def team(self, threads: int) -> int:
        """How many threads really share work for which ``threads`` (at least 1) are allowed, and which is large enough.

        It is tried out: OpenMP gives fewer where a limit of its own or the system does not allow more; 0 where not even
        that can be tried.  Takes about as long as starting so many threads, which end again.
        """


def select(name: str) -> Kernels:
    """The kernels called ``"native"`` or ``"reference"``.

    Raises:
        KernelError: there are none of this name, or the C extension was not built.
    """
    if name == "reference":
        from byteps_py.kernels.reference import ReferenceKernels

        return ReferenceKernels()
    if name != "native":
        raise KernelError(f"there are no kernels {name!r}; choose native or reference")
    try:
        from byteps_py.kernels.native import NativeKernels
    except ImportError as error:
        raise KernelError(
            "the C kernels of byteps_py are not built: run `pip install -e .` in the source tree, or set "
            f"BYTEPS_KERNELS=reference to sum in NumPy ({error})"
        ) from None
    return NativeKernels()
