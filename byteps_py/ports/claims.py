"""Ports of this machine that nobody has asked for by number: one process of ours at a time may take one.

libzmq, and whoever holds a port for it, allows its address to be reused (``SO_REUSEADDR``), so as not to be stopped by
connections that have ended a moment ago (TIME_WAIT).  The price: until one of them listens the kernel gives the same
port to all of them.  So whoever takes a port that it has chosen itself *claims* it first.

A claim is a name in the abstract namespace of Unix sockets.  It belongs to one network namespace, as ports do, one
process at a time can have it, whoever its user is, and it vanishes with that process.

========================================= =============================================================
who                                       claims
========================================= =============================================================
the launcher of a job on this machine     each port that it holds for its processes, as long as it does
who listens at some port of a range       until it listens
who is told by number where to listen     nothing: it may be what its launcher has claimed for it
========================================= =============================================================
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

__all__ = ["claim", "claim_name"]


def claim_name(port: int) -> str:
    """The name of the claim of ``port``, as lists of sockets show it."""
    return f"@byteps_py/port/{port}"


@contextlib.contextmanager
def claim(port: int) -> Iterator[None]:
    """Claim ``port`` until the end of the block.

    Raises:
        OSError: EADDRINUSE if somebody has claimed it.
    """
    with socket.socket(socket.AF_UNIX) as claimed:
        claimed.bind(claim_name(port).replace("@", "\0", 1))
        yield
