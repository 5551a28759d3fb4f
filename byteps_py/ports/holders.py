"""Who holds a TCP port of this machine: for the error of one who cannot have it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import psutil

from byteps_py.ports.claims import claim_name

__all__ = ["WILDCARD", "describe_holder", "describe_holders"]

WILDCARD: Final = "*"
"""In place of an address: all of this machine."""
_LONGEST_COMMAND: Final = 160
_MOST_HOLDERS: Final = 3
_EVERYWHERE: Final = ("0.0.0.0", "::")


class _Holder(NamedTuple):
    """A process that has a port; ``pid`` is 0 if it cannot be seen."""

    pid: int
    text: str
    schedules: bool


def describe_holder(host: str, port: int) -> str:
    """Who has ``port`` at ``host`` and what to do about it, as a sentence without a full stop."""
    where = f"port {port}" if host == WILDCARD else f"port {port} on {host}"
    holder = _find_holder(host, port, _Sockets())
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


def describe_holders(hosts: Sequence[str], ports: Iterable[int]) -> str:
    """Who has each of ``ports`` at any of ``hosts``, as part of a sentence: ``20000, 20001 by process 42 ...``."""
    sockets = _Sockets()
    held: dict[str, list[int]] = {}
    for port in ports:
        found = (_find_holder(host, port, sockets) for host in hosts)
        holder = next((each for each in found if each is not None), None)
        held.setdefault("nobody who is seen" if holder is None else holder.text, []).append(port)
    texts = [f"{_list(numbers)} by {text}" for text, numbers in list(held.items())[:_MOST_HOLDERS]]
    more = f", and more by {len(held) - _MOST_HOLDERS} others" if len(held) > _MOST_HOLDERS else ""
    return "; ".join(texts) + more


def _list(numbers: Sequence[int]) -> str:
    if len(numbers) > 3:
        return f"{numbers[0]}, {numbers[1]} and {len(numbers) - 2} more"
    return ", ".join(map(str, numbers))


class _Sockets:
    """What the system tells of all sockets and of processes, asked for once: that takes long on a large machine."""

    def __init__(self) -> None:
        self.tcp = _sockets("tcp")
        self._claims: dict[str, int | None] | None = None
        self._processes: dict[int, _Holder | None] = {}

    def claimer(self, port: int) -> list[int | None]:
        """The process that has claimed ``port`` but does not listen there itself, None if it cannot be seen."""
        if self._claims is None:
            self._claims = {each.laddr: each.pid for each in _sockets("unix") or () if each.laddr}
        name = claim_name(port)
        return [self._claims[name]] if name in self._claims else []

    def describe(self, pid: int) -> _Holder | None:
        """A process in words; None if it has ended, or cannot be looked at."""
        if pid not in self._processes:
            self._processes[pid] = _describe(pid)
        return self._processes[pid]


def _sockets(kind: str) -> list[Any] | None:
    """All of a kind; None if the system does not tell."""
    try:
        found: list[Any] = psutil.net_connections(kind)
    except (psutil.Error, OSError):
        return None
    return found


def _find_holder(host: str, port: int, sockets: _Sockets) -> _Holder | None:
    pids = _pids(host, port, sockets)
    if pids is None:
        return None
    seen = (sockets.describe(pid) for pid in pids)
    return next((each for each in seen if each is not None), None) or _Holder(0, _unseen(), False)


def _pids(host: str, port: int, sockets: _Sockets) -> list[int] | None:
    """Processes that have ``port`` at ``host``, listeners first; empty if they cannot be seen, None if none has it."""
    if sockets.tcp is None:
        return []
    taken = [each for each in sockets.tcp if each.laddr and each.laddr.port == port and _overlap(each.laddr.ip, host)]
    listeners = [each.pid for each in taken if each.status == psutil.CONN_LISTEN]
    # Connections that no process has any more (TIME_WAIT) are in nobody's way.
    others = [each.pid for each in taken if each.pid is not None]
    found = listeners + others or sockets.claimer(port)
    return [pid for pid in found if pid is not None] if found else None


def _describe(pid: int) -> _Holder | None:
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        words = process.cmdline() or [process.name()]
        command = " ".join(" ".join(_readable(words)).split())
        if len(command) > _LONGEST_COMMAND:
            command = command[: _LONGEST_COMMAND - 3] + "..."
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(process.create_time()))
        text = f"process {pid} of user {process.username()} since {since} ({command})"
        return _Holder(pid, text, _is_scheduler(words))
    return None


def _readable(words: Sequence[str]) -> Sequence[str]:
    """Without the lines of Python by which our launcher starts a role: they would hide which role it is."""
    if words[1:2] == ["-c"] and "byteps_py" in words[3:]:
        return [words[0], "-m", *words[words.index("byteps_py") :]]
    return words


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
