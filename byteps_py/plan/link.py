"""The speed of the link between two hosts: as many bytes as TCP carries both ways at the same time.

One host listens, the other one calls it twice: a connection for the bytes, and one on which each tells the other, when
it is over, at what rate bytes have come.  The slower way counts, since each gradient goes one way and comes back the
other.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from byteps_py.errors import TransportError

__all__ = ["SECONDS", "Clock", "listen", "measure"]

SECONDS: Final = 3.0
Clock = Callable[[], float]
"""Monotonic seconds."""

_GREETING: Final = b"byteps_py link 1\n"
_BYTES, _RESULT = b"b", b"r"
_CHUNK: Final = 1 << 18
_SLOW_START_SECONDS: Final = 0.5
_LEAD_SECONDS: Final = 0.5
"""One side goes on sending so much longer than the other counts: they do not begin at the same moment."""
_PATIENCE_SECONDS: Final = 10.0
_LONGEST_LINE: Final = 64


def listen(port: int, say: Callable[[str], object], *, wait_seconds: float = 600.0, seconds: float = SECONDS) -> float:
    """Wait for the other host and measure with it.

    Args:
        port: to listen at, on all addresses of this host; 0: any free one.
        say: gets a line when others may call.
        wait_seconds: how long it may take until one does.
        seconds: to count.

    Returns:
        Bytes per second, in the slower direction.

    Raises:
        TransportError: the port cannot be had, nobody has called in time, or the other host was lost meanwhile.
    """
    try:
        server = _server(port)
    except OSError as error:
        raise TransportError(
            f"port {port} cannot be listened at: {error.strerror or error}; --listen another"
        ) from None
    with server:
        number = server.getsockname()[1]
        say(f"listening at port {number}; on the other host: bps plan --measure --peer THIS_HOST:{number}")
        with contextlib.ExitStack() as stack:
            stream, result = _accepted(server, stack, wait_seconds)
            with _named("the other host"):
                return _exchange(stream, result, seconds)


def _server(port: int) -> socket.socket:
    """Listens at all addresses, those of IPv6 too where the system has any."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return socket.create_server(("", port))


def measure(host: str, port: int, *, seconds: float = SECONDS) -> float:
    """Measure with a host that listens; arguments, result and errors as of :func:`listen`."""
    with contextlib.ExitStack() as stack, _named(f"{host}:{port}"):
        connections = []
        for kind in (_BYTES, _RESULT):
            connections.append(stack.enter_context(socket.create_connection((host, port), _PATIENCE_SECONDS)))
            connections[-1].sendall(_GREETING + kind)
        for each in connections:
            if _line(each) != _GREETING:
                raise OSError("it is no `bps plan --listen`")
        return _exchange(connections[0], connections[1], seconds)


@contextlib.contextmanager
def _named(who: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TransportError(
            f"the link to {who} cannot be measured: {error.strerror or error}; is `bps plan --measure --listen` "
            "running there, and the port open?"
        ) from None


def _accepted(
    server: socket.socket, stack: contextlib.ExitStack, wait_seconds: float
) -> tuple[socket.socket, socket.socket]:
    """Both connections of one host. Whoever calls without the greeting is not meant."""
    found: dict[tuple[str, bytes], socket.socket] = {}
    until = time.monotonic() + wait_seconds
    while (left := until - time.monotonic()) > 0:
        server.settimeout(left)
        try:
            connection, address = server.accept()
        except TimeoutError:
            break
        stack.enter_context(connection)
        connection.settimeout(_PATIENCE_SECONDS)
        try:
            greeting, kind = _line(connection), _exactly(connection, 1)
            if greeting != _GREETING or kind not in (_BYTES, _RESULT):
                raise OSError
            connection.sendall(_GREETING)
        except OSError:
            connection.close()
            continue
        found[address[0], kind] = connection
        if {(address[0], _BYTES), (address[0], _RESULT)} <= found.keys():
            return found[address[0], _BYTES], found[address[0], _RESULT]
    raise TransportError(
        f"no host has called in {wait_seconds:.0f} s: run bps plan --measure --peer there, or try again"
    )


def _exchange(stream: socket.socket, result: socket.socket, seconds: float) -> float:
    """Bytes per second, in the slower direction."""
    begin = time.monotonic() + _SLOW_START_SECONDS
    until = begin + seconds
    sender = threading.Thread(target=_send, args=(stream, until + _LEAD_SECONDS), daemon=True)
    sender.start()
    try:
        own = _receive(stream, time.monotonic, begin, until)
        result.settimeout(_PATIENCE_SECONDS + seconds)
        result.sendall(f"{own:.0f}\n".encode())
        text = _line(result)
    finally:
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)  # what ends the sender, too
        sender.join()
    if not text.strip().isdigit():
        raise OSError(f"it answered {text!r}")
    return min(own, float(text))


def _send(stream: socket.socket, until: float) -> None:
    chunk = bytes(_CHUNK)
    with contextlib.suppress(OSError):  # the receiver finds out by itself
        while time.monotonic() < until:
            stream.sendall(chunk)


def _receive(stream: socket.socket, now: Clock, begin: float, until: float) -> float:
    """Bytes per second that come between two times, from the first arrival after ``begin`` on."""
    room = bytearray(_CHUNK)
    count, first, last = 0, 0.0, begin
    while last < until:
        got = stream.recv_into(room)
        if not got:
            raise OSError("the connection was closed before the end")
        last = now()
        if first:
            count += got
        elif last >= begin:
            first = last
    if not count:
        raise OSError("no bytes came")
    return count / (last - first)


def _line(connection: socket.socket) -> bytes:
    """One line, its end included."""
    text = b""
    while not text.endswith(b"\n"):
        if len(text) > _LONGEST_LINE:
            raise OSError("it sent something else than a line")
        text += _exactly(connection, 1)
    return text


def _exactly(connection: socket.socket, count: int) -> bytes:
    got = connection.recv(count)
    if len(got) < count:
        raise OSError("the connection was closed")
    return got
