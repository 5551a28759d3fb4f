"""Check of the limits of this user: open files, and processes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Final

from byteps_py.doctor.cgroups import pids_left
from byteps_py.doctor.findings import Finding, count, ok, problem, warning
from byteps_py.doctor.situation import Situation
from byteps_py.role import Role
from byteps_py.transport import descriptors

__all__ = ["check_limits", "files_needed", "judge_files", "judge_processes"]

_OWN: Final = 64
"""Files that a process has open besides: standard streams, libraries, logs, data."""
_PROCESSES: Final = 256
"""Threads that the processes of a small job take: several for each process, and OpenMP's teams."""


def check_limits(situation: Situation) -> Iterator[Finding]:
    """Compare the limits with what the job needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield from judge_files(_most_needed(situation), soft, hard)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    yield from judge_processes(None if processes == resource.RLIM_INFINITY else processes, pids_left(situation.root))


def _most_needed(situation: Situation) -> int:
    job = situation.job
    if job is None:
        return _OWN
    worker = situation.worker
    processes = job.num_worker * (1 if worker is None else worker.local_size)
    connections = 1 if worker is None else worker.tcp_connections
    roles = Role if situation.role is None else (situation.role,)
    return max(files_needed(each, processes, job.num_server, connections) for each in roles)


def files_needed(role: Role, workers: int, servers: int, connections: int) -> int:
    """About how many files a process of ``role`` has open, by the table of transport/descriptors.py. Pure.

    Args:
        role: of the process.
        workers, servers: processes of the whole job.
        connections: between a worker and a server.
    """
    base = _OWN + descriptors.context()
    if role is Role.SCHEDULER:
        return base + descriptors.LISTENER + workers + servers
    if role is Role.SERVER:
        return base + descriptors.LANES + descriptors.LISTENER + descriptors.CONNECTION + (1 + connections) * workers
    return base + descriptors.LANES + descriptors.CONNECTION * (1 + connections * servers)


def judge_files(needed: int, soft: int, hard: int) -> Iterator[Finding]:
    """What is to be said of the limits of open files, where a negative number is none. Pure."""
    facts = {"needed": needed, "soft": soft, "hard": hard}
    if 0 <= hard < needed:
        text = f"a process may have {count(hard, 'file')} open (`ulimit -Hn`), and one of this job needs about {needed}"
        yield problem(text, "raise the hard limit: /etc/security/limits.conf, LimitNOFILE of the service", **facts)
    elif 0 <= soft < needed:
        text = f"a process may have {count(soft, 'file')} open; one of this job needs about {needed}"
        yield ok(f"{text}, and raises that by itself, up to {'any number' if hard < 0 else hard}", **facts)
    else:
        may = "any number of files" if soft < 0 else count(soft, "file")
        yield ok(f"a process may have {may} open (`ulimit -n`), and needs about {needed}", **facts)


def judge_processes(limit: int | None, left: int | None) -> Iterator[Finding]:
    """What is to be said of the limits of processes and threads. Pure.

    Args:
        limit: of the user; None for no limit.
        left: what the control groups leave; None for no limit.
    """
    if limit is not None and limit < _PROCESSES:
        text = f"the processes and threads of this user are limited to {limit} (`ulimit -u`)"
        yield warning(text, f"raise it: a job with OpenMP needs {_PROCESSES} or more", limit=limit)
    if left is not None and left < _PROCESSES:
        text = f"the control group limits processes and threads (pids.max): {left} more may be started"
        yield warning(text, "raise it: --pids-limit of a container, TasksMax of a service", left=left)
