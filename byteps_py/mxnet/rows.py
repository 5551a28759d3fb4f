"""Row-sparse arrays of MXNet as rows: gradients of ``Embedding(sparse_grad=True)``.

How many rows such an array has is known only when it has been computed, and the engine cannot give memory to an
operation that has begun.  So these calls wait in Python for the array, and then for the result; several that are
started one after the other are on their way together.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from byteps_py.errors import UnsupportedError
from byteps_py.mxnet.engine import engine
from byteps_py.roles.pending import Pending
from byteps_py.roles.rows import Rows, coalesce
from byteps_py.session import Session
from byteps_py.types import DType, Operation, TensorSpec

__all__ = ["RowsWork", "is_rows", "start_rows"]


def is_rows(array: Any) -> bool:
    """Whether it is a row-sparse NDArray."""
    return isinstance(array, mx.nd.NDArray) and array.stype == "row_sparse"


class RowsWork:
    """A push and pull of one row-sparse array. Belongs to the thread that has started it.

    Args:
        array: receives the result.
        pending: the operation.
    """

    def __init__(self, array: Any, pending: Pending) -> None:
        self._array = array
        self._pending = pending

    def wait(self) -> bool:
        """Block until the result is in the array; returns whether some worker contributed something.

        Raises:
            BytePSError: as :meth:`byteps_py.roles.pending.Pending.wait`.
        """
        output = self._pending.wait()
        rows = self._pending.rows
        if rows is not None:
            values, indices = rows.values, rows.indices
        else:  # all were absent
            values, indices = output[:0], np.empty(0, np.int64)
        array = self._array
        if len(indices):
            made = mx.nd.sparse.row_sparse_array((values, indices), shape=array.shape, dtype=array.dtype)
        else:
            made = mx.nd.sparse.zeros("row_sparse", array.shape, dtype=array.dtype)
        made.copyto(array)
        return not self._pending.absent


def start_rows(
    session: Session,
    array: Any,
    name: str,
    operation: Operation,
    *,
    priority: int = 0,
    version: int = 0,
    contributes: bool = True,
) -> RowsWork:
    """Push the rows of ``array``, which is waited for first; :meth:`RowsWork.wait` replaces them by the result.

    Args:
        session: of the caller.
        array: a row-sparse NDArray.
        name: declared by this call if it was not before.
        operation: SUM or AVERAGE.
        priority, version: as of :func:`byteps_py.mxnet.ops.start`.
        contributes: whether the array counts; if not, it only receives.

    Raises:
        UnsupportedError: the array cannot be pushed.
        AgreementError: the name had another dtype or shape before.
        BytePSError: an earlier work failed.
    """
    engine.raise_failure()
    dtype: np.dtype[Any] = np.dtype(array.dtype)
    device = array.ctx.device_type
    if not device.startswith("cpu"):
        raise UnsupportedError(f"tensor {name!r} is on a {device}, and only arrays on CPUs are pushed")
    spec = TensorSpec(name, DType.from_numpy(dtype), tuple(array.shape))
    if not contributes:
        return RowsWork(array, session.submit(spec, None, None, operation, priority=priority, step=version))
    indices, values = array.indices.asnumpy().astype(np.int64), array.data.asnumpy()
    rows: Rows = coalesce(spec, indices.reshape(-1), np.ascontiguousarray(values))
    output = np.empty(0, spec.dtype.storage)
    return RowsWork(array, session.submit(spec, rows, output, operation, priority=priority, step=version))
