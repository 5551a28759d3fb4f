"""``SyncBatchNorm``: batch normalisation over the batches of all workers.

Each worker contributes, per channel, the number of its values, their sum and the sum of their squares, in float64;
from these every worker has mean and variance of the joined batch.  The exchange is differentiable, and so is all that
is made of it: the backward pass sums over the workers what the joined batch would sum over its parts.

Ioffe, Szegedy: Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift, 2015.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any, Final

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from byteps_py import session as _session
from byteps_py.errors import UnsupportedError
from byteps_py.torch.agreement import Agreement
from byteps_py.torch.ops import push_pull

__all__ = ["SyncBatchNorm"]

_numbers: Final = itertools.count(1)
_used: Final[weakref.WeakKeyDictionary[_session.Session, set[str]]] = weakref.WeakKeyDictionary()
_lock: Final = threading.Lock()


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation of inputs ``(N, C, ...)`` with any number of further dimensions, over all workers' batches.

    In training each forward pass is an exchange, and so is each backward pass if the input needs a gradient: all
    workers must run the same layers in the same order.  Batches may differ in size, and all but one may be empty.  In
    evaluation nothing is exchanged.  Layers are matched by the order in which each process makes them, and by
    ``num_features``; a copy is matched as the original is.  The first forward pass of each checks that.

    Where gradients of parameters are averaged, and each worker's loss is the mean over a batch of the same size,
    results and gradients are those of ``BatchNorm`` on the joined batch, within rounding.

    Args:
        num_features: ``C``.
        eps: added to the variance.
        momentum: weight of the new batch in the running statistics; None gives all batches the same weight.
        affine: whether there are ``weight`` and ``bias``.
        track_running_stats: without them, evaluation uses the worker's own batch.
        device, dtype: of parameters and statistics.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self._name = f"SyncBatchNorm.{next(_numbers)}.{num_features}"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise; in training over the batches of all workers, which it waits for.

        Args:
            input: of any floating-point dtype and on any device; the result has the same. Computed in float32, or in
                float64 if it is that.

        Raises:
            ValueError: the input has fewer than 2 dimensions or other than ``num_features`` channels, or the workers
                together have fewer than 2 values per channel.
            UnsupportedError: the input is of no floating-point dtype.
            AgreementError: another worker uses another layer first, or made its layers in another order.
            NotInitializedError: in training: ``init()`` has not been called.
        """
        self._check_input_dim(input)
        if not self.training:
            return super().forward(input)
        _check_first_use(self._name)
        shape = (1, -1, *(1 for _ in input.shape[2:]))
        wide = input if input.dtype is torch.float64 else input.float()
        count, mean, variance = self._statistics(wide)
        if self.track_running_stats:
            self._track(count, mean.detach(), variance.detach())
        scale = torch.rsqrt(variance + self.eps).to(wide)
        centered = wide - mean.to(wide).view(shape)
        if self.weight is not None:
            scale = scale * self.weight.to(wide)
        result = centered * scale.view(shape)
        if self.bias is not None:
            result = result + self.bias.to(wide).view(shape)
        return result.to(input.dtype)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm takes inputs (N, C, ...), not one of shape {tuple(input.shape)}")
        if input.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm has {self.num_features} channels, the input {input.shape[1]}")
        if not input.is_floating_point():
            raise UnsupportedError(f"SyncBatchNorm normalises floating-point numbers, not {input.dtype}")

    def _statistics(self, wide: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
        """Values per channel, mean and biased variance of all workers' batches; the latter float64 on the CPU.

        The squares are about zero: what that costs, about 1e-16 of the squared mean, is below what float32 inputs
        themselves resolve.
        """
        count = wide.numel() // self.num_features
        over = [each for each in range(wide.dim()) if each != 1]
        if count:
            local, mean = torch.var_mean(wide, over, correction=0)
            local, mean = (each.to("cpu").double() for each in (local, mean))
            sums, squares = mean * count, (local + mean.square()) * count
        else:  # zeros, but a part of the graph: the backward exchange needs this worker too
            sums = wide.sum(over).to("cpu").double()
            squares = sums
        mine = torch.cat([sums, squares, torch.tensor([count], dtype=torch.float64)])
        total = push_pull(mine, average=False, name=self._name)
        together = total[-1].item()
        if together < 2:
            raise ValueError(
                f"SyncBatchNorm in training needs 2 values per channel or more; all workers together have {together:g}"
            )
        mean, mean_square = (total[:-1] / together).chunk(2)
        return together, mean, (mean_square - mean.square()).clamp(min=0)

    def _track(self, count: float, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, variance * (count / (count - 1)))):
            running.mul_(1 - momentum).add_(new.to(running), alpha=momentum)

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module) -> torch.nn.Module:
        """``module`` with every batch normalisation in it replaced by one over all workers.

        Parameters and buffers are the same objects as before: optimizers made earlier keep them.

        Args:
            module: changed in place, unless it is a batch normalisation itself.

        Returns:
            ``module``, or its replacement.

        Raises:
            UnsupportedError: a layer that does not yet know how many channels it has (``LazyBatchNorm``).
        """
        replaced: dict[torch.nn.Module, torch.nn.Module] = {}
        return cls._convert(module, replaced)

    @classmethod
    def _convert(cls, module: torch.nn.Module, replaced: dict[torch.nn.Module, torch.nn.Module]) -> torch.nn.Module:
        if module in replaced:  # a layer that the model has in several places stays one layer
            return replaced[module]
        result = module
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            result = cls._replacement(module)
        replaced[module] = result
        for name, child in list(module.named_children()):
            setattr(result, name, cls._convert(child, replaced))
        return result

    @classmethod
    def _replacement(cls, module: _BatchNorm) -> SyncBatchNorm:
        if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
            raise UnsupportedError(
                f"a {type(module).__name__} does not know its channels before the first batch: run one, then convert"
            )
        made = cls(module.num_features, module.eps, module.momentum, False, False)
        made.affine, made.track_running_stats = module.affine, module.track_running_stats
        made.weight, made.bias = module.weight, module.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(made, name, getattr(module, name))
        made.train(module.training)
        return made


def _check_first_use(name: str) -> None:
    session = _session.current()
    with _lock:
        used = _used.setdefault(session, set())
        if name in used:
            return
        used.add(name)
        topic = f"the SyncBatchNorm layer that is number {len(used)} to be used"
    advice = "The number is that of a layer's making: make and run the same layers in the same order on every worker."
    Agreement(session, topic, [name], advice).check()
