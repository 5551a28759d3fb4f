"""Train one model by every way in which torch averages gradients here, one after the other; run in workers.

Each way starts from the same parameters and takes the same batches: worker *r* of *n* has the *r*-th share of each.
"""

from __future__ import annotations

import contextlib
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

__all__ = ["run"]

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
