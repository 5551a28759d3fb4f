"""At which addresses a role would listen, and whether a port is to be had there.

A port may be free at one address of a machine and held at another, so it is tried where it is needed.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import socket
from collections.abc import Iterable, Sequence

from byteps_py.doctor.situation import Situation
from byteps_py.errors import SettingsError, TransportError
from byteps_py.ports.holders import WILDCARD
from byteps_py.roles.address import own_address
from byteps_py.settings import JobSettings, SchedulerSettings
from byteps_py.transport.listening import listening_hosts
from byteps_py.variables import examine

__all__ = ["hosts_of", "is_ours", "scheduler_hosts", "server_hosts", "why_not"]

_OUR_COMMANDS = ("byteps_py", "bps", "bpslaunch")
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def scheduler_hosts(situation: Situation, job: JobSettings) -> list[str]:
    """Where a scheduler of the job would listen: numeric addresses, or the wildcard."""
    found = examine(SchedulerSettings, situation.environment)
    everywhere = any(each.field == "kubernetes" and each.value is True for each in found)
    return [WILDCARD] if everywhere else hosts_of(job.root_uri, job.root_port)


def server_hosts(job: JobSettings) -> list[str]:
    """Where a server of the job would listen: numeric addresses, or the wildcard."""
    log = logging.Logger("byteps_py.doctor.listening", logging.CRITICAL + 1)  # the check of the address tells
    try:
        return hosts_of(own_address(dataclasses.replace(job, start_timeout=0.1), log).host, job.root_port)
    except (SettingsError, TransportError):  # it would not even start
        return [WILDCARD]


def hosts_of(host: str, port: int) -> list[str]:
    """The addresses at which who is known as ``host`` listens; the wildcard where that cannot be found out."""
    try:
        return listening_hosts(host, port)
    except TransportError:
        return [WILDCARD]


def why_not(port: int, hosts: Sequence[str] = (WILDCARD,)) -> tuple[int, str] | None:
    """The number of the error on listening at ``port``, and the first host where it comes; None if that can be done."""
    for host in hosts:
        families = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")] if host == WILDCARD else _families(host)
        for index, (family, address) in enumerate(families):
            code = _error(family, address, port)
            if code in _NO_FAMILY and index + 1 < len(families):
                continue  # a machine without IPv6
            if code is not None:
                return code, host
            break
    return None


def is_ours(text: str) -> bool:
    """Whether a process described in words, such as ``... (python -m byteps_py server)``, is of byteps_py. Pure."""
    return any(word.strip("();").rpartition("/")[2] in _OUR_COMMANDS for word in _commands(text))


def _commands(text: str) -> Iterable[str]:
    """The words of the command lines in a text, without the programs: the name of a folder says nothing."""
    for part in text.split(" (")[1:]:
        words = part.split()
        yield from (each for index, each in enumerate(words) if "/" not in each or index < 2)


def _families(host: str) -> list[tuple[socket.AddressFamily, str]]:
    return [(socket.AF_INET6 if ":" in host else socket.AF_INET, host)]


def _error(family: socket.AddressFamily, address: str, port: int) -> int | None:
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as libzmq does
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
            found = socket.getaddrinfo(address, port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            probe.bind(found[0][4])
            probe.listen(1)
    except OSError as error:
        return error.errno
    return None
