"""A server: receives contributions, has them summed, sends the results.

One thread owns the endpoint and :class:`~byteps_py.roles.rounds.Rounds`; engine threads sum.  Nothing is polled: the
thread sleeps until a message, a finished sum or the next heartbeat.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from byteps_py import kernels
from byteps_py.errors import BytePSError, RemoteProtocolError, SettingsError
from byteps_py.roles.address import check_port, listening_ports, own_address
from byteps_py.roles.engine import Engine
from byteps_py.roles.envelope import Complaints, asks_to_join, is_bundle, open_bundle, open_frames
from byteps_py.roles.member import SCHEDULER, SchedulerLink, registration, server_identity
from byteps_py.roles.message_log import log_messages
from byteps_py.roles.rounds import Rounds
from byteps_py.roles.share import check_share, team_of
from byteps_py.roles.termination import TERMINATED, Termination
from byteps_py.roles.tracing import ServerTracing
from byteps_py.settings import MAX_PARTITION_BYTES, ServerSettings
from byteps_py.telemetry import logs
from byteps_py.telemetry.recorder import Member, Recorder, prepare
from byteps_py.telemetry.stages import Held, SumTimes
from byteps_py.trace_settings import prepare_trace
from byteps_py.transport.base import Endpoint, Message, tcp_address
from byteps_py.transport.host import HostEndpoint
from byteps_py.types import Role
from byteps_py.wire.control import (
    Bye,
    ControlMessage,
    Finished,
    Group,
    GroupKnown,
    Left,
    Notice,
    Refused,
    Suspended,
    Welcome,
    encode_control,
)

__all__ = ["Server", "run"]

_log = logging.getLogger("byteps_py.server")
_EARLY_BYTES: Final = 64 << 20
"""Most that is kept of what comes before the Welcome, from whomever."""
_GOODBYE_SECONDS: Final = 1.0
_ACCEPT_SECONDS: Final = 0.002
"""How long the acceptance of a bundle waits for its results: not long enough for a worker's window to run empty."""
_WORD_SECONDS: Final = 0.5
"""How long the word of the complete job may take: workers can have it before this server."""


