"""A worker of push_pull: torch.distributed over gloo.  Its words are the folder of the phases and its rank."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks import exchange, phases


class GlooExchange:
    """See :class:`benchmarks.exchange.Exchange`."""

    def __init__(self, work: Mapping[str, Any], folder: Path, rank: int) -> None:
        torch.set_num_threads(1)
        self.rank = rank
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=work["workers"])
        self._arrays = [np.empty(work["count"], work["dtype"]) for _ in range(work["tensors"])]
        self._tensors = [torch.from_numpy(each) for each in self._arrays]

    def barrier(self) -> None:
        dist.barrier()

    def step(self, in_flight: int) -> None:
        if in_flight == 1:
            for each in self._tensors:
                dist.all_reduce(each)
        else:
            exchange.windowed(len(self._tensors), in_flight, self._start, lambda handle: handle.wait())

    def _start(self, index: int) -> Any:
        return dist.all_reduce(self._tensors[index], async_op=True)

    def fill(self, index: int, values: np.ndarray[Any, Any]) -> None:
        self._arrays[index][:] = values

    def result(self, index: int) -> np.ndarray[Any, Any]:
        return self._arrays[index]

    def clear(self) -> None:
        for each in self._arrays:
            each.fill(0)

    def counters(self) -> Mapping[str, float]:
        return {}


def main() -> None:
    """Run as one worker."""
    phases.die_with_parent()
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    exchange.serve(folder, lambda work: GlooExchange(work, folder, rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
