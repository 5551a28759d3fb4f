"""How a training process becomes a worker: of the job that its environment describes, or a job of its own."""

from __future__ import annotations

import contextlib
import dataclasses
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
from byteps_py.roles.lineage import Lineage
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

__all__ = ["AnyWorker", "Joined", "join", "rejoin"]

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

    def suspend(self) -> None: ...

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
    lineage: Lineage | None = None
    node: int = 0


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
        return _be_alone(read(ProcessSettings), role, Lineage())
    if os.getpid() in _joined:
        raise JobRefused(
            "this process has left its job by shutdown() and cannot join it again: call init() at the beginning and "
            "shutdown() at the end, and suspend() and resume() in between"
        )
    settings = read(WorkerSettings)
    return _join(settings, Lineage(settings))


def rejoin(lineage: Lineage, num_workers: int, num_servers: int, global_rank: int | None) -> Joined:
    """Join the next generation of the job that this process has suspended; blocks until it is complete.

    The environment is changed as by one who had started the process for it.  The scheduler goes on to know the process
    by the ``DMLC_WORKER_ID`` and ``BYTEPS_LOCAL_RANK`` with which it was started.

    Args:
        lineage: of the process.
        num_workers: worker machines; worker processes where all are on one machine.
        num_servers: server processes.
        global_rank: the wish for a rank; None: any.

    Raises:
        SettingsError: a number is out of range, or does not agree with another process. Nothing has changed.
        JobRefused, JobAborted, TransportError: the job cannot be joined; the message says why.
    """
    first, source = lineage.settings, environment()
    wanted = {"DMLC_NUM_WORKER": str(num_workers), "DMLC_NUM_SERVER": str(num_servers)}
    if lineage.counts_processes:
        wanted |= {"DMLC_NUM_WORKER": "1", "BYTEPS_LOCAL_SIZE": str(num_workers)}
    wanted["BYTEPS_GLOBAL_RANK"] = "" if global_rank is None else str(global_rank)
    changed = {**source, **wanted}
    if first is None and runs_alone(changed):
        source.update(wanted)
        return _be_alone(read(ProcessSettings), read_role(), lineage)
    if first is not None:  # the place that it was started at may lie beyond the new numbers
        changed |= {"BYTEPS_FORCE_DISTRIBUTED": "1", "DMLC_WORKER_ID": "", "BYTEPS_LOCAL_RANK": ""}
    settings = read(WorkerSettings, changed)
    if first is None and settings.is_asynchronous:  # what it has made averages gradients
        raise SettingsError(
            "BYTEPS_ENABLE_ASYNC=1: this process was a job of its own, which trains synchronously, and cannot go on "
            "asynchronously with others: set BYTEPS_FORCE_DISTRIBUTED=1 from the start, or unset BYTEPS_ENABLE_ASYNC"
        )
    source.update(wanted)
    if first is None:
        lineage.settings = settings
        return _join(settings, lineage)
    # A trace has one file, and steps that are counted from the start: that of the first generation.
    settings = dataclasses.replace(settings, worker_id=first.worker_id, local_rank=first.local_rank, trace_on=False)
    joined = _join(settings, lineage)
    if first.worker_id is not None:
        source["DMLC_WORKER_ID"] = str(joined.node)
    if source.get("BYTEPS_LOCAL_RANK", "").strip():
        source["BYTEPS_LOCAL_RANK"] = str(joined.local_rank)
    return joined


def _start_logging(settings: LogSettings) -> None:
    logs.configure(settings, "worker")
    for line in known_names.at_start(Role.WORKER, environment()):
        _log.warning("%s", line)


def _be_alone(settings: ProcessSettings, role: Role | None, lineage: Lineage) -> Joined:
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
    return Joined(worker, recorder=_begin_record(settings, member, worker), lineage=lineage)


def _join(settings: WorkerSettings, lineage: Lineage) -> Joined:
    if not lineage.resumes:
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

    worker = Worker(settings, endpoint, incarnation, chosen, abort, lineage)
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
    place = welcome.rank, len(welcome.participants), me.local_rank, me.local_size
    return Joined(worker, *place, farewell, recorder, lineage, me.node)


def _begin_record(settings: RecordSettings, member: Member, worker: AnyWorker) -> Recorder | None:
    if settings.record is None:
        return None
    recorder = Recorder(settings, member, worker.stages)
    recorder.step(0, 0)
    return recorder
