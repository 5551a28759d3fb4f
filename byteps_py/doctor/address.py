"""Check of the own address: which one others are told, why, and whether they can use it."""

from __future__ import annotations

import dataclasses
import ipaddress
import logging
from collections.abc import Iterator, Mapping, Sequence

from byteps_py.doctor.findings import Finding, note, ok, problem, warning
from byteps_py.doctor.situation import Situation
from byteps_py.errors import SettingsError, TransportError
from byteps_py.roles.address import interface_addresses, own_address
from byteps_py.settings import JobSettings
from byteps_py.transport.resolve import is_local, is_loopback, resolve

__all__ = ["check_address", "interface_of", "judge", "judge_name"]

_CHOOSE = "set DMLC_NODE_HOST or DMLC_INTERFACE to what the other machines reach"
_DOCKER = ipaddress.IPv4Network("172.17.0.0/16")
_SLOW = 100
"""Mbit/s at which a link is more likely to be set up badly than meant to be so."""


def check_address(situation: Situation) -> Iterator[Finding]:
    """The address that a server here would announce, and the name of the scheduler."""
    job = situation.job
    if job is None:
        return
    log = logging.Logger("byteps_py.doctor.address")  # apart from all others: its lines are findings
    told: list[str] = []
    log.addHandler(_Listener(told))
    try:
        targets = resolve(job.root_uri, job.root_port)
    except TransportError:  # what that means, the check of the scheduler tells
        yield note("the own address is chosen when the scheduler's is known")
        return
    try:
        if job.node_host is not None:
            resolve(job.node_host, job.root_port)
        chosen = own_address(dataclasses.replace(job, start_timeout=0.1), log)
        numeric = chosen.host if _is_address(chosen.host) else resolve(chosen.host, job.root_port)[0]
    except SettingsError as error:
        yield problem(str(error), "choose one of those that are listed")
        return
    except TransportError as error:
        yield problem(f"DMLC_NODE_HOST: {error}", "check the spelling, or use an address")
        return
    yield from (warning(line, _CHOOSE) for line in told)
    interface = interface_of(numeric, interface_addresses())
    where = f" on {interface}{_link(situation, interface)}" if interface else ""
    facts = {"address": chosen.host, "reason": chosen.reason, "interface": interface}
    yield ok(f"{chosen.host}{where}, {chosen.reason}", **facts)
    if job.node_host is not None or _is_address(chosen.host):  # else it is a name that others resolve otherwise
        yield from judge(numeric, interface, job, is_local(numeric))
    yield from judge_name(job, targets)
    speed = _number(situation.read(f"sys/class/net/{interface}/speed")) if interface else 0
    if 0 < speed <= _SLOW:
        yield warning(f"the link of {interface} has {speed} Mbit/s only", "look at cable, switch and autonegotiation")


def judge(numeric: str, interface: str, job: JobSettings, is_here: bool) -> Iterator[Finding]:
    """What is doubtful about the own address; ``is_here``: whether it is one of this machine. Pure."""
    several = job.num_worker > 1
    if not is_here:
        yield warning(
            f"DMLC_NODE_HOST={job.node_host} is no address of this machine: good behind NAT only, and then this "
            "process listens at all addresses",
            "set the address of an interface that the others reach, if there is no NAT",
        )
    elif is_loopback(numeric) and several and job.node_host is None:
        yield warning(
            f"{numeric} is loopback, which no other machine reaches, and DMLC_NUM_WORKER={job.num_worker} speaks of "
            f"{job.num_worker} machines",
            "set DMLC_PS_ROOT_URI to the scheduler's address in the network, unless all processes run here",
        )
    elif _is_bridge(numeric, interface):
        yield warning(
            f"{numeric}{f' on {interface}' if interface else ''} belongs to a bridge of Docker: containers of other "
            "machines do not reach it",
            f"{_CHOOSE}, or run containers with --network host",
        )
    elif numeric.startswith(("169.254.", "fe80:")):
        yield warning(f"{numeric} is a link-local address: it is good on one link only", _CHOOSE)


def judge_name(job: JobSettings, targets: Sequence[str]) -> Iterator[Finding]:
    """What is doubtful about what the scheduler's name stands for. Pure."""
    if _is_address(job.root_uri):
        return
    shown = ", ".join(targets)
    if job.root_uri != "localhost" and all(is_loopback(each) for each in targets):
        yield note(
            f"DMLC_PS_ROOT_URI={job.root_uri} is {shown} here: the machine's own name in /etc/hosts, as it seems",
            "see that the other machines resolve it to an address in the network",
        )
    elif len({":" in each for each in targets}) > 1:
        yield note(
            f"DMLC_PS_ROOT_URI={job.root_uri} stands for IPv4 and IPv6 ({shown}): they are tried in this order",
            "use an address if one of them is not reached from everywhere",
        )
    elif len(targets) > 1:
        yield note(
            f"DMLC_PS_ROOT_URI={job.root_uri} stands for several addresses ({shown}): they are tried in this order",
            "use one address if they are not of one machine",
        )


def interface_of(address: str, interfaces: Mapping[str, Sequence[str]]) -> str:
    """The interface that has a numeric address; empty if none has. Pure."""
    return next((name for name, addresses in interfaces.items() if address in addresses), "")


def _is_bridge(numeric: str, interface: str) -> bool:
    if interface.startswith(("docker", "br-")):
        return True
    return ":" not in numeric and ipaddress.IPv4Address(numeric) in _DOCKER


def _link(situation: Situation, interface: str) -> str:
    """`` (MTU 1500, 10000 Mbit/s)``, as far as that is known."""
    folder = f"sys/class/net/{interface}"
    mtu, speed = (_number(situation.read(f"{folder}/{name}")) for name in ("mtu", "speed"))
    words = [f"MTU {mtu}"] * (mtu > 0) + [f"{speed} Mbit/s"] * (speed > 0)
    return f" ({', '.join(words)})" if words else ""


def _number(text: str) -> int:
    """A whole number from 0 on; 0 for anything else: a link without a speed says -1."""
    return int(text) if text.isascii() and text.isdigit() else 0


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


class _Listener(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())
