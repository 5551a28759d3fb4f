"""Who has registered for a job that is not complete yet.

A *node* is one worker machine.  A worker process belongs to the node of its ``DMLC_WORKER_ID``; without one, to the
node of the processes that were launched together with it; without that, it is a node of its own or, where it says
that there are several processes on its machine, part of the node of its host.  A node is complete when as many
processes are there as each of them announced (``BYTEPS_LOCAL_SIZE``); the job is complete when ``DMLC_NUM_WORKER``
nodes and ``DMLC_NUM_SERVER`` servers are.  :mod:`byteps_py.core.ranks` gives each its rank.

In a later generation of a job (:mod:`byteps_py.core.generations`) the ids of machines and the local ranks are those
with which the processes were started: they tell them apart and order them, and may have gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from byteps_py.core.asynchrony import trains_otherwise
from byteps_py.core.places import (
    Member,
    Node,
    NodeKey,
    any_of,
    is_same_process,
    key_of,
    listed,
    node_sums,
)
from byteps_py.core.ranks import range_problem, seat
from byteps_py.core.seating import Seating
from byteps_py.types import Role
from byteps_py.wire.control import ProcessInfo

__all__ = [
    "Member",
    "Node",
    "Problem",
    "Roster",
    "any_of",
    "is_same_process",
    "listed",
]


@dataclass(frozen=True)
class Problem:
    """Why a process cannot be registered; ``for_all`` where the whole job is set up in contradiction to itself."""

    text: str
    for_all: bool = False


class Roster:
    """The processes registered so far. Not thread-safe.

    Args:
        num_worker, num_server: how many nodes and servers make the job complete.
        by_machine: servers get shares by where they are, else equal ones.
        asked_by: who has asked for these numbers, in a later generation; empty: the scheduler's own settings.

    Attributes:
        num_worker, num_server: as given.
        is_later: whether this is a later generation.
    """

    def __init__(self, num_worker: int, num_server: int, *, by_machine: bool = True, asked_by: str = "") -> None:
        self._by_machine = by_machine
        self._where = f"on {asked_by}" if asked_by else "at the scheduler"
        self.is_later = bool(asked_by)
        self.num_worker = num_worker
        self.num_server = num_server
        self._members: dict[bytes, Member] = {}
        self._nodes: dict[NodeKey, Node] = {}
        self._servers: dict[str, Member] = {}  # by address

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, peer: bytes) -> Member | None:
        """The member that ``peer`` is."""
        return self._members.get(peer)

    def find(self, process: ProcessInfo) -> Member | None:
        """The member that runs in ``process``."""
        return next((member for member in self if is_same_process(member.process, process)), None)

    def find_child(self, launch_id: str, local_rank: int) -> Member | None:
        """The worker that registered from this place of a launch, in whichever process."""
        if not launch_id:
            return None
        wanted = (Role.WORKER, launch_id, local_rank)
        for member in self:
            if (member.register.role, member.register.launch_id, member.register.local_rank) == wanted:
                return member
        return None

    def is_taken(self, node: NodeKey, local_rank: int) -> bool:
        """Whether a worker has registered there."""
        return local_rank in self._nodes.get(node, ())

    @property
    def nodes(self) -> Mapping[NodeKey, Node]:
        """The worker processes by node and local rank."""
        return self._nodes

    @property
    def has_workers(self) -> bool:
        """Whether a worker has registered."""
        return bool(self._nodes)

    @property
    def servers(self) -> int:
        """How many servers have registered."""
        return len(self._servers)

    def add(self, member: Member) -> Problem | None:
        """Register ``member``, or tell why it cannot be; a problem leaves the roster as it was."""
        problem = self._disagreement(member) or self._objection(member) or self._ways_apart(member)
        if problem is not None:
            return problem
        self._members[member.peer] = member
        if member.register.role is Role.SERVER:
            self._servers[member.register.address] = member
        else:
            self._nodes.setdefault(key_of(member), {})[member.register.local_rank] = member
        beyond = range_problem(self._nodes.values()) if self.is_complete else None
        if beyond is None:
            return None
        self.remove(member.peer)
        return Problem(beyond, for_all=True)

    def remove(self, peer: bytes) -> None:
        """Forget a member; its place is free again."""
        member = self._members.pop(peer)
        if member.register.role is Role.SERVER:
            del self._servers[member.register.address]
            return
        key = key_of(member)
        del self._nodes[key][member.register.local_rank]
        if not self._nodes[key]:
            del self._nodes[key]

    @property
    def partition_bytes(self) -> int | None:
        """What all workers agreed on; None: it is to be chosen."""
        return max((member.register.partition_bytes for member in self), default=0) or None

    @property
    def is_complete(self) -> bool:
        """Whether everyone is here."""
        return self.complete_nodes == self.num_worker and len(self._servers) == self.num_server

    @property
    def complete_nodes(self) -> int:
        """How many nodes have all their processes."""
        return sum(len(node) == any_of(node).register.local_size for node in self._nodes.values())

    def seating(self) -> Seating:
        """Ranks for everyone; the roster must be complete."""
        return seat(self._nodes.values(), self._servers.values(), by_machine=self._by_machine)

    def _disagreement(self, member: Member) -> Problem | None:
        """Settings that must be equal everywhere, and are not."""
        register = member.register
        compared = [
            ("DMLC_NUM_WORKER", self.num_worker, self._where, register.num_worker),
            ("DMLC_NUM_SERVER", self.num_server, self._where, register.num_server),
        ]
        other = next(iter(self), None)  # all who are here agree
        apart = None if other is None else trains_otherwise(other.register, register)
        if other is not None and apart is not None:
            text = f"{apart[0]} is {apart[1]} on {other.describe()} and {apart[2]} on {member.describe()}"
            return Problem(f"{text}: set the same value on servers and workers", for_all=True)
        worker = next((any_of(node) for node in self._nodes.values()), None)
        if worker is not None and register.role is Role.WORKER:
            where = f"on {worker.describe()}"
            compared.append(
                ("BYTEPS_PARTITION_BYTES", worker.register.partition_bytes, where, register.partition_bytes)
            )
        for name, ours, where, theirs in compared:
            if ours != theirs:
                both = f"{ours or 'not set'} {where} and {theirs or 'not set'} on {member.describe()}"
                text = f"{name} is {both}: set the same value everywhere"
                return Problem(text, for_all=True)
        wish = register.global_rank
        rival = next((each for each in self if wish is not None and each.register.global_rank == wish), None)
        if rival is None:
            return None
        text = f"global_rank={wish} (BYTEPS_GLOBAL_RANK, or the argument of resume()) is wished for by both"
        return Problem(f"{text} {rival.describe()} and {member.describe()}: give each its own", for_all=True)

    def _ways_apart(self, member: Member) -> Problem | None:
        """Settings of this process and of another one that want its contributions to go different ways.

        To be asked where there is a place for it: whoever claims that of another one is not on its machine.
        """
        register, who = member.register, member.describe()
        if register.role is Role.WORKER:
            other = any_of(self._nodes.get(key_of(member), {0: member}))
            theirs = other.register
            if node_sums(theirs) != node_sums(register):
                name, one, two = "BYTEPS_LOCAL_REDUCE", theirs.local_reduce, register.local_reduce
                if one == two:
                    name, one, two = "BYTEPS_TRANSPORT", theirs.transport, register.transport
                return Problem(
                    f"{name} is {one!r} on {other.describe()} and {two!r} on {who}, {_together(other, member)}",
                    for_all=True,
                )
        wanted = {(Role.WORKER, "shm"): (Role.SERVER, "tcp"), (Role.SERVER, "tcp"): (Role.WORKER, "shm")}
        contrary = wanted.get((register.role, register.transport))
        for each in self:
            if contrary == (each.register.role, each.register.transport):
                return Problem(
                    f"BYTEPS_TRANSPORT is {each.register.transport!r} on {each.describe()} and "
                    f"{register.transport!r} on {who}: set the same value on servers and workers, or auto",
                    for_all=True,
                )
        return None

    def _objection(self, member: Member) -> Problem | None:
        """Why there is no place for this one process."""
        if member.register.role is Role.WORKER:
            text = self._worker_objection(member)
        elif member.register.role is Role.SERVER:
            text = self._server_objection(member)
        else:
            text = f"{member.describe()} cannot join: the job has its scheduler, which is this one"
        return None if text is None else Problem(text)

    def _worker_objection(self, member: Member) -> str | None:
        register = member.register
        who = member.describe()
        if register.worker_id is not None and register.worker_id >= self.num_worker and not self.is_later:
            given = f"DMLC_WORKER_ID={register.worker_id} of {who}"
            return f"{given} must be below DMLC_NUM_WORKER={self.num_worker}: machines are counted from 0"
        if register.local_rank >= register.local_size and not self.is_later:
            size = register.local_size
            return f"BYTEPS_LOCAL_RANK={register.local_rank} of {who} must be below its BYTEPS_LOCAL_SIZE={size}"
        node = self._nodes.get(key_of(member))
        if node is None:
            if len(self._nodes) < self.num_worker:
                return None
            others = listed((any_of(each).describe() for each in self._nodes.values()), len(self._nodes))
            return f"{who} is one too many for DMLC_NUM_WORKER={self.num_worker}: there are {others}"
        holder = node.get(register.local_rank)
        if holder is not None:
            return (
                f"{who} claims the place of {holder.describe()}, which is registered already: "
                "give every machine a DMLC_WORKER_ID and every process on it a BYTEPS_LOCAL_RANK of its own"
            )
        other = any_of(node)
        if other.register.local_size != register.local_size:
            return (
                f"BYTEPS_LOCAL_SIZE is {other.register.local_size} on {other.describe()} and {register.local_size} "
                f"on {who}, {_together(other, member)}"
            )
        if len(node) >= register.local_size:
            others = listed((each.describe() for each in node.values()), len(node))
            return f"{who} is one too many for its machine, of which there are {others}"
        return None

    def _server_objection(self, member: Member) -> str | None:
        who = member.describe()
        address = member.register.address
        if not address:
            return f"{who} announces no address to be reached at"
        holder = self._servers.get(address)
        if holder is not None:
            return f"{who} announces {address}, the address of {holder.describe()}: set another DMLC_PORT"
        if len(self._servers) >= self.num_server:
            others = listed((each.describe() for each in self._servers.values()), len(self._servers))
            return f"{who} is one too many for DMLC_NUM_SERVER={self.num_server}: there are {others}"
        return None


def _together(one: Member, other: Member) -> str:
    """What makes two members of a node need the same value; on two hosts they may be two machines by mistake."""
    if one.process.host_id == other.process.host_id:
        return "which are on one machine: set the same value for both"
    return "which say to be of one machine: set the same value for both, or give every machine its DMLC_WORKER_ID"
