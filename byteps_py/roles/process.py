"""Which process this is, and whether another one on the same host is proven to be gone.

Proof is what ends a job at once instead of after a timeout, so a doubt never counts: a process that cannot be looked
at (another host, another process-id namespace, a ``/proc`` that hides other users' processes) is not proven gone.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NamedTuple

from byteps_py.wire.control import ProcessInfo

__all__ = ["describe_process", "describe_this_process", "is_proven_gone", "is_running"]

_PROC = Path("/proc")
_ENDED_STATES = "ZXx"
"""Zombie, and the two spellings of dead: no instruction of such a process runs any more."""
_STOPPED_STATES = "Tt"
"""By a signal, and by a debugger."""


class _Stat(NamedTuple):
    """What matters of ``/proc/PID/stat``: the state letter, and the start in clock ticks since boot."""

    state: str
    started: int


def describe_this_process() -> ProcessInfo:
    """The :class:`~byteps_py.wire.control.ProcessInfo` of the calling process. Ask again after a fork."""
    return describe_process(os.getpid())


def describe_process(pid: int) -> ProcessInfo:
    """The same for another process that this one can see, such as a child that has not been reaped yet.

    ``started`` is 0 where ``/proc`` does not tell; such a process can still be proven gone by its missing pid.
    """
    stat = _read_stat(pid)
    return ProcessInfo(
        host=socket.gethostname(),
        host_id=_host_id(),
        pid=pid,
        started=0 if stat is None else stat.started,
    )


def is_proven_gone(info: ProcessInfo, here: ProcessInfo) -> str | None:
    """How it is known that the process ``info`` has ended, as a sentence part; None where it is not known.

    Args:
        info: the process in question.
        here: the calling process, from :func:`describe_this_process`.
    """
    if info.host_id != here.host_id or info.pid <= 0:
        return None
    name = f"its process {info.pid} on {info.host}"
    try:
        os.kill(info.pid, 0)
    except ProcessLookupError:
        return f"{name} is gone"
    except PermissionError:
        pass  # It is there, and belongs to another user.
    stat = _read_stat(info.pid)
    if stat is None:
        return None
    if info.started and stat.started != info.started:
        return f"{name} is gone: the process id has been given to another process since"
    if stat.state in _ENDED_STATES:
        return f"{name} has ended and waits to be reaped"
    return None


def is_running(info: ProcessInfo, here: ProcessInfo) -> bool:
    """Whether the process ``info`` is seen to exist and is not stopped; False where that is not known.

    Args:
        info: the process in question.
        here: the calling process, from :func:`describe_this_process`.
    """
    if info.host_id != here.host_id or info.pid <= 0 or not info.started:
        return False
    stat = _read_stat(info.pid)
    return stat is not None and stat.started == info.started and stat.state not in _ENDED_STATES + _STOPPED_STATES


def _host_id() -> str:
    """Equal for two processes exactly if they see the same process ids.

    Where the kernel does not tell, the id is this process's own, so that nothing is ever proven by it.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return f"unknown:{socket.gethostname()}:{os.getpid()}"
    return f"{boot}:{namespace}"


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    return _parse_stat(text)


def _parse_stat(text: str) -> _Stat | None:
    """Parse the line after its last ``)``: the name before it is the program's choice and may hold anything."""
    fields = text.rpartition(")")[2].split()
    # The state is field 3 of proc(5), the start time field 22.
    if len(fields) < 20 or not fields[19].isdigit():
        return None
    return _Stat(fields[0], int(fields[19]))
