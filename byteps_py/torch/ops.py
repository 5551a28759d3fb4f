"""Push a tensor, pull the sum or the average over all workers.

Calls are matched by name, and calls of one name by their order; every worker must make them.  The name that appears in
messages is the one the caller gave.  A call without a name gets one from dtype and shape, so unnamed calls on tensors
that look alike are matched in the order in which each worker makes them; give names where that order may differ, or
where many such calls are to be under way at once (calls of one name run one after the other).

Handles are integers, valid until :func:`synchronize`.  All functions may be called from any thread, each handle by one;
where threads make calls of the same name, or calls that block, their order must be the same on all workers.

A tensor on a GPU is copied to the host by the call that starts, and back by :func:`synchronize`; both wait for that.
Gradients of a :func:`~byteps_py.torch.optimizer.DistributedOptimizer` go without such waits.
"""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from byteps_py import session as _session
from byteps_py.errors import BytePSError
from byteps_py.operations import automatic_name
from byteps_py.roles.lineage import Lineage
from byteps_py.roles.pending import Pending
from byteps_py.torch.compression import Compression, Compressor
from byteps_py.torch.rows import OutstandingRows, check_rows, is_sparse, start_rows
from byteps_py.torch.tensors import (
    as_array,
    check_dense,
    check_writable,
    copy_back,
    dtype_name,
    spec_of,
    stage,
    to_tensor,
    wire_tag,
)
from byteps_py.types import Operation

__all__ = [
    "byteps_push_pull",
    "byteps_torch_set_num_grads",
    "declare",
    "empty",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "synchronize",
]


@dataclass
class _Outstanding:
    """``staged`` receives the result, ``target`` is what the caller gets; both stay alive until then."""

    pending: Pending
    staged: torch.Tensor
    target: torch.Tensor
    finished: bool = False

    def finish(self) -> torch.Tensor:
        """Wait, and bring the result to ``target``: once, as the caller may change it afterwards."""
        self.pending.wait()
        if not self.finished:
            copy_back(self.staged, self.target)
            self.finished = True
        return self.target


_outstanding: Final[dict[int, _Outstanding | OutstandingRows]] = {}
_numbers: Final = itertools.count(1)
_lock: Final = threading.Lock()


