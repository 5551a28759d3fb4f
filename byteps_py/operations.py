"""Push, pull and broadcast on NumPy arrays.

All functions may be called by any thread of a process that called :func:`byteps_py.session.init`; before that they
raise NotInitializedError.
"""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from byteps_py.errors import UnsupportedError
from byteps_py.roles.lineage import Lineage
from byteps_py.roles.pending import Pending
from byteps_py.session import Session, current
from byteps_py.types import DType, Operation, TensorSpec

__all__ = [
    "AVG",
    "SUM",
    "Numbering",
    "automatic_name",
    "broadcast",
    "declare",
    "empty",
    "handles",
    "poll",
    "push_pull",
    "push_pull_async",
    "synchronize",
]

SUM: Final = Operation.SUM
AVG: Final = Operation.AVERAGE


class _Handles:
    """The operations whose handles callers hold. Any thread."""

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self._pending: dict[int, tuple[Pending, Callable[[], Any]]] = {}

    def add(self, pending: Pending, finish: Callable[[], Any]) -> int:
        """Keep an operation; ``finish`` gives its result when it is over."""
        handle = next(self._next)
        self._pending[handle] = pending, finish
        return handle

    def get(self, handle: int) -> Pending:
        """The operation behind ``handle``."""
        try:
            return self._pending[handle][0]
        except KeyError:
            raise _unknown(handle) from None

    def finish(self, handle: int) -> Any:
        """Wait for the operation, give its handle back, return the result."""
        try:
            pending, finish = self._pending[handle]
        except KeyError:
            raise _unknown(handle) from None
        try:
            pending.wait()
        finally:
            if pending.done():  # after a Ctrl-C it may not be, and can be waited for again
                self._pending.pop(handle, None)
        return finish()


def _unknown(handle: int) -> ValueError:
    return ValueError(
        f"handle {handle!r} is not known: it was synchronized already, or never returned by push_pull_async"
    )


handles: Final = _Handles()
"""Of all operations on arrays, and on rows of them."""


def declare(name: str, shape: Sequence[int] | None = None, dtype: npt.DTypeLike = np.float32) -> None:
    """Announce a tensor before its first use, which saves that use a round trip; waits for the scheduler's answer.

    With the name alone, as in BytePS, nothing is done: tensors are matched by name here, not by order.

    Args:
        name: the name that it will be pushed under.
        shape: its dimensions, in elements.
        dtype: one that :class:`~byteps_py.types.DType` lists.

    Raises:
        AgreementError: the name has another dtype or shape, here or on another worker; both sides are named.
        UnsupportedError: arrays of this dtype cannot be pushed.
        JobAborted, TransportTimeout: the job cannot go on.
    """
    session = current()
    if shape is not None:
        session.declare([TensorSpec(name, DType.from_numpy(dtype), tuple(operator.index(each) for each in shape))])


