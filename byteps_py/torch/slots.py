"""The slots of an exchange of gradients: one for each registered parameter, and what has become of its gradient."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch

from byteps_py.errors import BytePSError, UnsupportedError
from byteps_py.roles.pending import Pending
from byteps_py.session import Session
from byteps_py.torch.homes import Home
from byteps_py.torch.names import some
from byteps_py.torch.rows import check_rows, is_sparse, start_rows, to_sparse
from byteps_py.torch.staging import Buffer, Staging, Submission
from byteps_py.torch.tensors import check_dense, copy_back, to_tensor
from byteps_py.types import Operation, TensorSpec

__all__ = [
    "Push",
    "Slot",
    "attempt",
    "begin_anew",
    "check_gradient",
    "check_passes",
    "check_untouched",
    "finish",
    "forget",
    "hook_of",
    "is_touched",
    "push_rows",
    "wait",
]


class _Exchange(Protocol):
    def accumulated(self, slot: Slot) -> None:
        """A backward pass has added to the gradient of ``slot``."""


@dataclass
class Push:
    """A contribution on its way, or gathered to be so. ``gradient`` is None if it was absent; ``version`` tells later
    changes to it, and ``touched`` those before it was on its way.

    The result comes into ``staged``, which may be in the memory of ``gradient``, or into ``buffer``
    if that is on a GPU.
    """

    pending: Pending | Submission | None
    gradient: torch.Tensor | None
    version: int
    touched: bool = False
    staged: torch.Tensor | None = None
    buffer: Buffer | None = None


@dataclass
class Slot:
    """A registered parameter; ``remaining`` backward passes are to come before its gradient is contributed."""

    parameter: torch.Tensor
    label: str
    spec: TensorSpec
    dtype: torch.dtype
    priority: int
    remaining: int
    push: Push | None = None
    home: Home | None = None
    """Where the gradient lives from its first push on; None if it stays where the backward pass has put it."""
    buffer: Buffer | None = None
    """Through which the gradient goes from its first push on, if it is on a GPU."""
    unhook: Callable[[], object] | None = None
    """Takes the parameter's hook away."""
    last_step: int | None = None
    """In whose exchanges the parameter is for the last time."""

    def leave(self, step: int) -> None:
        """No hook contributes the parameter any more, and ``step`` is its last."""
        self.last_step = step
        if self.unhook is not None:
            self.unhook()


def hook_of(exchange: _Exchange, slot: Slot) -> Callable[[torch.Tensor], None]:
    """The parameter lives on when the optimizer is dropped for another one: its hook must not keep the old alive."""
    reference = weakref.ref(exchange)

    def hook(_: torch.Tensor) -> None:
        owner = reference()
        if owner is not None:
            owner.accumulated(slot)

    return hook


def check_passes(passes: int) -> int:
    """
    Raises:
        ValueError: it is not at least 1.
    """
    if passes < 1:
        raise ValueError(f"backward_passes_per_step={passes} must be at least 1")
    return passes


def check_gradient(slot: Slot, gradient: torch.Tensor, *, takes_rows: bool) -> None:
    """
    Raises:
        UnsupportedError: ``gradient`` is sparse and cannot be pushed as rows, or of another dtype than its parameter.
    """
    what = f"the gradient of {slot.label!r}"
    if takes_rows and is_sparse(gradient):
        check_rows(gradient, what)
    else:
        check_dense(gradient, what)
    if gradient.dtype != slot.parameter.dtype:
        raise UnsupportedError(
            f"the gradient of {slot.label!r} is {gradient.dtype} and the parameter {slot.parameter.dtype}: "
            "gradients of another dtype than the parameter are not pushed"
        )


def is_touched(slot: Slot) -> bool:
    """Whether ``.grad`` was changed or replaced since it was gathered or pushed."""
    push, gradient = slot.push, slot.parameter.grad
    if push is None or push.touched:
        return push is not None
    return gradient is not push.gradient or (gradient is not None and gradient._version != push.version)


def check_untouched(slot: Slot, advice: str) -> None:
    """What was pushed is what must be there still: a change in between would be overwritten, or mixed in.

    Raises:
        BytePSError: it is not; ``advice`` ends the message.
    """
    if is_touched(slot):
        what = "cleared" if slot.parameter.grad is None else "changed or replaced"
        raise BytePSError(
            f"the gradient of {slot.label!r} was {what} after its push to the other workers had begun: {advice}"
        )


def attempt(slots: Iterable[Slot], act: Callable[[Slot], None]) -> list[Exception]:
    """Do ``act`` to all ``slots``, also after one has failed; the errors."""
    errors: list[Exception] = []
    for slot in slots:
        try:
            act(slot)
        except Exception as error:
            errors.append(error)
    return errors


def wait(slot: Slot) -> None:
    """Until the push has ended, whatever has come of it."""
    if slot.push is not None and slot.push.pending is not None:
        slot.push.pending.wait()
    slot.push = None


def push_rows(session: Session, slot: Slot, gradient: torch.Tensor, touched: bool, step: int) -> Push:
    """The push of a sparse gradient of rows."""
    name, dtype, priority = slot.spec.name, slot.dtype, slot.priority
    pending = start_rows(session, name, gradient, Operation.AVERAGE, dtype=dtype, priority=priority, step=step)
    return Push(pending, gradient, gradient._version, touched)


def finish(staging: Staging, slot: Slot) -> None:
    """Wait for the average, and put it into ``.grad``; ``staging`` is that of the push.

    Raises:
        BytePSError: as :meth:`byteps_py.roles.pending.Pending.wait`.
    """
    push = slot.push
    if push is None or push.pending is None:
        return
    array = push.pending.wait()
    rows = push.pending.rows
    with torch.no_grad():
        if rows is not None:
            parameter = slot.parameter
            parameter.grad = to_sparse(rows, slot.spec.shape, slot.dtype, parameter.dtype, parameter.device)
        elif push.gradient is not None and push.buffer is not None:
            staging.fetch(push.buffer, push.gradient)
        elif push.gradient is not None and push.staged is not None:
            copy_back(push.staged, push.gradient)
        elif not push.pending.absent:
            received = to_tensor(array, slot.dtype)
            slot.parameter.grad = torch.empty_like(slot.parameter).copy_(received)
    slot.push = None  # at once: a Ctrl-C may come before the others have arrived


def begin_anew(slots: Iterable[Slot]) -> None:
    """There is another session: memory that servers read is its, and who has left is not exchanged once more."""
    for slot in slots:
        slot.buffer = None
        if slot.home is not None:
            slot.home.move()
        if slot.last_step is not None:
            slot.last_step = -1


def forget(slots: Iterable[Slot], pushed: Sequence[Slot], passes: int, ending: str) -> NoReturn:
    """Pushes of an earlier generation of the job, which are over: nobody waits for what is left to be done with them.

    Args:
        slots: all of the exchange; their ``passes`` are to come again.
        pushed: those whose gradients were on their way.
        passes: of one exchange.
        ending: what should have been called before.

    Raises:
        BytePSError: always.
    """
    names = some([each.label for each in pushed])
    attempt(pushed, wait)
    for slot in slots:
        slot.remaining = passes
    raise BytePSError(
        f"suspend() was called when a backward pass had begun to push the gradients of {names}: call it after "
        f"{ending}; clear the gradients to go on"
    )
