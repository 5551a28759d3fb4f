"""``DistributedDataParallel``: a module whose gradients are averaged over the workers within ``backward()``.

::

    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # any, as it is
    ...
    loss_of(model(inputs), labels).backward()  # gradients are averages when this returns
    optimizer.step()

At the first gradient of a backward pass a callback is queued, which autograd calls when the pass has ended; it
contributes what got no gradient as absent, and waits for the averages. Where a backward pass runs within another
(reentrant checkpoints), the outer one counts, because hooks of the module's outputs queue the callback before.

If a backward pass goes through several wrapped modules, the first callback contributes for all of them before it waits
for any, so that it does not matter in which order the modules are reached on each worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, cast

import torch
from torch import nn

from byteps_py import session as _session
from byteps_py.errors import BytePSError, UnsupportedError
from byteps_py.torch.asynchronous import refuse_asynchronous
from byteps_py.torch.broadcast import broadcast_pairs, start_broadcast
from byteps_py.torch.claims import claiming
from byteps_py.torch.compression import Compression, Compressor
from byteps_py.torch.gradients import GradientExchange
from byteps_py.torch.tensors import to_device

__all__ = ["DistributedDataParallel"]

_exchanges: Final = weakref.WeakSet["_BackwardExchange"]()


class _BackwardExchange(GradientExchange):
    """Averages at the end of each backward pass.

    Args:
        module: whose parameters.
        compression: how gradients travel.
    """

    kind, exclusive = "DistributedDataParallel", True
    advice = "leave gradients alone until backward() has returned; then they are averages, to be clipped or scaled"

    def __init__(self, module: nn.Module, compression: Compressor) -> None:
        self.enabled = True
        """Whether backward passes average."""
        self.awaited = False
        """Whether a forward pass for training has been followed by no exchange yet."""
        self._module = module
        self.reached = False
        """Whether a backward pass has accumulated a gradient and there was no exchange since."""
        self._queued: int | None = None
        """The backward pass at whose end the callback will be called, as autograd numbers them."""
        self._one_at_a_time = threading.Lock()
        self._accumulating = threading.Lock()
        """Autograd has a thread for each device."""
        with claiming(self, self.kind, list(module.parameters())):
            super().__init__(self._groups(), module.named_parameters(), compression, 1, owner=f"a {self.kind}")
        _exchanges.add(self)

    def _groups(self) -> list[dict[str, Any]]:
        return [{"params": list(self._module.parameters())}]

    def expect(self, output: object, training: bool) -> None:
        """A forward pass has made ``output``, from which a backward pass may come. Any thread if not ``training``."""
        if training:
            self._check_alone()
            self.awaited = True
            self._queued = None  # what a backward pass that failed has left
        reference = weakref.ref(self)  # the output may outlive the module

        def enter(_: torch.Tensor) -> None:
            owner = reference()
            if owner is not None and owner.enabled and owner._queued != torch._C._current_graph_task_id():
                owner._queue()

        for tensor in _tensors(output):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(enter)  # type: ignore[no-untyped-call]

    def _queue(self) -> None:
        self._queued = torch._C._current_graph_task_id()
        queue = cast(Callable[[Callable[[], None]], None], torch.autograd.Variable._execution_engine.queue_callback)
        queue(self._leave)

    def _leave(self) -> None:
        """The backward pass has ended."""
        ended = self._queued
        together = [self] if ended is None else [each for each in list(_exchanges) if each._queued == ended]
        for each in together:
            each._queued = None
        _average([each for each in together if each.reached])

    def accumulated(self, slot: Any) -> None:
        """See :meth:`GradientExchange.accumulated`; does nothing where backward passes do not average.

        Any of autograd's threads.
        """
        if not self.enabled:
            return
        self._check_alone()
        if slot.push is not None:
            raise BytePSError(
                f"the gradient of {slot.label!r} came once more before it was averaged: a parameter that several "
                "checkpoints share needs use_reentrant=False; and where a backward pass has failed, call synchronize() "
                "before the next"
            )
        with self._accumulating:
            if self._queued is None:
                self._queue()
            self.reached = True
            super().accumulated(slot)

    def average(self) -> None:
        """Contribute what has not been contributed, and wait for all averages."""
        _average([self])

    @contextlib.contextmanager
    def _averaging(self) -> Iterator[None]:
        """Contribute, then what is done within it, then wait. What is interrupted may be repeated."""
        self._check_alone()
        with self._one_at_a_time:
            self._queued = None
            groups = self._groups()
            try:
                if self._interrupted is None:
                    self._interrupted = self._contribute_all(groups)
                try:
                    yield
                except Exception as error:
                    self._interrupted.append(error)  # raised when this exchange has been waited for
                self.synchronize(groups)
                self.finish_step()
            except Exception:
                self.reached = self.awaited = False
                raise
            self.reached = self.awaited = False

    def _check_alone(self) -> None:
        if self._one_at_a_time.locked():
            raise BytePSError("another thread waits for the averages of this module: let one thread train it")


def _average(exchanges: Sequence[_BackwardExchange]) -> None:
    """Contribute to all before waiting for any; one step, however many they are."""
    if not exchanges:
        return
    with contextlib.ExitStack() as stack:
        for each in sorted(exchanges, key=lambda one: one.number):
            stack.enter_context(each._averaging())
    _session.current().mark_step(automatic=True)


class DistributedDataParallel(nn.Module):
    """A module that trains on gradients averaged over all workers, with any optimizer of torch.

    At construction, and between ``resume()`` and the first forward pass for training, parameters and buffers become
    those of worker 0. When ``backward()`` returns, ``.grad`` of every parameter is the average over the workers; a
    parameter that got no gradient here counts as zero, and one that got none anywhere keeps ``grad`` None. Sparse
    gradients, as of ``nn.Embedding(sparse=True)``, travel as rows and have sparse averages. Gradients are pushed
    while the backward pass is still running. What a worker had accumulated before (under :meth:`no_sync`) is averaged
    too.

    Every worker must run as many backward passes that reach parameters of the module; a worker whose pass reaches
    none calls :meth:`synchronize`. One thread trains; any may run forward passes in evaluation mode. A copy or a
    pickle is refused: take ``module``, or ``state_dict()``, whose names begin with ``module.``.

    Args:
        module: on any devices; used, not copied. Parameters keep their place and may not belong to another
            ``DistributedDataParallel``, ``CrossBarrier`` or ``DistributedOptimizer``.
        device_ids: None, or one device (or its CUDA index), where the module must lie already; inputs are moved to it.
            An index means nothing for a module on the CPU of a machine without CUDA.
        broadcast_buffers: before a forward pass in training mode buffers become those of worker 0, unless it is within
            :meth:`no_sync`, or follows another one with no backward pass in between, which may need them as they are.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.

    Raises:
        ValueError: the parameters are averaged already; there are several ``device_ids``; the module lies elsewhere.
        UnsupportedError: a parameter's dtype cannot be pushed, or its shape is not known yet; it is named. Or training
            is asynchronous (``BYTEPS_ENABLE_ASYNC=1``).
        AgreementError: the workers' modules differ.
        NotInitializedError: ``init()`` has not been called.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | str | torch.device] | None = None,
        broadcast_buffers: bool = True,
        compression: Compressor = Compression.none,
    ) -> None:
        super().__init__()
        _check_known(module)
        refuse_asynchronous("DistributedDataParallel")
        self._device = _check_device(module, device_ids)
        self._alike: Callable[[], None] | None = None
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        self._exchange = _BackwardExchange(module, compression)
        self._prefix = f"Module{self._exchange.number}."
        self._begin_alike()
        self._wait_until_alike()
        _session.current().lineage.follow(self._begin_alike)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """What the module returns.

        Raises:
            BytePSError: buffers could not be broadcast.
        """
        exchange = self._exchange
        if self.training and exchange.enabled and not exchange.awaited:
            self._wait_until_alike()
            if self.broadcast_buffers:
                self._broadcast_buffers()
        if self._device is not None:
            inputs, keywords = (to_device(each, self._device, non_blocking=True) for each in (inputs, keywords))
        output = self.module(*inputs, **keywords)
        if torch.is_grad_enabled() and exchange.enabled:
            exchange.expect(output, self.training)
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes within it only accumulate; the next one after it averages the sum. Buffers stay as they are.

        What counts is where ``backward()`` is called.
        """
        before, self._exchange.enabled = self._exchange.enabled, False
        try:
            yield
        finally:
            self._exchange.enabled = before

    def synchronize(self) -> None:
        """Average now, if there was a forward pass in training mode and no average since.

        After an ordinary ``backward()`` it does nothing. It is for a worker whose forward pass used no parameter, so
        that no backward pass can reach one, and for one whose backward pass has failed: the others wait for it.

        Raises:
            BytePSError: what the session raises. Gradients are of no use then, and nothing is on its way any more.
            KeyboardInterrupt: in a wait; call it again to go on.
        """
        if self._exchange.enabled and (self._exchange.awaited or self._exchange.reached):
            self._exchange.average()

    def _begin_alike(self) -> None:
        """Parameters and buffers are to become those of worker 0: at the beginning of each generation of the job, since
        workers that have come by it do the same as they are wrapped."""
        state = [(name, each) for name, each in self.module.state_dict().items() if isinstance(each, torch.Tensor)]
        pairs = [(f"{self._prefix}{name}", each) for name, each in state]
        self._alike = start_broadcast(pairs, 0, f"the tensors of {self._prefix!r}")

    def _wait_until_alike(self) -> None:
        if self._alike is not None:
            self._alike()
            self._alike = None

    def _broadcast_buffers(self) -> None:
        buffers = [(f"{self._prefix}{name}", each) for name, each in self.module.named_buffers()]
        if buffers:
            broadcast_pairs(buffers, root=0)

    def __getstate__(self) -> NoReturn:
        raise UnsupportedError(
            "a DistributedDataParallel cannot be copied or pickled, because it is a part of a running job: "
            "copy or save its module (model.module) or its state_dict()"
        )


def _check_known(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise UnsupportedError(
                f"parameter {name!r} has no shape yet: run one forward pass of the module before it is wrapped"
            )


def _check_device(module: nn.Module, ids: Sequence[int | str | torch.device] | None) -> torch.device | None:
    if not ids:
        return None
    if len(ids) > 1:
        raise ValueError(
            f"device_ids={list(ids)}: a process trains one copy of the module; start one worker per device, "
            "and give each its own"
        )
    if isinstance(ids[0], int) and not torch.cuda.is_available() and _lies_on_cpu(module):
        return None  # a script for GPUs that falls back to the CPU
    device = torch.device("cuda", ids[0]) if isinstance(ids[0], int) else torch.device(ids[0])
    first = next((each.device for each in module.parameters()), device)
    if first.type == device.type and None in (first.index, device.index):  # "cuda" is where the module is
        device = first
    for name, parameter in module.named_parameters():
        if parameter.device != device:
            raise ValueError(
                f"device_ids={list(ids)}: parameter {name!r} is on {parameter.device}: call module.to({str(device)!r}) "
                "before the module is wrapped"
            )
    return device


def _lies_on_cpu(module: nn.Module) -> bool:
    return all(each.device.type == "cpu" for each in module.parameters())


def _tensors(output: object) -> Iterator[torch.Tensor]:
    """All tensors in what a module has returned."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for each in output.values():
            yield from _tensors(each)
    elif isinstance(output, list | tuple):
        for each in output:
            yield from _tensors(each)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from _tensors(getattr(output, field.name))
