"""A worker of the network benchmark: byteps_py or gloo.  Its words are a JSON object, see :class:`Work`.

Every step is checked: the values are whole numbers that differ by step, worker and tensor, so the sum is exact, and a
result of the step before does not pass.  Between steps the workers meet, so that a step begins for all at the same
time; what is written are the times at which each step began and ended here, by the clock that all hosts of one machine
share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_CHUNK = 1 << 16
"""Elements that are compared at a time."""


@dataclass(frozen=True)
class Work:
    """What one worker does.

    Attributes:
        kind: ``ours`` or ``gloo``.
        sizes: elements (float32) of each tensor.
        steps: how many push_pulls of all tensors.
        output: where the times go; ``-RANK.json`` is added.
        rank, workers, meeting: of gloo's processes, and where they meet; ours have the DMLC variables.
    """

    kind: str
    sizes: tuple[int, ...]
    steps: int
    output: str
    rank: int = 0
    workers: int = 0
    meeting: str = ""


class Values:
    """What workers push: whole numbers whose sums float32 has exactly. Nothing large is allocated after the first step.

    Args:
        sizes: elements of each tensor.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._base = np.arange(max(sizes), dtype=np.float32) % 1009
        self._room = np.empty(_CHUNK, np.float32)

    def fill(self, array: npt.NDArray[np.float32], rank: int, step: int, index: int) -> None:
        """Write what one worker pushes in one step."""
        np.add(self._base[: len(array)], np.float32(_first(rank, step, index)), out=array)

    def is_sum(self, array: npt.NDArray[np.float32], workers: int, step: int, index: int) -> bool:
        """Whether an array is the sum over all workers."""
        added = np.float32(sum(_first(rank, step, index) for rank in range(workers)))
        for begin in range(0, len(array), _CHUNK):
            part = array[begin : begin + _CHUNK]
            expected = self._room[: len(part)]
            np.multiply(self._base[begin : begin + len(part)], np.float32(workers), out=expected)
            expected += added
            if not np.array_equal(part, expected):
                return False
        return True


def _first(rank: int, step: int, index: int) -> int:
    return (7 * rank + 3 * step + index) % 101


def run(work: Work, rank: int, workers: int, meet: Callable[[], None], exchange: Callable[[Any], None]) -> None:
    """All steps.

    Args:
        work: what to do.
        rank: of this worker.
        workers: how many there are.
        meet: returns when all workers have called it.
        exchange: sums arrays over all workers, in place.
    """
    arrays = [np.empty(size, np.float32) for size in work.sizes]
    values = Values(work.sizes)
    times: list[tuple[float, float]] = []
    is_right = True
    for step in range(work.steps):
        for index, each in enumerate(arrays):
            values.fill(each, rank, step, index)
        meet()
        begin = time.monotonic()
        exchange(arrays)
        times.append((begin, time.monotonic()))
        is_right &= all(values.is_sum(each, workers, step, index) for index, each in enumerate(arrays))
    found = {"times": times, "verified": is_right}
    Path(f"{work.output}-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def ours(work: Work) -> None:
    """A worker of byteps_py."""
    import byteps_py as bps

    bps.init()

    def exchange(arrays: Sequence[npt.NDArray[np.float32]]) -> None:
        handles = [
            bps.push_pull_async(each, f"tensor-{index}", bps.SUM, priority=-index, out=each)
            for index, each in enumerate(arrays)
        ]
        for each in handles:
            bps.synchronize(each)

    run(work, bps.rank(), bps.size(), bps.barrier, exchange)
    bps.shutdown()


def gloo(work: Work) -> None:
    """A worker of torch.distributed; all tensors are one buffer, which is what suits it best."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=work.meeting, rank=work.rank, world_size=work.workers)
    buffer = np.empty(sum(work.sizes), np.float32)
    tensor = torch.from_numpy(buffer)
    ends = np.cumsum(work.sizes)

    def exchange(arrays: Sequence[npt.NDArray[np.float32]]) -> None:
        for each, end in zip(arrays, ends, strict=True):
            buffer[end - len(each) : end] = each
        dist.all_reduce(tensor)
        for each, end in zip(arrays, ends, strict=True):
            each[:] = buffer[end - len(each) : end]

    run(work, work.rank, work.workers, dist.barrier, exchange)
    dist.destroy_process_group()


if __name__ == "__main__":
    given = Work(**json.loads(sys.argv[1]))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    {"ours": ours, "gloo": gloo}[given.kind](given)
