"""What a worker has to do with the other workers of its node, where they sum for one another.

It pushes to their reducers, and is one itself; and it owes them something when it leaves.  A contribution that a
reducer has accepted is not yet at the server, which would reject its round once this worker has left; and the reducer
of this process must have answered everybody.  So a worker that leaves waits until

* the servers have all of its contributions, which it asks the reducers about;
* the rounds of its own reducer that have its contribution are over, those without it being rejected, and the others
  have taken the answers.

Not thread-safe: the caller holds the worker's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from byteps_py.core.window import Window
from byteps_py.errors import ParticipantLeft
from byteps_py.kernels import Kernels
from byteps_py.roles.copy_out import CopyOut
from byteps_py.roles.engine import Engine
from byteps_py.roles.envelope import Envelope
from byteps_py.roles.neighbours import Neighbours
from byteps_py.roles.reducer import Reducer
from byteps_py.roles.tensors import Tensor
from byteps_py.roles.upstream import Upstream
from byteps_py.telemetry.stages import WorkerTimes
from byteps_py.transport.base import Buffer, Endpoint
from byteps_py.types import TensorSpec
from byteps_py.wire.control import Placement, Welcome
from byteps_py.wire.header import RANK_ENTRY, Flag, Header, Opcode, encode

__all__ = ["Node", "make_node", "node_engine"]

_ASK_SECONDS: Final = 0.1


class Node:
    """The node as one of its workers sees it.

    Args:
        neighbours: who is in it.
        reducer: of this process.
        envelope: of this process.
        send: sends frames to the peer at a place: a server, or a reducer.

    Attributes:
        reducer: as given.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        reducer: Reducer,
        envelope: Envelope,
        send: Callable[[int, list[Buffer], float], None],
    ) -> None:
        self.reducer = reducer
        self._neighbours = neighbours
        self._envelope = envelope
        self._send = send
        self._servers: dict[int, int] = {}
        self._held: dict[int, tuple[int, int]] = {}
        self._gone: dict[int, int] = {}
        self._ask_due = 0.0
        self._leaves = False

    def route(self, placement: Placement, spec: TensorSpec) -> Placement:
        """See :meth:`byteps_py.roles.neighbours.Neighbours.route`; a tensor was placed. That of a group of workers goes
        to its servers directly, since not all of the node are in the group."""
        if spec.group:
            return placement
        routed = self._neighbours.route(placement, spec.nbytes)
        for partition, way in zip(placement.partitions, routed.partitions, strict=True):
            if way.server != partition.server:
                self._servers[partition.key] = partition.server
        self.reducer.place(placement, routed)
        return routed

    def pushed(self, key: int, round_: int, place: int) -> None:
        """A contribution was sent to the peer at a place."""
        if key in self._servers:
            self._held[key] = round_, place

    def over(self, key: int) -> None:
        """Nobody waits for a contribution any more."""
        self._held.pop(key, None)

    def waits(self, now: float, header: Header, missing: Iterable[int]) -> None:
        """A peer has accepted a contribution and waits for others: if these are of the node, the server should know."""
        server = self._servers.get(header.key)
        if server is None:
            return
        if header.flags & Flag.PARTIAL:
            self._held.pop(header.key, None)
            return
        payload = b"".join([RANK_ENTRY.pack(rank) for rank in sorted(missing)])
        if payload:
            count = len(payload) // RANK_ENTRY.size
            told = self._envelope.header(Opcode.WAITING, header.key, header.round, detail=count, length=len(payload))
            self._send(server, [encode(told), payload], now)

    def left(self, now: float, rank: int) -> int | None:
        """A worker has left in order; returns its place among the peers, None if it is of another node."""
        self.reducer.left(now, rank)
        for index, member in enumerate(self._neighbours.members):
            if member.rank == rank:
                place = self._neighbours.num_servers + index
                self._gone[place] = rank
                return place
        return None

    def departure(self, tensor: Tensor) -> ParticipantLeft | None:
        """What operations on ``tensor`` end with if somebody has left who sums a part of it; else None."""
        if not self._gone or tensor.placement is None:
            return None
        for each in tensor.placement.partitions:
            rank = self._gone.get(each.server)
            if rank is not None:
                name = tensor.spec.name
                return ParticipantLeft(
                    f"tensor {name!r}: worker {rank}, which summed a part of it for this machine, left the job"
                )
        return None

    def owed(self, now: float) -> str:
        """What keeps this process, which is leaving and whose contributions are all accepted; empty if nothing."""
        if not self._leaves:
            self._leaves = True
            self.reducer.leave(now)
        if self._held:
            if now >= self._ask_due:
                self._ask_due = now + _ASK_SECONDS
                for key, (round_, place) in list(self._held.items()):
                    self._send(place, [encode(self._envelope.header(Opcode.PULL, key, round_))], now)
            return f"{len(self._held)} partitions wait for other workers of this machine before they are sent"
        return "other workers of this machine wait for sums of this one" if self.reducer.serves() else ""


def make_node(
    endpoint: Endpoint,
    neighbours: Neighbours,
    welcome: Welcome,
    envelope: Envelope,
    engine: Engine,
    copy_out: CopyOut,
    send: Callable[[int, list[Buffer], float], None],
    window: Window,
    times: WorkerTimes | None,
) -> Node:
    """A node with the reducer of this process; the arguments are those of the classes."""
    heard = None if times is None else times.node
    upstream = Upstream(envelope, send, welcome, window, None if heard is None else heard.upstream)
    held = None if heard is None else heard.held
    reducer = Reducer(endpoint, neighbours, welcome, envelope, engine, copy_out, upstream, held)
    return Node(neighbours, reducer, envelope, send)


def node_engine(kernels: Kernels, team: int, wake: Callable[[], None], times: WorkerTimes | None) -> Engine:
    """What sums for the node; ``times`` is that of the worker."""
    if times is None or times.node is None:
        return Engine(kernels, 1, team, wake)
    return Engine(kernels, 1, team, wake, timed=True, make_times=times.node.sums)
