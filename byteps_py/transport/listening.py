"""Where a ROUTER listens: at which addresses, and at which port.

=================================================== ============================================================
the host is                                         then it listens
=================================================== ============================================================
``*``                                               everywhere, with IPv4 and, where there is any, IPv6
an address of this machine                          there
a name with addresses of this machine               at all of those, at one port (``localhost``: ``::1`` too)
neither (NAT, a container)                          everywhere
a name other than ``localhost`` that is loopback    everywhere: ``/etc/hosts`` of many systems gives the machine's
here                                                own name to ``127.0.1.1``, other machines know it by another
=================================================== ============================================================

The port is the given one; else the first free one of a range; else any.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
from collections.abc import Sequence
from typing import Any, Final

import zmq

from byteps_py.errors import TransportError
from byteps_py.ports.claims import claim
from byteps_py.ports.holders import WILDCARD, describe_holder, describe_holders
from byteps_py.transport.base import tcp_address
from byteps_py.transport.resolve import is_local, is_loopback, is_numeric, resolve

__all__ = ["bind", "listening_hosts"]

_log = logging.getLogger("byteps_py.transport")
_TRIES: Final = 20
"""How often a port that is free at one address may be taken at another."""


def bind(router: zmq.Socket[Any], host: str, port: int, ports: Sequence[int] = ()) -> str:
    """Make ``router`` listen; returns the first address, with the real port.

    Raises:
        TransportError: see :meth:`byteps_py.transport.base.Endpoint.listen`.
    """
    hosts = listening_hosts(host, port)
    try:
        if port:
            bound = _bind_all(router, hosts, port)
        elif ports:
            bound = _bind_in_range(router, hosts, ports)
        else:
            bound = _bind_anywhere(router, hosts)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise TransportError(describe_holder(error.filename, port)) from error
        raise TransportError(f"cannot listen at {tcp_address(host, port)}: {error.strerror or error}") from error
    shown = [_plain(each) for each in bound]
    if len(shown) > 1:
        _log.info("listening at %s", " and ".join(shown))
    return shown[0]


def listening_hosts(host: str, port: int) -> list[str]:
    """Numeric addresses to listen at, or the wildcard.

    Raises:
        TransportError: the host is a name that is not known.
    """
    if host == WILDCARD:
        return [WILDCARD]
    found = resolve(host, port)
    local = [each for each in found if is_local(each)]
    if not local:
        _log.info("%s is not an address of this machine (NAT or a container?): listening on all addresses", host)
        return [WILDCARD]
    if "localhost" not in host.lower() and not is_numeric(host) and all(is_loopback(each) for each in local):
        _log.info(
            "%s is %s on this machine, and surely another address elsewhere: listening on all addresses",
            host,
            " and ".join(local),
        )
        return [WILDCARD]
    return local


def _bind_in_range(router: zmq.Socket[Any], hosts: Sequence[str], ports: Sequence[int]) -> list[str]:
    for each in ports:
        try:
            with claim(each):
                return _bind_all(router, hosts, each)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise TransportError(
        f"no port of BYTEPS_PORT_RANGE={min(ports)}-{max(ports)} is free: held are {describe_holders(hosts, ports)}: "
        "choose a wider range, or end what is stale"
    )


def _bind_anywhere(router: zmq.Socket[Any], hosts: Sequence[str]) -> list[str]:
    for left in reversed(range(_TRIES)):
        (first,) = _bind_all(router, hosts[:1], 0)
        try:
            return [first, *_bind_all(router, hosts[1:], int(first.rpartition(":")[2]))]
        except OSError as error:
            _unbind(router, [first])
            if error.errno != errno.EADDRINUSE or not left:
                raise
    raise AssertionError("unreachable")


def _bind_all(router: zmq.Socket[Any], hosts: Sequence[str], port: int) -> list[str]:
    """Listen at ``port`` of each host, or at none of them.

    Raises:
        OSError: one of them refuses, which is in ``filename``.
    """
    bound: list[str] = []
    for host in hosts:
        try:
            router.bind(tcp_address(host, port or WILDCARD))
        except zmq.ZMQError as error:
            _unbind(router, bound)
            raise OSError(error.errno, zmq.strerror(error.errno or 0), host) from error
        bound.append(_last_endpoint(router))
    return bound


def _unbind(router: zmq.Socket[Any], bound: Sequence[str]) -> None:
    for each in bound:
        with contextlib.suppress(zmq.ZMQError):
            router.unbind(each)


def _last_endpoint(router: zmq.Socket[Any]) -> str:
    endpoint = router.getsockopt(zmq.LAST_ENDPOINT)
    text = endpoint.decode() if isinstance(endpoint, bytes) else str(endpoint)
    return text.rstrip("\0")


def _plain(endpoint: str) -> str:
    """libzmq writes ``[::ffff:10.0.0.1]`` for an IPv4 address."""
    return re.sub(r"\[::ffff:([0-9.]+)\]", r"\1", endpoint)
