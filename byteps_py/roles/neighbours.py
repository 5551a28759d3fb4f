"""Which partitions the workers of a node sum among themselves before the servers get them, and who does it.

For servers across a network one contribution of the node is sent instead of one of each worker process.  The work is
shared out by partition: the *reducer* of a partition is one of the node's workers, to whom the others push as to a
server, through shared memory; see :mod:`byteps_py.roles.reducer`.  Everything here follows from what all workers of the
node know alike, so that all of them decide alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from byteps_py.errors import SettingsError, TransportError
from byteps_py.roles.member import server_identity, worker_identity
from byteps_py.settings import WorkerSettings
from byteps_py.transport.base import Endpoint, LaneError
from byteps_py.types import Participant, split_key
from byteps_py.wire.bundle import LIGHT_BYTES
from byteps_py.wire.control import Placement, Welcome

__all__ = ["Neighbours", "Peer", "connect", "find_neighbours", "may_have_neighbours", "ways_of"]


@dataclass(frozen=True)
class Peer:
    """One to whom contributions are pushed: a server, or a reducer of this node.

    Attributes:
        name: as the endpoint knows it.
        rank, incarnation: of the process, within its role.
        text: for messages.
        is_server: False for a reducer.
    """

    name: bytes
    rank: int
    incarnation: int
    text: str
    is_server: bool = True


@dataclass(frozen=True)
class Neighbours:
    """The workers of a node that sum for one another.

    Attributes:
        members: by rank, this process among them.
        servers: ranks of the servers whose partitions are summed in the node.
        num_servers: how many there are.
    """

    members: tuple[Participant, ...]
    servers: frozenset[int]
    num_servers: int

    def owner(self, key: int) -> int:
        """Place among the members of the one that is the reducer of a partition."""
        return sum(split_key(key)) % len(self.members)

    def route(self, placement: Placement, nbytes: int) -> Placement:
        """The placement of a tensor with the reducers in place of servers: reducer i counts as server
        ``num_servers + i``.  What may travel in a bundle goes to its server directly."""
        if len(placement.partitions) == 1 and nbytes < LIGHT_BYTES:
            return placement
        partitions = tuple(
            msgspec.structs.replace(each, server=self.num_servers + self.owner(each.key))
            if each.server in self.servers
            else each
            for each in placement.partitions
        )
        return msgspec.structs.replace(placement, partitions=partitions)


def may_have_neighbours(settings: WorkerSettings) -> bool:
    """Whether others of the node may push to this process, as far as is known before the job is complete."""
    if settings.is_asynchronous:  # nobody waits for a slower worker of the machine either
        return False
    return settings.local_size > 1 and settings.local_reduce != "off" and settings.transport != "tcp"


def find_neighbours(welcome: Welcome, settings: WorkerSettings) -> Neighbours | None:
    """The workers of this node, if they are to sum anything; else None."""
    me = welcome.participants[welcome.rank]
    members = tuple(each for each in welcome.participants if each.node == me.node)
    if len(members) == 1 or not may_have_neighbours(settings):
        return None
    if settings.local_reduce == "on":
        servers = frozenset(range(len(welcome.servers)))
    elif any(each.host != me.host for each in members):  # containers of one machine, which share no memory
        servers = frozenset()
    else:
        servers = frozenset(each.rank for each in welcome.servers if each.host != me.host)
    return Neighbours(members, servers, len(welcome.servers)) if servers else None


def connect(
    endpoint: Endpoint, welcome: Welcome, neighbours: Neighbours | None, connections: int = 1
) -> Sequence[Peer]:
    """Connect to all to whom contributions are pushed: the servers by rank, then the reducers.

    Args:
        endpoint: of this worker.
        welcome: who is in the job.
        neighbours: of this worker.
        connections: by TCP to each server.

    Raises:
        SettingsError: shared memory with a server is demanded and cannot be had.
        TransportError: a reducer cannot be reached, or the limit of open files is too low.
    """
    peers: list[Peer] = []
    for server in welcome.servers:
        name = b"server-%d" % server.rank
        try:
            endpoint.connect(name, server.address, server_identity(server.incarnation), connections)
        except LaneError as error:
            raise SettingsError(
                f"BYTEPS_TRANSPORT=shm, but there is no shared memory with {server.describe()} at {server.address}: "
                f"{error}; is that server on another host, in another container or network namespace, or started with "
                "BYTEPS_TRANSPORT=tcp? With BYTEPS_TRANSPORT=auto it is reached by TCP where there is no other way"
            ) from error
        peers.append(Peer(name, server.rank, server.incarnation, f"{server.describe()} at {server.address}"))
    for index, member in enumerate(() if neighbours is None else neighbours.members):
        name = b"reducer-%d" % index
        try:
            endpoint.connect_lane(name, worker_identity(member.incarnation))
        except TransportError as error:
            raise TransportError(
                f"{member.describe()} sums for this machine, but there is no shared memory with it: {error}; "
                "BYTEPS_LOCAL_REDUCE and BYTEPS_TRANSPORT must be equal in all processes of a machine, and "
                "BYTEPS_LOCAL_REDUCE=off does without"
            ) from error
        text = f"{member.describe()}, which sums for this machine"
        peers.append(Peer(name, member.rank, member.incarnation, text, is_server=False))
    return peers


def ways_of(endpoint: Endpoint, peers: Sequence[bytes], servers: int) -> tuple[dict[str, int], bool]:
    """How many servers are reached by shared memory (``shm``) and over TCP (``tcp``); and whether any peer is by the
    former.

    Args:
        endpoint: of this worker.
        peers: as it knows them: the servers, then the reducers.
        servers: how many of them are servers.
    """
    lanes = [endpoint.is_lane(each) for each in peers]
    shared = sum(lanes[:servers])
    return {"shm": shared, "tcp": servers - shared}, any(lanes)
