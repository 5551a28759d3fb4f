"""A server: receives contributions, has them summed, sends the results.

One thread owns the endpoint and :class:`~byteps_py.core.aggregation.Aggregation`; engine threads sum.  Nothing is
polled: the thread sleeps until a message, a finished sum or the next heartbeat.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

from byteps_py import kernels
from byteps_py.core.aggregation import Accept, Action, Aggregation, Contribution, Missing, Reject, Reply, Sum
from byteps_py.errors import BytePSError, RemoteProtocolError
from byteps_py.roles.engine import Engine
from byteps_py.roles.member import SCHEDULER, SchedulerLink, package_version, worker_identity
from byteps_py.roles.process import describe_this_process
from byteps_py.settings import MAX_PARTITION_BYTES, ServerSettings
from byteps_py.transport.base import Buffer, Endpoint, Message, tcp_address
from byteps_py.transport.zmq import ZmqEndpoint, address_towards
from byteps_py.types import Role
from byteps_py.wire.control import ControlMessage, Finished, Left, Register, Welcome
from byteps_py.wire.header import ACCEPT_ENTRY, Flag, Header, Opcode, decode, encode

__all__ = ["Server", "run"]

_log = logging.getLogger("byteps_py.server")


def run(settings: ServerSettings, endpoint: Endpoint | None = None) -> int:
    """Serve until the job ends.

    Returns:
        The exit status: 0 when every worker said goodbye, 1 when the job was aborted or this server failed.
    """
    incarnation = secrets.randbits(64)
    if endpoint is None:
        endpoint = ZmqEndpoint(b"server-%016x" % incarnation, MAX_PARTITION_BYTES)
    try:
        server = Server(settings, endpoint, incarnation, time.monotonic())
        try:
            server.serve()
        finally:
            server.close()
    except BytePSError as error:
        _log.error("%s", error)
        return 1
    finally:
        endpoint.close()
    return 0


class Server:
    """The server role over any endpoint. Belongs to one thread.

    Args:
        settings: the role's settings.
        endpoint: not yet listening; closed by the caller.
        incarnation: random 64-bit number of this process start.
        now: seconds of a monotonic clock.
    """

    def __init__(self, settings: ServerSettings, endpoint: Endpoint, incarnation: int, now: float) -> None:
        self._endpoint = endpoint
        self._incarnation = incarnation
        host = settings.node_host or address_towards(settings.root_uri, settings.root_port)
        address = endpoint.listen(tcp_address(host, settings.port))
        port = address.rpartition(":")[2]
        register = Register(
            version=package_version(),
            job_id=settings.job_id,
            role=Role.SERVER,
            process=describe_this_process(),
            incarnation=incarnation,
            num_worker=settings.num_worker,
            num_server=settings.num_server,
            address=tcp_address(host, port),
        )
        team = settings.omp_num_threads or len(os.sched_getaffinity(0))
        self._engine = Engine(
            kernels.select(settings.kernels),
            settings.engine_threads,
            team,
            endpoint.wake,
        )
        self._link = SchedulerLink(endpoint, settings, register, _log, now)
        self._welcome: Welcome | None = None
        self._aggregation: Aggregation | None = None
        self._early: list[Message] = []
        self._peers: list[bytes] = []
        self._accepts: dict[int, list[tuple[int, int]]] = {}
        self._complained: set[bytes] = set()
        self._finished = False
        _log.info("listening at %s, %d engine threads of %d OpenMP threads", address, settings.engine_threads, team)

    def serve(self) -> None:
        """Work until the job has finished.

        Raises:
            BytePSError: the job was refused or aborted, with the reason.
        """
        while not self._finished:
            now = time.monotonic()
            self.run_once(now, self._link.tick(now))

    def run_once(self, now: float, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for something to do and do it."""
        for message in self._endpoint.receive(timeout):
            if message.peer == SCHEDULER:
                self._receive_control(now, message.frames)
            elif self._welcome is None:
                self._early.append(message)  # a worker may hear of the complete job before this server does
            else:
                self._receive_data(message)
        for key, round_, result in self._engine.collect():
            assert self._aggregation is not None
            self._perform(self._aggregation.summed(key, round_, result))
        self._flush_accepts()

    def close(self) -> None:
        """End the engine threads; the endpoint stays open."""
        self._engine.close()

    def _receive_control(self, now: float, frames: Sequence[memoryview]) -> None:
        try:
            message = self._link.receive(now, frames)
        except RemoteProtocolError as error:
            self._complain(SCHEDULER, str(error))
            return
        if message is not None:
            self._control(message)

    def _control(self, message: ControlMessage) -> None:
        if isinstance(message, Welcome):
            if self._welcome is None:
                self._begin(message)
        elif isinstance(message, Left):
            if self._aggregation is not None:
                self._perform(self._aggregation.left(message.rank))
        elif isinstance(message, Finished):
            self._finished = True
        else:
            self._complain(SCHEDULER, f"an unexpected {type(message).__name__}")

    def _begin(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self._aggregation = Aggregation(welcome.participants)
        self._peers = [worker_identity(each.incarnation) for each in welcome.participants]
        _log.info("server %d of %d, %d workers", welcome.rank, len(welcome.servers), len(welcome.participants))
        early, self._early = self._early, []
        for message in early:
            self._receive_data(message)

    def _receive_data(self, message: Message) -> None:
        payload = message.frames[1] if len(message.frames) == 2 else None
        try:
            if len(message.frames) > 2:
                raise RemoteProtocolError(f"a data message has at most 2 frames, this one has {len(message.frames)}")
            header = decode(message.frames[0], None if payload is None else payload.nbytes)
            self._check_sender(header, message.peer)
        except RemoteProtocolError as error:
            self._complain(message.peer, str(error))
            return
        assert self._aggregation is not None
        if header.opcode is Opcode.PUSH:
            self._perform(self._aggregation.push(_contribution(header, payload)))
        elif header.opcode is Opcode.PULL:
            self._perform(self._aggregation.pull(header.sender, header.key, header.round))
        else:
            self._complain(message.peer, f"a worker must not send {header.opcode.name}")

    def _check_sender(self, header: Header, peer: bytes) -> None:
        """A message must come from a worker of this very run of the job."""
        welcome = self._welcome
        assert welcome is not None
        if header.job != welcome.job or header.epoch != welcome.epoch:
            raise RemoteProtocolError("a message of another job, or of an earlier epoch")
        if header.sender >= len(welcome.participants):
            raise RemoteProtocolError(f"a message from worker {header.sender} of {len(welcome.participants)}")
        if self._peers[header.sender] != peer or welcome.participants[header.sender].incarnation != header.incarnation:
            raise RemoteProtocolError(f"a message that claims to be from worker {header.sender} and is not")

    def _perform(self, actions: Sequence[Action]) -> None:
        assert self._aggregation is not None
        for action in actions:
            if isinstance(action, Sum):
                done = self._engine.submit(action)
                if done is not None:
                    self._perform(self._aggregation.summed(*done))
            elif isinstance(action, Accept):
                self._accepts.setdefault(action.participant, []).append((action.key, action.round))
            elif isinstance(action, Reply):
                self._reply(action)
            elif isinstance(action, Reject):
                self._reject(action)
            elif isinstance(action, Missing):
                self._post(action.participant, self._header(Opcode.MISSING, action.key, action.round), None)

    def _reply(self, action: Reply) -> None:
        accepted = self._accepts.get(action.participant)
        if accepted and accepted[-1] == (action.key, action.round):
            accepted.pop()  # a RESULT says it too
        payload = None if action.payload is None else memoryview(action.payload)  # type: ignore[arg-type]
        header = self._header(
            Opcode.RESULT,
            action.key,
            action.round,
            dtype=action.dtype,
            operation=action.operation,
            flags=Flag.ABSENT if payload is None else Flag.NONE,
            root=action.root,
            detail=action.contributors,
            step=action.step,
            offset=action.offset,
            count=action.count,
            length=0 if payload is None else payload.nbytes,
        )
        self._post(action.participant, header, payload)

    def _send_list(self, participant: int, opcode: Opcode, key: int, round_: int, entries: Sequence[bytes]) -> None:
        """A message whose payload is a list of equal entries, counted in ``detail``."""
        payload = b"".join(entries)
        header = self._header(opcode, key, round_, detail=len(entries), length=len(payload))
        self._post(participant, header, payload)

    def _reject(self, action: Reject) -> None:
        payload = action.reason.encode()
        header = self._header(Opcode.REJECT, action.key, action.round, detail=int(action.left), length=len(payload))
        self._post(action.participant, header, payload)

    def _header(self, opcode: Opcode, key: int, round_: int, **fields: Any) -> Header:
        assert self._welcome is not None
        return Header(
            opcode=opcode,
            sender=self._welcome.rank,
            job=self._welcome.job,
            incarnation=self._incarnation,
            epoch=self._welcome.epoch,
            key=key,
            round=round_,
            **fields,
        )

    def _post(self, participant: int, header: Header, payload: Buffer | None) -> None:
        """Send; a worker that is not connected right now asks again by PULL when it is back."""
        frames: list[Buffer] = [encode(header)]
        if payload is not None and header.length:
            frames.append(payload)
        if not self._endpoint.send(self._peers[participant], frames):
            _log.debug("worker %d is not connected; it will ask for %s again", participant, header.opcode.name)

    def _flush_accepts(self) -> None:
        """One ACCEPT message per worker for all that arrived since the last one."""
        if not self._accepts:
            return
        accepts, self._accepts = self._accepts, {}
        for participant, entries in accepts.items():
            if entries:
                self._send_list(participant, Opcode.ACCEPT, 0, 0, [ACCEPT_ENTRY.pack(*each) for each in entries])

    def _complain(self, peer: bytes, problem: str) -> None:
        """Log what a peer did wrong, once per peer: a flood of bad bytes must not become a flood of lines."""
        if peer not in self._complained and len(self._complained) < 1000:
            self._complained.add(peer)
            _log.warning("ignored from %r: %s", peer, problem)


def _contribution(header: Header, payload: memoryview | None) -> Contribution:
    absent = bool(header.flags & Flag.ABSENT)
    return Contribution(
        participant=header.sender,
        key=header.key,
        round=header.round,
        dtype=header.dtype,
        operation=header.operation,
        root=header.root,
        step=header.step,
        offset=header.offset,
        count=header.count,
        payload=None if absent else (memoryview(b"") if payload is None else payload),
        want_result=bool(header.flags & Flag.WANT_RESULT),
    )
