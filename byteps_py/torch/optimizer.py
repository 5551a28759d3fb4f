"""``DistributedOptimizer``: any torch optimizer, on gradients that are averaged over the workers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn, SupportsIndex, cast

import torch

from byteps_py import session as _session
from byteps_py.errors import BytePSError, UnsupportedError
from byteps_py.torch.asynchronous import ParameterExchange
from byteps_py.torch.compression import Compression, Compressor
from byteps_py.torch.gradients import GradientExchange
from byteps_py.torch.slots import check_passes

__all__ = ["AsynchronousOptimizer", "DistributedOptimizer", "SynchronizedOptimizer", "become"]


_UNSCALING: Final = "_unscale_grads_"
"""The method of ``torch.amp.GradScaler`` that looks at gradients, whichever way it was called."""


class SynchronizedOptimizer(torch.optim.Optimizer):
    """What an optimizer gains: every instance is of the optimizer's own class too, see :func:`DistributedOptimizer`.

    It belongs to the thread that trains; hooks of ``register_step_pre_hook()`` see averaged gradients.
    """

    _exchange: GradientExchange
    _step_synchronizes: bool
    _synchronized_by_scaler: bool
    _opt_called: bool

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError("optimizers get this class, they are not made of it: call DistributedOptimizer(optimizer)")

    def synchronize(self) -> None:
        """Wait until the gradients are averaged; then they may be clipped or unscaled before :meth:`step`.

        A parameter that got no gradient here counts as zero; one that got none anywhere keeps ``grad`` None.

        After an error nothing is on its way any more, gradients are of no use, and no step was made: clear them. Then
        training may go on if all workers left out that step; the next exchange tells those that did not. After a
        Ctrl-C call it again: it goes on waiting.

        Raises:
            BytePSError: a gradient was changed or cleared after its push had begun, or what the session raises.
            AgreementError: in the first call: not all workers made the same optimizers in the same order.
        """
        self._synchronized_by_scaler = False
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
            BytePSError: gradients are on their way; nothing is changed.
            ValueError: ``passes`` is not at least 1; nothing is changed.
        """
        self._exchange.set_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Average the gradients unless that has been done, and update the parameters.

        It has been done if each ``.grad`` is the object that :meth:`synchronize` has left; its values may have changed.
        After an error of :meth:`synchronize` nothing is updated, see there. After one of the closure, or of the
        optimizer's own class, the step does not count: the next one must be made by all workers that left out this.

        Args:
            closure: as the optimizer's own class wants it. The gradients are averaged after each evaluation, and so is
                the loss that it returns, because optimizers decide by it and all workers must decide the same.
            options: further arguments of the optimizer's own class.

        Raises:
            BytePSError: within skip_synchronize() without synchronize() before, or what :meth:`synchronize` raises.
        """
        self._opt_called = True  # for learning-rate schedulers, which look whether there was a step before theirs
        self._check_skipping()
        if closure is None:
            # Within skip_synchronize() gradients may have been replaced, as by clipped ones.
            if self._step_synchronizes and not self._exchange.is_averaged:
                self.synchronize()
            result = super().step(**options)
        else:
            result = super().step(self._averaging(closure) if self._step_synchronizes else closure, **options)
        self._exchange.finish_step()
        _session.current().mark_step(automatic=True)
        return result

    step.hooked = True  # type: ignore[attr-defined]  # the own class's step() calls the hooks and tells the profiler
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def _check_skipping(self) -> None:
        if not self._step_synchronizes and not self._exchange.synchronized:
            raise BytePSError("step() within skip_synchronize() needs a call of synchronize() before it")

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of parameters, as in every optimizer.

        A ``GradScaler`` that comes for the gradients gets the averages: by its own gradients one worker would skip a
        step that others take.  It leaves no other trace: what it does to gradients counts as no change of theirs.
        """
        caller = sys._getframe(1)
        if _UNSCALING in (
            caller.f_code.co_name,
            caller.f_back and caller.f_back.f_code.co_name,
        ):  # through a wrapper too
            self._check_skipping()
            # A step that a scaler skips is not told: what it made us synchronize is not valid for its next step.
            stands = self._exchange.is_averaged or not self._step_synchronizes
            if not stands or self._synchronized_by_scaler:
                self.synchronize()
                self._synchronized_by_scaler = True
        groups: list[dict[str, Any]] = vars(self)["param_groups"]
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        vars(self)["param_groups"] = groups

    def add_param_group(
        self, param_group: dict[str, Any], named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None
    ) -> None:
        """Add a group; all workers must add the same ones in the same order, between the same steps.

        Its gradients are averaged from the next :meth:`synchronize` on, and pushed by hooks after that.

        Args:
            param_group: as the optimizer's own class wants it.
            named_parameters: names for the group's parameters; None names by place.

        Raises:
            ValueError: names are missing, doubled or malformed; nothing is added.
        """
        if named_parameters is not None:
            given = param_group["params"]
            param_group["params"] = [given] if isinstance(given, torch.Tensor) else list(given)
            self._exchange.add_names(named_parameters, param_group)
        super().add_param_group(param_group)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refused: a copy would train without the other workers."""
        raise UnsupportedError(
            "a DistributedOptimizer can be neither copied nor pickled: keep its state_dict(), make a new optimizer and "
            "wrap that, then call load_state_dict()"
        )

    def _averaging(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def averaged() -> Any:
            loss = closure()
            self.synchronize()
            return self._exchange.average_loss(loss)

        return averaged

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and count backward passes anew.

        Where a step is left out after :meth:`synchronize`, this, not the model's ``zero_grad()``, tells that the
        averages are done with.

        Raises:
            BytePSError: gradients are on their way; clearing them now would lose them on this worker alone. Nothing is
                cleared; after :meth:`step` or :meth:`synchronize` it can be called again.
        """
        self._exchange.restart("zero_grad()")
        super().zero_grad(set_to_none)


