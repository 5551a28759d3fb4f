"""Check of the ports that processes of this host listen at: whether they are free, and who has them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from byteps_py.doctor.findings import Finding, note, ok, problem, warning
from byteps_py.doctor.scheduler import ask
from byteps_py.doctor.situation import Situation
from byteps_py.errors import TransportError
from byteps_py.ports.holders import WILDCARD, describe_holder, describe_holders
from byteps_py.role import Role
from byteps_py.settings import JobSettings
from byteps_py.transport.probe import Verdict, probe
from byteps_py.transport.resolve import is_local, resolve

__all__ = ["check_ports", "judge_range", "parse_range", "why_not"]

_CHOOSE = "choose another port, or end who has it"
_MOST_TRIED = 256
_UNPRIVILEGED = "choose a port from 1024 on"


def check_ports(situation: Situation) -> Iterator[Finding]:
    """Try to listen at the ports that the variables name."""
    job = situation.job
    if job is None:
        return
    ephemeral = parse_range(situation.read("proc/sys/net/ipv4/ip_local_port_range"))
    listens = False
    if situation.role is Role.SCHEDULER:
        listens = True
        yield from _our_scheduler(situation, job) or _try("DMLC_PS_ROOT_PORT", job.root_port)
    if situation.role in (None, Role.SCHEDULER) and ephemeral and ephemeral[0] <= job.root_port <= ephemeral[1]:
        yield note(
            f"DMLC_PS_ROOT_PORT={job.root_port} is one that the system gives to outgoing connections "
            f"({ephemeral[0]}-{ephemeral[1]}): now and then it may be taken when the scheduler starts",
            f"choose one below {ephemeral[0]}, or add it to net.ipv4.ip_local_reserved_ports",
        )
    if situation.server is not None and situation.server.port:
        listens = True
        yield from _try("DMLC_PORT", situation.server.port)
    if job.port_range is not None:
        listens = True
        low, high = job.port_range
        tried = range(low, min(high, low + _MOST_TRIED - 1) + 1)
        taken = [port for port in tried if why_not(port) is not None]
        yield from judge_range((low, high), len(tried), taken, ephemeral, situation.role)
    if not listens:
        yield from _try_any()


def judge_range(
    ports: tuple[int, int], tried: int, taken: list[int], ephemeral: tuple[int, int] | None, role: Role | None
) -> Iterator[Finding]:
    """What is to be said of ``BYTEPS_PORT_RANGE``.

    Args:
        ports: first and last.
        tried: how many of them, from the first on.
        taken: those that cannot be listened at.
        ephemeral: first and last of those that the system gives to outgoing connections.
        role: of the process; None for all: then a scheduler and a server must find a place.
    """
    low, high = ports
    name = f"BYTEPS_PORT_RANGE={low}-{high}"
    needed = 2 if role is None else 1
    free = tried - len(taken)
    if high - low + 1 < needed:
        yield problem(f"{name} has one port: a scheduler and a server on one host need two", "make it longer")
    elif free < needed:
        holders = describe_holders([WILDCARD], taken[:_MOST_TRIED])
        yield problem(f"{name} has {free} free of {tried} tried ports: {holders}", "make it longer, or choose another")
    elif taken:
        text = f"{name}: {len(taken)} of {tried} tried ports are taken, {free} free"
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


def why_not(port: int) -> int | None:
    """The number of the error on listening at ``port`` at all addresses; None if that can be done."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as libzmq does
            probe.bind(("", port))
            probe.listen(1)
    except OSError as error:
        return error.errno
    return None


def _our_scheduler(situation: Situation, job: JobSettings) -> list[Finding]:
    """A note if the scheduler of this job has its port already."""
    if why_not(job.root_port) != errno.EADDRINUSE:
        return []
    try:
        addresses = [each for each in resolve(job.root_uri, job.root_port) if is_local(each)]
    except TransportError:
        return []
    for address in addresses:
        if probe(address, job.root_port).verdict is not Verdict.GREETS:
            continue
        status = ask(address, job.root_port, situation.timeout).status
        if status is not None and status.job_id == job.job_id:
            text = f"DMLC_PS_ROOT_PORT={job.root_port} has been taken by a scheduler of this job (pid {status.pid})"
            return [note(text, f"end it by `kill {status.pid}`, if it is left over from an earlier run")]
    return []


def _try(name: str, port: int) -> Iterator[Finding]:
    reason = why_not(port)
    if reason is None:
        yield ok(f"{name}={port} is free", port=port)
    elif reason == errno.EADDRINUSE:
        yield problem(f"{name}: {describe_holder(WILDCARD, port)}", _CHOOSE, port=port)
    elif reason == errno.EACCES:
        yield problem(f"{name}={port} may be listened at by root only", _UNPRIVILEGED, port=port)
    else:
        yield problem(f"{name}={port} cannot be listened at ({errno.errorcode.get(reason, reason)})", _CHOOSE)


def _try_any() -> Iterator[Finding]:
    reason = why_not(0)
    if reason is None:
        yield ok("a process can listen at any free port")
    else:
        text = f"no port can be listened at ({errno.errorcode.get(reason, reason)})"
        yield warning(text, "look at what confines this process: seccomp, a security module, a network namespace")
