"""The data side of a worker: performs what the pipeline decides, over the connections to the servers.

Everything here belongs to the worker's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from byteps_py.core.delivery import Delivery
from byteps_py.core.pipeline import Pipeline, Start
from byteps_py.errors import AgreementError, BytePSError, ParticipantLeft, RemoteProtocolError, TransportTimeout
from byteps_py.kernels import Kernels
from byteps_py.roles.envelope import Complaints, Envelope, open_frames
from byteps_py.roles.reach import Reach
from byteps_py.roles.tensors import Tensor, TensorOperation
from byteps_py.settings import WorkerSettings
from byteps_py.telemetry.stages import WorkerTimes
from byteps_py.transport.base import Buffer, Endpoint
from byteps_py.types import Partition, split_key
from byteps_py.wire.control import Welcome
from byteps_py.wire.header import ACCEPT_ENTRY, RANK_ENTRY, Flag, Header, Opcode, encode

__all__ = ["Exchange"]

_log = logging.getLogger("byteps_py.worker")
_FIRST_REPORT_SECONDS: Final = 10.0
_REPORT_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 1.0
_DEFAULT_CREDIT: Final = 4
_NAMES_IN_MESSAGES: Final = 3


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
    ) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._welcome = welcome
        self._envelope = Envelope(welcome.rank, welcome.job, incarnation, welcome.epoch)
        self._kernels = kernels
        self._times = times
        self._copy_threads = settings.omp_num_threads or 1
        self._servers = [b"server-%d" % each.rank for each in welcome.servers]
        self._ranks = {name: rank for rank, name in enumerate(self._servers)}
        for name, server in zip(self._servers, welcome.servers, strict=True):
            endpoint.connect(name, server.address)
        window = (settings.credit or max(_DEFAULT_CREDIT, len(self._servers))) * settings.partition_bytes
        self._pipeline = Pipeline(len(self._servers), window, welcome.rank % len(self._servers))
        self._delivery = Delivery()
        self._reach = Reach(endpoint, self._servers, settings.lost_timeout)
        self._operations: dict[int, TensorOperation] = {}
        self._last_id = 0
        self._look_due = self._report_due = now
        self._complaints = Complaints(_log)

    @property
    def unsent(self) -> int:
        """Partitions that no server has accepted yet."""
        return self._pipeline.unaccepted

    def submit(self, now: float, operation: TensorOperation) -> None:
        """Start an operation on a tensor that has been placed."""
        placement = operation.tensor.placement
        assert placement is not None
        self._last_id += 1
        self._operations[self._last_id] = operation
        if self._times is not None and operation.staging is not None:
            self._times.copy_in.add(operation.copied)
        starts = self._pipeline.submit(
            self._last_id,
            placement.tensor_id,
            placement.partitions,
            operation.tensor.spec.dtype.itemsize,
            operation.priority,
            operation.staging is None,
        )
        self._push_all(now, starts)

    def receive(self, now: float, peer: bytes, frames: Sequence[memoryview]) -> list[TensorOperation]:
        """Take a message of a server; returns the operations that are complete by it."""
        try:
            header, payload = open_frames(frames)
            self._check_sender(header, self._ranks[peer])
            self._reach.heard(self._ranks[peer])
            return self._dispatch(now, header, payload)
        except RemoteProtocolError as error:
            self._complaints.add(peer, error)
            return []

    def tick(self, now: float) -> float:
        """Ask again for what is overdue; returns the seconds until the next call is due.

        Raises:
            TransportTimeout: an operation has made no progress for ``BYTEPS_STALL_TIMEOUT``, or a server cannot be
                reached.
        """
        for key, round_, server in self._delivery.due(now):
            self._endpoint.send(self._servers[server], [encode(self._envelope.header(Opcode.PULL, key, round_))])
            self._reach.asked(server, now)
        if now >= self._look_due:
            self._look_due = now + _LOOK_SECONDS
            self._check_stall(now)
            self._check_reach(now)
        deadline = self._delivery.next_deadline()
        return _FIRST_REPORT_SECONDS if deadline is None else max(0.0, deadline - now)

    def fail_tensor(self, now: float, tensor: Tensor, error: BytePSError) -> None:
        """End all operations on ``tensor``."""
        for identifier, operation in list(self._operations.items()):
            if operation.tensor is tensor:
                self._fail(now, identifier, error)

    def fail_all(self, error: BaseException) -> None:
        """End everything: the job is over."""
        for operation in self._operations.values():
            operation.pending.fail(error)
        self._operations.clear()

    def _check_sender(self, header: Header, rank: int) -> None:
        self._envelope.check_run(header)
        if header.sender != rank or header.incarnation != self._welcome.servers[rank].incarnation:
            raise RemoteProtocolError(f"a message that claims to be from server {header.sender}")

    def _dispatch(self, now: float, header: Header, payload: memoryview | None) -> list[TensorOperation]:
        if header.opcode is Opcode.RESULT:
            return self._result(now, header, payload)
        if header.opcode is Opcode.ACCEPT:
            assert payload is not None or header.detail == 0
            for key, round_ in ACCEPT_ENTRY.iter_unpack(payload or b""):
                self._accepted(now, key, round_)
        elif header.opcode is Opcode.MISSING:
            start = self._pipeline.find(header.key, header.round)
            if start is not None:
                self._push(now, start)
        elif header.opcode is Opcode.REJECT:
            self._rejected(now, header, payload)
        elif header.opcode is Opcode.WAITING:
            start = self._pipeline.find(header.key, header.round)
            if start is not None:
                missing = {rank for (rank,) in RANK_ENTRY.iter_unpack(payload or b"")}
                self._operations[start.operation_id].waits_for[header.key] = missing
                self._accepted(now, header.key, header.round)
        else:
            raise RemoteProtocolError(f"a server must not send {header.opcode.name}")
        return []

    def _accepted(self, now: float, key: int, round_: int) -> None:
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
        partition = _partition(operation, start.key)
        header = self._envelope.header(
            Opcode.PUSH,
            start.key,
            start.round,
            dtype=operation.tensor.spec.dtype,
            operation=operation.operation,
            flags=Flag.WANT_RESULT if operation.staging is not None else Flag.WANT_RESULT | Flag.ABSENT,
            root=operation.root,
            step=operation.step,
            offset=partition.offset,
            count=partition.count,
            length=0 if operation.staging is None else partition.count * operation.tensor.spec.dtype.itemsize,
        )
        frames: list[Buffer] = [encode(header)]
        if operation.staging is not None and header.length:
            frames.append(_slice(operation, operation.staging, partition).data)
        if self._times is not None:
            self._times.sent(start.key, start.round, operation.submitted, time.monotonic())
        self._endpoint.send(self._servers[start.server], frames)
        self._delivery.sent(start.key, start.round, start.server, now)
        self._reach.asked(start.server, now)

    def _result(self, now: float, header: Header, payload: memoryview | None) -> list[TensorOperation]:
        """Copy a result out; a second copy of it, after a repeated question, finds nothing to do."""
        start = self._pipeline.find(header.key, header.round)
        if start is None:
            return []
        operation = self._operations[start.operation_id]
        partition = _partition(operation, header.key)
        if (header.dtype, header.offset, header.count) != (
            operation.tensor.spec.dtype,
            partition.offset,
            partition.count,
        ):
            raise RemoteProtocolError(f"a result for {operation.tensor.spec.name!r} of another shape")
        if self._times is not None:
            self._times.received(header.key, now)
        target = _slice(operation, operation.output, partition)
        if header.flags & Flag.ABSENT:
            target.fill(0)
        elif payload is not None and target.nbytes:
            operation.absent = False
            self._copy_out(target, payload)
        else:
            operation.absent = False
        operation.progressed = now
        operation.waits_for.pop(header.key, None)
        self._delivery.finished(header.key, header.round)
        completed, starts = self._pipeline.finished(header.key, header.round)
        self._push_all(now, starts)
        return [] if completed is None else [self._complete(completed.operation_id)]

    def _copy_out(self, target: npt.NDArray[np.uint8], payload: memoryview) -> None:
        begun = 0.0 if self._times is None else time.monotonic()
        self._kernels.copy(target, payload, target.nbytes, self._copy_threads)
        if self._times is not None:
            self._times.copy_out.add(time.monotonic() - begun)

    def _complete(self, identifier: int) -> TensorOperation:
        operation = self._operations.pop(identifier)
        if operation.staging is not None:
            operation.tensor.recycle(operation.staging)
        return operation

    def _rejected(self, now: float, header: Header, payload: memoryview | None) -> None:
        start = self._pipeline.find(header.key, header.round)
        if start is None:
            return
        name = self._operations[start.operation_id].tensor.spec.name
        reason = bytes(payload or b"").decode(errors="replace")
        kind = ParticipantLeft if header.detail else AgreementError
        self._fail(now, start.operation_id, kind(f"tensor {name!r}: {reason}"))

    def _fail(self, now: float, identifier: int, error: BytePSError) -> None:
        operation = self._operations[identifier]
        operation.pending.fail(error)
        starts = self._pipeline.fail_operation(identifier)
        placement = operation.tensor.placement
        assert placement is not None
        for each in placement.partitions:
            self._delivery.dropped(each.key)
            if self._times is not None:
                self._times.dropped(each.key)
        del self._operations[identifier]
        self._push_all(now, starts)

    def _check_reach(self, now: float) -> None:
        """Give up on a server that lives, and that only this worker does not reach."""
        obstacle = self._reach.check(now)
        if obstacle is not None:
            server = self._welcome.servers[obstacle.rank]
            raise TransportTimeout(
                f"{server.describe()} cannot be reached at {server.address}, for {obstacle.seconds:.0f} s now "
                f"(BYTEPS_LOST_TIMEOUT): {obstacle.reason}. The scheduler hears from it, so check the firewall between "
                "here and there; DMLC_PORT or BYTEPS_PORT_RANGE give a server a port that is open, DMLC_INTERFACE or "
                "DMLC_NODE_HOST another address"
            )

    def _check_stall(self, now: float) -> None:
        """Speak of operations that make no progress, however well others do, and give up in the end.

        An operation that was not pushed yet waits for others, of the same tensor or the same server, which are spoken
        of if they are the ones that stand still.
        """
        limit = self._settings.stall_timeout
        mentioned = min(_FIRST_REPORT_SECONDS, limit or _FIRST_REPORT_SECONDS)
        waits = {
            identifier: now - each.progressed
            for identifier, each in self._operations.items()
            if each.progressed is not None and now - each.progressed >= mentioned
        }
        if not waits:
            self._report_due = now
            return
        waited, stalled = max(waits.values()), {identifier: self._operations[identifier] for identifier in waits}
        if limit and waited >= limit:
            raise TransportTimeout(f"{self._stall_text(stalled, waited)}; giving up (BYTEPS_STALL_TIMEOUT={limit:g})")
        if now >= self._report_due:
            self._report_due = now + _REPORT_SECONDS
            _log.warning("%s", self._stall_text(stalled, waited))

    def _stall_text(self, stalled: Mapping[int, TensorOperation], waited: float) -> str:
        names = ", ".join(repr(each.tensor.spec.name) for each in list(stalled.values())[:_NAMES_IN_MESSAGES])
        more = f" and {len(stalled) - _NAMES_IN_MESSAGES} more" if len(stalled) > _NAMES_IN_MESSAGES else ""
        who = ", ".join(self._waited_for(stalled)) or "an answer"
        return f"waiting {waited:.0f} s for the result of {names}{more}: missing {who}"

    def _waited_for(self, stalled: Mapping[int, TensorOperation]) -> list[str]:
        """Workers that a server named as missing, then servers that have not even accepted what was pushed."""
        ranks = {rank for each in stalled.values() for missing in each.waits_for.values() for rank in missing}
        participants = self._welcome.participants
        workers = [participants[rank].describe() for rank in sorted(ranks) if rank < len(participants)]
        silent = {
            partition.server
            for each in self._pipeline.outstanding()
            if each.operation_id in stalled
            for partition in each.unaccepted
        }
        servers = [self._welcome.servers[rank] for rank in sorted(silent)]
        texts = [f"the acceptance of {each.describe()} at {each.address}" for each in servers]
        if silent and (why := self._reach.why_not(min(silent))):  # the first only: each may take two seconds
            texts[0] += f" ({why})"
        return workers + texts


def _partition(operation: TensorOperation, key: int) -> Partition:
    assert operation.tensor.placement is not None
    return operation.tensor.placement.partitions[split_key(key)[1]]


def _slice(operation: TensorOperation, buffer: npt.NDArray[np.uint8], partition: Partition) -> npt.NDArray[np.uint8]:
    """The bytes of ``partition`` in ``buffer``."""
    itemsize = operation.tensor.spec.dtype.itemsize
    return buffer[partition.offset * itemsize : (partition.offset + partition.count) * itemsize]
