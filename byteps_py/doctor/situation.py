"""What all checks look at: the environment, what it says about the job, and where the system tells about itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from byteps_py.doctor.loading import Loader
from byteps_py.env_report import describes_a_job
from byteps_py.errors import SettingsError
from byteps_py.role import Role
from byteps_py.settings import JobSettings, ServerSettings, WorkerSettings, read_role, settings_class, why_needless
from byteps_py.torchrun import worker_variables
from byteps_py.variables import examine

__all__ = ["Situation", "observe"]

_S = TypeVar("_S", bound=JobSettings)
_STAND_INS = {"num_worker": 1, "num_server": 1}
"""For required values that only checks of numbers need."""

_LOADING = 0.8
"""The part of a check's time that its processes may take: they have ended when the check must have."""


@dataclass(frozen=True)
class Situation:
    """What is known before the checks begin.

    Attributes:
        environment: the variables.
        role: whose environment it is; None: of all roles.
        job: what every process needs to know; None if no distributed job is described, or not where its scheduler is.
            Values that are bad have been replaced by defaults, since each check is to say what it can.
        server, worker: the same for these roles, where ``role`` includes them.
        cores: numbers of the cores that this process may run on.
        timeout: seconds that one check may take.
        root: where ``proc`` and ``sys`` are.
        loader: tells what a training process loads.
        needless: why the job that is described needs no scheduler and no server; ``job`` is None then. Else empty.
    """

    environment: Mapping[str, str]
    role: Role | None = None
    job: JobSettings | None = None
    server: ServerSettings | None = None
    worker: WorkerSettings | None = None
    cores: frozenset[int] = frozenset({0})
    timeout: float = 30.0
    root: Path = Path("/")
    loader: Loader = field(default_factory=Loader)
    needless: str = ""

    def read(self, path: str) -> str:
        """The text of a file below :attr:`root` without blanks around it; empty if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""


def observe(environ: Mapping[str, str], role: Role | None, timeout: float) -> Situation:
    """Look at the environment of this process; never raises for what is in it.

    Args:
        environ: the environment.
        role: whose it is to be; None: what ``DMLC_ROLE`` says, or all roles.
        timeout: seconds that one check may take.
    """
    with contextlib.suppress(SettingsError):  # what torchrun has set badly, the check of variables tells
        environ = {**environ, **worker_variables(environ)}
    if role is None:
        with contextlib.suppress(SettingsError):
            role = read_role(environ)
    job = server = worker = None
    needless = ""
    if describes_a_job(environ):
        job = _lenient(JobSettings, environ)
        server = _lenient(ServerSettings, environ) if role in (None, Role.SERVER) else None
        worker = _lenient(WorkerSettings, environ) if role in (None, Role.WORKER) else None
        needless = _needless(role, environ) or ""
        if needless:
            job = None  # one worker is a job of its own
    cores = frozenset(os.sched_getaffinity(0))
    loader = Loader(environ, _LOADING * timeout)
    return Situation(environ, role, job, server, worker, cores, timeout, loader=loader, needless=needless)


def _needless(role: Role | None, environ: Mapping[str, str]) -> str | None:
    """Why the job has neither scheduler nor servers; None if it has, or if that cannot be known."""
    settings = _lenient(settings_class(role or Role.WORKER), environ)
    told = {each.field: each.problem for each in examine(JobSettings, environ)}
    if settings is None or told["num_worker"]:
        return None
    return why_needless(Role.SCHEDULER if role in (None, Role.WORKER) else role, settings)


def _lenient(kind: type[_S], environ: Mapping[str, str]) -> _S | None:
    """The settings with defaults in place of what is bad; None without the scheduler's address."""
    values = {}
    for each in examine(kind, environ):
        if not each.problem:
            values[each.field] = each.value
        elif each.field in _STAND_INS:
            values[each.field] = _STAND_INS[each.field]
    return kind(**values) if {"root_uri", "root_port"} <= values.keys() else None
