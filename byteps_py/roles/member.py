"""The control connection of a server or a worker: registration, heartbeats, and proof that the scheduler lives.

One :class:`SchedulerLink` belongs to the thread that owns the endpoint.  It turns a job that was refused or aborted
into an exception, so that its owner has one place where everything ends.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from byteps_py.core.liveness import SUSPECT_AFTER
from byteps_py.errors import (
    BytePSError,
    JobAborted,
    JobRefused,
    RemoteProtocolError,
    SettingsError,
    TransportTimeout,
)
from byteps_py.roles.process import describe_this_process, is_proven_gone
from byteps_py.roles.software import describe_software
from byteps_py.settings import JobSettings, WorkerSettings
from byteps_py.telemetry.clock import ClockProbe
from byteps_py.transport.base import Endpoint, tcp_address
from byteps_py.types import Role
from byteps_py.version import package_version
from byteps_py.wire.control import (
    Abort,
    Clock,
    ClockReply,
    ControlMessage,
    Heartbeat,
    HeartbeatReply,
    Notice,
    ProcessInfo,
    Refused,
    Register,
    Waiting,
    Welcome,
    decode_control,
    encode_control,
)

__all__ = [
    "HEARTBEAT_INTERVAL",
    "SCHEDULER",
    "SchedulerLink",
    "registration",
    "server_identity",
    "worker_identity",
    "worker_registration",
]

SCHEDULER: Final = b"scheduler"
HEARTBEAT_INTERVAL: Final = 1.0
"""Seconds between two signs of life."""
_REPORT_INTERVAL: Final = 10.0
_REGISTER_INTERVAL: Final = 5.0
_FORMER_SECONDS: Final = 3.0
"""How long another scheduler may take to answer in the place of one that is gone."""
_LAUNCHED_SECONDS: Final = 30.0
"""How long a worker without a limit looks for a scheduler that its own launcher has started before it."""


class SchedulerLink:
    """What a member knows of its scheduler. Not thread-safe.

    Args:
        endpoint: carries the connection; the peer is called :data:`SCHEDULER`.
        settings: where the scheduler is, and the deadlines.
        register: what this process says of itself.
        log: the role's logger.
        now: seconds of a monotonic clock, as in all methods.
        probe: wants to know the scheduler's clock, once the job is complete; None: nobody does.

    Attributes:
        former: the scheduler that this process had in an earlier generation of the job; None: none.
        is_over: whether what a method raised has ended this link: the scheduler said so, or is not there. It needs no
            word of it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        settings: JobSettings,
        register: Register,
        log: logging.Logger,
        now: float,
        probe: ClockProbe | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._register = register
        self._log = log
        self._probe = probe
        address = tcp_address(settings.root_uri, settings.root_port)
        self._address = address.removeprefix("tcp://")
        self._started = self._report_due = now
        self._report_due += _REPORT_INTERVAL
        self._register_due = self._heartbeat_due = now
        self._last_heard: float | None = None
        self._last_tick = now
        self.former: ProcessInfo | None = None
        self._scheduler: ProcessInfo | None = None
        self._job: int | None = None
        self.is_over = False
        endpoint.connect(SCHEDULER, address)
        self.tick(now)

    @property
    def scheduler(self) -> ProcessInfo | None:
        """The process of the scheduler, once it has said so."""
        return self._scheduler

    def leave(self) -> None:
        """The job goes on without what was so far, and this process registers for what comes in the next tick."""
        self._job = None
        self._register_due = self._last_tick

    def send(self, message: ControlMessage) -> None:
        """Queue a message to the scheduler."""
        self._endpoint.send(SCHEDULER, [encode_control(message)])

    def receive(self, now: float, frames: Sequence[memoryview]) -> ControlMessage | None:
        """Take a message of the scheduler; returns it if it is for the role, None if it was dealt with here.

        Raises:
            JobRefused, JobAborted: the scheduler said so.
            SettingsError: the same, because of settings that do not agree.
            RemoteProtocolError: the frames are no control message.
        """
        if len(frames) != 1:
            raise RemoteProtocolError(f"a control message has one frame, this one has {len(frames)}")
        message = decode_control(frames[0])
        self._last_heard = now
        self.is_over = self.is_over or isinstance(message, (Refused, Abort))
        if isinstance(message, Refused):
            text = f"the scheduler at {self._address} refused this process: {message.reason}"
            raise SettingsError(text) if message.settings else JobRefused(text)
        if isinstance(message, Abort):
            raise SettingsError(message.reason) if message.settings else JobAborted(message.reason)
        if isinstance(message, HeartbeatReply):
            self._scheduler = message.scheduler
            return None
        if isinstance(message, ClockReply):
            if self._probe is not None:
                self._probe.take(message.number, message.received, message.replied)
            return None
        if isinstance(message, Waiting) and message.barrier:
            return message
        if isinstance(message, (Waiting, Notice)):
            self._log.log(self._level_of_news, "%s", message.text)
            return None
        if isinstance(message, Welcome):
            self._job = message.job
        return message

    @property
    def _level_of_news(self) -> int:
        """In a job of one machine the scheduler says it in the same terminal, and once is enough."""
        is_told = self._scheduler is not None and self._scheduler.host_id == self._register.process.host_id
        return logging.INFO if is_told and self._register.num_worker == 1 else logging.WARNING

    def tick(self, now: float) -> float:
        """Send what is due and check the deadlines; returns the seconds until the next call is due.

        Raises:
            TransportTimeout: the scheduler never answered within ``BYTEPS_START_TIMEOUT``.
            JobAborted: the scheduler is gone, or silent for ``BYTEPS_LOST_TIMEOUT``.
        """
        self._note_pause(now)
        if self._job is None and now >= self._register_due:
            self._register_due = now + _REGISTER_INTERVAL
            self.send(self._register)
        if now >= self._heartbeat_due:
            self._heartbeat_due = now + HEARTBEAT_INTERVAL
            self.send(Heartbeat(self._job or 0))
            try:
                self._check_scheduler(now)
            except BytePSError:
                self.is_over = True
                raise
        wait = self._heartbeat_due - now
        return wait if self._probe is None or self._job is None else min(wait, self._ask(self._probe))

    def _ask(self, probe: ClockProbe) -> float:
        """Ask for the scheduler's clock if it is time; returns when to call again."""
        number = probe.ask()
        if number is not None:
            self.send(Clock(number))
        return probe.wait()

    def _note_pause(self, now: float) -> None:
        """A process that was itself stopped has not listened: that is not held against the scheduler.

        Another thread may have held the interpreter's lock for long, or the whole process was stopped.
        """
        pause = now - self._last_tick
        self._last_tick = now
        if pause > SUSPECT_AFTER and self._last_heard is not None:
            self._last_heard = min(now, self._last_heard + pause)

    def _check_scheduler(self, now: float) -> None:
        if self._last_heard is None:
            self._check_start(now)
            return
        if self._scheduler is not None:
            gone = is_proven_gone(self._scheduler, self._register.process)
            if gone is not None:
                raise JobAborted(f"the scheduler at {self._address} was lost: {gone}")
        if now - self._last_heard > self._settings.lost_timeout:
            raise JobAborted(
                f"the scheduler at {self._address} was lost: no sign of life for {now - self._last_heard:.0f} s "
                "(BYTEPS_LOST_TIMEOUT)"
            )

    def _check_start(self, now: float) -> None:
        waited, limit = now - self._started, self._settings.start_timeout
        gone = None if self.former is None else is_proven_gone(self.former, self._register.process)
        if gone is not None and waited > _FORMER_SECONDS:
            raise JobAborted(
                f"the scheduler at {self._address} has ended ({gone}) while this process had suspended the job: see "
                "its output for the reason"
            )
        if limit and waited > limit:
            raise TransportTimeout(
                f"no scheduler answered at {self._address} within {waited:.0f} s (BYTEPS_START_TIMEOUT)"
                f"{self._diagnosis()}: check that it runs, that DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT are the same "
                "everywhere, and the firewall"
            )
        if not limit and waited > _LAUNCHED_SECONDS and self._register.launch_id and self._register.num_worker == 1:
            raise TransportTimeout(
                f"no scheduler answered at {self._address} within {waited:.0f} s{self._diagnosis()}: if the job of "
                "this launch has ended before, start this program by a bpslaunch of its own, since a launch is one "
                "job; if not, mend what keeps this process from the scheduler"
            )
        if now >= self._report_due:
            self._report_due = now + _REPORT_INTERVAL
            self._log.warning("waiting %.0f s for the scheduler at %s%s", waited, self._address, self._diagnosis())

    def _diagnosis(self) -> str:
        why = self._endpoint.diagnose(SCHEDULER)
        return f": {why}" if why else ""


