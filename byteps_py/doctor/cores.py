"""Check of cores: how many there are for this process, and whether the threads that the variables ask for fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from byteps_py.doctor.cgroups import cpu_quota
from byteps_py.doctor.findings import Finding, count, note, ok, problem, warning
from byteps_py.doctor.situation import Situation

__all__ = ["Demand", "check_cores", "demands", "judge_cores", "judge_load", "judge_threads", "judge_together"]

_SHARE = "bpslaunch gives each process its share, if OMP_NUM_THREADS and its like are not set"


@dataclass(frozen=True)
class Demand:
    """The threads that processes of one kind on this host have for sums.

    Attributes:
        who: in words.
        processes: how many.
        threads: of each; None: nothing is set.
        spins: whether those that are idle do not sleep.
    """

    who: str
    processes: int
    threads: int | None
    spins: bool


def check_cores(situation: Situation) -> Iterator[Finding]:
    """Cores against control groups, threads, and what else runs here."""
    usable = len(situation.cores)
    quota = cpu_quota(situation.root)
    yield from judge_cores(usable, os.cpu_count() or usable, quota)
    wanted, time = demands(situation), float(usable) if quota is None else min(float(usable), quota)
    if situation.role is None:  # of all roles: whether servers and workers share this host is not known
        for each in wanted:
            yield from judge_threads([each], time)
        yield from judge_together(wanted, time)
    else:
        yield from judge_threads(wanted, time)
    governor = situation.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    yield from judge_load(os.getloadavg()[0], usable, governor)


def demands(situation: Situation) -> list[Demand]:
    """What the variables of the job ask for; nothing is known of other servers of this host. Pure."""
    found = []
    if situation.job is not None and (server := situation.server) is not None:
        team = server.omp_num_threads
        threads = None if team is None else team * server.engine_threads
        found.append(Demand("server", 1, threads, server.omp_wait_policy == "active"))
    if situation.job is not None and (worker := situation.worker) is not None:
        spins = worker.omp_wait_policy == "active"
        found.append(Demand("worker", worker.local_size, worker.omp_num_threads, spins))
    return found


def judge_cores(usable: int, present: int, quota: float | None) -> Iterator[Finding]:
    """What is to be said of cores. Pure.

    Args:
        usable: on how many this process may run.
        present: in the machine.
        quota: how many cores' time the control groups allow; None: all.
    """
    facts = {"usable": usable, "present": present, "quota": quota}
    text = f"{usable} of {count(present, 'core')} may be used" if usable < present else count(usable, "core")
    if quota is not None and quota < usable:
        yield warning(
            f"{text}, but the control group allows the time of {quota:g} only: OpenMP does not know, makes teams of "
            f"{count(usable, 'thread')}, and all of them are stopped when the time is used up",
            f"set OMP_NUM_THREADS={max(1, int(quota))} in all, or bind the container to cores (cpuset) instead",
            **facts,
        )
    else:
        yield ok(text, **facts)


def judge_threads(wanted: list[Demand], cores: float) -> Iterator[Finding]:
    """Whether the threads that are set fit. Pure.

    Args:
        wanted: by kind of process; one without a number of threads takes what is left.
        cores: whose time there is.
    """
    known, total, terms = _add(wanted)
    facts = {"threads": total, "cores": cores}
    spinning = [each for each in known if each.spins and each.processes * (each.threads or 0) > 1]
    if known and total > cores:
        text = f"{terms} = {count(total, 'OpenMP thread')} on {count(cores, 'core')}"
        if spinning:
            names = " and ".join(f"{each.who}s" for each in spinning)
            yield problem(
                f"{text}, and idle ones of {names} spin (OMP_WAIT_POLICY=active): they take the cores from "
                "those that work",
                "set the wait policy to passive, or fewer threads (BYTEPS_SERVER_OMP_NUM_THREADS, OMP_NUM_THREADS)",
                **facts,
            )
        else:
            yield warning(f"{text}: they wait for one another", f"set fewer; {_SHARE}", **facts)
    elif known:
        yield ok(f"{terms} = {count(total, 'OpenMP thread')}: enough cores for all", **facts)
    for each in wanted:
        if each.threads is None and each.spins:
            text = (
                f"{each.who}s spin while they are idle (OMP_WAIT_POLICY=active), and their number of threads is not set"
            )
            yield note(text, "see that all threads of the host together are not more than the cores")
        elif each.threads is None and each.processes > 1 and each.who == "worker":
            text = (
                f"OMP_NUM_THREADS is not set: a framework makes a team of all cores in each of {each.processes} workers"
            )
            yield note(text, _SHARE)


def judge_together(wanted: list[Demand], cores: float) -> Iterator[Finding]:
    """What is to be known where processes of several kinds may share a host; arguments as above. Pure."""
    known, total, terms = _add(wanted)
    if len(known) > 1 and total > cores:
        text = (
            f"{terms} = {count(total, 'OpenMP thread')} would be too many for {count(cores, 'core')}, if all of them "
            "run on this host"
        )
        yield note(text, f"set fewer in that case; {_SHARE}", threads=total, cores=cores)


def _add(wanted: list[Demand]) -> tuple[list[Demand], int, str]:
    """The demands that are numbers, their sum, and its terms in words."""
    known = [each for each in wanted if each.threads is not None]
    total = sum(each.processes * (each.threads or 0) for each in known)
    terms = " + ".join(f"{count(each.processes, each.who)} x {each.threads}" for each in known)
    return known, total, terms


def judge_load(load: float, usable: int, governor: str) -> Iterator[Finding]:
    """What is to be said of what else runs here. Pure.

    Args:
        load: processes that ran or wanted to, on average of the last minute.
        usable: cores for this process.
        governor: how the kernel chooses the speed of the first core; empty if it does not tell.
    """
    if load > usable:
        text = f"{load:.1f} threads ran or wanted to run in the last minute, on {count(usable, 'core')}"
        yield note(text, "see with `top` what else runs here", load=load)
    if governor == "powersave":
        yield note(
            "the CPU governor is powersave, which on some processors means the lowest speed",
            "compare with `cpupower frequency-set -g performance`",
        )
