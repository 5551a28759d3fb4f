"""A worker of push_pull: byteps_py.  Started by bpslaunch; its word is the folder of the phases."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import byteps_py as bps
from benchmarks import exchange


class BytePSExchange:
    """See :class:`benchmarks.exchange.Exchange`.

    A sum over a single worker is what it has pushed, so a check in place would find nothing wrong where nothing was
    done: with one worker checked results go to arrays of their own.
    """

    def __init__(self, work: Mapping[str, Any]) -> None:
        bps.init()
        self.rank = bps.rank()
        make = _arena_maker() if work["arena"] else np.empty
        self._tensors = [make((work["count"],), np.dtype(work["dtype"])) for _ in range(work["tensors"])]
        self._results = list(self._tensors)
        self._names = [f"tensor-{index}" for index in range(len(self._tensors))]

    def barrier(self) -> None:
        bps.barrier()

    def step(self, in_flight: int) -> None:
        exchange.windowed(len(self._tensors), in_flight, self._start, bps.synchronize)

    def _start(self, index: int) -> int:
        return bps.push_pull_async(
            self._tensors[index], self._names[index], bps.SUM, priority=-index, out=self._results[index]
        )

    def fill(self, index: int, values: np.ndarray[Any, Any]) -> None:
        self._tensors[index][:] = values
        if bps.size() == 1:
            self._results[index] = np.full_like(values, 77)

    def result(self, index: int) -> np.ndarray[Any, Any]:
        return self._results[index]

    def clear(self) -> None:
        self._results = list(self._tensors)
        for each in self._tensors:
            each.fill(0)

    def counters(self) -> Mapping[str, float]:
        found = bps.stats()
        counted = {name: float(each["seconds"]) for name, each in found["stages"].items()}
        if "messages" in found:
            counted["messages"] = found["messages"]["sent"] + found["messages"]["received"]
        return counted


def _arena_maker() -> Any:
    """``bps.empty``, which makes arrays that servers of this host read where they lie."""
    maker = getattr(bps, "empty", None)
    if maker is None:
        sys.exit(f"byteps_py {bps.__version__} has no empty(), which --arena yes needs; use --arena no")
    return maker


if __name__ == "__main__":
    exchange.serve(Path(sys.argv[1]), BytePSExchange)
    bps.shutdown()
