"""A worker's tensors: what was declared, where their partitions live, and the buffers that contributions wait in."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from byteps_py.errors import AgreementError, BytePSError, UnsupportedError
from byteps_py.kernels import Kernels
from byteps_py.roles.pending import Pending, Signal
from byteps_py.roles.rows import Rows, check_room, join_rows, row_share
from byteps_py.transport.base import Endpoint
from byteps_py.types import Operation, Partition, TensorSpec
from byteps_py.wire.bundle import LIGHT_BYTES
from byteps_py.wire.control import Placement, tensor_problem

__all__ = ["Tensor", "TensorOperation", "check_spec", "check_unchanged", "new_array", "rows_operation"]

_SPARE_BUFFERS: Final = 2
"""Staging buffers kept per tensor: one on its way, one for a caller that runs ahead."""


def check_spec(spec: TensorSpec) -> None:
    """Refuse here what the scheduler could not be told.

    Raises:
        UnsupportedError: the name or the shape is impossible.
    """
    if not isinstance(spec.name, str):
        raise UnsupportedError(f"a tensor's name must be a string, not {type(spec.name).__name__}")
    if type(spec.group) is not int:
        raise UnsupportedError(f"a tensor's group must be the id that form_group() gave, not {spec.group!r}")
    if any(type(each) is not int for each in spec.shape):
        raise UnsupportedError(f"a tensor's shape must be whole numbers, not {spec.shape}")
    problem = tensor_problem(spec)
    if problem is not None:
        raise UnsupportedError(problem)


def check_unchanged(known: TensorSpec, spec: TensorSpec) -> None:
    """A name keeps its dtype, shape and group.

    Raises:
        AgreementError: it does not.
    """
    if known != spec:
        raise AgreementError(
            f"tensor {spec.name!r} is {known.describe()} in this process and cannot become "
            f"{spec.describe()}: give it another name"
        )


def new_array(
    allocate: Callable[[int], npt.NDArray[np.uint8]], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """A C-contiguous array of any content, of a shape that was checked.

    Args:
        allocate: makes memory of so many bytes.

    Raises:
        TransportError: there is no memory left.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    return allocate(max(1, nbytes))[:nbytes].view(dtype).reshape(shape)


