"""Registered processes, and where they belong: which machine, and which place on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from byteps_py.types import Role
from byteps_py.wire.control import ProcessInfo, Register

__all__ = [
    "Member",
    "Node",
    "NodeKey",
    "Place",
    "any_of",
    "is_same_process",
    "key_of",
    "listed",
    "node_key",
    "node_sums",
]

_SHOWN: Final = 8
"""Most names that a message lists before it says how many more there are."""

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


@dataclass(frozen=True)
class Member:
    """One registered process; ``peer`` is its name at the transport."""

    peer: bytes
    register: Register

    @property
    def process(self) -> ProcessInfo:
        """Which process it is."""
        return self.register.process

    @property
    def place(self) -> Place:
        """Where a worker belongs."""
        register = self.register
        return Place(key_of(self), register.worker_id, register.local_rank, register.local_size, register.process)

    def describe(self) -> str:
        """For messages, before there are ranks: ``worker DMLC_WORKER_ID=1 (pid 4242 on host-a)``."""
        if self.register.role is Role.WORKER:
            return self.place.describe(self.register.num_worker)
        return f"{self.register.role} (pid {self.process.pid} on {self.process.host})"


Node: TypeAlias = dict[int, Member]
"""The processes of one node by local rank."""


def is_same_process(one: ProcessInfo, other: ProcessInfo) -> bool:
    """Whether two descriptions are of one process; a start time of 0 is not known."""
    same_start = one.started == other.started or not one.started or not other.started
    return (one.host_id, one.pid) == (other.host_id, other.pid) and same_start


def node_key(worker_id: int | None, launch_id: str) -> NodeKey:
    """The node of a process that has one of the two."""
    return ("launch", launch_id) if worker_id is None else ("id", worker_id)


def key_of(member: Member) -> NodeKey:
    """The node of a worker."""
    register, process = member.register, member.process
    if register.worker_id is not None or register.launch_id:
        return node_key(register.worker_id, register.launch_id)
    if register.local_size == 1:
        return ("process", process.host_id, process.pid, register.incarnation)
    return ("host", process.host_id)


def node_sums(register: Register) -> str:
    """When a worker sums with the others of its node, or for them: what ``BYTEPS_LOCAL_REDUCE`` comes to."""
    return "off" if register.transport == "tcp" else register.local_reduce


def any_of(node: Node) -> Member:
    """A member that speaks for its node: a node is never empty, and the choice does not depend on arrival."""
    return node[min(node)]


def listed(names: Iterable[str], count: int) -> str:
    """The first few of ``count`` names, and how many more there are; no more of them are asked for."""
    more = count - _SHOWN
    return ", ".join(islice(names, _SHOWN)) + (f" and {more} more" if more > 0 else "")
