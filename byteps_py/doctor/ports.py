"""Check of the ports that processes of this host listen at: whether they are free, and who has them."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence

from byteps_py.doctor.findings import Finding, count, note, ok, problem, warning
from byteps_py.doctor.listening import is_ours, scheduler_hosts, server_hosts, why_not
from byteps_py.doctor.scheduler import ask, describe_job, is_another_job
from byteps_py.doctor.situation import Situation
from byteps_py.errors import TransportError
from byteps_py.ports.holders import describe_holder, describe_holders
from byteps_py.role import Role
from byteps_py.settings import JobSettings
from byteps_py.transport.probe import Verdict, probe
from byteps_py.transport.resolve import is_local, resolve
from byteps_py.wire.control import Status

__all__ = ["check_ports", "judge_range", "parse_range"]

_CHOOSE = "choose another port, or end who has it"
_MOST_TRIED = 256
_PROBE_SECONDS = 2.0
_RUNNING = "leave that alone if it is this job's; if it is left over from an earlier run, end it"
_UNPRIVILEGED = "choose a port from 1024 on"


def check_ports(situation: Situation) -> Iterator[Finding]:
    """Try to listen at the ports that the variables name, where the role would."""
    job = situation.job
    if job is None:
        return
    ephemeral = parse_range(situation.read("proc/sys/net/ipv4/ip_local_port_range"))
    listens = False
    if situation.role is Role.SCHEDULER:
        listens = True
        hosts = scheduler_hosts(situation, job)
        yield from _our_scheduler(situation, job, hosts) or _try("DMLC_PS_ROOT_PORT", job.root_port, hosts)
    if situation.role in (None, Role.SCHEDULER) and ephemeral and ephemeral[0] <= job.root_port <= ephemeral[1]:
        yield note(
            f"DMLC_PS_ROOT_PORT={job.root_port} is one that the system gives to outgoing connections "
            f"({ephemeral[0]}-{ephemeral[1]}): now and then it may be taken when the scheduler starts",
            f"choose one below {ephemeral[0]}, or add it to net.ipv4.ip_local_reserved_ports",
        )
    hosts = server_hosts(job)
    if situation.server is not None and situation.server.port:
        listens = True
        port = situation.server.port
        yield from _our_server(situation, job, port, hosts) or _try("DMLC_PORT", port, hosts)
    if job.port_range is not None:
        listens = True
        low, high = job.port_range
        tried = range(low, min(high, low + _MOST_TRIED - 1) + 1)
        taken = [port for port in tried if why_not(port, hosts) is not None]
        holders = describe_holders(hosts, taken) if taken else ""
        runs = is_ours(holders) and _has_servers(situation, job)
        yield from judge_range((low, high), len(tried), taken, ephemeral, situation.role, holders, runs=runs)
    if not listens:
        yield from _try_any()


def judge_range(
    ports: tuple[int, int],
    tried: int,
    taken: list[int],
    ephemeral: tuple[int, int] | None,
    role: Role | None,
    holders: str = "",
    *,
    runs: bool = False,
) -> Iterator[Finding]:
    """What is to be said of ``BYTEPS_PORT_RANGE``. Pure.

    Args:
        ports: first and last.
        tried: how many of them, from the first on.
        taken: those that cannot be listened at.
        ephemeral: first and last of those that the system gives to outgoing connections.
        role: of the process; None for all: then a scheduler and a server must find a place. A worker needs none.
        holders: who has those that are taken, in words.
        runs: whether processes of this job, which has servers already, seem to be among them.
    """
    low, high = ports
    name = f"BYTEPS_PORT_RANGE={low}-{high}"
    needed = {None: 2, Role.WORKER: 0}.get(role, 1)
    free, ports_tried = tried - len(taken), count(tried, "tried port")
    if high - low + 1 < needed:
        yield problem(f"{name} has one port: a scheduler and a server on one host need two", "make it longer")
    elif free < needed and runs:
        text = f"{name} has {free} free of {ports_tried}, and the job has servers already: {holders}"
        yield note(text, _RUNNING, taken=taken)
    elif free < needed:
        yield problem(f"{name} has {free} free of {ports_tried}: {holders}", "make it longer, or choose another")
    elif taken:
        text = f"{name}: {len(taken)} of {ports_tried} {'is' if len(taken) == 1 else 'are'} taken, {free} free"
        yield note(text, "each server of this host needs one, and a scheduler one more", taken=taken)
    else:
        yield ok(f"{name}: {free} free", free=free)
    if ephemeral is not None and low <= ephemeral[1] and ephemeral[0] <= high:
        yield note(
            f"{name} overlaps the ports of outgoing connections ({ephemeral[0]}-{ephemeral[1]}): some may be taken "
            "when a server starts",
            f"choose a range below {ephemeral[0]}, or one that is longer than needed",
        )


def parse_range(text: str) -> tuple[int, int] | None:
    """First and last port of ``ip_local_port_range``; None if it cannot be read. Pure."""
    words = text.split()
    if len(words) == 2 and all(word.isascii() and word.isdigit() for word in words):
        return int(words[0]), int(words[1])
    return None


def _status(situation: Situation, job: JobSettings, *, local: bool) -> Status | None:
    """How the job of the scheduler there stands; ``local``: if that is on this machine. None if it does not say."""
    try:
        addresses = [each for each in resolve(job.root_uri, job.root_port) if not local or is_local(each)]
    except TransportError:
        return None
    for address in addresses:
        if probe(address, job.root_port, min(_PROBE_SECONDS, situation.timeout / 6)).verdict is Verdict.GREETS:
            status = ask(address, job.root_port, situation.timeout).status
            if status is not None:
                return status
    return None


def _has_servers(situation: Situation, job: JobSettings) -> bool:
    """Whether a server of this job may be what holds a port: one that waits for the others is as good as a busy one."""
    status = _status(situation, job, local=False)
    return status is not None and status.job_id == job.job_id and status.servers > 0 and status.state != "ending"


def _our_scheduler(situation: Situation, job: JobSettings, hosts: Sequence[str]) -> list[Finding]:
    """What is to be said if a scheduler has the port already: a note if it may be that of this job."""
    if (why_not(job.root_port, hosts) or (0,))[0] != errno.EADDRINUSE:
        return []
    status = _status(situation, job, local=True)
    if status is None:
        return []
    name = f"DMLC_PS_ROOT_PORT={job.root_port}"
    stale = f"end it by `kill {status.pid}`, if it is left over from an earlier run"
    if is_another_job(job, status):
        text = (
            f"{name} is held by the scheduler of another job (pid {status.pid}), {describe_job(status)}, which is "
            f"{status.state}"
        )
        other = "choose another DMLC_PS_ROOT_PORT, the same in all processes of this job, or wait until that job ends"
        return [problem(text, other if status.state == "running" else f"{other}; {stale}", port=job.root_port)]
    text = f"{name} has been taken by a scheduler of this job (pid {status.pid})"
    if status.state == "running":
        return [note(text, "leave it alone: its job is running; for a second job choose another DMLC_PS_ROOT_PORT")]
    if status.state == "suspended":
        return [note(text, "leave it alone: its job is suspended, and may be resumed with other numbers")]
    return [note(text, f"leave it alone if it waits for this job's processes; {stale}")]


def _our_server(situation: Situation, job: JobSettings, port: int, hosts: Sequence[str]) -> list[Finding]:
    """A note if a process of byteps_py has the port of a server, and the job has servers."""
    reason = why_not(port, hosts)
    if reason is None or reason[0] != errno.EADDRINUSE:
        return []
    holder = describe_holders([reason[1]], [port])
    if not is_ours(holder) or not _has_servers(situation, job):
        return []
    return [note(f"DMLC_PORT: the job has servers already, and this port is held: {holder}", _RUNNING, port=port)]


def _try(name: str, port: int, hosts: Sequence[str]) -> Iterator[Finding]:
    found = why_not(port, hosts)
    if found is None:
        yield ok(f"{name}={port} is free", port=port)
        return
    reason, host = found
    if reason == errno.EADDRINUSE:
        yield problem(f"{name}: {describe_holder(host, port)}", _CHOOSE, port=port)
    elif reason == errno.EACCES:
        yield problem(f"{name}={port} may be listened at by root only", _UNPRIVILEGED, port=port)
    else:
        yield problem(f"{name}={port} cannot be listened at ({errno.errorcode.get(reason, reason)})", _CHOOSE)


def _try_any() -> Iterator[Finding]:
    found = why_not(0)
    if found is None:
        yield ok("a process can listen at any free port")
    else:
        text = f"no port can be listened at ({errno.errorcode.get(found[0], found[0])})"
        yield warning(text, "look at what confines this process: seccomp, a security module, a network namespace")
