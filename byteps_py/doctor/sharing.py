"""Check of what processes of one host need to share memory: sealed memory files, and Unix sockets without a file."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator

from byteps_py.doctor.findings import Finding, note, ok, problem, warning
from byteps_py.doctor.situation import Situation

__all__ = ["check_sharing", "in_container", "judge_sharing"]

_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_SHRINK = 0x2
_MARKS = ("docker", "kubepods", "containerd", "libpod", "lxc")


def check_sharing(situation: Situation) -> Iterator[Finding]:
    """Make a memory file, seal it, and pass it through a socket as the transport does."""
    transport = "auto" if situation.job is None else situation.job.transport
    yield from judge_sharing(transport, _obstacle())
    if situation.job is None:
        return  # processes of one launch are in one container
    marks = [name for name in (".dockerenv", "run/.containerenv") if (situation.root / name).exists()]
    if in_container(situation.read("proc/1/cgroup")) or marks:
        yield note(
            "this is a container: processes in two containers of a host share memory only if both are in one network "
            "namespace (else they talk TCP, which is slower), and notice each other's end at once only if both are in "
            "one namespace of process ids",
            "nothing is to be done if all processes of this host are in this container; else start its containers with "
            "--network host --pid host",
        )


def judge_sharing(transport: str, obstacle: str) -> Iterator[Finding]:
    """What is to be said where ``BYTEPS_TRANSPORT`` is ``transport``.

    Args:
        transport: ``auto``, ``tcp`` or ``shm``.
        obstacle: why memory cannot be shared; empty if it can be.
    """
    remedy = "allow memfd_create and Unix sockets in what confines this process (seccomp, a security module)"
    if transport == "tcp":
        yield note("BYTEPS_TRANSPORT=tcp: memory is not shared", "leave it at auto: on one host that is faster")
    elif not obstacle:
        yield ok("memory can be shared on this host; neither /dev/shm nor locked memory (ulimit -l) is needed for that")
    elif transport == "shm":
        yield problem(f"memory cannot be shared, which BYTEPS_TRANSPORT=shm demands: {obstacle}", remedy)
    else:
        yield warning(f"memory cannot be shared, so processes of this host talk TCP: {obstacle}", remedy)


def in_container(text: str) -> bool:
    """Whether ``/proc/1/cgroup`` is that of a container. Pure."""
    return any(mark in text for mark in _MARKS)


def _obstacle() -> str:
    """Why memory cannot be shared; empty if it can be."""
    step = "memfd_create"
    try:
        descriptor = os.memfd_create("byteps_py", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, 4096)
            step = "sealing a memory file"
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _SHRINK)
            if not fcntl.fcntl(descriptor, _F_GET_SEALS) & _SHRINK:
                return "a memory file loses its seals"
            step = "a Unix socket without a file"
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(b"\0byteps_py/doctor/" + secrets.token_hex(8).encode())
                listener.listen(1)
            step = "passing a memory file on"
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with one, other:
                socket.send_fds(one, [b"-"], [descriptor])
                _, received, _, _ = socket.recv_fds(other, 1, 1)
                for each in received:
                    os.close(each)
                if not received:
                    return "a memory file was not passed on"
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"{step}: {error.strerror or error}"
    return ""
