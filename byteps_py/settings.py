"""Every environment variable that byteps_py reads: one table, parsed once, at the edge.

Each role has one frozen class; each field carries its :class:`Variable`, so the class *is* the table from which
documentation is made.  :func:`read` collects all problems into one :class:`~byteps_py.errors.SettingsError`.
Only this module and the entry points touch ``os.environ``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

from byteps_py.asynchronous_settings import AsynchronousSettings, asynchronous_problems
from byteps_py.binding_settings import BindingSettings, ServerShareSettings, WorkerBindingSettings
from byteps_py.errors import SettingsError
from byteps_py.network_settings import MAX_CONNECTIONS, NetworkSettings, PlacementSettings, TrafficSettings
from byteps_py.place_settings import PlaceSettings
from byteps_py.record_settings import RecordSettings
from byteps_py.role import Role
from byteps_py.trace_settings import TraceSettings, trace_problems
from byteps_py.variables import (
    Finding,
    Variable,
    boolean,
    choice,
    examine,
    host,
    integer,
    seconds,
    team,
    text,
    variable,
    variables_of,
)

__all__ = [
    "MAX_PARTITION_BYTES",
    "JobSettings",
    "LaunchSettings",
    "LogSettings",
    "ProcessSettings",
    "RecordSettings",
    "SchedulerSettings",
    "ServerSettings",
    "TraceSettings",
    "Variable",
    "WorkerSettings",
    "environment",
    "inspect",
    "is_distributed",
    "read",
    "read_role",
    "runs_alone",
    "settings_class",
    "variables_of",
    "wants_native_kernels",
    "why_needless",
]

MAX_PARTITION_BYTES = 1 << 30
"""Largest partition that may be set, and so the largest payload frame that a data socket accepts."""

_LONGEST_LIST = 1 << 16
_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")


def _log_level(default: str) -> Any:
    return variable("BYTEPS_LOG_LEVEL", choice(*_LEVELS), "least severe message that is logged to stderr", default)


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """What is logged, and how."""

    log_level: str = _log_level("warning")
    verbose: int = variable(
        "PS_VERBOSE", integer(0, 2), "1: log connections, as BYTEPS_LOG_LEVEL=info does; 2: log every message", 0
    )
    hide_time: bool = variable("BYTEPS_LOG_HIDE_TIME", boolean(), "leave the time out of log lines", False, "0")


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(TraceSettings, RecordSettings, LogSettings):
    """For a process of any job, also for one that is a job of its own."""


@dataclass(frozen=True, kw_only=True)
class JobSettings(BindingSettings, NetworkSettings, ProcessSettings):
    """What every process of a distributed job must know."""

    num_worker: int = variable("DMLC_NUM_WORKER", integer(1, 65535), "number of worker machines")
    num_server: int = variable(
        "DMLC_NUM_SERVER",
        integer(0, 65535),
        "number of server processes",
        mistaken={"auto": "auto is for `bpslaunch -s` alone, on one machine; for several `bps plan` finds the number"},
    )
    root_uri: str = variable("DMLC_PS_ROOT_URI", host(), "address of the scheduler")
    root_port: int = variable("DMLC_PS_ROOT_PORT", integer(1, 65535), "port of the scheduler")
    force_distributed: bool = variable(
        "BYTEPS_FORCE_DISTRIBUTED", boolean(), "use servers even with DMLC_NUM_WORKER=1", False, "0"
    )
    job_id: str = variable(
        "BYTEPS_JOB_ID", text("a text"), "processes of another job id are refused by the scheduler", "0"
    )
    start_timeout: float = variable(
        "BYTEPS_START_TIMEOUT",
        seconds(0, 1e6),
        "seconds, from the first process that registers, until the job must be complete (0: no limit)",
        120.0,
        "120",
    )
    lost_timeout: float = variable(
        "BYTEPS_LOST_TIMEOUT",
        seconds(2, 1e6),
        "seconds without a sign of life after which a process counts as lost",
        30.0,
        "30",
    )
    kernels: str = variable("BYTEPS_KERNELS", choice("native", "reference"), "summation in C, or in NumPy", "native")
    grace_period: float = variable(
        "BYTEPS_GRACE_PERIOD",
        seconds(0, 1e6),
        "seconds that SIGTERM leaves to workers, to save what they have",
        20.0,
        "20",
    )


@dataclass(frozen=True, kw_only=True)
class SchedulerSettings(PlacementSettings, JobSettings):
    """The scheduler's settings."""

    log_level: str = _log_level("info")
    kubernetes: bool = variable(
        "DMLC_USE_KUBERNETES", boolean(), "the scheduler listens on all addresses, whatever its own is", False, "0"
    )


