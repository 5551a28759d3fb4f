"""Ports for the listening processes of a job on this machine, held until the job has ended.

The launcher claims a free port, binds a socket to it and keeps both, without listening.  While it is held the kernel
gives the port to nobody who asks for just any port, and the claim keeps out those of ours who look for one in a range.
The process that it is meant for binds it by number all the same, since both sockets allow the address to be reused and
only one of them listens.  So there is no moment in which another process could be given the port, and nothing has to be
tried again.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

from byteps_py.ports.claims import claim

__all__ = ["hold"]

_TRIES = 20
"""How often a port that the kernel gives may be one that somebody has claimed and not taken yet."""


@contextlib.contextmanager
def hold(host: str, count: int, port_range: tuple[int, int] | None) -> Iterator[tuple[int, ...]]:
    """``count`` free ports of ``host``, held until the end of the block.

    Args:
        host: an IPv4 address of this machine.
        count: how many.
        port_range: first and last port that may be taken, None for any.

    Raises:
        OSError: there are not so many free ports.
    """
    with contextlib.ExitStack() as held:
        if port_range is None:
            yield tuple(_take_any(host, held) for _ in range(count))
        else:
            yield _take_of_range(host, count, port_range, held)


def _take_of_range(host: str, count: int, port_range: tuple[int, int], held: contextlib.ExitStack) -> tuple[int, ...]:
    ports: list[int] = []
    others: list[int] = []
    for port in range(port_range[0], port_range[1] + 1):
        if len(ports) == count:
            break
        (ports if _take(host, port, held) else others).append(port)
    if len(ports) < count:
        text = (
            f"BYTEPS_PORT_RANGE={port_range[0]}-{port_range[1]} has {len(ports)} of the {count} free ports that "
            f"the scheduler and the servers of this job need on {host}: widen it, or end what uses its ports"
        )
        if others:
            from byteps_py.ports.holders import describe_holders  # not every launch is to load psutil

            text += f": {describe_holders([host], others)}"
        raise OSError(text)
    return tuple(ports)


def _take(host: str, port: int, held: contextlib.ExitStack) -> bool:
    """Claim and bind ``port``; False if somebody else has it.

    Raises:
        OSError: it cannot be had for another reason.
    """
    try:
        with contextlib.ExitStack() as attempt:
            attempt.enter_context(claim(port))
            holder = attempt.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((host, port))
            held.push(attempt.pop_all())
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise OSError(f"port {port} on {host} cannot be used: {error.strerror or error}") from error
    return True


def _take_any(host: str, held: contextlib.ExitStack) -> int:
    for left in reversed(range(_TRIES)):
        with contextlib.ExitStack() as attempt:
            holder = attempt.enter_context(socket.socket())
            # Only then may it be shared: what the kernel gives is nobody else's.
            holder.bind((host, 0))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port: int = holder.getsockname()[1]
            try:
                attempt.enter_context(claim(port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not left:
                    raise
                continue
            held.push(attempt.pop_all())
            return port
    raise AssertionError("unreachable")
