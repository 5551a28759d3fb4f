"""How a training process becomes a worker: of the job that its environment describes, or a job of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from byteps_py import kernels, known_names
from byteps_py.errors import BytePSError, JobRefused, SettingsError
from byteps_py.roles import last_words
from byteps_py.roles.address import check_interface
from byteps_py.roles.asynchrony import Asynchrony
from byteps_py.roles.farewell import Farewell
from byteps_py.roles.local import LocalWorker
from byteps_py.roles.member import worker_identity
from byteps_py.roles.message_log import log_messages
from byteps_py.roles.pending import Pending
from byteps_py.roles.rows import Rows
from byteps_py.roles.worker import Worker
from byteps_py.settings import (
    MAX_PARTITION_BYTES,
    LogSettings,
    ProcessSettings,
    RecordSettings,
    WorkerSettings,
    environment,
    read,
    read_role,
    runs_alone,
)
from byteps_py.telemetry import logs
from byteps_py.telemetry.metrics import SpeedRecord
from byteps_py.telemetry.recorder import Member, Recorder, prepare
from byteps_py.telemetry.stages import Stages
from byteps_py.torchrun import worker_variables
from byteps_py.trace_settings import prepare_trace
from byteps_py.transport.host import HostEndpoint
from byteps_py.types import Operation, Role, TensorSpec

__all__ = ["AnyWorker", "Joined", "join"]

_log = logging.getLogger("byteps_py.worker")
_joined: list[int] = []
"""The processes, this one and those from which it was forked, that have joined a distributed job."""


class AnyWorker(Protocol):
    """What :class:`~byteps_py.roles.worker.Worker` and :class:`~byteps_py.roles.local.LocalWorker` do."""

    speed: SpeedRecord
    asynchrony: Asynchrony

    def declare(self, specs: Sequence[TensorSpec]) -> None: ...

    def form_group(self, ranks: tuple[int, ...]) -> int: ...

    def submit(
        self,
        spec: TensorSpec,
        source: npt.NDArray[Any] | Rows | None,
        output: npt.NDArray[Any] | None,
        operation: Operation,
        *,
        root: int = 0,
        priority: int = 0,
        step: int = 0,
    ) -> Pending: ...

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]: ...

    def messages(self) -> tuple[int, int]: ...

    def ways(self) -> dict[str, int]: ...

    def barrier(self) -> None: ...

    def stages(self) -> Stages: ...

    def close(self, failure: str = "") -> None: ...


class Joined(NamedTuple):
    """A worker that is in its job, and its place there; see :class:`byteps_py.session.Session`."""

    worker: AnyWorker
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    farewell: Farewell | None = None
    recorder: Recorder | None = None


def join() -> Joined:
    """Join the job that the environment describes; blocks until it is complete.

    What a launcher of another kind has said in its own words is added to the environment.

    Raises:
        SettingsError: with every variable that is missing or wrong, or that does not agree with another process.
        JobRefused, JobAborted, TransportError: the job cannot be joined; the message says why.
    """
    environment().update(worker_variables(environment()))
    role = read_role()
    if role in (Role.SERVER, Role.SCHEDULER):
        raise SettingsError(
            f"DMLC_ROLE={role}: a {role} runs no training script; start it by `bpslaunch` or `bps {role}`"
        )
    if runs_alone():
        return _be_alone(read(ProcessSettings), role)
    if os.getpid() in _joined:
        raise JobRefused(
            "this process has left its job by shutdown() and cannot join it again: a process joins a job once, so call "
            "init() at the beginning and shutdown() at the end"
        )
    return _join(read(WorkerSettings))


def _start_logging(settings: LogSettings) -> None:
    logs.configure(settings, "worker")
    for line in known_names.at_start(Role.WORKER, environment()):
        _log.warning("%s", line)


def _be_alone(settings: ProcessSettings, role: Role | None) -> Joined:
    _start_logging(settings)
    prepare(settings)
    if settings.trace_on:
        _log.warning(
            "BYTEPS_TRACE_ON=1: this process is a job of its own, in which nothing travels: there is nothing to trace; "
            "BYTEPS_FORCE_DISTRIBUTED=1 uses a server even for one worker"
        )
    if role is Role.WORKER:
        _log.warning(
            "this worker runs alone, without the scheduler and the servers: that is what DMLC_NUM_WORKER=1 means; "
            "set BYTEPS_FORCE_DISTRIBUTED=1 to use them"
        )
    elif (text := known_names.foreign_launch(environment())) is not None:
        _log.warning("%s", text)
    worker = LocalWorker()
    member = Member(Role.WORKER, 0, secrets.randbits(64), num_worker=1, num_server=0, team=1)
    return Joined(worker, recorder=_begin_record(settings, member, worker))


def _join(settings: WorkerSettings) -> Joined:
    _start_logging(settings)
    check_interface(settings)
    prepare(settings)
    prepare_trace(settings)
    chosen = kernels.select(settings.kernels)
    incarnation = secrets.randbits(64)
    own = HostEndpoint(
        worker_identity(incarnation),
        MAX_PARTITION_BYTES,
        lanes_apart=True,
        mode=settings.transport,
        io_threads=settings.io_threads,
    )
    endpoint = log_messages(own, _log)
    recorder: Recorder | None = None

    def abort(error: BaseException) -> None:
        last_words.end_soon(error, settings.grace_period)
        if recorder is not None:
            recorder.sample()  # the program may hang until it is ended without any handler

    worker = Worker(settings, endpoint, incarnation, chosen, abort)
    farewell = Farewell(worker.say_goodbye)
    try:
        welcome = worker.start()
        me = welcome.participants[welcome.rank]
        logs.configure(settings, f"worker {welcome.rank}")
        if settings.record is not None:
            counts = len(welcome.participants), len(welcome.servers)
            team = chosen.team(settings.omp_num_threads or 1)
            recorder = _begin_record(settings, Member(Role.WORKER, welcome.rank, welcome.job, *counts, team), worker)
    except BaseException:  # also a Ctrl-C: the place in the job becomes free, and init() may be called again
        farewell.close()
        with contextlib.suppress(BytePSError):
            worker.close()
        raise
    _joined.append(os.getpid())
    return Joined(worker, welcome.rank, len(welcome.participants), me.local_rank, me.local_size, farewell, recorder)


def _begin_record(settings: RecordSettings, member: Member, worker: AnyWorker) -> Recorder | None:
    if settings.record is None:
        return None
    recorder = Recorder(settings, member, worker.stages)
    recorder.step(0, 0)
    return recorder
