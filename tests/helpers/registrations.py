"""Registrations of processes that do not exist."""

from __future__ import annotations

from typing import Any

from byteps_py.core.roster import Member
from byteps_py.types import Role
from byteps_py.wire.control import ProcessInfo, Register

__all__ = ["process", "server", "worker"]


def process(pid: int, host: str = "host-a") -> ProcessInfo:
    return ProcessInfo(host, f"boot-of-{host}", pid, started=1000 + pid)


def worker(pid: int, host: str = "host-a", **fields: Any) -> Member:
    """A worker with the peer name ``w<pid>``; ``fields`` are those of :class:`Register`."""
    return _member(f"w{pid}".encode(), Role.WORKER, process(pid, host), {"partition_bytes": 4096000, **fields})


def server(pid: int, host: str = "host-a", port: int = 0, **fields: Any) -> Member:
    """A server with the peer name ``s<pid>`` that listens at ``port``, or else at its pid."""
    address = f"tcp://{host}:{port or pid}"
    return _member(f"s{pid}".encode(), Role.SERVER, process(pid, host), {"address": address, **fields})


def _member(peer: bytes, role: Role, info: ProcessInfo, fields: dict[str, Any]) -> Member:
    defaults = {
        "version": "0.1.0",
        "role": role,
        "job_id": "job",
        "incarnation": info.pid,
        "num_worker": 2,
        "num_server": 1,
    }
    return Member(peer, Register(process=info, **{**defaults, **fields}))
