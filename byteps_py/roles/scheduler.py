"""The scheduler: performs what :class:`~byteps_py.core.generations.Generations` decides.

One thread waits for messages and, once a second, lets time pass: for deadlines, and for the proof that a member on
this host is gone.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from byteps_py.core.actions import Action, Log, Send, Stop
from byteps_py.core.generations import Generations
from byteps_py.core.membership import State
from byteps_py.errors import LocalProtocolError, RemoteProtocolError, SettingsError, TransportError
from byteps_py.ports.holders import WILDCARD
from byteps_py.roles.address import check_interface
from byteps_py.roles.envelope import Complaints
from byteps_py.roles.member import SCHEDULER
from byteps_py.roles.message_log import log_messages
from byteps_py.roles.process import describe_this_process, is_proven_gone, is_running
from byteps_py.roles.software import describe_software
from byteps_py.roles.termination import TERMINATED, Termination
from byteps_py.settings import SchedulerSettings
from byteps_py.telemetry.recorder import Member, Recorder, prepare
from byteps_py.transport.base import Endpoint, Message, tcp_address
from byteps_py.transport.resolve import wait_until_resolved
from byteps_py.transport.zmq import ZmqEndpoint
from byteps_py.types import Role
from byteps_py.version import package_version
from byteps_py.wire.control import (
    MAX_CONTROL_BYTES,
    Abort,
    Clock,
    ClockReply,
    ControlMessage,
    Finished,
    Heartbeat,
    Inquiry,
    Refused,
    Register,
    Status,
    Welcome,
    decode_control,
    encode_control,
)
from byteps_py.wire.inquiry import Software

__all__ = ["Scheduler", "run"]

_log = logging.getLogger("byteps_py.scheduler")
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_TICK: Final = 1.0
_LINGER: Final = 3.0
"""Seconds after the end in which the last messages are delivered, and repeated to whoever asks, at most."""
_REPEAT: Final = 0.2
"""Between two looks at who has not hung up yet."""
_SETTLE: Final = 0.1
"""Seconds of it that pass in any case: what was sent may still be on its way to the kernel."""


def run(settings: SchedulerSettings, endpoint: Endpoint | None = None) -> int:
    """Schedule one job, from the first registration to its end.

    Args:
        settings: the role's settings.
        endpoint: not yet listening; closed at the end. None listens at the scheduler's TCP address.

    Returns:
        The exit status: 0 when every worker said goodbye, 2 when settings of the job disagree, 1 when it was aborted
        otherwise or the address is not free, 143 after SIGTERM.

    Raises:
        SettingsError: the job has no server, ``DMLC_INTERFACE`` is no interface of this machine, or the folder for
            records cannot be made.
        TransportError: the limit of open files is too low.
    """
    if settings.num_server < 1:
        raise SettingsError(f"DMLC_NUM_SERVER={settings.num_server}: a job with a scheduler needs at least one server")
    check_interface(settings)
    prepare(settings)
    if endpoint is None:
        own = ZmqEndpoint(SCHEDULER, MAX_CONTROL_BYTES, settings.num_worker + settings.num_server)
        endpoint = log_messages(own, _log)
    try:
        scheduler = Scheduler(settings, endpoint)
        try:
            return scheduler.serve()
        finally:
            scheduler.close()
    except TransportError as error:
        _log.error("the scheduler cannot run: %s", error)
        return 1
    finally:
        endpoint.close()


class Scheduler:
    """The scheduler role over any endpoint. Belongs to one thread.

    Args:
        settings: the role's settings.
        endpoint: not yet listening; closed by the caller.

    Raises:
        TransportError: the address cannot be listened at.
    """

    def __init__(self, settings: SchedulerSettings, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._here = describe_this_process()
        self._name = f"the scheduler (pid {self._here.pid} on {self._here.host})"
        self._settings = settings
        self._recorder: Recorder | None = None
        self._recorded = 0  # the number of the run that it records
        self._membership = Generations(
            settings.job_id,
            settings.num_worker,
            settings.num_server,
            draw=lambda: secrets.randbits(64),
            scheduler=self._here,
            start_timeout=settings.start_timeout,
            lost_timeout=settings.lost_timeout,
            by_machine=settings.mixed_mode,
        )
        self._complaints = Complaints(_log)
        self._was_complete = False
        self._was_told = False  # to end, before the job had ended
        self._reached: set[bytes] = set()  # who was connected when it was told of the end
        self._hung_up: set[bytes] = set()  # and is not any more
        self._encoded: tuple[ControlMessage, bytes] | None = None
        self._status: tuple[Status, float] | None = None  # for whoever asks, and when it was found out
        self._started = self._tick_due = time.monotonic()
        self._clock_began = time.time_ns() - time.monotonic_ns()
        self.stop: Stop | None = None
        """How the job ended, once it has."""
        address = endpoint.listen(_listening_address(settings))
        needed = (settings.num_worker, settings.num_server)
        _log.info("listening at %s, DMLC_NUM_WORKER=%d, DMLC_NUM_SERVER=%d", address, *needed)

    def serve(self) -> int:
        """Work until the job has ended; returns the exit status. Whatever ends this scheduler, all members are told."""
        with Termination(self._endpoint.wake) as termination:
            try:
                self._serve(termination)
            except BaseException as error:
                cause = "was interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {error!r}"
                self._perform(self._membership.abort(f"{self._name} {cause}"))
                raise
            finally:
                self._linger(termination)
        assert self.stop is not None
        return TERMINATED if self._was_told else self.stop.status

    def close(self) -> None:
        """End the record; the endpoint stays open."""
        if self._recorder is not None:
            self._recorder.close()

    def _serve(self, termination: Termination) -> None:
        """Work until the job has ended."""
        reason = f"{self._name} was told to end (SIGTERM)"
        while self.stop is None:
            self.run_once()
            if termination.urgent:
                self._perform(self._membership.abort(reason))
            elif termination.requested and not self._was_told and self.stop is None:
                self._was_told = True
                now = time.monotonic()
                self._look_for_losses(now)  # a worker that is gone is a better reason
                self._perform(self._membership.told_to_end(now, reason, self._settings.grace_period))

    def run_once(self) -> None:
        """Wait for messages, at most until the next second, and act on them."""
        for message in self._endpoint.receive(max(0.0, self._tick_due - time.monotonic())):
            self._receive(message)
        now = time.monotonic()
        if now >= self._tick_due:
            self._tick_due = now + _TICK
            silent = self._membership.silent(now)
            running = {peer for peer, process in silent if is_running(process, self._here)}
            self._perform(self._membership.tick(now, running))
            self._look_for_losses(now)

    def _receive(self, message: Message) -> None:
        now, received = time.monotonic(), time.monotonic_ns()
        try:
            if len(message.frames) != 1:
                raise RemoteProtocolError(f"a control message has one frame, this one has {len(message.frames)}")
            control = decode_control(message.frames[0])
        except RemoteProtocolError as error:
            self._complaints.add(message.peer, error)
            if not self._membership.knows(message.peer):
                self._send(message.peer, Refused(str(error)))  # another version may understand as much
            return
        if isinstance(control, Inquiry):
            self._send(message.peer, self._describe(control.number, now))
            return
        if isinstance(control, Clock):
            began = self._clock_began
            self._send(message.peer, ClockReply(control.number, began + received, began + time.monotonic_ns()))
            return
        if isinstance(control, Register) and not self._membership.knows(message.peer):
            self._look_for_losses(now)  # a process that was started anew may take the place of its predecessor
        self._perform(self._membership.receive(now, message.peer, control))
        if self._membership.knows(message.peer) and not isinstance(control, Heartbeat):
            self._status = None  # a member has come, or leaves; strangers change nothing, however much they say
        self._was_complete = self._was_complete or self._membership.state is State.RUNNING

    def _describe(self, number: int, now: float) -> Status:
        """How the job stands; whoever asks leaves no trace.

        Members are counted once for many who ask: anybody may, as often as he likes.
        """
        if self._status is None or now - self._status[1] >= _TICK:
            self._status = self._count(now), now
        uptime, clock = int((now - self._started) * 1e9), max(0, time.time_ns())
        return msgspec.structs.replace(self._status[0], number=number, uptime=uptime, clock=clock)

    def _count(self, now: float) -> Status:
        """How the job stands, but for what is another thing in every answer."""
        census = self._membership.census(now)
        own = Software(Role.SCHEDULER, package_version(), describe_software(), 1, self._here.host)
        return Status(
            number=0,
            job_id=self._settings.job_id,
            state=census.state,
            software=(own, *census.software),
            pid=self._here.pid,
            num_worker=census.num_worker,
            num_server=census.num_server,
            machines=census.machines,
            workers=census.workers,
            servers=census.servers,
            missing=census.missing,
            uptime=0,
            clock=0,
        )

    def _look_for_losses(self, now: float) -> None:
        for peer, process, _ in self._membership.members():
            how = is_proven_gone(process, self._here)
            if how is not None:
                self._status = None
                self._perform(self._membership.proven_lost(now, peer, how))

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                if isinstance(action.message, Welcome) and self._settings.record is not None:
                    self._record(action.message)
                sent = self._send(action.peer, action.message)
                if isinstance(action.message, (Abort, Finished)):
                    self._note_end(action.peer, sent)
            elif isinstance(action, Log):
                _log.log(_LEVELS[action.level], "%s", action.text)
            else:
                self.stop, self._status = action, None
                if action.status:
                    _log.error("the job was aborted: %s", action.reason)
                else:
                    _log.info("the job has finished: %s", action.reason)

    def _record(self, welcome: Welcome) -> None:
        """The job is complete, so there is something to record: what it costs to watch over it.

        Each generation has a record of its own.
        """
        if self._recorder is not None and self._recorded == welcome.job:
            return
        self.close()
        self._recorded = welcome.job
        counts = len(welcome.participants), len(welcome.servers)
        self._recorder = Recorder(self._settings, Member(Role.SCHEDULER, 0, welcome.job, *counts), dict)
        self._recorder.watch()

    def _note_end(self, peer: bytes, sent: bool) -> None:
        """A member was told of the end, if it was connected. It hangs up when it has heard that."""
        if sent:
            self._reached.add(peer)
            self._hung_up.discard(peer)
        elif peer in self._reached:
            self._hung_up.add(peer)

    def _send(self, peer: bytes, message: ControlMessage) -> bool:
        """Send one message, if the peer is connected; the members ask again for what did not arrive."""
        try:
            # The same message often goes to everyone.
            if self._encoded is None or self._encoded[0] is not message:
                self._encoded = (message, encode_control(message))
            if self._endpoint.send(peer, [self._encoded[1]]):
                return True
            _log.debug("%s is not connected and misses a %s", peer, type(message).__name__)
        except (LocalProtocolError, TransportError) as error:
            _log.error("%s to %s: %s", type(message).__name__, repr(peer)[2:-1], error)
        return False

    def _linger(self, termination: Termination) -> None:
        """Deliver the last messages: for a moment, and a little longer while somebody may not have heard of the end.

        Whoever has heard of it hangs up, or is gone.  A job that never was complete has processes that are not even
        known yet, and that are to learn why.  A signal that comes now has nothing to wait for.
        """
        started = now = time.monotonic()
        repeat_due = started + _REPEAT
        while now < started + _SETTLE or (now < started + _LINGER and self._somebody_is_there()):
            told_now = termination.urgent or (termination.requested and not self._was_told)
            if told_now and now >= started + _SETTLE:
                return
            if now >= repeat_due:
                repeat_due = now + _REPEAT
                self._perform(self._membership.say_end_again())
            for message in self._endpoint.receive(_SETTLE / 2):
                self._receive(message)
            now = time.monotonic()

    def _somebody_is_there(self) -> bool:
        if not self._was_complete and not self._was_told:
            return True
        return any(
            peer not in self._hung_up and is_proven_gone(process, self._here) is None
            for peer, process, _ in self._membership.members()
        )


def _listening_address(settings: SchedulerSettings) -> str:
    """The own address as all know it, if that can be listened at: in a cluster it may be that of a service."""
    if settings.kubernetes:
        return tcp_address(WILDCARD, settings.root_port)
    wait_until_resolved(settings.root_uri, settings.root_port, settings.start_timeout, _log)
    return tcp_address(settings.root_uri, settings.root_port)