class AsynchronousOptimizer(SynchronizedOptimizer):
    """What an optimizer gains where ``BYTEPS_ENABLE_ASYNC=1``, see :func:`DistributedOptimizer`.

    It belongs to the thread that trains; gradients are this worker's own.
    """

    _parameters: ParameterExchange

    def synchronize(self) -> None:
        """Nothing: gradients may be clipped or unscaled at any time before :meth:`step`, as they are nobody else's."""

    def skip_synchronize(self) -> NoReturn:
        """
        Raises:
            UnsupportedError: always, as in BytePS: there is no synchronize() that a step could go without.
        """
        raise UnsupportedError(
            "skip_synchronize(): with BYTEPS_ENABLE_ASYNC=1 no gradients are synchronized; change them as you like, "
            "and call step() alone"
        )

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Nothing but a check: the backward passes between two steps add up as without byteps_py.

        Raises:
            ValueError: ``passes`` is not at least 1.
        """
        check_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Update the parameters by this worker's gradients, add the difference to what the servers hold, and take that.

        The first step waits for all workers: it gives the servers the parameters of worker 0. Later ones wait for
        nobody, unless ``BYTEPS_ASYNC_MAX_STALENESS`` says so.

        After an error the parameters are of no use, those of the servers excepted. After a Ctrl-C the next step takes
        what was on its way before it goes on; a difference that was not pushed by then is lost.

        Args:
            closure: as the optimizer's own class wants it.
            options: further arguments of the optimizer's own class.

        Raises:
            BytePSError: what the session raises; in the first step an AgreementError where workers have not made the
                same optimizers in the same order.
        """
        self._opt_called = True  # for learning-rate schedulers, which look whether there was a step before theirs
        self._parameters.begin(vars(self)["param_groups"])
        result = super(SynchronizedOptimizer, self).step(closure, **options)  # of the own class
        self._parameters.push()
        self._parameters.take()
        self._parameters.step += 1
        _session.current().mark_step(automatic=True)
        return result

    step.hooked = True  # type: ignore[attr-defined]  # as in SynchronizedOptimizer
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of parameters, as in every optimizer."""
        groups: list[dict[str, Any]] = vars(self)["param_groups"]
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        vars(self)["param_groups"] = groups

    def add_param_group(
        self, param_group: dict[str, Any], named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None
    ) -> None:
        """Add a group. The next step waits for all workers, which must add it too, and begins it as on worker 0.

        Args:
            param_group: as the optimizer's own class wants it.
            named_parameters: names for the group's parameters; None names by place.

        Raises:
            ValueError: names are missing, doubled or malformed; nothing is added.
        """
        if named_parameters is not None:
            given = param_group["params"]
            param_group["params"] = [given] if isinstance(given, torch.Tensor) else list(given)
            self._parameters.add_names(named_parameters, param_group)
        super(SynchronizedOptimizer, self).add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        super(SynchronizedOptimizer, self).zero_grad(set_to_none)


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
    returns, what follows in the current stream sees the average.  A sparse gradient, as of
    ``nn.Embedding(sparse=True)``, is pushed as rows, and its average is a sparse tensor of the rows that any worker
    has; of one parameter they are sparse on all workers that have one, or dense on all.

    The optimizer keeps its state, its groups and its class (it becomes an instance of a subclass of it), so
    learning-rate schedulers, made before or after, ``GradScaler``, hooks, ``state_dict()`` and ``isinstance`` work as
    before; it gains ``synchronize()``, ``skip_synchronize()`` and ``set_backward_passes_per_step()``.

    All workers must make their optimizers in the same order.  The first ``synchronize()`` finds out whether they did,
    by names, shapes, dtypes and the optimizer's class; this call does not wait for others. Of several that are made for
    one parameter the last one averages it; another one that has it still says so in its next ``step()``.

    With ``BYTEPS_ENABLE_ASYNC=1`` the servers hold the parameters instead, and each worker steps by its own gradients;
    see docs/asynchronous.md. ``BYTEPS_ASYNC_MAX_STALENESS=0`` is training as without it.

    Args:
        optimizer: changed in place, and returned.
        named_parameters: such as ``model.named_parameters()``: names for messages, and the order of the model, whose
            front gets the higher priority. Without it parameters are called as the optimizer calls them, if it was
            made from named parameters, or ``noname.0``, ``noname.1`` ...
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        backward_passes_per_step: gradients of so many backward passes are added up locally (not averaged: divide the
            loss where that is wanted) before they are exchanged.
        arena: gradients on the CPU of 64 KiB and more live, from their push on, in memory that is kept from step to
            step and that servers of this machine read. They are copied there, and not once more to be pushed; what the
            backward pass has allocated for them is free again at once. A gradient that is still referred to when the
            next one comes keeps its memory. After a fork such gradients are None in the child. False leaves gradients
            where they are.
        nccl: refused: GPUs of one machine are not reduced over NCCL before their gradients are pushed.

    Raises:
        ValueError: names are missing or doubled; the optimizer is distributed already, or its parameters are averaged
            by a ``CrossBarrier`` or a ``DistributedDataParallel``; something has replaced the instance's ``step()``.
        BytePSError: gradients of an earlier one of the same parameters are on their way.
        TypeError: that is no optimizer.
        UnsupportedError: a parameter's dtype cannot be pushed; it is named. Or ``nccl`` was asked for, or compression
            in asynchronous training.
        NotInitializedError: ``init()`` has not been called.
    """
    _check(optimizer, nccl, backward_passes_per_step)
    owner = f"a DistributedOptimizer of class {type(optimizer).__name__}"
    groups = optimizer.param_groups
    if _session.current().is_asynchronous:
        return _become_asynchronous(optimizer, named_parameters, compression, owner)
    exchange = GradientExchange(groups, named_parameters, compression, backward_passes_per_step, arena, owner)
    become(optimizer, SynchronizedOptimizer, _exchange=exchange, _step_synchronizes=True, _synchronized_by_scaler=False)
    return cast(SynchronizedOptimizer, optimizer)


