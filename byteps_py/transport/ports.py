"""TCP ports of this machine: which one is free, and who holds one that is not.

The kernel gives one port to two sockets only if both allow that (``SO_REUSEADDR``) and neither listens.  libzmq allows
it where it listens, so as not to be stopped by connections that have ended a moment ago (TIME_WAIT); two of its sockets
never share a port, since both listen.  But a launcher holds ports at which its processes will listen, and those must
not be taken by whoever looks for a free one.  So this module *reserves* a port first:

============ ======================================== =============================================================
socket       allows sharing                           so it
============ ======================================== =============================================================
held         always                                   is in no listener's way
reserving    not when it is bound, but ever after     gets no port that anybody has, and then lets one listener in
listening    always                                   gets its reserved port, and never one that is listened at
============ ======================================== =============================================================

A port with nothing but ended connections cannot be reserved.  It is taken when no other is left.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import psutil

__all__ = ["WILDCARD", "describe_exhausted", "describe_holder", "is_local", "reserve"]

WILDCARD = "*"
"""In place of an address: all of this machine."""
_LONGEST_COMMAND = 160
_MOST_HOLDERS = 3
_EVERYWHERE = ("0.0.0.0", "::")


def reserve(hosts: Iterable[str], port: int) -> contextlib.ExitStack:
    """Keep ``port`` at each of ``hosts`` (numeric addresses) until the result is closed.

    Raises:
        OSError: EADDRINUSE if anybody has it at one of them.
    """
    with contextlib.ExitStack() as sockets:
        for host in hosts:
            sockets.enter_context(_bound(host, port))
        return sockets.pop_all()


def is_local(host: str) -> bool:
    """Whether the numeric address ``host`` is one of this machine."""
    try:
        _bound(host, 0).close()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return False
    return True


def _bound(host: str, port: int) -> socket.socket:
    family, address = _socket_address(host, port)
    try:
        made = socket.socket(family)
    except OSError as error:
        if host != WILDCARD or error.errno != errno.EAFNOSUPPORT:
            raise
        return _bound("0.0.0.0", port)
    try:
        if host == WILDCARD:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(address)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except BaseException:
        made.close()
        raise
    return made


def _socket_address(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """Family and address, with the number of the interface that a link-local address names."""
    if host == WILDCARD:
        return socket.AF_INET6, ("::", port)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return found[0][0], found[0][4]


class _Holder(NamedTuple):
    """A process that has a port; ``pid`` is 0 if it cannot be seen."""

    pid: int
    text: str
    schedules: bool


def describe_holder(host: str, port: int) -> str:
    """Who has ``port`` at ``host`` and what to do about it, as a sentence without a full stop."""
    where = f"port {port}" if host == WILDCARD else f"port {port} on {host}"
    holder = _find_holder(host, port)
    if holder is None:
        return f"{where} is in use, but nobody is seen to listen there: try again, or choose another port"
    if holder.schedules:
        advice = (
            "it is the scheduler of another job, maybe a stale one: "
            f"end it by `kill {holder.pid}`, or choose another DMLC_PS_ROOT_PORT"
        )
    else:
        advice = "end it, or choose another port" if holder.pid else "choose another port"
    return f"{where} is in use by {holder.text}: {advice}"


def describe_exhausted(host: str, ports: Sequence[int]) -> str:
    """The same for a whole range of which no port is free."""
    held: dict[str, list[int]] = {}
    for port in ports:
        holder = _find_holder(host, port)
        held.setdefault("nobody who is seen" if holder is None else holder.text, []).append(port)
    texts = [f"{_list(numbers)} by {text}" for text, numbers in list(held.items())[:_MOST_HOLDERS]]
    more = f", and more by {len(held) - _MOST_HOLDERS} others" if len(held) > _MOST_HOLDERS else ""
    return (
        f"no port of BYTEPS_PORT_RANGE={min(ports)}-{max(ports)} is free: held are {'; '.join(texts)}{more}: "
        "choose a wider range, or end what is stale"
    )


def _list(numbers: Sequence[int]) -> str:
    if len(numbers) > 3:
        return f"{numbers[0]}, {numbers[1]} and {len(numbers) - 2} more"
    return ", ".join(map(str, numbers))


def _find_holder(host: str, port: int) -> _Holder | None:
    pids = _pids(host, port)
    if pids is None:
        return None
    return next(_described(pids), None) or _Holder(0, _unseen(), False)


def _pids(host: str, port: int) -> list[int] | None:
    """Processes that have ``port`` at ``host``, listeners first; empty if they cannot be seen, None if none has it."""
    try:
        found = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    taken = [each for each in found if each.laddr and each.laddr.port == port and _overlap(each.laddr.ip, host)]
    listeners = [each for each in taken if each.status == psutil.CONN_LISTEN]
    # Connections that no process has any more (TIME_WAIT) are in nobody's way.
    others = [each for each in taken if each.pid is not None]
    if not listeners and not others:
        return None
    return [each.pid for each in (*listeners, *others) if each.pid is not None]


def _described(pids: Iterable[int]) -> Iterator[_Holder]:
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            words = process.cmdline() or [process.name()]
            command = " ".join(" ".join(words).split())
            if len(command) > _LONGEST_COMMAND:
                command = command[: _LONGEST_COMMAND - 3] + "..."
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(process.create_time()))
            text = f"process {pid} of user {process.username()} since {since} ({command})"
            yield _Holder(pid, text, _is_scheduler(words))


def _is_scheduler(words: Sequence[str]) -> bool:
    """Whether a command line is one that our schedulers have."""
    ours = any(word == "byteps_py" or os.path.basename(word) == "bps" for word in words)
    return ours and words[-1] == "scheduler"


def _unseen() -> str:
    if os.geteuid() == 0:
        return "a process that cannot be seen from here, such as one in another container"
    return "a process of another user (root sees which one: `ss -ltnp`)"


def _overlap(first: str, second: str) -> bool:
    """Whether two sockets at these addresses get in each other's way at one port."""
    if second == WILDCARD or first in _EVERYWHERE or second in _EVERYWHERE:
        return True
    return _plain(first) == _plain(second)


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return getattr(parsed, "ipv4_mapped", None) or parsed
