"""``CrossBarrier``: the next forward pass begins while the gradients of this step are still on their way.

::

    optimizer = CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss_of(model(inputs), labels).backward()
        optimizer.step()  # waits for nothing

A parameter goes through these states:

==========  ===========================================  =========================================================
state       event                                        then
==========  ===========================================  =========================================================
up to date  the backward pass has finished its gradient  pushed (the front of the model has priority)
pushed      step()                                       in flight; the group's options are noted
in flight   somebody reads it, above all the forward     its average is waited for, the optimizer's own class
            pass; the next step(); synchronize()         updates it, its gradient is cleared if that was asked for
                                                         in flight; up to date
in flight   a gradient comes to it                       error: its old value was used
==========  ===========================================  =========================================================

Parameters are updated by the thread that needs them, see ``docs/decisions/0026``. As in BytePS, this module also has
what scripts need of ``byteps_py.torch``.

The idea is that of ByteScheduler: Y. Peng et al., "A Generic Communication Scheduler for Distributed DNN Training
Acceleration", SOSP 2019.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, SupportsIndex, cast

import torch
from torch import nn, optim

from byteps_py import session as _session
from byteps_py.errors import UnsupportedError
from byteps_py.torch import (
    Compression,
    Compressor,
    DistributedOptimizer,
    SynchronizedOptimizer,
    barrier,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    byteps_push_pull,
    declare,
    init,
    is_initialized,
    local_rank,
    local_size,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    rank,
    resume,
    shutdown,
    size,
    suspend,
    synchronize,
)
from byteps_py.torch.asynchronous import refuse_asynchronous
from byteps_py.torch.optimizer import become
from byteps_py.torch.updates import ParameterUpdates

__all__ = [
    "Compression",
    "CrossBarrier",
    "CrossBarrierOptimizer",
    "DistributedOptimizer",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "declare",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]

_ELEMENTWISE: Final = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.RMSprop,
    optim.Adagrad,
    optim.Adadelta,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.ASGD,
    optim.Rprop,
)
"""Those that update a parameter from its own gradient, state and options alone."""

_NEEDS_ALL: Final = (
    "a CrossBarrier updates each parameter by itself, when its average is there: "
    "what needs all of them at once (clipping, GradScaler, closures, hooks of the step) needs a DistributedOptimizer"
)


class CrossBarrierOptimizer(torch.optim.Optimizer):
    """What an optimizer gains: every instance is of the optimizer's own class too, see :func:`CrossBarrier`.

    It belongs to the thread that trains.
    """

    _updates: ParameterUpdates
    _opt_called: bool
    _step_count: int = 0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Contribute what has not been contributed, and return; each parameter is updated when it is needed.

        Args:
            closure: refused.

        Raises:
            UnsupportedError: a closure was given; nothing has happened.
            BytePSError: an earlier exchange has failed, or a gradient was changed after its push had begun. Every later
                call raises the same, and so does every use of the model: some parameters may be updated and others
                not, so go on from a checkpoint, with a new CrossBarrier when this one is deleted.
            KeyboardInterrupt: in a wait for the step before; call it again.
        """
        self._opt_called = True  # for learning-rate schedulers, which look whether there was a step before theirs
        self._step_count += 1  # the same, for those of earlier versions of torch
        if closure is not None:
            raise UnsupportedError(f"step(closure): {_NEEDS_ALL}")
        self._updates.launch(self.param_groups, vars(self)["state"])
        _session.current().mark_step(automatic=True)

    step.hooked = True  # type: ignore[attr-defined]  # the own class's step() tells the profiler
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    step._with_counter = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Update all parameters; afterwards they may be read and written by any reference.

        Raises:
            BytePSError: the exchange has failed, in this call or before; as for :meth:`step`.
            KeyboardInterrupt: in a wait; call it again.
        """
        self._updates.settle_all()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and count backward passes anew; one in flight is cleared after its update.

        Raises:
            BytePSError: a backward pass has begun to push gradients, and ``step()`` has not been called. Nothing is
                cleared then; call ``step()`` first.
        """
        self._updates.clear(self.param_groups, set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on ``passes`` backward passes add up locally before one exchange. Counts anew.

        Raises:
            BytePSError: a backward pass has begun to push gradients, or an exchange has failed. The number stays.
        """
        self._updates.settle_all()
        self._updates.set_passes(passes)

    def skip_synchronize(self) -> NoReturn:
        """Refused: all gradients are never there at once."""
        raise UnsupportedError(f"skip_synchronize(): {_NEEDS_ALL}")

    @property
    def _step_supports_amp_scaling(self) -> NoReturn:
        """What a GradScaler asks before its step: it needs all averages to decide whether to skip."""
        raise UnsupportedError(f"step() by a GradScaler: {_NEEDS_ALL}")

    @property
    def state(self) -> Any:
        """The optimizer's state, after all updates."""
        self._updates.settle_all()
        return vars(self)["state"]

    @state.setter
    def state(self, value: Any) -> None:
        self._updates.settle_all()
        vars(self)["state"] = value

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer's own class does it, after all updates."""
        self._updates.settle_all()
        super().load_state_dict(state_dict)

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> NoReturn:
        """Refused."""
        raise UnsupportedError(f"register_step_pre_hook(): {_NEEDS_ALL}")

    def register_step_post_hook(self, hook: Callable[..., Any]) -> NoReturn:
        """Refused."""
        raise UnsupportedError(f"register_step_post_hook(): {_NEEDS_ALL}")

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refused: a copy would train without the other workers."""
        raise UnsupportedError("a CrossBarrier can be neither copied nor pickled: keep its state_dict()")


def CrossBarrier(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> CrossBarrierOptimizer:
    """Let ``step()`` return at once: averages are waited for, layer by layer, by the next forward pass of ``model``.

    Parameters and optimizer state are those of a ``DistributedOptimizer``, bit for bit, since the optimizer's own class
    updates each parameter, by the options that the groups had when ``step()`` was called.

    Whoever takes a parameter from the model after ``step()`` waits for its update, and so does a forward pass for what
    it reads by other ways. ``model.state_dict()``, ``model.load_state_dict()``, a forward pass in evaluation mode, and
    the optimizer's ``state`` and ``state_dict()`` wait for all. Before parameters are read or written outside the
    model's modules by references or aliases made before ``step()``, call ``synchronize()``, and also before
    ``shutdown()``. Where a module is compiled or scripted, ``step()`` itself waits for all. Gradients must be dense.

    The optimizer keeps its state, its groups and its class, as with :func:`~byteps_py.torch.DistributedOptimizer`. All
    workers must make their optimizers in the same order.

    Args:
        model: its modules get hooks. It keeps what is on its way when the optimizer is dropped.
        optimizer: of class SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, Adamax, NAdam, RAdam, ASGD or Rprop; changed
            in place.
        named_parameters: names for messages, and the order of the model, whose front gets the higher priority. None
            takes those of ``model``.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        backward_passes_per_step: gradients of so many backward passes are added up locally before they are exchanged.
        num_steps: accepted because BytePS has it, and not needed.

    Returns:
        ``optimizer``.

    Raises:
        ValueError: the optimizer is distributed already, or its parameters are; names are missing or doubled.
        TypeError: that is no module, or no optimizer.
        UnsupportedError: an optimizer that needs more than one parameter at a time, or one with hooks of its step;
            a parameter's dtype cannot be pushed; or training is asynchronous (``BYTEPS_ENABLE_ASYNC=1``).
        NotInitializedError: ``init()`` has not been called.
    """
    del num_steps
    _check(model, optimizer)
    updates = ParameterUpdates(model, optimizer, named_parameters, compression, backward_passes_per_step)
    become(optimizer, CrossBarrierOptimizer, _updates=updates)
    weakref.finalize(optimizer, updates.retire).atexit = False
    return cast(CrossBarrierOptimizer, optimizer)


def _check(model: object, optimizer: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"CrossBarrier takes a torch.nn.Module and its optimizer, not a {type(model).__qualname__}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"CrossBarrier takes a torch.optim.Optimizer, not a {type(optimizer).__qualname__}")
    if isinstance(optimizer, SynchronizedOptimizer | CrossBarrierOptimizer):
        kind = "DistributedOptimizer" if isinstance(optimizer, SynchronizedOptimizer) else "CrossBarrier"
        raise ValueError(f"this optimizer is a {kind} already: CrossBarrier takes one of torch's as it is")
    if type(optimizer) not in _ELEMENTWISE:
        known = ", ".join(each.__name__ for each in _ELEMENTWISE)
        raise UnsupportedError(
            f"CrossBarrier updates each parameter by itself, which {type(optimizer).__name__} is not known to allow; "
            f"it takes {known}: use a DistributedOptimizer"
        )
    if any(group.get("differentiable", False) for group in optimizer.param_groups):
        raise UnsupportedError("differentiable=True: a CrossBarrier updates parameters in place, without gradients")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise UnsupportedError(f"this optimizer has hooks of its step: {_NEEDS_ALL}")
    refuse_asynchronous("CrossBarrier")
