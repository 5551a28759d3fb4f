"""``DistributedOptimizer``: any torch optimizer, on gradients that are averaged over the workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch

from byteps_py import session as _session
from byteps_py.errors import BytePSError, UnsupportedError
from byteps_py.torch.claims import claim
from byteps_py.torch.compression import Compression, Compressor
from byteps_py.torch.gradients import GradientExchange

__all__ = ["DistributedOptimizer", "SynchronizedOptimizer"]


class SynchronizedOptimizer(torch.optim.Optimizer):
    """What an optimizer gains: every instance is of the optimizer's own class too, see :func:`DistributedOptimizer`."""

    _exchange: GradientExchange
    _step_synchronizes: bool

    def synchronize(self) -> None:
        """Wait until the gradients are averaged; then they may be clipped or unscaled before :meth:`step`.

        A parameter that got no gradient here counts as zero; one that got none anywhere keeps ``grad`` None.

        Raises:
            BytePSError: a gradient was changed or cleared after its push had begun, or what the session raises.
        """
        self._exchange.synchronize(self.param_groups)

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, :meth:`step` does not wait: :meth:`synchronize` has been called before."""
        self._step_synchronizes = False
        try:
            yield
        finally:
            self._step_synchronizes = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on ``passes`` backward passes add up locally before one exchange. Counts anew.

        Raises:
            BytePSError: gradients are on their way.
        """
        self._exchange.set_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Average the gradients unless that has been done, and update the parameters.

        Args:
            closure: as the optimizer's own class wants it. The gradients are averaged after each evaluation, and so is
                the loss that it returns, because optimizers decide by it and all workers must decide the same.
            options: further arguments of the optimizer's own class.

        Raises:
            BytePSError: within skip_synchronize() without synchronize() before, or what :meth:`synchronize` raises.
        """
        if not self._step_synchronizes and not self._exchange.synchronized:
            raise BytePSError("step() within skip_synchronize() needs a call of synchronize() before it")
        if closure is None:
            if not self._exchange.synchronized:
                self.synchronize()
            result = super().step(**options)
        else:
            result = super().step(self._averaging(closure) if self._step_synchronizes else closure, **options)
        self._exchange.finish_step()
        _session.current().mark_step(automatic=True)
        return result

    def _averaging(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def averaged() -> Any:
            loss = closure()
            self.synchronize()
            return self._exchange.average_loss(loss)

        return averaged

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and count backward passes anew.

        Raises:
            BytePSError: gradients are on their way; clearing them now would lose them on this worker alone.
        """
        self._exchange.restart("zero_grad()")
        super().zero_grad(set_to_none)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    arena: bool = False,
    nccl: bool = False,
) -> SynchronizedOptimizer:
    """Make ``optimizer`` step on gradients that are averaged over all workers.

    Gradients are pushed while the backward pass is still running, several at a time; the last few, less than 4 MiB, by
    ``synchronize()``.  Gradients on a GPU are copied to the host and back on a side stream; when ``synchronize()``
    returns, what follows in the current stream sees the average.

    The optimizer keeps its state, its groups and its class (it becomes an instance of a subclass of it), so
    learning-rate schedulers made afterwards, ``state_dict()`` and ``isinstance`` work as before; it gains
    ``synchronize()``, ``skip_synchronize()`` and ``set_backward_passes_per_step()``.  All workers must make their
    optimizers in the same order.

    Args:
        optimizer: changed in place.
        named_parameters: such as ``model.named_parameters()``: names for messages, and the order of the model, whose
            front gets the higher priority. Without it parameters are called ``noname.0``, ``noname.1`` ...
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        backward_passes_per_step: gradients of so many backward passes are added up locally (not averaged: divide the
            loss where that is wanted) before they are exchanged.
        arena: gradients on the CPU of 64 KiB and more live, from their push on, in memory that is kept from step to
            step and that servers of this machine read. They are copied there, and not once more to be pushed; what the
            backward pass has allocated for them is free again at once. A gradient that is still referred to when the
            next one comes keeps its memory. After a fork such gradients are None in the child. False leaves gradients
            where they are.
        nccl: refused: GPUs of one machine are not reduced over NCCL before their gradients are pushed.

    Returns:
        ``optimizer``.

    Raises:
        ValueError: names are missing or doubled; the optimizer is distributed already.
        UnsupportedError: a parameter's dtype cannot be pushed; it is named. Or ``nccl`` was asked for.
        NotInitializedError: ``init()`` has not been called.
    """
    if isinstance(optimizer, SynchronizedOptimizer):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    if nccl:
        raise UnsupportedError(
            "nccl=True: gradients of several GPUs of one machine are not reduced over NCCL; leave it out, and each "
            "worker process pushes its own (docs/torch.md says why)"
        )
    exchange = GradientExchange(optimizer.param_groups, named_parameters, compression, backward_passes_per_step, arena)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    claim(exchange, "DistributedOptimizer", parameters, exclusive=False)
    own = type(optimizer)
    # A scheduler made earlier has put a wrapper of the old step() into the instance, where it would hide ours.
    vars(optimizer).pop("step", None)
    optimizer.__class__ = type(
        own.__name__, (SynchronizedOptimizer, own), {"__doc__": own.__doc__, "__module__": own.__module__}
    )
    vars(optimizer).update(_exchange=exchange, _step_synchronizes=True)
    return cast(SynchronizedOptimizer, optimizer)