@dataclass(frozen=True, kw_only=True)
class ServerSettings(ServerShareSettings, AsynchronousSettings, TrafficSettings, JobSettings):
    """A server's settings."""

    log_level: str = _log_level("info")
    engine_threads: int = variable(
        "BYTEPS_SERVER_ENGINE_THREAD", integer(1, 256), "threads that sum, each with an OpenMP team of its own", 1
    )
    port: int = variable("DMLC_PORT", integer(0, 65535), "port to listen at (0: any free one)", 0)
    omp_wait_policy: str = variable(
        "BYTEPS_SERVER_OMP_WAIT_POLICY",
        choice("passive", "active"),
        "how idle OpenMP threads wait",
        "passive",
        further=("OMP_WAIT_POLICY",),
    )
    omp_num_threads: int | None = variable(
        "BYTEPS_SERVER_OMP_NUM_THREADS",
        team(1, 1024),
        "threads of one OpenMP team",
        None,
        "cores / servers of the host / engine threads",
        further=("OMP_NUM_THREADS", "BYTEPS_OMP_THREAD_PER_GPU"),
    )


@dataclass(frozen=True, kw_only=True)
class WorkerSettings(PlaceSettings, WorkerBindingSettings, AsynchronousSettings, TrafficSettings, JobSettings):
    """A worker's settings."""

    partition_bytes: int | None = variable(
        "BYTEPS_PARTITION_BYTES",
        integer(64, MAX_PARTITION_BYTES),
        "largest piece of a tensor that travels in one message; must be equal on all workers",
        None,
        "by model and network",
    )
    credit: int | None = variable(
        "BYTEPS_SCHEDULING_CREDIT",
        integer(0, 65535),
        "partitions that may be on the way to one server and not yet accepted (0: the default)",
        None,
        "by the network; 4",
    )
    tcp_connections: int = variable(
        "BYTEPS_TCP_CONNECTIONS",
        integer(1, MAX_CONNECTIONS),
        "TCP connections to each server that is not reached by shared memory",
        1,
    )
    local_reduce: str = variable(
        "BYTEPS_LOCAL_REDUCE",
        choice("auto", "on", "off"),
        "the processes of a machine sum large tensors before they send them: to servers on others, to all, never; must "
        "be equal in all processes of a machine, which is checked",
        "auto",
    )
    stall_timeout: float = variable(
        "BYTEPS_STALL_TIMEOUT",
        seconds(0, 1e9),
        "seconds after which a round or a barrier that does not complete ends the job (0: never)",
        1800.0,
        "1800",
    )
    omp_wait_policy: str | None = variable(
        "BYTEPS_WORKER_OMP_WAIT_POLICY",
        choice("passive", "active"),
        "how idle OpenMP threads wait",
        None,
        further=("OMP_WAIT_POLICY",),
    )
    omp_num_threads: int | None = variable(
        "BYTEPS_WORKER_OMP_NUM_THREADS",
        team(1, 1024),
        "threads of one OpenMP team",
        None,
        "1",
        further=("OMP_NUM_THREADS", "BYTEPS_OMP_THREAD_PER_GPU"),
    )


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """What the entry points look at before there is a role with settings."""

    role: str | None = variable(
        "DMLC_ROLE", choice("scheduler", "server", "worker"), "what this process is in a distributed job", None
    )
    devices_given: str | None = variable(
        "NVIDIA_VISIBLE_DEVICES",
        text("a list of devices, all, none or void", _LONGEST_LIST),
        "bpslaunch starts as many workers as there are devices in it, without -n and BYTEPS_LOCAL_SIZE",
        None,
    )
    devices_used: str | None = variable(
        "CUDA_VISIBLE_DEVICES",
        text("a list of devices", _LONGEST_LIST),
        "the same; where both are set, the shorter list counts; an empty value is an empty list",
        None,
    )


_CLASSES: dict[Role, type[JobSettings]] = {
    Role.SCHEDULER: SchedulerSettings,
    Role.SERVER: ServerSettings,
    Role.WORKER: WorkerSettings,
}
_S = TypeVar("_S", bound=ProcessSettings)


def read_role(environ: Mapping[str, str] | None = None) -> Role | None:
    """The role in ``DMLC_ROLE`` (any case), None where it is not set.

    Raises:
        SettingsError: the word is no role.
    """
    text = (environment() if environ is None else environ).get("DMLC_ROLE", "").strip()
    if not text:
        return None
    try:
        return Role(text.lower())
    except ValueError:
        meant = difflib.get_close_matches(text.lower(), [str(each) for each in Role], n=1)
        hint = f": did you mean {meant[0]}?" if meant else ""
        raise SettingsError(f"DMLC_ROLE={text!r} must be one of scheduler, server, worker{hint}") from None


def inspect(settings: type[ProcessSettings], environ: Mapping[str, str]) -> tuple[list[Finding], list[str]]:
    """Look at each variable of a class by itself, then at all together.

    Returns:
        a finding for each field, and contradictions among values that are good by themselves. Pure.
    """
    findings = list(examine(settings, environ))
    values = {each.field: each.value for each in findings if not each.problem}
    origins = {each.field: each.origin for each in findings}
    problems = list(_contradictions(values, origins))
    root = values.get("root_uri")
    if root in ("0.0.0.0", "::") and not issubclass(settings, SchedulerSettings):
        problems.append(
            f"DMLC_PS_ROOT_URI={root} means all addresses of one's own machine: set the address or the name by which "
            "the scheduler is reached"
        )
    return findings, problems


