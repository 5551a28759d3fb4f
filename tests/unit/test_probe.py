"""One connection that tells why nobody answers."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator

import pytest

from byteps_py.transport.probe import Verdict, probe

GREETING = b"\xff" + bytes(8) + b"\x7f"


class Listener:
    """Says something to the first who connects, and then waits for him to hang up, or hangs up itself."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread: threading.Thread | None = None
        self.port = int(self._socket.getsockname()[1])

    def say(self, *pieces: bytes, hang_up: bool = False) -> None:
        def serve() -> None:
            caller, _ = self._socket.accept()
            with caller:
                for piece in pieces:
                    caller.sendall(piece)
                if not hang_up:
                    caller.recv(100)

        self._thread = threading.Thread(target=serve)
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(10)
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


@pytest.mark.parametrize("pieces", [(GREETING,), (GREETING[:4], GREETING[4:] + b"\x03")], ids=["whole", "in pieces"])
def test_a_greeting_of_libzmq(listener: Listener, pieces: tuple[bytes, ...]) -> None:
    listener.say(*pieces)
    finding = probe("127.0.0.1", listener.port)
    assert finding.verdict is Verdict.GREETS
    assert finding.text.startswith("something that speaks ZeroMQ listens there, but it does not answer")


@pytest.mark.parametrize("hang_up", [False, True])
def test_another_program(listener: Listener, hang_up: bool) -> None:
    listener.say(b"SSH-2.0-OpenSSH_9.2\r\n", hang_up=hang_up)
    assert probe("127.0.0.1", listener.port, 0.3) == (
        Verdict.FOREIGN,
        "something that is not byteps_py listens there, such as a web server, or a process that is stopped: "
        "it says 'SSH-2.0-OpenSSH_9.2'",
    )


def test_a_program_that_says_nothing(listener: Listener) -> None:
    listener.say()
    verdict, text = probe("127.0.0.1", listener.port, 0.3)
    assert verdict is Verdict.FOREIGN
    assert text.endswith("a process that is stopped")


def test_a_program_that_says_gibberish(listener: Listener) -> None:
    listener.say(b"\x00\x01" * 500, hang_up=True)
    verdict, text = probe("127.0.0.1", listener.port, 0.3)
    assert verdict is Verdict.FOREIGN
    assert len(text) < 300


def test_nobody_listens(listener: Listener) -> None:
    listener.close()
    assert probe("127.0.0.1", listener.port) == (Verdict.REFUSED, "connections are refused (nothing listens there)")


@pytest.mark.parametrize(
    ("error", "verdict", "text"),
    [
        (TimeoutError("timed out"), Verdict.SILENT, "no answer at all (a firewall? a wrong address?)"),
        (
            OSError(errno.EHOSTUNREACH, "No route to host"),
            Verdict.UNREACHABLE,
            "it cannot be reached (No route to host)",
        ),
        (OSError(errno.EMFILE, "x"), Verdict.UNTRIED, "it cannot be tried: too many open files (`ulimit -n`)"),
    ],
)
def test_no_connection(monkeypatch: pytest.MonkeyPatch, error: OSError, verdict: Verdict, text: str) -> None:
    def create_connection(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", create_connection)
    assert probe("127.0.0.1", 9) == (verdict, text)
