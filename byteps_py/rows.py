"""Push and pull of rows: sums of tensors of which each worker has only some rows, the others being zero.

What travels are the indices and values of the rows that a worker names, and back come those of the rows that any of
them named.  The values have the bits that a push and pull of the dense tensor gives.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_py.errors import UnsupportedError
from byteps_py.operations import SUM, handles
from byteps_py.roles.pending import Pending
from byteps_py.roles.rows import Rows, coalesce
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec

__all__ = ["push_pull_rows", "push_pull_rows_async"]


def push_pull_rows_async(
    indices: npt.ArrayLike,
    values: npt.ArrayLike,
    rows: int,
    name: str,
    op: Operation = SUM,
    *,
    priority: int = 0,
    version: int = 0,
) -> int:
    """Start to sum (or average) rows of a tensor over all workers.

    Every worker calls it, also with no rows at all, and with the same ``rows``, ``op`` and shape of a row.

    Args:
        indices: which rows, from 0 to ``rows - 1``, in any order: whole numbers in one dimension. Values of an index
            that is there several times are added up first, in their order.
        values: shape ``(len(indices), ...)``; ``values[i]`` is row ``indices[i]``. Of a dtype that
            :class:`~byteps_py.types.DType` lists (``ml_dtypes.bfloat16`` included). Copied before this returns.
        rows: how many rows the tensor has.
        name: matches the tensors of different workers. Not one that is pushed dense in the same round.
        op: :data:`~byteps_py.operations.SUM` or :data:`~byteps_py.operations.AVG`, which divides by the number of all
            workers, whichever of them named a row.
        priority, version: as for :func:`~byteps_py.operations.push_pull_async`.

    Returns:
        A handle for :func:`~byteps_py.operations.poll` and :func:`~byteps_py.operations.synchronize`, which returns
        what :func:`push_pull_rows` does.

    Raises:
        UnsupportedError: the dtype cannot be summed, shapes do not fit, or there is another ``op``.
        ValueError: an index is of no row; or ``rows`` or ``version`` is too small or too large.
        TypeError: ``rows``, ``priority`` or ``version`` is no whole number.
        AgreementError: the name had another dtype or shape before.
        JobAborted: the job has ended.
    """
    session = current()
    if op not in (Operation.SUM, Operation.AVERAGE):
        raise UnsupportedError(f"push_pull_rows computes SUM or AVG, not {op!r}")
    given, which = np.asarray(values), np.asarray(indices)
    if not given.ndim:
        raise UnsupportedError(f"tensor {name!r}: values must have one dimension at least, that of the rows")
    if not which.size and which.dtype.kind == "f":  # an empty list
        which = which.astype(np.int64)
    if (count := operator.index(rows)) < 0:
        raise ValueError(f"tensor {name!r}: rows={count} is no number of rows")
    dtype = DType.from_numpy(given.dtype)
    spec = TensorSpec(name, dtype, (count, *given.shape[1:]))
    known = session.specs.setdefault(name, spec)
    spec = known if known == spec else spec
    found = coalesce(spec, which, given if given.dtype == dtype.storage else given.view(dtype.storage))
    pending = session.submit(spec, found, np.empty(0, dtype.storage), op, priority=priority, step=version)
    return handles.add(pending, _finish(pending, given.dtype))


def push_pull_rows(
    indices: npt.ArrayLike,
    values: npt.ArrayLike,
    rows: int,
    name: str,
    op: Operation = SUM,
    *,
    priority: int = 0,
    version: int = 0,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Sum (or average) rows of a tensor over all workers, and wait for the result: :func:`push_pull_rows_async` and
    :func:`~byteps_py.operations.synchronize` in one, with the arguments and errors of both.

    Returns:
        The indices that some worker named, each once and in rising order, shape ``(n,)``, and their sums, shape
        ``(n, ...)``, of the dtype of ``values``; both arrays are new.
    """
    handle = push_pull_rows_async(indices, values, rows, name, op, priority=priority, version=version)
    found: tuple[npt.NDArray[np.int64], npt.NDArray[Any]] = handles.finish(handle)
    return found


def _finish(pending: Pending, dtype: np.dtype[Any]) -> Callable[[], Any]:
    def finish() -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        result = pending.rows
        assert isinstance(result, Rows)
        return result.indices, result.values.view(dtype)

    return finish
