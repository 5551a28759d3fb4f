"""Averaging the gradients of one optimizer: which are registered, which are on their way, which have arrived.

A *slot* is one registered parameter.  In every exchange each worker contributes to every slot exactly once: while the
backward pass runs, as soon as a gradient has been accumulated for the last time, or else in
:meth:`GradientExchange.synchronize`, where a parameter that got no gradient is contributed as absent, which counts as
zero.  So workers whose branches differ still meet in the same exchange.

====================  ====================================  ==================================
state of a slot       hook (a backward pass reached it)     synchronize()
====================  ====================================  ==================================
passes remain         one pass less; at none left: gather   push what there is, then wait
gathered              error: one backward pass too many     push, then wait
on its way            the same error                        wait
====================  ====================================  ==================================

After :meth:`~GradientExchange.synchronize` all passes remain again.

Hooks on the CPU *gather* gradients, and push them when there are enough bytes for a message: between two layers the
processor's caches hold what the layers need, and each visit to the code that pushes costs more than when several
gradients are pushed one after the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Sequence
from functools import partial
from typing import Any, Final

import torch

from byteps_py import session as _session
from byteps_py.errors import BytePSError
from byteps_py.operations import Numbering
from byteps_py.torch import homes
from byteps_py.torch.agreement import Agreement
from byteps_py.torch.alike import ask_alike, average_loss
from byteps_py.torch.claims import check_kept, claim, release
from byteps_py.torch.compression import Compressor
from byteps_py.torch.generation import Generation
from byteps_py.torch.homes import Home
from byteps_py.torch.names import add_names, check_names, fill_names, some
from byteps_py.torch.rows import is_sparse
from byteps_py.torch.slots import (
    Push,
    Slot,
    attempt,
    begin_anew,
    check_gradient,
    check_passes,
    check_untouched,
    finish,
    forget,
    hook_of,
    is_touched,
    push_rows,
    wait,
)
from byteps_py.torch.staging import Staging
from byteps_py.torch.tensors import as_array, check_dense, stage, wire_tag
from byteps_py.types import DType, Operation, TensorSpec

__all__ = ["GradientExchange"]

_Groups = Sequence[dict[str, Any]]

GATHERED_BYTES: Final = 1 << 22
"""So many are worth a push while a backward pass is running."""

_staging: Final = Staging()
_numbering: Final = Numbering()


class GradientExchange:
    """The gradients of one optimizer. Belongs to the thread that trains; the hooks run in autograd's threads.

    Args:
        groups: the optimizer's ``param_groups``.
        named_parameters: names, and the order of the model: what comes first gets the higher priority. None names by
            place in the groups.
        compression: how gradients travel.
        passes: backward passes whose gradients are added up locally before one exchange.
        arena: whether gradients live, from their push on, where servers of this machine read them.
        owner: whose gradients; workers whose owners of one number differ are told so.

    Raises:
        ValueError: names are missing, doubled or malformed.
        UnsupportedError: a parameter's dtype cannot be pushed, or it is sparse or has no data.
    """

    kind = "DistributedOptimizer"
    """What makes such exchanges, in messages."""
    exclusive = False
    """Whether its parameters stay its own as long as it exists; others yield to a later one of their kind."""
    advice = "call synchronize() first, then clip, unscale or clear, then step() within skip_synchronize()"
    """To whom has changed a gradient that is on its way."""
    takes_rows = True
    """Whether sparse gradients are pushed, as rows; their averages are sparse tensors."""
    ending = "step() or synchronize()"
    """What ends an exchange that a backward pass has begun."""

    def __init__(
        self,
        groups: _Groups,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        compression: Compressor,
        passes: int,
        arena: bool = False,
        owner: str = "DistributedOptimizer",
    ) -> None:
        self._arena = arena
        self.step: int = 0
        """Goes with every contribution, so that workers that are not in the same step are told so."""
        self._left: list[tuple[torch.Tensor, torch.Tensor | None]] | None = None
        """The gradients that :meth:`synchronize` has left, as long as :attr:`synchronized`."""
        self._interrupted: list[Exception] | None = None
        """What went wrong in an exchange that a Ctrl-C has ended before all averages were in place."""
        self._given_up: set[torch.Tensor] = set()
        self._compression = compression
        self._passes = check_passes(passes)
        self._names = check_names(named_parameters, groups)
        self._slots: dict[torch.Tensor, Slot] = {}
        self._gathered: list[Slot] = []
        self._gathered_bytes = 0
        session = _session.current()
        number = self.number = _numbering.next(session)
        self._prefix, self._owner = f"Gradient{number}.", owner
        self._loss = TensorSpec(f"Loss{number}", DType.FLOAT64, (1,))
        self._register(session, groups)
        self._generation = Generation(session, self._ask)

    def _ask(self, session: _session.Session) -> Agreement:
        return ask_alike(session, self.number, self._owner, self._slots.values())

    def _here(self) -> _session.Session:
        """The session. After a resume() steps count anew, as those of workers that have come by it.

        Raises:
            BytePSError: gradients were on their way in suspend(). They are forgotten, and the next call succeeds.
        """
        session = _session.current()
        if self._generation.has_changed(session):
            self.step = 0
            begin_anew(self._slots.values())
            pushed = [each for each in self._slots.values() if each.push is not None and self._is_lost(each)]
            if any(each.push is not None and each.push.pending is not None for each in pushed):
                self._take_gathered()
                forget(self._slots.values(), pushed, self._passes, self.ending)
        return session

    def _is_lost(self, slot: Slot) -> bool:
        """Whether a push of an earlier generation is of no use."""
        return True

    @property
    def synchronized(self) -> bool:
        """Whether :meth:`synchronize` has been called and nothing was accumulated or cleared by us since."""
        return self._left is not None

    @synchronized.setter
    def synchronized(self, value: bool) -> None:
        self._left = [(each, each.grad) for each in self._slots] if value else None

    @property
    def is_averaged(self) -> bool:
        """Whether each ``.grad`` still is what :meth:`synchronize` has left, if only its values may have changed.

        Where a step was left out after ``synchronize()``, gradients are cleared behind our back, and those that a
        backward pass has made since then tell us of it only on workers where it made some.
        """
        return self._left is not None and all(each.grad is left for each, left in self._left)

    def give_up(self, parameters: Sequence[torch.Tensor]) -> None:
        """A later exchange averages ``parameters`` from now on: no hook of ours pushes them any more.

        Raises:
            BytePSError: their gradients are on their way.
        """
        slots = [self._slots[each] for each in parameters if each in self._slots]
        self._check_none_flies("another optimizer of the same parameters was made", slots)
        for slot in slots:
            slot.leave(self.step)
            del self._slots[slot.parameter]
            self._given_up.add(slot.parameter)
            self.synchronized = False

    def add_names(self, named_parameters: Iterable[tuple[str, torch.Tensor]], group: dict[str, Any]) -> None:
        """Name the parameters of a group before it is added.

        Raises:
            ValueError: names are missing, doubled (also with earlier ones) or malformed.
        """
        add_names(self._names, named_parameters, group)

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes of one exchange, and count anew.

        Raises:
            BytePSError: gradients are on their way.
        """
        checked = check_passes(passes)
        self.restart("set_backward_passes_per_step()")
        self._passes = checked
        for slot in self._slots.values():
            slot.remaining = checked

    def restart(self, caller: str, flying: Container[torch.Tensor] = ()) -> None:
        """Forget the backward passes counted so far; ``caller`` is named in the error.

        Args:
            flying: parameters whose gradients may be on their way.

        Raises:
            BytePSError: others are on their way, which other workers will wait for.
        """
        grounded = [slot for parameter, slot in self._slots.items() if parameter not in flying]
        self._check_none_flies(f"{caller} was called", grounded)
        self._interrupted = None
        self.synchronized = False
        for slot in self._slots.values():
            slot.remaining = self._passes

    def _check_none_flies(self, event: str, slots: Iterable[Slot]) -> None:
        flying = [slot.label for slot in slots if slot.push is not None]
        if flying:
            raise BytePSError(
                f"{event} while the gradients of {some(flying)} are on their way to the other workers: call "
                f"{self.ending} first. If the backward pass was for other parameters and only went through these, keep "
                "it from them: requires_grad_(False) on these during it, or backward(inputs=...)"
            )

    def synchronize(self, groups: _Groups) -> None:
        """Contribute what has not been contributed yet, wait for everything, and put the averages into ``.grad``.

        Args:
            groups: the optimizer's ``param_groups`` as they are now. Parameters that were added, or that require a
                gradient only now, are registered.

        Raises:
            BytePSError: a gradient was changed or replaced after its push had begun, or what the session raises. The
                first error is raised when no push is on its way any more; ``.grad`` is then of no use.
            AgreementError: in the first call: workers have not made the same exchanges in the same order.
        """
        # Whatever fails, all others are contributed and waited for: other workers do the same, and a push that is still
        # on its way writes to .grad. After a Ctrl-C what was contributed is not contributed again.
        if self._interrupted is None:
            self._interrupted = self._contribute_all(groups)
        try:
            self._conclude(self._slots.values(), self._interrupted)
        except Exception:
            self._interrupted = None
            raise
        self._interrupted = None
        self.synchronized = True

    def _contribute_all(self, groups: _Groups) -> list[Exception]:
        session = self._here()
        self._generation.check()
        lost = [self._names[each] for group in groups for each in group["params"] if each in self._given_up]
        check_kept(self.kind, "averages", lost)
        self._register(session, groups)
        self._take_gathered()
        return attempt(self._slots.values(), lambda slot: self._contribute(session, slot))

    def _conclude(self, slots: Iterable[Slot], errors: list[Exception]) -> None:
        errors += attempt(slots, wait if errors else partial(finish, _staging))
        for slot in slots:
            slot.push, slot.remaining = None, self._passes
        if errors:
            raise errors[0]

    def finish_step(self) -> None:
        """The optimizer has updated the parameters; the next exchange belongs to the next step."""
        self.synchronized = False
        self.step += 1

    def average_loss(self, loss: Any) -> Any:
        """The average of a closure's ``loss`` over the workers, in its own type.

        Optimizers that take a closure decide by it whether to go on; all workers must decide the same.
        What is neither a number nor a tensor with one element is returned as it is, and contributed as absent. The
        exchange is of one float64, shape ``(1,)``; it waits until all workers have called this as often.

        Raises:
            BytePSError: what the session raises, such as an AgreementError where workers are in different steps.
        """
        return average_loss(self._here(), self._loss, loss, self.step)

    def _register(self, session: _session.Session, groups: _Groups) -> None:
        """Give a slot and a hook to every parameter that requires a gradient and has none; declare all in one batch."""
        parameters = dict.fromkeys(each for group in groups for each in group["params"])
        self._drop(parameters)
        wanted = {each for each in parameters if each.requires_grad and each not in self._slots}
        if not wanted:
            return
        fill_names(self._names, groups)
        slots = [self._new_slot(each, place) for place, each in enumerate(self._names) if each in wanted]
        claim(self, self.kind, wanted, self.exclusive)
        session.declare([slot.spec for slot in slots])
        for slot in slots:
            self._slots[slot.parameter] = slot
            hook = hook_of(self, slot)
            handle = slot.parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            slot.unhook = weakref.finalize(self, handle.remove)
            slot.unhook.atexit = False

    def _drop(self, parameters: Container[torch.Tensor]) -> None:
        """Drop the slots of those that are not among ``parameters``, after one more step.

        A backward pass before they left may have pushed them, on this worker or on another.
        """
        for slot in [each for each in self._slots.values() if each.last_step not in (None, self.step)]:
            del self._slots[slot.parameter]
        for parameter, slot in self._slots.items():
            if parameter not in parameters:
                slot.leave(self.step)
                release(self, parameter)

    def _new_slot(self, parameter: torch.Tensor, place: int) -> Slot:
        label = self._names[parameter]
        check_dense(parameter, f"parameter {label!r}")
        dtype = self._compression.wire_dtype(parameter.dtype)
        tag = wire_tag(dtype, f"parameter {label!r}")
        spec = TensorSpec(f"{self._prefix}{label}", tag, tuple(parameter.shape))
        home = Home(parameter, spec, dtype) if self._arena and spec.nbytes >= homes.LEAST_BYTES else None
        return Slot(parameter, label, spec, dtype, priority=-place, remaining=self._passes, home=home)

    def accumulated(self, slot: Slot) -> None:
        """A backward pass has added to the gradient of ``slot``."""
        if self._interrupted is not None:
            raise BytePSError("synchronize() was interrupted: call it again, or step(), before the next backward pass")
        if slot.push is not None:
            raise BytePSError(
                f"the gradient of {slot.label!r} was accumulated once more after backward pass {self._passes} of "
                f"{self._passes}, when it was already on its way: call step() or synchronize() after each "
                f"{self._passes}, or set backward_passes_per_step"
            )
        self.synchronized = False
        slot.remaining -= 1
        if slot.remaining > 0:
            return
        gradient = slot.parameter.grad
        if gradient is None or (_staging.takes(gradient) and not is_sparse(gradient)):
            self._push(self._here(), slot)
            return
        check_gradient(slot, gradient, takes_rows=self.takes_rows)
        # Now: whoever refers to the gradient after the backward pass shall have the new one.
        if slot.home is not None and not is_sparse(gradient):
            gradient = slot.home.settle(self._here(), gradient)
        slot.push = Push(None, gradient, gradient._version)
        self._gathered.append(slot)
        self._gathered_bytes += slot.spec.nbytes
        if self._gathered_bytes >= GATHERED_BYTES:
            session = self._here()
            for each in self._take_gathered():
                self._push(session, each)

    def _take_gathered(self) -> list[Slot]:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        return gathered

    def _contribute(self, session: _session.Session, slot: Slot) -> None:
        had_gradient = slot.push is not None
        if slot.push is None or slot.push.pending is None:
            self._push(session, slot)
        if had_gradient:
            check_untouched(slot, self.advice)

    def _push(self, session: _session.Session, slot: Slot) -> None:
        gradient = slot.parameter.grad
        touched = is_touched(slot)
        staged, array = None, None
        if gradient is not None:
            check_gradient(slot, gradient, takes_rows=self.takes_rows)
            if is_sparse(gradient):
                slot.push = push_rows(session, slot, gradient, touched, self.step)
                return
            if _staging.takes(gradient):
                slot.push = self._push_from_device(session, slot, gradient)
                return
            if slot.home is not None and gradient.device.type == "cpu":
                staged = slot.home.stage(session, gradient)
                array = slot.home.memory
            else:
                staged = stage(gradient, slot.dtype)
                array = as_array(staged)
        pending = session.submit(slot.spec, array, array, Operation.AVERAGE, priority=slot.priority, step=self.step)
        slot.push = Push(pending, gradient, 0 if gradient is None else gradient._version, touched, staged)

    def _push_from_device(self, session: _session.Session, slot: Slot, gradient: torch.Tensor) -> Push:
        buffer = slot.buffer = slot.buffer or _staging.buffer(session, slot.spec, slot.dtype, gradient.device)
        array, operation = as_array(buffer.tensor), Operation.AVERAGE
        begin = partial(session.submit, slot.spec, array, array, operation, priority=slot.priority, step=self.step)
        return Push(_staging.start(gradient, buffer, begin), gradient, gradient._version, buffer=buffer)
