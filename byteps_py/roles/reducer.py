"""A worker sums for its node: what the others (and it itself) push to it goes to the server as one contribution.

To the workers of the node a reducer is a server: PUSH and PULL come in, ACCEPT, RESULT, MISSING, REJECT and WAITING go
out.  To the server it is a worker, whose contribution is flagged PARTIAL: it stands for all workers of the node.  So a
round passes two machines, :class:`~byteps_py.core.node_sums.NodeSums` and what is on its way upstream::

    the node's round   event                              action                                  then
    -----------------  ---------------------------------  --------------------------------------  -----------------
    collecting         the last contribution              summed into the own arena               summing
    summing            the sum is done                    pushed to the server as PARTIAL         on its way
    on its way         the server is WAITING for others   passed on to the node                   on its way
    on its way         the server lacks it (MISSING)      pushed again                            on its way
    on its way         RESULT                             copied into the own arena, answered     next round
    on its way         REJECT                             passed on to the node                   rejected

The sum and the result of a round share a buffer, of which each key has two, by the parity of the round: the server has
read the sum when it sends the result, and the node has read the result when it contributes to the next round.  Of rows,
whose number differs from round to round, each has memory of its own.

Not thread-safe: the caller holds the worker's lock, which is let go while a large result is copied.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from byteps_py.core.aggregation import Accept, Action, Reject, Reply, Sum
from byteps_py.core.node_sums import NodeSums
from byteps_py.errors import RemoteProtocolError
from byteps_py.roles.answers import Answers
from byteps_py.roles.copy_out import CopyOut
from byteps_py.roles.engine import Engine, Summed, result_bytes
from byteps_py.roles.envelope import Envelope, open_frames
from byteps_py.roles.lent import pushed
from byteps_py.roles.member import worker_identity
from byteps_py.roles.neighbours import Neighbours
from byteps_py.roles.results import Results
from byteps_py.roles.upstream import Passage, Upstream
from byteps_py.telemetry.stages import Held
from byteps_py.transport.base import Endpoint, Message
from byteps_py.types import DType
from byteps_py.wire.control import Placement, Welcome
from byteps_py.wire.header import RANK_ENTRY, Flag, Header, Opcode
from byteps_py.wire.rows import check_rows

__all__ = ["Reducer"]

_UNKNOWN_RANK: Final = -1
"""Of a worker that left, where a server speaks of it."""


class Reducer:
    """The part of the node's work that this worker does.

    Args:
        endpoint: carries the lanes of the node's workers.
        neighbours: they.
        welcome: who is in the job.
        envelope: of this worker.
        engine: sums; a finished sum is collected by :meth:`advance`.
        copy_out: copies results.
        upstream: to the servers.
        held: hears of contributions and replies; None: nobody asks.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        neighbours: Neighbours,
        welcome: Welcome,
        envelope: Envelope,
        engine: Engine,
        copy_out: CopyOut,
        upstream: Upstream,
        held: Held | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._neighbours = neighbours
        self._rank = welcome.rank
        self._envelope = envelope
        self._engine = engine
        self._copy_out = copy_out
        self._upstream = upstream
        self._members = {worker_identity(each.incarnation): each for each in neighbours.members}
        self._sums = NodeSums(welcome.participants, welcome.participants[welcome.rank].node)
        self._results = Results(endpoint)
        self._held = held
        self._answers = Answers(endpoint, envelope, welcome, held)
        self._contributors: dict[int, int] = {}
        self._widths: dict[int, int] = {}
        self._copying: set[int] = set()

    def knows(self, peer: bytes) -> bool:
        """Whether a message comes from a worker of the node who takes this one for a server."""
        return peer in self._members

    def owns(self, key: int) -> bool:
        """Whether the server speaks to this process of ``key`` for the node."""
        return self._upstream.has(key)

    def place(self, placement: Placement, routed: Placement) -> None:
        """A tensor was placed: the partitions that are summed here are those ``routed`` to this process."""
        own = self._neighbours.num_servers + [each.rank for each in self._neighbours.members].index(self._rank)
        for partition, way in zip(placement.partitions, routed.partitions, strict=True):
            if way.server == own:
                self._upstream.place(partition)

    def receive(self, now: float, message: Message) -> None:
        """Take a message of a worker of the node.

        Raises:
            RemoteProtocolError: it is none, or not from whom it says.
        """
        header, payload = open_frames(message.frames)
        self._envelope.check_run(header)
        member = self._members[message.peer]
        if (header.sender, header.incarnation) != (member.rank, member.incarnation):
            raise RemoteProtocolError(f"a message that claims to be from worker {header.sender} and is not")
        if header.opcode is Opcode.PUSH:
            if header.flags & Flag.PARTIAL:
                raise RemoteProtocolError("the sum of a node goes to its server")
            if header.operation.is_asynchronous:
                raise RemoteProtocolError(f"a {header.operation.name} goes to its server, by itself")
            if message.intact():
                actions = self._sums.push(pushed(header, payload, message))
                if self._held is not None and isinstance(actions[0], Accept):
                    size = len(self._members)
                    self._held.arrived(header.key, header.round, header.sender, now, size=size)
                self._perform(now, actions)
            else:
                self._pull(now, header)
        elif header.opcode is Opcode.PULL:
            self._pull(now, header)
        else:
            raise RemoteProtocolError(f"a worker must not send {header.opcode.name}")

    def answered(self, now: float, header: Header, payload: memoryview | None, message: Message) -> None:
        """Take what a server says of an own key, ACCEPT excepted.

        Raises:
            RemoteProtocolError: a result does not fit what was pushed, or a server does not send this.
        """
        key, round_ = header.key, header.round
        passage = self._upstream.find(key, round_)
        if passage is None:
            return
        if header.opcode is Opcode.RESULT:
            self._result(now, passage, header, payload, message)
        elif header.opcode is Opcode.MISSING:
            self._upstream.again(now, key, round_)
        elif header.opcode is Opcode.REJECT:
            self._upstream.failed(now, key, round_)
            reason = bytes(payload or b"").decode(errors="replace")
            self._perform(now, self._sums.refused(key, round_, reason, _UNKNOWN_RANK if header.detail else None))
        elif header.opcode is Opcode.WAITING:
            self._upstream.accepted(now, key, round_)
            passage.waits_for = tuple(rank for (rank,) in RANK_ENTRY.iter_unpack(payload or b""))
            for each in self._neighbours.members:
                self._answers.waiting(each.rank, key, round_, passage.waits_for, partial=True)
        else:
            raise RemoteProtocolError(f"a server must not send {header.opcode.name}")

    def accepted(self, now: float, key: int, round_: int) -> None:
        """A server has a sum."""
        self._upstream.accepted(now, key, round_)

    def advance(self, now: float) -> None:
        """Push the sums that are done, and send what has been accepted since the last call."""
        for done in self._engine.collect():
            self._summed(now, done)
        self._answers.flush()

    def tick(self, now: float) -> float | None:
        """Ask about what is overdue; returns when to call again."""
        return self._upstream.tick(now)

    def silent(self) -> set[int]:
        """The servers that were sent sums which they have not accepted."""
        return self._upstream.silent()

    def left(self, now: float, rank: int) -> None:
        """A worker has left in order: no round of its node completes without its contribution."""
        self._perform(now, self._sums.left(rank))
        self._answers.flush()

    def leave(self, now: float) -> None:
        """This process is about to leave."""
        self.left(now, self._rank)

    def serves(self) -> bool:
        """Whether others of the node still need this process: a round to which it contributed, and which they may
        wait for, has no result, or they have not taken what was sent to them."""
        return self._sums.has_open(self._rank) or not all(map(self._endpoint.has_taken, self._members))

    def _pull(self, now: float, header: Header) -> None:
        """A worker is in doubt; if all that is to be said is that others are missing, say who."""
        rank, key, round_ = header.sender, header.key, header.round
        actions = self._sums.pull(rank, key, round_)
        if not isinstance(actions[0], Accept):
            self._perform(now, actions)
            return
        passage = self._upstream.find(key, round_)
        if passage is None:
            self._answers.waiting(rank, key, round_, self._sums.missing(key))
        else:
            self._answers.waiting(rank, key, round_, passage.waits_for, partial=passage.accepted)

    def _perform(self, now: float, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Sum):
                self._sum(now, action)
            elif isinstance(action, Accept):
                self._answers.accept(action)
            elif isinstance(action, Reply):
                self._answers.reply(action)
            elif isinstance(action, Reject):
                self._answers.reject(action)
            else:
                self._answers.missing(action)

    def _sum(self, now: float, action: Sum) -> None:
        contributors = self._contributors[action.key] = len(action.sources)
        self._widths[action.key] = action.width
        if action.width:
            done = self._engine.submit(action, self._endpoint.allocate(result_bytes(action)).data)
            if done is not None:
                self._summed(now, done)
            return
        if not contributors or not action.count:
            empty = memoryview(b"") if contributors else None
            self._forward(now, action.key, action.round, empty)
            return
        room = self._room(action.key, action.round, action.dtype, action.count)
        done = self._engine.submit(action, room[: result_bytes(action)])
        if done is not None:
            self._summed(now, done)

    def _summed(self, now: float, done: Summed) -> None:
        if done.changed is None:
            self._forward(now, done.key, done.round, done.payload)
        else:
            self._perform(now, self._sums.changed(done.key, done.round, done.changed))

    def _forward(self, now: float, key: int, round_: int, payload: memoryview | None) -> None:
        passage = Passage(round_, self._sums.terms(key), payload, self._contributors.pop(key), self._widths.pop(key))
        self._upstream.push(now, key, passage)

    def _result(
        self, now: float, passage: Passage, header: Header, payload: memoryview | None, message: Message
    ) -> None:
        """Copy a result to where the node reads it; of two that come at the same time the first is enough."""
        key, round_ = header.key, header.round
        dtype, _, _, _, offset, count = passage.terms
        if (header.dtype, header.offset, header.count) != (dtype, offset, count):
            raise RemoteProtocolError(f"a result for key {key} of another shape")
        if key in self._copying:
            return
        self._upstream.received(now, key)
        result: memoryview | None = None
        width = check_rows(header, payload) if header.flags & Flag.ROWS else 0
        if not header.flags & Flag.ABSENT:
            result = memoryview(b"")
            if payload is not None and payload.nbytes:
                if width:
                    room = self._endpoint.allocate(payload.nbytes).data
                else:
                    room = self._room(key, round_, dtype, count)[: payload.nbytes]
                self._copying.add(key)
                begun = time.monotonic()
                try:
                    self._copy_out.copy(np.frombuffer(room, np.uint8), payload, message)
                    self._upstream.copied(key, begun)
                finally:
                    self._copying.discard(key)
                result = room
        if self._upstream.find(key, round_) is not passage:  # while the lock was let go
            return
        self._upstream.finished(now, key, round_)
        self._perform(now, self._sums.result(key, round_, result, header.detail, width))

    def _room(self, key: int, round_: int, dtype: DType, count: int) -> memoryview:
        """Memory for the sum, and then for the result, of a round."""
        wide = DType.FLOAT32 if dtype.is_floating and dtype.itemsize == 2 else dtype
        return self._results.room(key, round_, count * wide.itemsize)