class Tensor:
    """One declared name.

    ``stage`` may be called by any thread; everything else by whoever holds the worker's lock.

    Attributes:
        placed: set when the scheduler has answered the declaration; fails if workers disagree.
        placement: id and partitions, None before that.
        requested: whether the scheduler was asked.
        error: the disagreement, if there is one.
        nbytes: its size.
        light: its only partition, if its contributions may travel with those of others; else None.
        waiting: operations that came before the placement.
    """

    __slots__ = ("_spare", "error", "light", "nbytes", "placed", "placement", "requested", "spec", "waiting")

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.nbytes = spec.nbytes
        self.placed = Signal()
        self.placement: Placement | None = None
        self.light: Partition | None = None
        self.requested = False
        self.error: AgreementError | None = None
        self.waiting: list[TensorOperation] = []
        self._spare: deque[npt.NDArray[np.uint8]] = deque(maxlen=_SPARE_BUFFERS)

    def place(self, placement: Placement) -> None:
        """The scheduler has answered."""
        self.placement = placement
        if len(placement.partitions) == 1 and 0 < self.spec.nbytes < LIGHT_BYTES and not self.spec.group:
            self.light = placement.partitions[0]
        self.placed.complete()

    def stage(
        self, source: npt.NDArray[Any], endpoint: Endpoint, kernels: Kernels, threads: int
    ) -> npt.NDArray[np.uint8]:
        """A buffer with a copy of ``source``; goes back by :meth:`recycle`."""
        try:
            buffer = self._spare.pop()
            endpoint.renew(buffer)
        except IndexError:
            buffer = endpoint.allocate(self.spec.nbytes)
        if self.spec.nbytes:
            kernels.copy(buffer, source, self.spec.nbytes, threads)
        return buffer

    def recycle(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Keep ``buffer`` for a later operation."""
        self._spare.append(buffer)

    def refuse(self, error: AgreementError) -> None:
        """Workers disagree about this name: nothing can be done with it any more."""
        self.error = error
        self.light = None
        self.placed.fail(error)
        for each in self.waiting:
            each.pending.fail(error)
        self.waiting.clear()


class TensorOperation:
    """One operation on one tensor, from ``submit`` to its result. Belongs to whoever holds the worker's lock.

    Attributes:
        staging: the contribution's bytes, which do not change before the end; None if they are ``lent``.
        lent: the contribution's bytes in the caller's memory, see :mod:`byteps_py.roles.pieces`; None if there is a
            copy of them already.
        rows: the contribution, if it is rows.  Without it, ``staging`` and ``lent`` this worker contributes nothing.
        arrived: results that are rows, by key.
        copying: copies of results into ``output`` that are under way.
        failure: why it has failed, if its caller is told only when those are over.
        pieces: those copies, by key, until the result is here.
        borrowed: whether ``staging`` is the caller's own memory, which lies in the arena, and not a copy of it.
        output: the bytes of ``pending.output``.
        progressed: monotonic seconds of the last push of a new partition, or result; None before the first push.
        absent: whether all results so far were absent.
        waits_for: by key, ranks that a server named as missing, for messages.
        submitted, copied: monotonic seconds when it was submitted, and how many the copies took; 0 if nobody asks.
    """

    __slots__ = (
        "absent",
        "arrived",
        "borrowed",
        "copied",
        "copying",
        "failure",
        "lent",
        "operation",
        "output",
        "pending",
        "pieces",
        "priority",
        "progressed",
        "root",
        "rows",
        "staging",
        "step",
        "submitted",
        "tensor",
        "waits_for",
    )

    def __init__(
        self,
        tensor: Tensor,
        pending: Pending,
        *,
        operation: Operation,
        root: int,
        priority: int,
        step: int,
        staging: npt.NDArray[np.uint8] | None,
        borrowed: bool = False,
        lent: npt.NDArray[np.uint8] | None = None,
        rows: Rows | None = None,
    ) -> None:
        self.tensor = tensor
        self.pending = pending
        self.operation = operation
        self.root = root
        self.priority = priority
        self.step = step
        self.staging = staging
        self.borrowed = borrowed
        self.lent = lent
        self.rows = rows
        self.arrived: dict[int, Rows] = {}
        self.pieces: dict[int, npt.NDArray[np.uint8]] = {}
        self.output: npt.NDArray[np.uint8] = pending.output.reshape(-1).view(np.uint8)
        self.progressed: float | None = None
        self.absent = True
        self.waits_for: dict[int, set[int]] = {}
        self.submitted = self.copied = 0.0
        self.copying = 0
        self.failure: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Tell the caller that the result will never come, as soon as nothing writes to its memory any more."""
        self.failure = error
        if not self.copying:
            self.pending.fail(error)

    def copied_out(self) -> None:
        """A copy of a result into ``output`` is over."""
        self.copying -= 1
        if self.failure is not None and not self.copying:
            self.pending.fail(self.failure)

    @property
    def contributes(self) -> bool:
        """Whether this worker's contribution has a payload."""
        return self.staging is not None or self.lent is not None or self.rows is not None

    @property
    def nbytes(self) -> int:
        """Bytes of the contribution, indices included; of an absent one those that it stands for."""
        return self.tensor.nbytes if self.rows is None else self.rows.indices.nbytes + self.rows.values.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes that an element takes of the window."""
        itemsize = self.tensor.spec.dtype.itemsize
        return itemsize if self.rows is None else row_share(self.nbytes, self.tensor.spec.count)

    def obstacle(self) -> BytePSError | None:
        """Why it cannot begin on the tensor as it was placed; None if it can."""
        assert self.tensor.placement is not None
        return None if self.rows is None else check_room(self.tensor.spec, self.tensor.placement.partitions)

    def complete(self) -> None:
        """All results are here: tell the caller."""
        if self.rows is not None or self.arrived:
            assert self.tensor.placement is not None
            keys = [each.key for each in self.tensor.placement.partitions]
            self.pending.rows = join_rows(
                self.tensor.spec, [self.arrived[each] for each in keys if each in self.arrived]
            )
        self.pending.complete(self.absent)


def rows_operation(
    tensor: Tensor, pending: Pending, rows: Rows, operation: Operation, priority: int, step: int
) -> TensorOperation:
    """The operation that contributes ``rows``, which are its own from now on."""
    started = TensorOperation(
        tensor, pending, operation=operation, root=0, priority=priority, step=step, staging=None, rows=rows
    )
    started.submitted = time.monotonic()
    return started