def empty(shape: Sequence[int] | int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """An array, of any content, that is pushed without being copied where servers are on this machine.

    Use it for what is pushed again and again: fill it, push it (``out`` may be the array itself), and leave it alone
    until the operation has ended.  It is an ordinary NumPy array otherwise, but a forked child cannot use it.

    Its pages exist once they are written, or from the beginning if it has at most 64 MiB.

    Args:
        shape: as a number, or as a sequence of numbers.
        dtype: one that :class:`~byteps_py.types.DType` lists.

    Raises:
        UnsupportedError: arrays of this dtype cannot be pushed.
        TypeError, ValueError: that is no shape.
        TransportError: there is no memory left for so much.
    """
    session = current()
    DType.from_numpy(dtype)
    return session.empty(shape, dtype)


def push_pull_async(
    array: npt.ArrayLike,
    name: str | None = None,
    op: Operation = SUM,
    *,
    priority: int = 0,
    version: int = 0,
    out: npt.NDArray[Any] | None = None,
) -> int:
    """Start to sum (or average) ``array`` over all workers.

    Args:
        array: any shape, contiguous or not, of a dtype that :class:`~byteps_py.types.DType` lists
            (``ml_dtypes.bfloat16`` included). Copied before this returns, unless it is ``out`` or lies in memory of
            :func:`empty`: then leave it alone until :func:`synchronize` has returned.
        name: matches the arrays of different workers; unnamed arrays of one dtype and shape are matched by the order
            of the calls.
        op: :data:`SUM` or :data:`AVG`.
        priority: any whole number; higher goes first.
        version: from 0 to 2**64 - 1; must be the same on all workers, such as the training step.
        out: of the dtype and shape of ``array``, writable, contiguous or not; receives the result, and must not be
            touched before that is there. May be ``array``. None makes a new array.

    Returns:
        A handle for :func:`poll` and :func:`synchronize`.

    Raises:
        UnsupportedError: the dtype cannot be summed, or ``out`` does not fit.
        AgreementError: the name had another dtype or shape before.
        TypeError, ValueError: ``priority`` or ``version`` is no such number.
        JobAborted: the job has ended.
    """
    if not isinstance(op, Operation) or op not in (SUM, AVG):
        raise UnsupportedError(f"push_pull computes SUM or AVG, not {op!r}; use broadcast() for a broadcast")
    return _start(np.asarray(array), name, op, out, priority=priority, version=version)


def push_pull(
    array: npt.ArrayLike,
    name: str | None = None,
    op: Operation = SUM,
    *,
    priority: int = 0,
    version: int = 0,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Sum (or average) ``array`` over all workers, and wait for the result: :func:`push_pull_async` and
    :func:`synchronize` in one, with the arguments and errors of both.

    Returns:
        A new array of the dtype and shape of ``array``, or ``out``.
    """
    return _array_of(push_pull_async(array, name, op, priority=priority, version=version, out=out))


def broadcast(
    array: npt.ArrayLike, root_rank: int = 0, name: str | None = None, *, out: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
    """The array of ``root_rank``, bit for bit, on every worker; blocks.

    Args:
        array: as for :func:`push_pull_async`; of one dtype and shape on all workers. What it holds counts at the root.
        root_rank: the worker whose array is taken.
        name: as for :func:`push_pull_async`.
        out: as for :func:`push_pull_async`.

    Returns:
        A new array of the dtype and shape of ``array``, or ``out``.

    Raises:
        ValueError: there is no worker of that rank.
        UnsupportedError, AgreementError: as :func:`push_pull_async` and :func:`synchronize`.
    """
    return _array_of(_start(np.asarray(array), name, Operation.BROADCAST, out, root=root_rank))


def poll(handle: int) -> bool:
    """Whether :func:`synchronize` would return (or raise) at once.

    Raises:
        ValueError: the handle is not known.
    """
    current()
    return handles.get(handle).done()


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; the handle is used up.

    Returns:
        The array; for a handle of :func:`~byteps_py.rows.push_pull_rows_async` indices and values.

    Raises:
        ValueError: the handle is not known.
        AgreementError: workers disagree; both sides are named with their values.
        ParticipantLeft: a worker left the job before it contributed.
        JobAborted, TransportTimeout: the job cannot go on.
    """
    return handles.finish(handle)


def _array_of(handle: int) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = handles.finish(handle)
    return found


def _start(
    array: npt.NDArray[Any],
    name: str | None,
    op: Operation,
    out: npt.NDArray[Any] | None,
    *,
    root: int = 0,
    priority: int = 0,
    version: int = 0,
) -> int:
    session = current()
    if not 0 <= operator.index(root) < session.size:
        raise ValueError(f"root_rank={root} is not a worker: ranks are 0 to {session.size - 1}")
    spec = _spec(session, array, name, op)
    storage = spec.dtype.storage
    plain = array.dtype == storage
    if array.flags.c_contiguous:
        source = array if plain else array.view(storage)
    else:
        source = np.ascontiguousarray(array).reshape(array.shape).view(storage)
    target = None
    if out is not None:
        _check_out(out, array)
        if not out.flags.c_contiguous:
            target, out = out, None
    result = np.empty(array.shape, array.dtype) if out is None else out
    contributes = op is not Operation.BROADCAST or session.rank == root
    pending = session.submit(
        spec,
        source if contributes else None,
        result if plain else result.view(storage),
        op,
        root=root,
        priority=priority,
        step=version,
    )
    return handles.add(pending, lambda: result if target is None else _copied(target, result))


def _copied(target: npt.NDArray[Any], result: npt.NDArray[Any]) -> npt.NDArray[Any]:
    np.copyto(target, result)
    return target


def _spec(session: Session, array: npt.NDArray[Any], name: str | None, op: Operation) -> TensorSpec:
    """What ``array`` is declared as; the same object for the same name again, where it still fits."""
    dtype = DType.from_numpy(array.dtype)
    if name is None:
        name = f"byteps.{automatic_name(op, dtype.label, array.shape)}"
    known = session.specs.get(name)
    if known is not None and known.dtype is dtype and known.shape == array.shape:
        return known
    spec = TensorSpec(name, dtype, array.shape)
    session.specs.setdefault(name, spec)
    return spec


def automatic_name(op: Operation, dtype: str, shape: Sequence[int]) -> str:
    """One name for all that look alike: a new name for each call would fill the tables of scheduler and servers."""
    return f"noname.{op.name.lower()}.{dtype}.{'x'.join(map(str, shape)) or 'scalar'}"


class Numbering:
    """Numbers what a plugin makes, so that equal names of two models do not clash. Any thread.

    It begins with ``init()``, and goes on after a ``resume()``, since what was made before is there still.

    Workers that make things in the same order get the same numbers.
    """

    def __init__(self) -> None:
        self._last: weakref.WeakKeyDictionary[Lineage, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def next(self, session: Session) -> str:
        """Empty for the first thing of a session, then ``"2"``, ``"3"`` ...

        It comes before what separates it from a name, since that may be any, as the layers of a Sequential of torch are
        called by numbers.
        """
        with self._lock:
            number = self._last[session.lineage] = self._last.get(session.lineage, 0) + 1
        return "" if number == 1 else str(number)


def _check_out(out: npt.NDArray[Any], array: npt.NDArray[Any]) -> None:
    if out is array and array.flags.writeable:
        return
    if out.shape != array.shape or out.dtype != array.dtype or not out.flags.writeable:
        raise UnsupportedError(
            f"out must be a writable {array.dtype} array of shape {array.shape}, not {out.dtype} {out.shape}"
            f"{'' if out.flags.writeable else ' (read-only)'}"
        )
