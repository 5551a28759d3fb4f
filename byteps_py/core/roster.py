"""Who has registered for a job that is not complete yet, and which rank each will have.

A *node* is one worker machine.  A worker process belongs to the node of its ``DMLC_WORKER_ID``; without one, to the
node of the processes that were launched together with it; without that, it is a node of its own or, where it says
that there are several processes on its machine, part of the node of its host.  A node is complete when as many
processes are there as each of them announced (``BYTEPS_LOCAL_SIZE``); the job is complete when ``DMLC_NUM_WORKER``
nodes and ``DMLC_NUM_SERVER`` servers are.

Ranks follow from what the processes are, never from the order in which they arrived, so that the next run of the same
job gives every process the same rank again: nodes with an id by that id, then the others by host and process id;
within a node by local rank; servers by host and address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from byteps_py.core.asynchrony import trains_otherwise
from byteps_py.core.places import NodeKey, Place, node_key
from byteps_py.core.seating import Seating, server_weights
from byteps_py.types import Participant, Role, ServerInfo
from byteps_py.wire.control import ProcessInfo, Register

__all__ = [
    "Member",
    "Node",
    "Problem",
    "Roster",
    "any_of",
    "is_same_process",
    "listed",
]

_SHOWN: Final = 8
"""Most names that a message lists before it says how many more there are."""


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
        return Place(_node_key(self), register.worker_id, register.local_rank, register.local_size, register.process)

    def describe(self) -> str:
        """For messages, before there are ranks: ``worker DMLC_WORKER_ID=1 (pid 4242 on host-a)``."""
        if self.register.role is Role.WORKER:
            return self.place.describe(self.register.num_worker)
        return f"{self.register.role} (pid {self.process.pid} on {self.process.host})"


@dataclass(frozen=True)
class Problem:
    """Why a process cannot be registered; ``for_all`` where the whole job is set up in contradiction to itself."""

    text: str
    for_all: bool = False


Node: TypeAlias = dict[int, Member]
"""The processes of one node by local rank."""


class Roster:
    """The processes registered so far. Not thread-safe.

    Args:
        num_worker, num_server: how many nodes and servers make the job complete.
        by_machine: servers get shares by where they are, else equal ones.
    """

    def __init__(self, num_worker: int, num_server: int, *, by_machine: bool = True) -> None:
        self._by_machine = by_machine
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
        if problem is None:
            self._members[member.peer] = member
            if member.register.role is Role.SERVER:
                self._servers[member.register.address] = member
            else:
                self._nodes.setdefault(_node_key(member), {})[member.register.local_rank] = member
        return problem

    def remove(self, peer: bytes) -> None:
        """Forget a member; its place is free again."""
        member = self._members.pop(peer)
        if member.register.role is Role.SERVER:
            del self._servers[member.register.address]
            return
        key = _node_key(member)
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
        nodes = sorted(self._nodes.values(), key=_node_order)
        workers = [(index, node[local_rank]) for index, node in enumerate(nodes) for local_rank in sorted(node)]
        servers = sorted(self._servers.values(), key=_server_order)
        senders = [(any_of(node).process.host_id, _senders(node)) for node in nodes]
        return Seating(
            tuple(_participant(rank, node, member) for rank, (node, member) in enumerate(workers)),
            tuple(_server_info(rank, member) for rank, member in enumerate(servers)),
            {member.peer: rank for rank, (_, member) in enumerate(workers)},
            {member.peer: rank for rank, member in enumerate(servers)},
            server_weights(senders, [each.process.host_id for each in servers])
            if self._by_machine and servers and senders
            else None,
            sum(count for _, count in senders),
            len({each.process.host_id for each in self}) > 1,
        )

    def _disagreement(self, member: Member) -> Problem | None:
        """Settings that must be equal everywhere, and are not."""
        register = member.register
        here = "at the scheduler"
        compared = [
            ("DMLC_NUM_WORKER", self.num_worker, here, register.num_worker),
            ("DMLC_NUM_SERVER", self.num_server, here, register.num_server),
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
        return None

    def _ways_apart(self, member: Member) -> Problem | None:
        """Settings of this process and of another one that want its contributions to go different ways.

        To be asked where there is a place for it: whoever claims that of another one is not on its machine.
        """
        register, who = member.register, member.describe()
        if register.role is Role.WORKER:
            other = any_of(self._nodes.get(_node_key(member), {0: member}))
            theirs = other.register
            if _node_sums(theirs) != _node_sums(register):
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
        if register.worker_id is not None and register.worker_id >= self.num_worker:
            given = f"DMLC_WORKER_ID={register.worker_id} of {who}"
            return f"{given} must be below DMLC_NUM_WORKER={self.num_worker}: machines are counted from 0"
        if register.local_rank >= register.local_size:
            size = register.local_size
            return f"BYTEPS_LOCAL_RANK={register.local_rank} of {who} must be below its BYTEPS_LOCAL_SIZE={size}"
        node = self._nodes.get(_node_key(member))
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


def is_same_process(one: ProcessInfo, other: ProcessInfo) -> bool:
    """Whether two descriptions are of one process; a start time of 0 is not known."""
    same_start = one.started == other.started or not one.started or not other.started
    return (one.host_id, one.pid) == (other.host_id, other.pid) and same_start


def _node_key(member: Member) -> NodeKey:
    register, process = member.register, member.process
    if register.worker_id is not None or register.launch_id:
        return node_key(register.worker_id, register.launch_id)
    if register.local_size == 1:
        return ("process", process.host_id, process.pid, register.incarnation)
    return ("host", process.host_id)


def _node_sums(register: Register) -> str:
    """When a worker sums with the others of its node, or for them: what ``BYTEPS_LOCAL_REDUCE`` comes to."""
    return "off" if register.transport == "tcp" else register.local_reduce


def _senders(node: Node) -> int:
    """How often a gradient leaves a worker machine."""
    sums = _node_sums(any_of(node).register) != "off" and len({each.process.host for each in node.values()}) == 1
    return 1 if sums else len(node)


def _together(one: Member, other: Member) -> str:
    """What makes two members of a node need the same value; on two hosts they may be two machines by mistake."""
    if one.process.host_id == other.process.host_id:
        return "which are on one machine: set the same value for both"
    return "which say to be of one machine: set the same value for both, or give every machine its DMLC_WORKER_ID"


def any_of(node: Node) -> Member:
    """A member that speaks for its node: a node is never empty, and the choice does not depend on arrival."""
    return node[min(node)]


def listed(names: Iterable[str], count: int) -> str:
    """The first few of ``count`` names, and how many more there are; no more of them are asked for."""
    more = count - _SHOWN
    return ", ".join(islice(names, _SHOWN)) + (f" and {more} more" if more > 0 else "")


def _node_order(node: Node) -> tuple[bool, int, str, str, int, int]:
    worker_id = any_of(node).register.worker_id
    first = min(
        (each.process.host, each.process.host_id, each.process.pid, each.register.incarnation) for each in node.values()
    )
    return (worker_id is None, worker_id or 0, *first)


def _server_order(member: Member) -> tuple[str, str, int, str]:
    """By host and address, the port as a number: 9999 comes before 10000."""
    address = member.register.address
    place, _, port = address.rpartition(":")
    return (member.process.host, place, int(port) if port.isdecimal() else 0, address)


def _participant(rank: int, node: int, member: Member) -> Participant:
    register, process = member.register, member.process
    return Participant(
        rank, node, register.local_rank, register.local_size, process.host, process.pid, register.incarnation
    )


def _server_info(rank: int, member: Member) -> ServerInfo:
    register, process = member.register, member.process
    return ServerInfo(rank, register.address, process.host, process.pid, register.incarnation)