def run(settings: ServerSettings, endpoint: Endpoint | None = None) -> int:
    """Serve until the job ends.

    Returns:
        The exit status: 0 when every worker said goodbye, 1 when the job was aborted or this server failed, 143 after
        SIGTERM.

    Raises:
        SettingsError: ``DMLC_INTERFACE`` gives no address, the port is the scheduler's, the folder for records cannot
            be made, there are not so many cores, or the scheduler says that settings of the job disagree.
        TransportError: the limit of open files is too low.
    """
    check_share(settings, len(os.sched_getaffinity(0)))
    prepare(settings)
    prepare_trace(settings)
    incarnation = secrets.randbits(64)
    if endpoint is None:
        own = HostEndpoint(
            server_identity(incarnation),
            MAX_PARTITION_BYTES,
            settings.num_worker,
            mode=settings.transport,
            io_threads=settings.io_threads,
        )
        endpoint = log_messages(own, _log)
    try:
        server = Server(settings, endpoint, incarnation, time.monotonic())
        try:
            return server.serve()
        finally:
            server.close()
    except SettingsError:
        raise
    except BytePSError as error:
        _log.error("%s", error)
        return 1
    finally:
        endpoint.close()


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
        host, reason = own_address(settings, _log)
        check_port(settings, host, settings.port, _log)
        address = endpoint.listen(tcp_address(host, settings.port), listening_ports(settings))
        port = int(address.rpartition(":")[2])
        check_port(settings, host, port, _log)
        register = msgspec.structs.replace(
            registration(settings, Role.SERVER, incarnation),
            address=tcp_address(host, port),
            transport=settings.transport,
            enable_async=settings.enable_async,
            async_max_staleness=settings.async_max_staleness,
        )
        self._settings = settings
        self._kernels = kernels.select(settings.kernels)
        self._engine: Engine | None = None
        self._recorder: Recorder | None = None
        self._tracing = ServerTracing(settings, _log) if settings.trace_on else None
        self._is_timed = settings.stage_times or settings.trace_on
        probe = None if self._tracing is None else self._tracing.trace.probe
        self._link = SchedulerLink(endpoint, settings, register, _log, now, probe)
        self._rounds: Rounds | None = None
        self._early: list[Message] = []
        self._early_bytes = 0
        self._complaints = Complaints(_log)
        self._not_the_scheduler = (
            f"a server of a job listens there, whose scheduler is at {settings.root_uri}:{settings.root_port}: check "
            "DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT"
        )
        self._finished = False
        self._end_due: float | None = None
        self._has_announced = False
        _log.info("the own address is %s, %s", host, reason)
        _log.info("listening at %s", address)

    def serve(self) -> int:
        """Work until the job has finished; returns the exit status. Whatever ends this server, the scheduler is told.

        Raises:
            JobRefused, JobAborted: with the reason.
            SettingsError: the same, because of settings that do not agree.
            TransportTimeout: no scheduler answers.
            TransportError: memory that a worker refers to cannot be mapped, or there is none left.
        """
        try:
            with Termination(self._endpoint.wake) as termination:
                while not self._finished:
                    now = time.monotonic()
                    timeout = self._link.tick(now)
                    self.run_once(
                        now, timeout if self._end_due is None else min(timeout, max(0.0, self._end_due - now))
                    )
                    if termination.requested and self._must_end(now, termination.urgent):
                        self._say_goodbye("was told to end (SIGTERM)")
                return TERMINATED if termination.requested else 0
        except KeyboardInterrupt:
            self._say_goodbye("was interrupted")
            raise
        except BytePSError as error:
            if not self._link.is_over:
                self._tell(f"failed: {error}")
            if not termination.requested:
                raise
            _log.error("%s", error)
            return TERMINATED
        except Exception as error:
            self._tell(f"failed: {error!r}")
            raise

    def _must_end(self, now: float, urgent: bool) -> bool:
        """This server was told to end: nothing holds it before the job is complete, afterwards the workers need it.

        The job may be complete already, and the word of it on its way.
        """
        if self._end_due is None:
            self._end_due = now + min(_WORD_SECONDS, self._settings.grace_period)
        if self._rounds is not None and self._settings.grace_period and not self._has_announced:
            self._has_announced = True
            self._end_due = now + self._settings.grace_period
            text = f"it serves until the workers have left, for {self._settings.grace_period:g} s at most"
            self._link.send(Notice(f"was told to end (SIGTERM): {text} (BYTEPS_GRACE_PERIOD)"))
            _log.warning("told to end (SIGTERM): %s (BYTEPS_GRACE_PERIOD)", text)
        return urgent or now >= self._end_due

    def _say_goodbye(self, reason: str) -> None:
        """Leave the job, and wait a moment until the scheduler has heard that; its answer ends this server, too."""
        self._finished = True
        now = time.monotonic()
        deadline = now + _GOODBYE_SECONDS
        self._link.send(Bye(reason))
        with contextlib.suppress(BytePSError):
            while (now := time.monotonic()) < deadline:
                self.run_once(now, deadline - now)

    def _tell(self, failure: str) -> None:
        """As :meth:`_say_goodbye`, where nothing but the word of the scheduler can be relied on any more."""
        deadline = time.monotonic() + _GOODBYE_SECONDS
        self._link.send(Bye(failure))
        while not self._link.is_over and (now := time.monotonic()) < deadline:
            with contextlib.suppress(BytePSError):  # the end, or the same failure again
                for message in self._endpoint.receive(deadline - now):
                    if message.peer == SCHEDULER:
                        self._link.receive(now, message.frames)

    def run_once(self, now: float, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for something to do and do it."""
        due = None if self._rounds is None else self._rounds.next_due
        if due is not None:
            timeout = min(timeout, max(0.0, due - now))
        messages = self._endpoint.receive(timeout)
        arrived = time.monotonic() if self._is_timed else 0.0
        for message in messages:
            if message.peer == SCHEDULER:
                self._receive_control(now, message.frames)
            elif self._rounds is None:
                self._keep(message)
            else:
                self._receive_data(message, arrived)
        if self._rounds is not None:
            self._rounds.advance()

    def close(self) -> None:
        """End the engine threads, the record and the trace; the endpoint stays open."""
        if self._engine is not None:
            self._engine.close()
        if self._tracing is not None:
            self._tracing.trace.finish()
        if self._recorder is not None:
            self._recorder.close()

    def _keep(self, message: Message) -> None:
        """A worker may hear of the complete job before this server does; what is dropped here is asked for again."""
        nbytes = sum(each.nbytes for each in message.frames)
        try:
            open_bundle(message.frames) if is_bundle(message.frames) else open_frames(message.frames)
        except RemoteProtocolError as error:
            self._complain(message, error)
            return
        if self._early_bytes + nbytes <= _EARLY_BYTES:
            self._early_bytes += nbytes
            self._early.append(message)

    def _receive_control(self, now: float, frames: Sequence[memoryview]) -> None:
        try:
            message = self._link.receive(now, frames)
        except RemoteProtocolError as error:
            self._complaints.add(SCHEDULER, error)
            return
        if message is not None:
            self._control(message)

    def _control(self, message: ControlMessage) -> None:
        if isinstance(message, Welcome):
            if self._rounds is None:
                self._begin(message)
        elif isinstance(message, Suspended):
            self._suspend()
        elif isinstance(message, Left):
            if self._rounds is not None:
                self._rounds.left(message.rank)
        elif isinstance(message, Group):
            self._form(message)
        elif isinstance(message, Finished):
            self._finished = True
        else:
            self._complaints.add(SCHEDULER, f"an unexpected {type(message).__name__}")

    def _suspend(self) -> None:
        """The workers have left, and others may come: forget all that was theirs, and be there for the next ones."""
        if self._rounds is not None:
            _log.info("the job is suspended: this server waits for the next generation")
            self._rounds = None
            self.close()
            self._engine = self._recorder = self._tracing = None
            self._complaints = Complaints(_log)
            logs.relabel("server")
        self._link.leave()

    def _form(self, message: Group) -> None:
        """Confirm a group when it is known here; before the word of the complete job nothing can be, and the scheduler
        is asked again."""
        if self._rounds is None:
            return
        try:
            self._rounds.form(message.group, message.ranks)
        except ValueError as error:
            self._complaints.add(SCHEDULER, str(error))
            return
        self._link.send(GroupKnown(message.group))

    def _begin(self, welcome: Welcome) -> None:
        logs.relabel(f"server {welcome.rank}")
        _log.info("server %d of %d, %d workers", welcome.rank, len(welcome.servers), len(welcome.participants))
        settings = self._settings
        team = team_of(settings, welcome, len(os.sched_getaffinity(0)), _log)
        _log.info("engine threads: %d, OpenMP threads each: %d", settings.engine_threads, team)
        spans = None if self._tracing is None else self._tracing.spans
        if self._tracing is not None:
            self._tracing.begin(welcome)
        self._engine = Engine(
            self._kernels,
            settings.engine_threads,
            team,
            self._endpoint.wake,
            timed=self._is_timed,
            make_times=SumTimes if spans is None else spans.sum_times,
        )
        self._rounds = Rounds(
            self._endpoint,
            self._engine,
            welcome,
            self._incarnation,
            timed=self._is_timed,
            patience=_ACCEPT_SECONDS,
            make_held=Held if spans is None else spans.held,
            bound=settings.async_max_staleness or None,  # 0 is synchronous training, in which it has no meaning
        )
        if settings.record is not None:
            self._record(welcome, self._rounds, team)
        early, self._early, self._early_bytes = self._early, [], 0
        arrived = time.monotonic()
        for message in early:
            self._receive_data(message, arrived)

    def _record(self, welcome: Welcome, rounds: Rounds, team: int) -> None:
        member = Member(
            Role.SERVER,
            welcome.rank,
            welcome.job,
            len(welcome.participants),
            len(welcome.servers),
            self._kernels.team(team),
            self._settings.engine_threads,
        )
        self._recorder = Recorder(self._settings, member, rounds.stages)
        self._recorder.watch()

    def _receive_data(self, message: Message, arrived: float) -> None:
        assert self._rounds is not None
        try:
            self._rounds.receive(message, arrived)
        except RemoteProtocolError as error:
            self._complain(message, error)

    def _complain(self, message: Message, error: RemoteProtocolError) -> None:
        """A process that takes this server for its scheduler is told so, instead of being left to wait."""
        self._complaints.add(message.peer, error)
        if asks_to_join(message.frames):
            self._endpoint.send(message.peer, [encode_control(Refused(self._not_the_scheduler))])
