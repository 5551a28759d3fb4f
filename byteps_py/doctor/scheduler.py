"""Check of the scheduler: whether it is reached, whether it is the right one, and how its job stands."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence

from byteps_py.doctor.findings import Finding, count, note, ok, problem, warning
from byteps_py.doctor.inquiry import Answer, best_clock, inquire
from byteps_py.doctor.loading import FRAMEWORKS, Loader
from byteps_py.doctor.situation import Situation
from byteps_py.env_report import describes_a_job
from byteps_py.errors import TransportError
from byteps_py.ports.holders import describe_holder
from byteps_py.role import Role
from byteps_py.roles.software import describe_software
from byteps_py.settings import JobSettings
from byteps_py.transport.base import tcp_address
from byteps_py.transport.probe import Finding as Probed
from byteps_py.transport.probe import Verdict, probe
from byteps_py.transport.resolve import is_local, resolve
from byteps_py.transport.zmq import ZmqEndpoint
from byteps_py.version import package_version
from byteps_py.wire.control import MAX_CONTROL_BYTES, Status
from byteps_py.wire.inquiry import Software

__all__ = [
    "ask",
    "check_scheduler",
    "compare_software",
    "describe_job",
    "is_another_job",
    "judge_answer",
    "judge_probes",
    "own_software",
]

_PROBE_SECONDS = 2.0
_ANSWER_SECONDS = 5.0
_CLOCK_SECONDS = 1.0
"""Clocks that differ by less disturb nobody who reads logs of several machines."""
_PLACE = "check DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT"


def check_scheduler(situation: Situation) -> Iterator[Finding]:
    """Look the scheduler up, connect, and ask it."""
    job = situation.job
    if job is None:
        yield from _judge_absence(situation)
        return
    where = f"{job.root_uri}:{job.root_port}"
    try:
        addresses = resolve(job.root_uri, job.root_port)
    except TransportError as error:
        yield problem(str(error), "check the spelling of DMLC_PS_ROOT_URI and the name service, or use an address")
        return
    share = situation.timeout / 2 / len(addresses)
    probes = {each: probe(each, job.root_port, min(_PROBE_SECONDS, share)) for each in addresses}
    yield from judge_probes(where, probes, situation.role is Role.SCHEDULER)
    greeting = [each for each, found in probes.items() if found.verdict is Verdict.GREETS]
    foreign = [each for each, found in probes.items() if found.verdict is Verdict.FOREIGN]
    if greeting:
        answer = ask(greeting[0], job.root_port, situation.timeout)
        yield from judge_answer(job, where, answer, situation.role)
        foreign = [] if answer.status is not None else greeting
        if answer.status is not None:
            yield from compare_software(own_software(situation.loader), answer.status.software)
    if foreign and is_local(foreign[0]):
        yield note(describe_holder(foreign[0], job.root_port))


def _judge_absence(situation: Situation) -> Iterator[Finding]:
    """What is said where no scheduler is looked for."""
    if situation.needless:
        yield ok(f"none was looked for, since {situation.needless}")
    elif describes_a_job(situation.environment):
        yield note("none was looked for: DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT do not say where it is")


def is_another_job(job: JobSettings, status: Status) -> bool:
    """Whether a scheduler that says so is that of another job. Pure."""
    return status.job_id != job.job_id or bool(_differing_counts(job, status))


def ask(address: str, port: int, timeout: float) -> Answer:
    """Inquire by TCP, at a numeric address; takes a third of ``timeout`` seconds at most."""
    endpoint = ZmqEndpoint(b"doctor-%s" % secrets.token_hex(8).encode(), MAX_CONTROL_BYTES)
    try:
        return inquire(endpoint, tcp_address(address, port), min(_ANSWER_SECONDS, timeout / 3))
    finally:
        endpoint.close()


def judge_probes(where: str, probes: dict[str, Probed], may_be_absent: bool) -> Iterator[Finding]:
    """What is to be said of plain connections to each address of the scheduler; nothing if all greet. Pure.

    Args:
        where: the scheduler, as the user wrote it.
        probes: by numeric address.
        may_be_absent: whether it is yet to be started, by the one who asks.
    """
    some = any(each.verdict is Verdict.GREETS for each in probes.values())
    for address, found in probes.items():
        text = f"the scheduler at {where}{f' ({address})' if len(probes) > 1 else ''}: {found.text}"
        if found.verdict is Verdict.GREETS:
            continue
        if some:
            yield warning(text, "use the address that works: the others are tried first, or now and then")
        elif found.verdict is Verdict.REFUSED and may_be_absent:
            yield note(f"{text}: it has not been started yet", verdict=found.verdict.value)
        else:
            yield problem(text, _REMEDIES[found.verdict], verdict=found.verdict.value)


_REMEDIES = {
    Verdict.REFUSED: f"start it (`bpslaunch` with DMLC_ROLE=scheduler), or {_PLACE}",
    Verdict.SILENT: f"open the port in the firewall of that machine and between the machines, or {_PLACE}",
    Verdict.UNREACHABLE: f"look at routes and interfaces (`ip route get ADDRESS`), or {_PLACE}",
    Verdict.FOREIGN: f"end what listens there, or choose another port, or {_PLACE}",
    Verdict.UNTRIED: "raise the limit of open files (`ulimit -n`)",
}


def judge_answer(job: JobSettings, where: str, answer: Answer, role: Role | None = None) -> Iterator[Finding]:
    """What is to be said of one who greeted, but for the versions; ``role`` is that of the one who asks. Pure."""
    status = answer.status
    if status is None:
        if answer.misunderstood:
            text = f"the scheduler at {where} is of another version of byteps_py: {answer.misunderstood}"
            yield problem(text, "install the same version on all machines")
        elif answer.refusal:
            text = f"who listens at {where} refuses to tell how a job stands: {answer.refusal}"
            yield problem(text, f"{_PLACE}, and that all machines have the same version of byteps_py")
        else:
            text = f"who listens at {where} speaks ZeroMQ, but does not answer as a scheduler of byteps_py"
            yield problem(text, f"end it if it is stopped, or a scheduler of BytePS or MXNet; or {_PLACE}")
        return
    yield from _judge_job(job, where, status, role)
    if answer.exchanges:
        offset, bound = best_clock(answer.exchanges)
        way = "ahead of" if offset >= 0 else "behind"
        text = f"its clock is {abs(offset) * 1e3:.1f} ms {way} this one's, give or take {bound * 1e3:.1f} ms"
        if abs(offset) - bound > _CLOCK_SECONDS:
            yield note(
                text,
                "logs of the two machines do not fit together: run a time service such as chrony",
                offset_s=offset,
                bound_s=bound,
            )
        else:
            yield ok(text, offset_s=offset, bound_s=bound)


def _judge_job(job: JobSettings, where: str, status: Status, role: Role | None) -> Iterator[Finding]:
    scheduler = status.software[0]
    seconds = status.uptime / 1e9
    who = f"the scheduler at {where} (byteps_py {scheduler.version}, pid {status.pid} on {scheduler.host})"
    if role is Role.SCHEDULER and is_another_job(job, status):
        yield problem(
            f"{who} is there already: it belongs to another job, {describe_job(status)}; this one is "
            f"{describe_job(job)}",
            "choose another DMLC_PS_ROOT_PORT for this job, the same in all its processes, or wait until that one ends",
        )
        return
    if status.job_id != job.job_id:
        yield problem(
            f"{who} belongs to job {status.job_id!r}, this process to job {job.job_id!r}",
            "set the same BYTEPS_JOB_ID everywhere, or another DMLC_PS_ROOT_PORT for the other job",
        )
    for name, here, there in _differing_counts(job, status):
        yield problem(f"{name} is {here} here and {there} at the scheduler", "set the same value everywhere")
    counts = (
        f"{status.machines} of {count(status.num_worker, 'worker machine')} complete "
        f"({count(status.workers, 'process', 'processes')}), {status.servers} of {count(status.num_server, 'server')}"
    )
    if status.state == _SUSPENDED:
        counts = f"{count(status.servers, 'server')} in reserve"
    text = f"{who} answers; its job {status.job_id!r} is {status.state}, {seconds:.0f} s after its start: {counts}"
    facts = {
        "job_id": status.job_id,
        "state": status.state,
        "uptime_s": seconds,
        "num_worker": status.num_worker,
        "num_server": status.num_server,
        "machines": status.machines,
        "workers": status.workers,
        "servers": status.servers,
        "missing": status.missing,
    }
    yield ok(text, **facts)
    if status.state == "ending":
        yield note("its job is ending: who comes now is too late", "start the job anew")
    elif status.state == _SUSPENDED:
        remedy = "have those that go on call resume(), and start newcomers with the numbers that they name there"
        yield note(f"it waits for {status.missing}", remedy)
    elif status.missing:
        yield note(f"it waits for {status.missing}", "start what is missing, with the same DMLC_* variables")


def _differing_counts(job: JobSettings, status: Status) -> list[tuple[str, int, int]]:
    """Variables whose values differ here and at the scheduler; in a suspended job those that come next say them."""
    compared = [
        ("DMLC_NUM_WORKER", job.num_worker, status.num_worker),
        ("DMLC_NUM_SERVER", job.num_server, status.num_server),
    ]
    return [] if status.state == _SUSPENDED else [each for each in compared if each[1] != each[2]]


def describe_job(job: JobSettings | Status) -> str:
    """``'digits' of 2 worker machines and 1 server``. Pure."""
    return f"{job.job_id!r} of {count(job.num_worker, 'worker machine')} and {count(job.num_server, 'server')}"


def own_software(loader: Loader) -> Software:
    """What a training process of this host would run with: the frameworks are imported by other processes than this."""
    found = [step for steps in loader.load() for step in steps if step.name in FRAMEWORKS and step.version]
    words = [f"{name} {version}" for name, version in _versions(describe_software()) if name not in FRAMEWORKS]
    words += [f"{step.name} {step.version}" for step in found if not step.error]
    return Software(Role.WORKER, package_version(), ", ".join(words), 1, _HERE)


def compare_software(own: Software, theirs: Sequence[Software]) -> Iterator[Finding]:
    """Where versions differ among this process, the scheduler and the members of its job. Pure."""
    kinds: dict[str, dict[str, list[str]]] = {}
    told: Counter[str] = Counter()
    for each in (own, *theirs):
        who = each.host if each is own else f"{count(each.count, each.role)} ({each.host})"
        for name, version in [("byteps_py", each.version), *_versions(each.others)]:
            kinds.setdefault(name, {}).setdefault(version, []).append(who)
            told[name] += each.count
    differing = {name: versions for name, versions in kinds.items() if len(versions) > 1}
    for name, versions in differing.items():
        shown = "; ".join(f"{version} on {', '.join(who)}" for version, who in versions.items())
        found = note if name in _HARMLESS else warning
        yield found(f"versions of {name} differ: {shown}", _SAME, versions=versions)
    if not differing:
        total = 1 + sum(each.count for each in theirs)
        absent = kinds.keys() - _own_names(own)
        yield ok(f"the versions agree: {_listed(kinds, told, total, absent)}", processes=dict(told))


_HERE = "this host"
_SUSPENDED = "suspended"
_HARMLESS = ("Python", "numpy")
_SAME = "install the same version everywhere"


def _versions(others: str) -> Iterator[tuple[str, str]]:
    for word in filter(None, others.split(", ")):
        name, _, version = word.partition(" ")
        yield name, version


def _own_names(own: Software) -> set[str]:
    return {"byteps_py", *(name for name, _ in _versions(own.others))}


def _listed(kinds: dict[str, dict[str, list[str]]], told: Counter[str], total: int, absent: set[str]) -> str:
    """``numpy 2.1.0 (all 5 processes), torch 2.6.0 (3 of 5, none on this host)``; equal numbers are told once."""
    groups: dict[str, list[str]] = {}
    for name, versions in kinds.items():
        who = f"all {total} processes" if told[name] == total else f"{told[name]} of {total}"
        missing = f", none on {_HERE}" if name in absent else ""
        groups.setdefault(who + missing, []).append(f"{name} {next(iter(versions))}")
    return ", ".join(f"{', '.join(names)} ({count})" for count, names in groups.items())
