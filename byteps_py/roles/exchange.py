"""The data side of a worker: performs what the pipeline decides, over the connections to the servers.

Not thread-safe: the caller holds the worker's lock, which is let go while a large result is copied out.  Servers on
this machine are written to by whichever thread has something for them; sockets belong to the worker's thread, and what
another thread has for them is *deferred* until that comes by.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from byteps_py.core.delivery import Delivery
from byteps_py.core.pipeline import Pipeline, Start
from byteps_py.core.window import Window
from byteps_py.errors import AgreementError, BytePSError, ParticipantLeft, RemoteProtocolError
from byteps_py.kernels import Kernels
from byteps_py.roles.asynchrony import Asynchrony
from byteps_py.roles.copy_out import CopyOut
from byteps_py.roles.engine import Engine
from byteps_py.roles.envelope import Complaints, Envelope, is_bundle, open_bundle, open_frames
from byteps_py.roles.flight import Flight
from byteps_py.roles.light import Light
from byteps_py.roles.link_speed import LinkSpeed, measure_link
from byteps_py.roles.neighbours import Neighbours, connect
from byteps_py.roles.node import Node, make_node
from byteps_py.roles.outbox import Outbox
from byteps_py.roles.pieces import Pieces, partition_of
from byteps_py.roles.reach import Reach
from byteps_py.roles.stall import StallWatch
from byteps_py.roles.tensors import Tensor, TensorOperation
from byteps_py.settings import WorkerSettings
from byteps_py.telemetry.metrics import SpeedRecord
from byteps_py.telemetry.stages import WorkerTimes
from byteps_py.transport.base import Buffer, Endpoint, Message
from byteps_py.types import PARTITION_BITS
from byteps_py.wire.bundle import BUNDLE_KEY
from byteps_py.wire.control import Welcome
from byteps_py.wire.header import ACCEPT_ENTRY, RANK_ENTRY, Flag, Header, Opcode, encode

__all__ = ["Exchange"]

_log = logging.getLogger("byteps_py.worker")
_FIRST_LOOK_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0
_NO_REDUCER: Final = "it takes this process for one that sums for its machine: BYTEPS_LOCAL_REDUCE must be equal there"


class Exchange:
    """Contributions out, results in.

    Args:
        endpoint: carries one connection per server, opened here.
        settings: partition size, window and deadlines.
        welcome: who is in the job.
        incarnation: this process's own random number.
        kernels: for the copy out of a received frame.
        times: where the stages are counted and timed; None where they are not.
        now: monotonic seconds, as in all methods.
        lock: held by the caller of every method; None where there is one thread only.
        neighbours: workers of this node to sum with; None: there are none.
        engine: sums for them.
        speed: told of what is complete.
        asynchrony: told of what is stale; None in a job that knows no such thing.

    Attributes:
        received: data messages so far.
        outbox: carries those that are sent.
        light: takes the operations on light tensors.
        window: of each server.
        link: the measurement of the way to the servers; None where nobody needs to know.
        node: the other workers of the node; None if there are none to sum with.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        settings: WorkerSettings,
        welcome: Welcome,
        incarnation: int,
        kernels: Kernels,
        times: WorkerTimes | None,
        now: float,
        lock: threading.RLock | None = None,
        speed: SpeedRecord | None = None,
        neighbours: Neighbours | None = None,
        engine: Engine | None = None,
        asynchrony: Asynchrony | None = None,
    ) -> None:
        self.received = 0
        self.outbox = Outbox(endpoint)
        self._speed = SpeedRecord(now) if speed is None else speed
        self._asynchrony = asynchrony or Asynchrony()
        self._envelope = Envelope(welcome.rank, welcome.job, incarnation, welcome.epoch)
        self._times = times
        self._pieces = Pieces(endpoint, kernels, settings.omp_num_threads or 1)
        self._copy_out = CopyOut(kernels, settings.omp_num_threads or 1, lock, times)
        self._peers = connect(endpoint, welcome, neighbours, settings.tcp_connections)
        self._places = {each.name: place for place, each in enumerate(self._peers)}
        window = self.window = Window(0, settings.credit or 0, len(self._peers))
        window.widen(settings.partition_bytes or 0, 0)
        self._pipeline = Pipeline(len(self._peers), window, welcome.rank % len(self._peers))
        self._delivery = Delivery()
        self._reach = Reach(endpoint, list(self._places), settings.lost_timeout)
        self.node: Node | None = None
        if neighbours is not None and engine is not None:
            out = CopyOut(kernels, settings.omp_num_threads or 1, lock, None)
            self.node = make_node(endpoint, neighbours, welcome, self._envelope, engine, out, self._send, window, times)
        self._operations: dict[int, TensorOperation] = {}
        self.link: LinkSpeed | None = None
        if settings.partition_bytes is None:
            self.link = measure_link(endpoint, welcome, self._peers, self._envelope, now)
        self.light = Light(endpoint, self._send, self._envelope, self._pipeline, len(welcome.servers), times)
        self._stall = StallWatch(
            settings.stall_timeout,
            welcome,
            self._peers,
            self._pipeline,
            self._operations,
            self.light,
            self._reach,
            None if self.node is None else self.node.reducer,
            now,
        )
        self._last_id = 0
        self._look_due = now
        self._complaints = Complaints(_log)

    @property
    def peers(self) -> Sequence[bytes]:
        """The servers, by rank, and the reducers of this node, as the endpoint knows them."""
        return [each.name for each in self._peers]

    def owed(self, now: float, *, suspends: bool = False) -> tuple[str, bool]:
        """What keeps a worker that is leaving, empty if nothing does; and whether that is the others of its node.

        Who ``suspends`` waits for the results of its operations as well.
        """
        if suspends and (self._operations or self.light.flights):
            self.hurry(now)
            return "operations are on their way", False
        unsent = self._pipeline.unaccepted + self.light.unaccepted
        if unsent:
            return f"{unsent} partitions were not accepted by a server", False
        owed = "" if self.node is None else self.node.owed(now)
        return owed, bool(owed)

    def submit(self, now: float, operation: TensorOperation) -> None:
        """Start an operation on a tensor that has been placed."""
        placement = operation.tensor.placement
        assert placement is not None
        error = operation.obstacle() or (None if self.node is None else self.node.departure(operation.tensor))
        if error is not None:
            operation.pending.fail(error)
            return
        self._last_id += 1
        self._operations[self._last_id] = operation
        starts = self._pipeline.submit(
            self._last_id,
            placement.tensor_id,
            placement.partitions,
            operation.itemsize,
            operation.priority,
            not operation.contributes,
        )
        self._push_all(now, starts)

    def hurry(self, now: float) -> None:
        """Somebody waits for results: nothing is held back for company."""
        self.light.hurry(now)

    def receive(self, now: float, message: Message) -> None:
        """Take a message of a server, and complete the operations that are over by it."""
        self.received += 1
        try:
            if self.node is not None and self.node.reducer.knows(message.peer):
                self.node.reducer.receive(now, message)
                return
            place = self._places.get(message.peer, -1)
            if place < 0:
                raise RemoteProtocolError(_NO_REDUCER)
            if is_bundle(message.frames):
                header, _, _ = open_bundle(message.frames)
                self._check_sender(header, place)
                if header.opcode is not Opcode.RESULT_MANY:
                    raise RemoteProtocolError(f"a server must not send {header.opcode.name}")
                self._arrived(now, self.light.results(now, header, message))
            else:
                header, payload = open_frames(message.frames)
                self._check_sender(header, place)
                self._dispatch(now, place, header, payload, message)
        except RemoteProtocolError as error:
            self._complaints.add(message.peer, error)

    def tick(self, now: float) -> float:
        """Ask again for what is overdue; returns the seconds until the next call is due.

        Raises:
            TransportTimeout: an operation has made no progress for ``BYTEPS_STALL_TIMEOUT``, or a server cannot be
                reached.
        """
        for key, round_, server in self._delivery.due(now):
            self._send(server, [encode(self._envelope.header(Opcode.PULL, key, round_))], now)
        held = self.light.tick(now), None if self.node is None else self.node.reducer.tick(now)
        measured = None if self.link is None else self.link.tick(now)
        if now >= self._look_due:
            self._look_due = now + _LOOK_SECONDS
            self._stall.check(now)
        deadlines = [each for each in (*held, measured, self._delivery.next_deadline()) if each is not None]
        return max(0.0, min(deadlines) - now) if deadlines else _FIRST_LOOK_SECONDS

    def advance(self, now: float) -> None:
        """To be called after messages were taken, and when the engine has done something."""
        if self.node is not None:
            self.node.reducer.advance(now)

    def left(self, now: float, rank: int) -> None:
        """A worker has left in order."""
        node = self.node
        place = None if node is None else node.left(now, rank)
        if node is None or place is None:
            return
        for identifier, operation in list(self._operations.items()):
            error = node.departure(operation.tensor)
            if error is not None and any(each.server == place for each in self._pipeline.unfinished(identifier)):
                self._fail(now, identifier, error)

    def fail_tensor(self, now: float, tensor: Tensor, error: BytePSError) -> None:
        """End all operations on ``tensor``."""
        for identifier, operation in list(self._operations.items()):
            if operation.tensor is tensor:
                self._fail(now, identifier, error)
        flying = [key for key, each in self.light.flights.items() if each.tensor is tensor]
        self._push_all(now, self.light.fail(flying, error))

    def fail_all(self, error: BaseException) -> None:
        """End everything: the job is over."""
        for operation in self._operations.values():
            operation.fail(error)
        self._operations.clear()
        for flight in self.light.flights.values():
            flight.pending.fail(error)

    def _send(self, server: int, frames: list[Buffer], now: float) -> None:
        self._reach.asked(server, now)
        self.outbox.send(self._peers[server].name, frames)

    def _check_sender(self, header: Header, place: int) -> None:
        self._envelope.check_run(header)
        peer = self._peers[place]
        if (header.sender, header.incarnation) != (peer.rank, peer.incarnation):
            raise RemoteProtocolError(f"a message that claims to be from process {header.sender} and is not")
        self._reach.heard(place)

    def _dispatch(self, now: float, place: int, header: Header, payload: memoryview | None, message: Message) -> None:
        key, round_ = header.key, header.round
        node = self.node if self._peers[place].is_server else None
        if node is not None and node.reducer.owns(key):
            node.reducer.answered(now, header, payload, message)
            return
        flight = self.light.flights.get(key)
        flies = flight is not None and flight.round == round_
        if header.opcode is Opcode.RESULT:
            if flies:
                self._arrived(now, self.light.result(now, header, payload, message))
            else:
                self._result(now, header, payload, message)
        elif header.opcode is Opcode.ACCEPT:
            assert payload is not None or header.detail == 0
            for each_key, each_round in ACCEPT_ENTRY.iter_unpack(payload or b""):
                if node is not None and node.reducer.owns(each_key):
                    node.reducer.accepted(now, each_key, each_round)
                else:
                    self._accepted(now, each_key, each_round)
        elif header.opcode is Opcode.MISSING:
            start = self._pipeline.find(key, round_)
            if flies:
                self.light.again(now, key)
            elif start is not None:
                self._push(now, start)
        elif header.opcode is Opcode.REJECT:
            self._rejected(now, header, payload, flies)
        elif header.opcode is Opcode.PROBED and self.link is not None:
            self.link.answered(now, header)
        elif header.opcode is Opcode.WAITING:
            self._waits_for(now, header, {rank for (rank,) in RANK_ENTRY.iter_unpack(payload or b"")})
        else:
            raise RemoteProtocolError(f"a server must not send {header.opcode.name}")

    def _waits_for(self, now: float, header: Header, missing: set[int]) -> None:
        """Word of who is missing says too that the own contribution is there."""
        flight = self.light.flights.get(header.key)
        start = self._pipeline.find(header.key, header.round)
        if flight is not None and flight.round == header.round:
            flight.waits_for = missing
            self.light.accepted(now, flight.bundle.number)
        elif start is not None:
            self._operations[start.operation_id].waits_for[header.key] = missing
            if self.node is not None:
                self.node.waits(now, header, missing)
            self._accepted(now, header.key, header.round)

    def _accepted(self, now: float, key: int, round_: int) -> None:
        if key == BUNDLE_KEY:
            self.light.accepted(now, round_)
            return
        if self._times is not None:
            self._times.accepted(key, round_, now)
        self._delivery.accepted(key, round_, now)
        self._push_all(now, self._pipeline.accepted(key, round_))

    def _push_all(self, now: float, starts: Sequence[Start]) -> None:
        for start in starts:
            self._push(now, start)
            self._operations[start.operation_id].progressed = now

    def _push(self, now: float, start: Start) -> None:
        """Send one contribution, for the first time or again."""
        operation = self._operations[start.operation_id]
        if self._times is not None:
            self._times.sent(start.key, start.round, operation.submitted, time.monotonic())
        peer = self._peers[start.server].name
        self._send(start.server, self._pieces.push(self._envelope, operation, start.key, start.round, peer), now)
        self._delivery.sent(start.key, start.round, start.server, now)
        if self.node is not None:
            self.node.pushed(start.key, start.round, start.server)

    def _arrived(self, now: float, flights: Sequence[Flight]) -> None:
        """Light tensors have their results."""
        starts = self._pipeline.give_back([each.key >> PARTITION_BITS for each in flights])
        self._speed.add(now, int(time.time() * 1000), sum([each.tensor.nbytes for each in flights]))
        for each in flights:
            each.pending.complete(each.pending.absent)
        self._push_all(now, starts)

    def _result(self, now: float, header: Header, payload: memoryview | None, message: Message) -> None:
        """Copy a result out; a second copy of it, after a repeated question, finds nothing to do."""
        start = self._pipeline.find(header.key, header.round)
        if start is None:
            return
        operation = self._operations[start.operation_id]
        partition = partition_of(operation, header.key)
        expected = (operation.tensor.spec.dtype, partition.offset, partition.count)
        if (header.dtype, header.offset, header.count) != expected:
            raise RemoteProtocolError(f"a result for {operation.tensor.spec.name!r} of another shape")
        if self._times is not None:
            self._times.received(header.key, now)
        copied = self._copy_out.result(operation, partition, header, payload, message)
        if not copied or operation.failure is not None:  # while the lock was let go
            return
        operation.absent = operation.absent and bool(header.flags & Flag.ABSENT)
        self._asynchrony.answered(operation, header)
        operation.progressed = now
        operation.waits_for.pop(header.key, None)
        self._pieces.finished(operation, header.key)
        self._delivery.finished(header.key, header.round)
        if self.node is not None:
            self.node.over(header.key)
        completed, starts = self._pipeline.finished(header.key, header.round)
        if completed is not None:
            self._complete(now, completed.operation_id, header)
        self._push_all(now, starts)

    def _complete(self, now: float, identifier: int, header: Header) -> None:
        operation = self._operations.pop(identifier)
        if operation.staging is not None and not operation.borrowed:
            operation.tensor.recycle(operation.staging)
        if self._times is not None:
            self._times.completed(header.key, header.round, operation.submitted, operation.copied)
        self._speed.add(now, int(time.time() * 1000), operation.nbytes)
        operation.complete()

    def _rejected(self, now: float, header: Header, payload: memoryview | None, flies: bool) -> None:
        start = self._pipeline.find(header.key, header.round)
        if start is None and not flies:
            return
        tensor = self.light.flights[header.key].tensor if start is None else self._operations[start.operation_id].tensor
        reason = bytes(payload or b"").decode(errors="replace")
        error = (ParticipantLeft if header.detail else AgreementError)(f"tensor {tensor.spec.name!r}: {reason}")
        if start is None:
            self._push_all(now, self.light.fail([header.key], error))
        else:
            self._fail(now, start.operation_id, error)

    def _fail(self, now: float, identifier: int, error: BytePSError) -> None:
        operation = self._operations.pop(identifier)
        operation.fail(error)
        starts = self._pipeline.fail_operation(identifier)
        assert operation.tensor.placement is not None
        for each in operation.tensor.placement.partitions:
            self._delivery.dropped(each.key)
            if self.node is not None:
                self.node.over(each.key)
            if self._times is not None:
                self._times.dropped(each.key)
        self._push_all(now, starts)
