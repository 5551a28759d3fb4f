"""Ports for the listening processes of a job on this machine, held until the job has ended.

The launcher binds a socket to a free port and keeps it, without listening.  While it is held the kernel gives the port
to nobody who asks for just any port; the process that it is meant for binds it by number all the same, since both
sockets allow the address to be reused and only one of them listens.  So there is no moment in which another process
could be given the port, and nothing has to be tried again.

Ports of a given range are asked for by number, and there two launchers could hold the same one, since neither listens.
So a launcher that takes one also takes a name for it in the abstract namespace of Unix sockets.  It belongs to one
network namespace, as ports do, one process at a time can have it, and it vanishes with that process.  And it first
looks for ports that nobody has at all; only then for those that may have nothing but ended connections (TIME_WAIT).
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator

__all__ = ["hold"]


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
            yield tuple(_take(host, 0, held) for _ in range(count))
            return
        ports: list[int] = []
        for exclusive, port in itertools.product((True, False), range(port_range[0], port_range[1] + 1)):
            if len(ports) < count and port not in ports and _try_to_take(host, port, held, exclusive):
                ports.append(port)
        if len(ports) < count:
            raise OSError(
                f"BYTEPS_PORT_RANGE={port_range[0]}-{port_range[1]} has {len(ports)} of the {count} free ports that "
                f"the scheduler and the servers of this job need on {host}: widen it, or end what uses its ports"
            )
        yield tuple(ports)


def _try_to_take(host: str, port: int, held: contextlib.ExitStack, exclusive: bool) -> bool:
    with contextlib.ExitStack() as attempt, contextlib.suppress(OSError):
        name = attempt.enter_context(socket.socket(socket.AF_UNIX))
        name.bind(f"\0byteps_py port {port}")
        _take(host, port, attempt, exclusive)
        held.push(attempt.pop_all())
        return True
    return False


def _take(host: str, port: int, held: contextlib.ExitStack, exclusive: bool = False) -> int:
    """Bind ``port`` (0: any) without listening; returns it.

    Args:
        host, port: where.
        held: takes the socket.
        exclusive: whether nobody else may have the port at this moment, not even somebody who allows that.
    """
    holder = held.enter_context(socket.socket())
    if not exclusive:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host, port))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found: int = holder.getsockname()[1]
    return found
