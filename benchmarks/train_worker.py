"""A worker of train_step.  Its words are the folder of the phases and, unless bpslaunch started it, its rank.

The side is in ``work.json``: ``ours`` (DistributedOptimizer), ``ddp`` (DistributedDataParallel over gloo) or ``alone``
(no exchange at all).
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import models, phases

LEARNING_RATE, MOMENTUM = 0.01, 0.9


class Trainer:
    """A model, its data and its optimizer.

    Args:
        work: the content of ``work.json``.
        folder: of the phases.
        rank: None if byteps_py knows it.
    """

    def __init__(self, work: Mapping[str, Any], folder: Path, rank: int | None) -> None:
        torch.set_num_threads(1)
        self._model = models.make(work["model"], work["seed"])
        self._forward: Callable[[torch.Tensor], torch.Tensor] = self._model
        self._optimizer: Any = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self.rank = rank or 0
        {"ours": self._join_ours, "ddp": self._join_ddp, "alone": lambda *_: None}[work["side"]](work, folder)
        data = models.batches(work["model"], work["batch"], work["pixels"], work["seed"] + 1 + self.rank)
        self._data = itertools.cycle(data)
        self._folder = folder

    def _join_ours(self, work: Mapping[str, Any], folder: Path) -> None:
        import byteps_py.torch as bps

        bps.init()
        self.rank = bps.rank()
        self._optimizer = bps.DistributedOptimizer(
            self._optimizer, named_parameters=self._model.named_parameters(), arena=work["arena"]
        )
        bps.broadcast_parameters(self._model.state_dict(), root_rank=0)

    def _join_ddp(self, work: Mapping[str, Any], folder: Path) -> None:
        import torch.distributed as dist

        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=self.rank, world_size=work["workers"])
        # As fast as it can be: gradients are views of its buckets, and no buffers are sent, as ours sends none.
        self._forward = nn.parallel.DistributedDataParallel(
            self._model, gradient_as_bucket_view=True, broadcast_buffers=False
        )

    def steps(self, order: phases.Order) -> dict[str, Any]:
        """Train for ``steps`` steps; reports ``seconds``, of all of them, and ``p50``, of one."""
        stamps = [time.perf_counter()]
        for _ in range(order["steps"]):
            inputs, labels = next(self._data)
            self._optimizer.zero_grad()
            loss: Any = nn.functional.cross_entropy(self._forward(inputs), labels)
            loss.backward()
            self._optimizer.step()
            stamps.append(time.perf_counter())
        return {"seconds": stamps[-1] - stamps[0], "p50": float(np.median(np.diff(stamps)))}

    def parameters(self, order: phases.Order) -> dict[str, Any]:
        """The SHA-256 over all parameters; worker 0 writes them to ``parameters.npy``, one behind the other."""
        flat = torch.cat([each.detach().flatten() for each in self._model.parameters()]).numpy()
        if self.rank == 0:
            np.save(self._folder / "parameters.npy", flat)
        return {"sha256": hashlib.sha256(flat.tobytes()).hexdigest(), "count": int(flat.size)}


def main() -> None:
    """Run as one worker."""
    folder, rank = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    if rank is not None:
        phases.die_with_parent()
    work = phases.read(folder / "work.json")
    trainer = Trainer(work, folder, rank)
    phases.follow(folder, trainer.rank, {"steps": trainer.steps, "parameters": trainer.parameters})
    if work["side"] == "ours":
        import byteps_py.torch as bps

        bps.shutdown()
    elif work["side"] == "ddp":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