def empty(shape: Sequence[int] | int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A contiguous CPU tensor, of any content, whose pushes need no copy where servers are on this machine.

    Use it for what is pushed again and again: fill it, push it, and leave it alone until the operation has ended.  It
    is an ordinary tensor otherwise, and valid as long as it is referenced; a forked child cannot use it.  Its pages
    exist once they are written, or from the beginning if it has at most 64 MiB.

    Args:
        shape: as a number, or as a sequence of numbers.
        dtype: one that can be pushed, see :func:`push_pull_async`.

    Raises:
        UnsupportedError: tensors of this dtype cannot be pushed.
        TypeError, ValueError: that is no shape.
        TransportError: there is no memory left for so much.
        NotInitializedError: ``init()`` has not been called.
    """
    session = _session.current()
    return to_tensor(session.empty(shape, wire_tag(dtype, "the tensor").storage), dtype)


def push_pull_async(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    """Start to sum ``tensor`` over all workers into a new tensor.

    Args:
        tensor: dense, of any layout in memory, or sparse COO with one sparse dimension, which travels as rows and has
            a sparse result; on any device; float32, float64, float16, bfloat16, int8, uint8, int32 or int64. It is
            copied before this returns, unless it is :func:`empty`'s: then it must not be changed before
            :func:`synchronize`. Of one name, all workers push dense tensors, or all sparse ones.
        average: divide the sum by the number of workers (integers round down).
        name: equal on all workers, see above.
        version: a step number; workers that meet with different ones get an AgreementError.
        priority: what is higher is sent earlier.

    Returns:
        A handle for :func:`poll` and :func:`synchronize`.

    Raises:
        UnsupportedError: for other dtypes and layouts, for what is no tensor, and in the in-place functions for a
            tensor that ``expand()`` made.
        NotInitializedError: ``init()`` has not been called.
    """
    return _start(tensor, False, average, name, version, priority)


def push_pull_async_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    """As :func:`push_pull_async`, but the result replaces ``tensor``, which must not be touched before
    :func:`synchronize` has returned it."""
    return _start(tensor, True, average, name, version, priority)


byteps_push_pull = push_pull_async_inplace


def _start(tensor: torch.Tensor, inplace: bool, average: bool, name: str | None, version: int, priority: int) -> int:
    session = _session.current()
    operation = Operation.AVERAGE if average else Operation.SUM
    if is_sparse(tensor):
        return _start_rows(session, tensor, inplace, operation, name, version, priority)
    check_dense(tensor, f"tensor {name!r}" if name else "the tensor")
    spec = spec_of(name or _name_of(tensor, operation), tensor)
    if inplace:
        check_writable(tensor, f"tensor {spec.name!r}")
    source = stage(tensor)
    staged = source if inplace else torch.empty_like(source)
    target = tensor if inplace else staged if tensor.device == staged.device else torch.empty_like(tensor)
    array = as_array(source)
    output = array if inplace else as_array(staged)  # one and the same is sent from where it lies
    pending = session.submit(spec, array, output, operation, priority=priority, step=version)
    return _keep(_Outstanding(pending, staged, target))


def _start_rows(
    session: _session.Session,
    tensor: torch.Tensor,
    inplace: bool,
    operation: Operation,
    name: str | None,
    version: int,
    priority: int,
) -> int:
    check_rows(tensor, f"tensor {name!r}" if name else "the tensor")
    called = name or _name_of(tensor, operation)
    pending = start_rows(session, called, tensor, operation, priority=priority, step=version)
    target = tensor if inplace else None
    return _keep(OutstandingRows(pending, tuple(tensor.shape), tensor.dtype, tensor.device, target))


def _keep(outstanding: _Outstanding | OutstandingRows) -> int:
    with _lock:
        handle = next(_numbers)
        _outstanding[handle] = outstanding
    return handle


def _name_of(tensor: torch.Tensor, operation: Operation) -> str:
    name = automatic_name(operation, dtype_name(tensor.dtype), tensor.shape)
    return f"{name}.rows" if is_sparse(tensor) else name


def poll(handle: int) -> bool:
    """Whether :func:`synchronize` would return (or raise) at once.

    Raises:
        ValueError: there is no such handle, or it has been synchronized already.
    """
    return _find(handle).pending.done()


def synchronize(handle: int) -> torch.Tensor:
    """Wait for the result; the handle is invalid afterwards.

    Returns:
        The new tensor, or for the in-place functions the tensor that was given.

    Raises:
        ValueError: there is no such handle, or it has been synchronized already.
        AgreementError: the workers disagree about shape, dtype, operation or version.
        ParticipantLeft, JobAborted: a worker left whose contribution is needed, or the job has ended.
    """
    outstanding = _find(handle)
    try:
        return outstanding.finish()
    finally:
        if outstanding.pending.done():  # after a Ctrl-C it may not be, and can be waited for again
            _forget([handle])


def _forget(handles: Sequence[int]) -> None:
    with _lock:
        for each in handles:
            _outstanding.pop(each, None)


def _find(handle: int) -> _Outstanding | OutstandingRows:
    with _lock:
        found = _outstanding.get(handle)
    if found is None:
        raise ValueError(
            f"{handle!r} is no handle of an operation under way: each handle that push_pull_async() "
            "returned can be synchronized once"
        )
    return found


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Compressor = Compression.none,
) -> torch.Tensor:
    """Sum ``tensor`` over all workers into a new tensor; blocks.

    Gradients flow through it: the backward pass sums, or averages, the gradient over all workers under the name
    ``name + ".backward"``.  That blocks too, so it must happen on all workers, in the same order: where the gradient
    reaches a call on some workers only (elsewhere the tensor requires none, or the result is not used), these wait in
    vain, and fail as the others leave or after ``BYTEPS_STALL_TIMEOUT``.  A name may be used again before the backward
    pass.  See :func:`push_pull_async` for arguments and errors.
    """
    if not is_sparse(tensor):
        check_dense(tensor, f"tensor {name!r}" if name else "the tensor")
    narrow, context = compression.compress(tensor)
    operation = Operation.AVERAGE if average else Operation.SUM
    result = _PushPull.apply(  # type: ignore[no-untyped-call]
        narrow, average, name or _name_of(narrow, operation), version, priority
    )
    return compression.decompress(result, context)


def push_pull_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> torch.Tensor:
    """Replace ``tensor`` by its sum over all workers; blocks; returns ``tensor``. No gradients flow through it."""
    return synchronize(push_pull_async_inplace(tensor, average, name, version, priority))


@dataclass
class _Group:
    """The operations of one step that are synchronized together."""

    size: int
    calls: int = 0
    """Those that have failed count too: the others wait for the rest."""
    handles: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    """Of the group before, as far as nobody has called :func:`synchronize` for them."""


_groups: Final[weakref.WeakKeyDictionary[Lineage, _Group]] = weakref.WeakKeyDictionary()


def byteps_torch_set_num_grads(num_grads: int) -> None:
    """How many calls of :func:`push_pull_group_sync_inplace` make a group; counts anew. Valid until ``shutdown()``.

    Raises:
        ValueError: it is not at least 1.
        TypeError: it is no whole number.
        BytePSError: a group has begun and is not complete.
        NotInitializedError: ``init()`` has not been called.
    """
    session = _session.current()
    size = operator.index(num_grads)
    if size < 1:
        raise ValueError(f"byteps_torch_set_num_grads({size}): a group has at least 1 gradient")
    with _lock:
        known = _groups.get(session.lineage)
        if known is not None and known.calls:
            raise BytePSError(
                f"byteps_torch_set_num_grads({size}): {known.calls} of {known.size} gradients of a group are on "
                "their way; push the others first"
            )
        _groups[session.lineage] = _Group(size, finished=known.finished if known is not None else [])


def push_pull_group_sync_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    """As :func:`push_pull_async_inplace`, but the last call of a group waits for all of it.

    A group is as many calls as :func:`byteps_torch_set_num_grads` says, in any order and from any threads, such as
    those for all gradients of a step.  When the last of them returns, all tensors of the group hold their results.

    Returns:
        A handle. :func:`synchronize` need not be called for it; it can be until the next group is complete.

    Raises:
        BytePSError: :func:`byteps_torch_set_num_grads` has not been called; or, in the last call, what
            :func:`synchronize` raises: the first error, when nothing of the group is on its way any more.
        UnsupportedError: as :func:`push_pull_async_inplace`. The call counts as one of the group, so that groups stay
            what they are; the last call waits for the others before it raises.
    """
    session = _session.current()
    with _lock:
        if session.lineage not in _groups:
            raise BytePSError(
                "push_pull_group_sync_inplace() needs to know how many gradients there are: call "
                "byteps_torch_set_num_grads(n) after init()"
            )
    try:
        handle = _start(tensor, True, average, name, version, priority)
    except BaseException:
        _finish_all(_join_group(session, None))
        raise
    errors = _finish_all(_join_group(session, handle))
    if errors:
        raise errors[0]
    return handle


def _join_group(session: _session.Session, handle: int | None) -> list[_Outstanding | OutstandingRows]:
    """Count a call, which has failed if there is no ``handle``; what is to be waited for if it was the last."""
    with _lock:
        group = _groups[session.lineage]
        group.calls += 1
        group.handles += [] if handle is None else [handle]
        if group.calls < group.size:
            return []
        complete, old = group.handles, group.finished
        group.calls, group.handles, group.finished = 0, [], complete
        members = [_outstanding[each] for each in complete if each in _outstanding]
    _forget(old)
    return members


def _finish_all(members: Sequence[_Outstanding | OutstandingRows]) -> list[Exception]:
    errors: list[Exception] = []
    for each in members:
        try:
            each.finish()
        except Exception as error:
            errors.append(error)
    return errors


class _PushPull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, average: bool, name: str, version: int, priority: int) -> torch.Tensor:
        ctx.arguments = average, f"{name}.backward", version, priority
        return synchronize(push_pull_async(tensor, average, name, version, priority))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        result = _PushPull.apply(gradient, *ctx.arguments)  # type: ignore[no-untyped-call]
        return result, None, None, None, None


def declare(name: str, tensor: torch.Tensor | None = None) -> None:
    """Announce a tensor before its first push, so that the servers' load is balanced; never needed.

    Args:
        name: the name that it will be pushed under.
        tensor: of the dtype and shape that will be pushed. Without it there is nothing to place yet: the call only
            checks that the session is there, and the tensor is declared by its first push.

    Raises:
        AgreementError: another worker declared the name with another dtype or shape.
    """
    session = _session.current()
    if tensor is not None:
        session.declare([spec_of(name, tensor)])
