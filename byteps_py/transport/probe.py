"""One plain TCP connection that finds out why a peer does not answer.

libzmq tells nobody that a connection is refused or that something else listens; it tries again for ever.  What
listens with libzmq greets whoever connects, at once and with ten bytes that are the same in all versions since 3.0.
"""

from __future__ import annotations

import errno
import socket
import time
from enum import Enum
from typing import Final, NamedTuple

__all__ = ["Finding", "Verdict", "probe"]

PROBE_SECONDS: Final = 2.0
_GREETING: Final = 10
_MOST_SHOWN: Final = 40


class Verdict(Enum):
    """What a probe has found."""

    GREETS = "greets"
    """A program with libzmq: one of ours, or of BytePS or MXNet."""
    FOREIGN = "foreign"
    REFUSED = "refused"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    UNTRIED = "untried"


class Finding(NamedTuple):
    """A verdict, and the same for people, as part of a sentence."""

    verdict: Verdict
    text: str

    @property
    def is_in_the_way(self) -> bool:
        """Whether no connection can be made there, whoever would answer."""
        return self.verdict in (Verdict.REFUSED, Verdict.SILENT, Verdict.UNREACHABLE)


_GREETS: Final = Finding(
    Verdict.GREETS,
    "something that speaks ZeroMQ listens there, but it does not answer as byteps_py does "
    "(a stopped process? a scheduler of BytePS or MXNet? another port of this job?)",
)
_REFUSED: Final = Finding(Verdict.REFUSED, "connections are refused (nothing listens there)")
_SILENT: Final = Finding(Verdict.SILENT, "no answer at all (a firewall? a wrong address?)")


def probe(address: str, port: int, timeout: float = PROBE_SECONDS) -> Finding:
    """Connect to a numeric address and look who is there; takes ``timeout`` seconds at most."""
    deadline = time.monotonic() + timeout
    try:
        with socket.create_connection((address, port), timeout) as connection:
            return _judge(_read_greeting(connection, deadline))
    except TimeoutError:
        return _SILENT
    except ConnectionRefusedError:
        return _REFUSED
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return Finding(Verdict.UNTRIED, "it cannot be tried: too many open files (`ulimit -n`)")
        return Finding(Verdict.UNREACHABLE, f"it cannot be reached ({error.strerror or error})")


def _read_greeting(connection: socket.socket, deadline: float) -> bytes:
    """The first bytes that the other side says by itself; fewer if it hangs up or falls silent."""
    received = b""
    try:
        while len(received) < _GREETING and (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            piece = connection.recv(_MOST_SHOWN)
            if not piece:
                break
            received += piece
    except OSError:
        pass
    return received


def _judge(received: bytes) -> Finding:
    if len(received) >= _GREETING and received[0] == 0xFF and received[9] & 1:
        return _GREETS
    said = ""
    if received:
        line = received[:_MOST_SHOWN].split(b"\n")[0].decode("ascii", "replace").strip()
        said = f": it says {line!r}"
    return Finding(
        Verdict.FOREIGN,
        "something that is not byteps_py listens there, such as a web server, or a process that is stopped" + said,
    )
