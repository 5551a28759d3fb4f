"""The worker of a job that has only one: everything works, nothing travels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_py.roles.asynchrony import Asynchrony
from byteps_py.roles.pending import Pending
from byteps_py.roles.rows import Rows
from byteps_py.roles.tensors import check_spec, check_unchanged, new_array
from byteps_py.telemetry.metrics import SpeedRecord
from byteps_py.telemetry.stages import Stages, worker_stages
from byteps_py.transport.base import plain_memory
from byteps_py.types import Operation, TensorSpec

__all__ = ["LocalWorker"]


class LocalWorker:
    """Has the methods of :class:`byteps_py.roles.worker.Worker`; results are there at once. Any thread."""

    def __init__(self) -> None:
        self.speed = SpeedRecord(time.monotonic())
        self.asynchrony = Asynchrony()
        self._specs: dict[str, TensorSpec] = {}

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """Remember the tensors.

        Raises:
            AgreementError: a name was declared with another dtype or shape before.
        """
        for each in specs:
            if each.name not in self._specs:
                check_spec(each)
            check_unchanged(self._specs.setdefault(each.name, each), each)

    def form_group(self, ranks: tuple[int, ...]) -> int:
        """There is one group, of this worker."""
        del ranks
        return 0

    def submit(
        self,
        spec: TensorSpec,
        source: npt.NDArray[Any] | Rows | None,
        output: npt.NDArray[Any] | None,
        operation: Operation,
        *,
        root: int = 0,
        priority: int = 0,
        step: int = 0,
    ) -> Pending:
        """The sum, the average and the broadcast of one contribution are the contribution."""
        del operation, root, priority, step
        self.declare([spec])
        pending = Pending(spec, output)
        if isinstance(source, Rows):
            pending.rows = source
        elif source is None:
            pending.output.fill(0)
        elif pending.output is not source:
            pending.output.reshape(-1)[:] = source.reshape(-1)
        self.speed.add(time.monotonic(), int(time.time() * 1000), spec.nbytes)
        pending.complete(source is None)
        return pending

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array of any content; pushes of it need no copy where the job has shared memory.

        Raises:
            TransportError: there is no memory left.
        """
        return new_array(plain_memory, shape, dtype)

    def messages(self) -> tuple[int, int]:
        """None travel."""
        return 0, 0

    def ways(self) -> dict[str, int]:
        """There are no servers."""
        return {"shm": 0, "tcp": 0}

    def barrier(self) -> None:
        """Everybody is here."""

    def stages(self) -> Stages:
        """Nothing is on its way at any time."""
        return worker_stages(None)

    def suspend(self) -> None:
        """Nothing is on its way, and there is nobody to wait for."""

    def close(self, failure: str = "") -> None:
        """Nothing to leave."""
