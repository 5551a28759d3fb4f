"""Host names and addresses: what a name stands for, and which own address leads to a host."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

from byteps_py.errors import TransportError, TransportTimeout

__all__ = [
    "UnresolvedName",
    "address_towards",
    "is_local",
    "is_loopback",
    "is_numeric",
    "resolve",
    "split_address",
    "wait_until_resolved",
]

_TRY_SECONDS: Final = 1.0
_REPORT_SECONDS: Final = 10.0


class UnresolvedName(TransportError):
    """A host name is not known, or not yet: services of a cluster get their names late."""


def split_address(address: str) -> tuple[str, int]:
    """``tcp://host:port`` (or ``tcp://[v6]:port``) to host and port.

    Raises:
        TransportError: it is of another form.
    """
    scheme, separator, rest = address.partition("://")
    host, colon, port = rest.rpartition(":")
    if scheme != "tcp" or not separator or not colon or not port.isdigit():
        raise TransportError(f"address {address!r} is not of the form tcp://host:port")
    return _bare(host), int(port)


def is_numeric(host: str) -> bool:
    """Whether ``host`` is an address and no name: there is nothing to look up.

    Raises:
        TransportError: it is neither, whatever any resolver knows.
    """
    try:
        socket.getaddrinfo(_bare(host), None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except UnicodeError as error:
        raise _impossible(host, error) from error
    except OSError:
        return False
    return True


def is_local(address: str) -> bool:
    """Whether the numeric ``address`` is one of this machine."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        with socket.socket(found[0][0]) as probe:
            probe.bind(found[0][4])
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether a numeric address is one by which a machine reaches only itself."""
    plain = address.removeprefix("::ffff:")
    return address == "::1" or (plain.startswith("127.") and ":" not in plain)


def resolve(host: str, port: int) -> list[str]:
    """The numeric addresses of ``host``, in the order in which they should be tried. May block for seconds.

    Raises:
        UnresolvedName: the name is not known.
        TransportError: nothing can have such a name.
    """
    try:
        found = socket.getaddrinfo(_bare(host), port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(_numeric(each[4]) for each in found))
    except UnicodeError as error:
        raise _impossible(host, error) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnresolvedName(f"the host name {host!r} cannot be resolved ({reason})") from error


def wait_until_resolved(host: str, port: int, timeout: float, log: logging.Logger) -> list[str]:
    """As :func:`resolve`, but a name that is not known yet is waited for.

    Args:
        timeout: seconds; 0 waits for ever.
        log: told at once, and every 10 s.

    Raises:
        TransportTimeout: the name is still not known.
        TransportError: nothing can have such a name.
    """
    started = time.monotonic()
    report_due = started
    while True:
        try:
            return resolve(host, port)
        except UnresolvedName as error:
            now = time.monotonic()
            if timeout and now - started > timeout:
                raise TransportTimeout(
                    f"{error}, for {timeout:g} s (BYTEPS_START_TIMEOUT): check the spelling, or use an address"
                ) from error
            if now >= report_due:
                report_due += _REPORT_SECONDS
                if now - started < _TRY_SECONDS:
                    log.warning("%s: trying again", error)
                else:
                    log.warning("waiting %.0f s: %s", now - started, error)
        time.sleep(_TRY_SECONDS)


def address_towards(targets: Sequence[str], port: int) -> str | None:
    """The own numeric address from which the first of ``targets`` that has a route is reached; None without a route.

    No packet is sent.
    """
    for target in targets:
        family = socket.AF_INET6 if ":" in target else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, port))
                return _numeric(probe.getsockname())
        except OSError:
            continue
    return None


def _impossible(host: str, error: UnicodeError) -> TransportError:
    """A part between two dots is empty or too long."""
    return TransportError(f"the host name {host!r} is impossible ({error}): check the spelling")


def _bare(host: str) -> str:
    """Without the brackets of an IPv6 address in a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _numeric(address: tuple[Any, ...]) -> str:
    """The host of a socket's address; a link-local one means something only with its interface."""
    host = str(address[0])
    if len(address) == 4 and address[3] and "%" not in host:
        return f"{host}%{socket.if_indextoname(int(address[3]))}"
    return host
