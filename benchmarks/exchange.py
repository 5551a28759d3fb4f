"""What the workers of push_pull do, whatever system sums for them: timed steps, and steps that are checked.

Needs NumPy only, since another system's workers may run on another Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from benchmarks import phases

Handle = TypeVar("Handle")
_LARGEST = {"float16": 64}
"""Of the random integers; for other dtypes :data:`_LARGE`. Sums of some workers are exact, in whatever order."""
_LARGE = 1 << 19


class Exchange(Protocol):
    """A system that sums tensors over workers, as seen by one of them. Tensors are flat and keep their place."""

    rank: int

    def barrier(self) -> None:
        """Wait for all workers."""

    def step(self, in_flight: int) -> None:
        """Sum every tensor over the workers, in place, ``in_flight`` of them at a time (0: all)."""

    def fill(self, index: int, values: np.ndarray[Any, Any]) -> None:
        """Put values into a tensor."""

    def result(self, index: int) -> np.ndarray[Any, Any]:
        """What the last step has made of a tensor."""

    def clear(self) -> None:
        """Put zeros into all tensors."""

    def counters(self) -> Mapping[str, float]:
        """What the system has counted on this worker so far: ``messages``, data messages sent and received, if it does,
        and seconds by the name of a stage."""


def windowed(count: int, in_flight: int, start: Callable[[int], Handle], finish: Callable[[Handle], object]) -> None:
    """Start an operation for each index below ``count``, and finish them in order, ``in_flight`` open at a time."""
    opened: list[Handle] = []
    width = in_flight or count
    for index in range(count):
        if index >= width:
            finish(opened[index - width])
        opened.append(start(index))
    for handle in opened[max(0, count - width) :]:
        finish(handle)


def random_values(seed: int, rank: int, index: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    """The data of one worker's tensor, which every worker can compute: integers, so that sums are exact."""
    largest = _LARGEST.get(dtype, _LARGE)
    return np.random.default_rng([seed, rank, index]).integers(-largest, largest, count).astype(dtype)


def serve(folder: Path, make: Callable[[Mapping[str, Any]], Exchange]) -> None:
    """Take part in the phases as the worker that ``make`` makes of the content of ``work.json``.

    ``run``: ``steps`` steps with ``in_flight``.  Tensors are summed in place, so they hold zeros: anything else would
    outgrow its type within a few hundred steps.  The time of a step does not depend on values.  Reports ``seconds``,
    ``p50`` and ``p99`` of the seconds of a step, and ``counted``.

    ``verify``: one step on fresh random data; reports the indices of tensors that
    differ from the exact sum in ``wrong``, and in ``compared`` how many were looked at.
    """
    work = phases.read(folder / "work.json")
    exchange = make(work)

    def run(order: phases.Order) -> dict[str, Any]:
        exchange.clear()
        exchange.barrier()
        before = exchange.counters()
        stamps = [time.perf_counter()]
        for _ in range(order["steps"]):
            exchange.step(order["in_flight"])
            stamps.append(time.perf_counter())
        after = exchange.counters()
        p50, p99 = np.percentile(np.diff(stamps), (50, 99))
        counted = {name: value - before.get(name, 0) for name, value in after.items()}
        return {"seconds": stamps[-1] - stamps[0], "p50": float(p50), "p99": float(p99), "counted": counted}

    def verify(order: phases.Order) -> dict[str, Any]:
        shape = work["count"], work["dtype"]
        for index in range(work["tensors"]):
            exchange.fill(index, random_values(order["seed"], exchange.rank, index, *shape))
        exchange.step(order["in_flight"])
        wrong, compared = [], 0
        for index in range(work["tensors"]):
            expected = sum(random_values(order["seed"], rank, index, *shape) for rank in range(work["workers"]))
            if not np.array_equal(exchange.result(index), expected):
                wrong.append(index)
            compared += 1
        return {"wrong": wrong, "compared": compared}

    phases.follow(folder, exchange.rank, {"run": run, "verify": verify})