def become(optimizer: torch.optim.Optimizer, gained: type[torch.optim.Optimizer], **attributes: Any) -> None:
    """Make ``optimizer`` an instance of its own class and of ``gained``, which comes first, with ``attributes``."""
    own = type(optimizer)
    vars(optimizer).pop("step", None)  # a scheduler's: the step() that is gained does what it would
    vars(optimizer).update(attributes)
    optimizer.__class__ = type(own.__name__, (gained, own), {"__doc__": own.__doc__, "__module__": own.__module__})


def _check(optimizer: object, nccl: bool, passes: int) -> None:
    check_passes(passes)
    if isinstance(optimizer, SynchronizedOptimizer):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"DistributedOptimizer takes a torch.optim.Optimizer, not a {type(optimizer).__qualname__}")
    if nccl:
        raise UnsupportedError(
            "nccl=True: gradients of several GPUs of one machine are not reduced over NCCL; leave it out, and each "
            "worker process pushes its own (docs/torch.md says why)"
        )
    replaced = vars(optimizer).get("step")
    if (
        replaced is not None
        and not hasattr(replaced, "_wrapped_by_lr_sched")
        and not hasattr(replaced, "_with_counter")
    ):
        raise ValueError(
            "something other than a learning-rate scheduler has replaced step() of this optimizer, which would hide "
            "that of the DistributedOptimizer: call DistributedOptimizer() first"
        )


def _become_asynchronous(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    compression: Compressor,
    owner: str,
) -> AsynchronousOptimizer:
    if compression is not Compression.none:
        raise UnsupportedError(
            "compression of gradients: with BYTEPS_ENABLE_ASYNC=1 none travel, but differences of parameters, which "
            "are too small for 16 bits; leave it out"
        )
    parameters = ParameterExchange(optimizer.param_groups, named_parameters, owner)
    become(optimizer, AsynchronousOptimizer, _parameters=parameters)
    return cast(AsynchronousOptimizer, optimizer)