def server_identity(incarnation: int) -> bytes:
    """The identity under which a server process presents itself, to the scheduler and in its lanes."""
    return b"server-%016x" % incarnation


def worker_identity(incarnation: int) -> bytes:
    """The identity under which a worker process connects to scheduler and servers."""
    return b"worker-%016x" % incarnation


def registration(settings: JobSettings, role: Role, incarnation: int) -> Register:
    """What every member says of itself."""
    return Register(
        version=package_version(),
        job_id=settings.job_id,
        role=role,
        process=describe_this_process(),
        incarnation=incarnation,
        num_worker=settings.num_worker,
        num_server=settings.num_server,
        software=describe_software(),
    )


def worker_registration(settings: WorkerSettings, incarnation: int, *, resumes: bool = False) -> Register:
    """What a worker process says of itself; ``resumes``: it was in an earlier generation of the job."""
    return msgspec.structs.replace(
        registration(settings, Role.WORKER, incarnation),
        worker_id=settings.worker_id,
        local_rank=settings.local_rank,
        local_size=settings.local_size,
        launch_id=settings.launch_id,
        partition_bytes=settings.partition_bytes or 0,
        transport=settings.transport,
        local_reduce="off" if settings.is_asynchronous else settings.local_reduce,
        enable_async=settings.enable_async,
        async_max_staleness=settings.async_max_staleness,
        global_rank=settings.global_rank,
        resumes=resumes,
    )
