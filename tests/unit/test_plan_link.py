"""The speed of a link, between two ends of this machine."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Iterator

import pytest

from byteps_py.errors import TransportError
from byteps_py.plan import link

pytestmark = pytest.mark.timeout(60)
SECONDS = 0.1


class Listener:
    """A host that listens in a thread."""

    def __init__(self, wait_seconds: float = 30.0) -> None:
        self.result: float | TransportError | None = None
        self.port = 0
        self._is_there = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(wait_seconds,))
        self._thread.start()
        assert self._is_there.wait(30)

    def _say(self, line: str) -> None:
        self.port = int(line.rpartition(":")[2])
        self._is_there.set()

    def _run(self, wait_seconds: float) -> None:
        try:
            self.result = link.listen(0, self._say, wait_seconds=wait_seconds, seconds=SECONDS)
        except TransportError as error:
            self.result = error

    def join(self) -> float | TransportError | None:
        self._thread.join(30)
        return self.result


@contextlib.contextmanager
def connected(port: int, greeting: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(greeting)
        yield connection


def test_both_ends_find_the_same() -> None:
    listener = Listener()
    with connected(listener.port, b"GET / HTTP/1.1\r\n\r\n"), connected(listener.port, b""):
        pass  # somebody else
    found = link.measure("127.0.0.1", listener.port, seconds=SECONDS)
    assert found > 1e6
    assert listener.join() == pytest.approx(found, rel=1e-3)


def test_a_host_that_is_lost_meanwhile() -> None:
    listener = Listener()
    greeting = b"byteps_py link 1\n"
    with connected(listener.port, greeting + b"b") as stream, connected(listener.port, greeting + b"r") as result:
        assert stream.recv(17, socket.MSG_WAITALL) == result.recv(17, socket.MSG_WAITALL) == greeting
    error = listener.join()
    assert isinstance(error, TransportError)
    assert str(error).startswith("the link to the other host cannot be measured: ")


def test_nobody_calls() -> None:
    error = Listener(wait_seconds=0.05).join()
    assert isinstance(error, TransportError)
    assert "no host has called in 0 s" in str(error)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(TransportError, match="cannot be listened at"):
        link.listen(taken.getsockname()[1], print)


def test_where_ipv6_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server

    def refuse(address: tuple[str, int], *, family: int = socket.AF_INET, **options: bool) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return create(address, **options)

    monkeypatch.setattr(socket, "create_server", refuse)
    listener = Listener()
    assert link.measure("127.0.0.1", listener.port, seconds=SECONDS) > 1e6
    assert isinstance(listener.join(), float)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(
        TransportError, match=rf"the link to 127\.0\.0\.1:{port} cannot be measured: Connection refused"
    ):
        link.measure("127.0.0.1", port)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"x" * 200, b""])
def test_something_else_listens(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(64)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(TransportError, match="is `bps plan --measure --listen` running there"):
            link.measure("127.0.0.1", server.getsockname()[1])
        thread.join(30)