def read(settings: type[_S], environ: Mapping[str, str] | None = None) -> _S:
    """Parse the variables of one role.

    Args:
        settings: :class:`SchedulerSettings`, :class:`ServerSettings` or :class:`WorkerSettings`; or
            :class:`ProcessSettings`, of which no variable must be set.
        environ: the environment; None for that of this process. An empty value counts as not set.

    Raises:
        SettingsError: with every missing variable and every bad value, each with the form that is expected.
    """
    findings, contradictions = inspect(settings, environment() if environ is None else environ)
    problems = [each.problem for each in findings if each.problem] + contradictions
    if problems:
        raise SettingsError(problems)
    return settings(**{each.field: each.value for each in findings})


def environment() -> MutableMapping[str, str]:
    """The environment of this process, for one who looks through all of it, or adds what another launcher calls it."""
    return os.environ


def _contradictions(values: Mapping[str, Any], origins: Mapping[str, str]) -> Iterator[str]:
    """Problems that no single variable shows, among the values that are good by themselves."""
    ports = values.get("port_range")
    for field in ("root_port", "port"):
        port = values.get(field)
        if ports is not None and port and not ports[0] <= port <= ports[1]:
            yield (
                f"{origins[field]}={port} must lie in {origins['port_range']}={ports[0]}-{ports[1]}: every port that "
                "is listened at does"
            )
    yield from trace_problems(values)
    yield from asynchronous_problems(values)
    num_worker = values.get("num_worker")
    if _several(values) and values.get("num_server") == 0:
        yield "DMLC_NUM_SERVER=0: a job of several workers, or a forced one, needs at least one server"
    local_rank, local_size = values.get("local_rank"), values.get("local_size")
    if local_rank is not None and local_size is not None and local_rank >= local_size:
        yield f"BYTEPS_LOCAL_RANK={local_rank} must be less than BYTEPS_LOCAL_SIZE={local_size}"
    if values.get("local_reduce") == "on" and values.get("transport") == "tcp":
        yield "BYTEPS_LOCAL_REDUCE=on needs shared memory, which BYTEPS_TRANSPORT=tcp forbids"
    worker_id = values.get("worker_id")
    if worker_id is not None and num_worker is not None and worker_id >= num_worker:
        yield (
            f"DMLC_WORKER_ID={worker_id} must be less than DMLC_NUM_WORKER={num_worker}: machines are counted from 0"
        )


def _several(values: Mapping[str, Any]) -> bool:
    counts = (values.get("num_worker", 1), values.get("local_size", 1))
    return max(counts) > 1 or bool(values.get("force_distributed"))


def is_distributed(settings: JobSettings) -> bool:
    """Whether the job uses a scheduler and servers at all: more than one machine or one process, or forced."""
    return _several(vars(settings))


def runs_alone(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a worker of this environment is a job of its own: one process that uses no scheduler and no server.

    Raises:
        SettingsError: the environment describes a distributed job but gives this process no role in it.
    """
    source = environment() if environ is None else environ
    words = {name: source.get(name, "").strip() for name in ("DMLC_NUM_WORKER", "BYTEPS_LOCAL_SIZE")}
    forced = source.get("BYTEPS_FORCE_DISTRIBUTED", "").strip().lower() not in ("", "0", "false", "no", "off")
    alone = not forced and all(word in ("", "1") for word in words.values())
    if read_role(source) is None:
        if not alone:
            raise SettingsError(
                f"DMLC_ROLE is not set, but {_first_sign(words)} describes a distributed job: "
                "set DMLC_ROLE=worker, or start by `bpslaunch`"
            )
        return True
    return alone and words["DMLC_NUM_WORKER"] == "1"


def _first_sign(words: Mapping[str, str]) -> str:
    """The variable that speaks of several workers."""
    for name, word in words.items():
        if word not in ("", "1"):
            return f"{name}={word}"
    return "BYTEPS_FORCE_DISTRIBUTED"


def wants_native_kernels(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``BYTEPS_KERNELS`` leaves the choice at its default."""
    return (environment() if environ is None else environ).get("BYTEPS_KERNELS", "").strip().lower() != "reference"


def why_needless(role: Role, settings: JobSettings) -> str | None:
    """Why nobody would ever come to a scheduler or a server of this job; None if it is needed."""
    if is_distributed(settings):
        return None
    return (
        f"no {role} is needed: with DMLC_NUM_WORKER=1 the worker machine does all by itself "
        "(BYTEPS_FORCE_DISTRIBUTED=1 changes that)"
    )


def settings_class(role: Role) -> type[JobSettings]:
    """The settings class of ``role``."""
    return _CLASSES[role]
