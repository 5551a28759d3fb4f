"""Where a worker process belongs: which node it is of, and which place it has there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from byteps_py.wire.control import ProcessInfo

__all__ = ["NodeKey", "Place", "node_key"]

NodeKey: TypeAlias = tuple[str | int, ...]
"""What makes a node; see above."""


@dataclass(frozen=True)
class Place:
    """Where a worker process belongs, whether it has registered or not."""

    node: NodeKey
    worker_id: int | None
    local_rank: int
    local_size: int
    process: ProcessInfo

    def name(self, num_worker: int) -> str:
        """For messages, before there are ranks: ``worker DMLC_WORKER_ID=1``.

        On the only machine of a job, the local rank is the rank: ``worker 1``.
        """
        if num_worker == 1:
            return f"worker {self.local_rank}"
        words = ["worker"]
        if self.worker_id is not None:
            words.append(f"DMLC_WORKER_ID={self.worker_id}")
        if self.local_size > 1:
            words.append(f"BYTEPS_LOCAL_RANK={self.local_rank}")
        return " ".join(words)

    def describe(self, num_worker: int) -> str:
        """The same with the process: ``worker DMLC_WORKER_ID=1 (pid 4242 on host-a)``."""
        return f"{self.name(num_worker)} (pid {self.process.pid} on {self.process.host})"


def node_key(worker_id: int | None, launch_id: str) -> NodeKey:
    """The node of a process that has one of the two."""
    return ("launch", launch_id) if worker_id is None else ("id", worker_id)
