"""A process of MXNet's parameter server: scheduler, server, or a worker of push_pull, as DMLC_ROLE says.

Its word is the folder of the phases.  Runs on MXNet's own Python (MXNet 1.9.1, NumPy 1.23.5), without byteps_py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import exchange, phases


class MXNetExchange:
    """See :class:`benchmarks.exchange.Exchange`: a ``dist_sync`` store without an updater, which keeps sums."""

    def __init__(self, work: Mapping[str, Any]) -> None:
        import mxnet

        self._mxnet = mxnet
        self._store = mxnet.kv.create("dist_sync")
        self.rank = self._store.rank
        self._keys = [str(index) for index in range(work["tensors"])]
        self._tensors = [mxnet.nd.zeros((work["count"],), dtype=work["dtype"]) for _ in self._keys]
        self._store.init(self._keys, self._tensors)
        mxnet.nd.waitall()

    def barrier(self) -> None:
        self._store._barrier()

    def step(self, in_flight: int) -> None:
        exchange.windowed(len(self._keys), in_flight, self._start, lambda tensor: tensor.wait_to_read())

    def _start(self, index: int) -> Any:
        tensor = self._tensors[index]
        self._store.pushpull(self._keys[index], tensor, out=tensor, priority=-index)
        return tensor

    def fill(self, index: int, values: np.ndarray[Any, Any]) -> None:
        self._tensors[index][:] = values
        self._tensors[index].wait_to_read()

    def result(self, index: int) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self._tensors[index].asnumpy()
        return found

    def clear(self) -> None:
        for each in self._tensors:
            each[:] = 0
        self._mxnet.nd.waitall()

    def counters(self) -> Mapping[str, float]:
        return {}


if __name__ == "__main__":
    phases.die_with_parent()
    if os.environ["DMLC_ROLE"] == "worker":
        exchange.serve(Path(sys.argv[1]), MXNetExchange)
    else:
        import mxnet  # noqa: F401  importing it is being the scheduler or a server, until the workers have ended
