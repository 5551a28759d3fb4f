"""Train one model by every way in which torch averages gradients here, one after the other; run in workers.

Each way starts from the same parameters and takes the same batches: worker *r* of *n* has the *r*-th share of each.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

import byteps_py.torch as bps
from byteps_py.torch.cross_barrier import CrossBarrier
from byteps_py.torch.parallel import DistributedDataParallel

__all__ = ["compare", "run"]

STEPS = 20
BATCH = 24
"""Of all workers together; a multiple of their number."""
Make = Callable[[nn.Module], tuple[nn.Module, torch.optim.Optimizer]]


class Tied(nn.Module):
    """Embedding and head are one parameter; one layer has no use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.hidden = nn.Sequential(nn.Linear(16, 40), nn.Tanh(), nn.LayerNorm(40), nn.Linear(40, 16))
        self.head = nn.Linear(16, 11)
        self.head.weight = self.embed.weight
        nn.init.uniform_(self.embed.weight, -0.3, 0.3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores for the next word."""
        scores: torch.Tensor = self.head(self.hidden(self.embed(words)))
        return scores


class Branches(nn.Module):
    """Three hundred small layers, of which each pass takes some; statistics of batches; a weight that is read before
    the layer that has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(300)])
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 6)

    def forward(self, inputs: torch.Tensor, taken: list[int]) -> torch.Tensor:
        """``inputs`` (n, 6), restored through the layers that are ``taken``."""
        hidden = nn.functional.linear(inputs, self.last.weight.t())
        for place in taken:
            hidden = hidden + torch.tanh(self.layers[place](hidden)) / 10
        restored: torch.Tensor = self.last(self.norm(hidden))
        return restored


def _own_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)


def _alone(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    return model, _own_optimizer(model)


def _optimizer(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    return model, bps.DistributedOptimizer(_own_optimizer(model), model.named_parameters())


def _wrapper(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    wrapped = DistributedDataParallel(model)
    return wrapped, _own_optimizer(wrapped)


def _cross_barrier(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    return model, CrossBarrier(model, _own_optimizer(model), model.named_parameters())


def _torch_ddp(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    wrapped = nn.parallel.DistributedDataParallel(model)
    return wrapped, _own_optimizer(wrapped)


def _comm_hook(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    wrapped, optimizer = _torch_ddp(model)
    assert isinstance(wrapped, nn.parallel.DistributedDataParallel)
    wrapped.register_comm_hook(None, bps.comm_hook)
    return wrapped, optimizer


_MAKE: dict[str, tuple[str | None, Make]] = {
    "alone": (None, _alone),
    "optimizer": (None, _optimizer),
    "wrapper": (None, _wrapper),
    "cross-barrier": (None, _cross_barrier),
    "gloo": ("gloo", _torch_ddp),
    "comm-hook": ("gloo", _comm_hook),
    "backend": ("byteps", _torch_ddp),
}
"""Names of ways: the process group that they need, and what makes model and optimizer."""


def run(ways: list[str], folder: Path) -> None:
    """Train by each of ``ways``, and save the parameters as ``<way>-<rank>.npz`` in ``folder``. After ``init()``.

    ``alone`` is one process on the whole batches, in worker 0.
    """
    torch.set_num_threads(1)
    rank, size = bps.rank(), bps.size()
    for way in ways:
        backend, make = _MAKE[way]
        if way == "alone":
            if rank == 0:
                _save(folder / f"{way}-{rank}.npz", _train(make, 0, 1))
            continue
        with _group(backend, folder / f"store-{way}", rank, size):
            _save(folder / f"{way}-{rank}.npz", _train(make, rank, size))


_OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8, weight_decay=1e-3),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01),
}


def compare() -> None:
    """Train :class:`Branches` by our three ways, with several optimizers; all workers must have the same bits by all.

    Each worker takes other layers in each step. After ``init()``.
    """
    torch.set_num_threads(1)
    for name, make_optimizer in _OPTIMIZERS.items():
        found = {}
        for way in ("optimizer", "cross-barrier", "wrapper"):
            torch.manual_seed(5)
            inner = Branches()
            model: nn.Module = inner
            if way == "wrapper":
                model = DistributedDataParallel(inner)
            optimizer = make_optimizer(model)
            if way == "optimizer":
                optimizer = bps.DistributedOptimizer(optimizer, inner.named_parameters())
            elif way == "cross-barrier":
                optimizer = CrossBarrier(inner, optimizer, inner.named_parameters())
            _train_branches(model, optimizer)
            found[way] = [each.detach().numpy().copy() for each in inner.parameters()]
            if way == "wrapper":
                model(torch.ones(3, 6), [0])  # takes the buffers of worker 0, and changes them equally
                found["buffers"] = [each.numpy().copy() for each in inner.buffers()]
        for way, arrays in found.items():
            first: list[npt.NDArray[Any]] = bps.broadcast_object(arrays, root_rank=0)
            for ours, others in zip(arrays, first, strict=True):
                np.testing.assert_array_equal(ours, others, err_msg=f"{name}, {way}: this worker and 0")
        for way in ("cross-barrier", "wrapper"):
            for ours, others in zip(found[way], found["optimizer"], strict=True):
                np.testing.assert_array_equal(ours, others, err_msg=f"{name}, {way}")


def _train_branches(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    choices = random.Random(bps.rank())
    generator = torch.Generator().manual_seed(bps.rank())
    for _ in range(4):
        inputs = torch.randn(3, 6, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs, sorted(choices.sample(range(300), 60))), inputs).backward()
        optimizer.step()


@contextlib.contextmanager
def _group(backend: str | None, store: Path, rank: int, size: int) -> Iterator[None]:
    if backend is None:
        yield
        return
    if backend == "gloo":
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    else:
        dist.init_process_group(backend)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _train(make: Make, rank: int, size: int) -> dict[str, npt.NDArray[Any]]:
    torch.manual_seed(3)
    inner = Tied()
    model, optimizer = make(inner)
    generator = torch.Generator().manual_seed(8)
    share = slice(BATCH // size * rank, BATCH // size * (rank + 1))
    for _ in range(STEPS):
        words = torch.randint(0, 11, (BATCH,), generator=generator)
        following = (words * 3 + 1) % 11
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words[share]), following[share]).backward()
        optimizer.step()
    return {name: each.numpy().copy() for name, each in inner.state_dict().items()}


def _save(path: Path, parameters: dict[str, npt.NDArray[Any]]) -> None:
    arguments: dict[str, Any] = parameters
    np.savez(path, **arguments)
