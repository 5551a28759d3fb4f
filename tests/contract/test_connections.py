"""Several TCP connections between two processes: all are used, and each can be done without."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from byteps_py.transport.routes import route
from byteps_py.transport.zmq import ZmqEndpoint

ANY = "tcp://127.0.0.1:0"
LARGE = 100_000
COUNT = 3


class Connection:
    """One that a relay forwards.

    Attributes:
        head: the first bytes of the side that connected, where it presents itself.
        passed: bytes by now, of the side that connected and of the other one.
    """

    def __init__(self, caller: socket.socket, called: socket.socket) -> None:
        self.head = b""
        self.passed = [0, 0]
        self.sockets = (caller, called)
        self._threads = [threading.Thread(target=self._forward, args=(side,)) for side in (0, 1)]
        for each in self._threads:
            each.start()

    def cut(self) -> None:
        """End it, and wait until it has ended."""
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self.sockets:
            each.close()

    def is_of(self, identity: bytes) -> bool:
        """Whether the side that connected presents itself so."""
        return struct.pack(">I", len(identity)) + identity in self.head

    def _forward(self, side: int) -> None:
        source, sink = self.sockets[side], self.sockets[1 - side]
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if side == 0:
                    self.head = (self.head + data)[:1000]
                self.passed[side] += len(data)
                sink.sendall(data)
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Relay:
    """Forwards connections to ``port``, each of which can be cut by itself."""

    def __init__(self, port: int) -> None:
        self.connections: list[Connection] = []
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def refuse(self) -> None:
        """Take no more connections. Idempotent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def close(self) -> None:
        """End everything."""
        self.refuse()
        for each in self.connections:
            each.cut()

    def of(self, identity: bytes) -> list[Connection]:
        """The connections that present themselves so, the oldest first."""
        return [each for each in self.connections if each.is_of(identity)]

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(Connection(caller, socket.create_connection(("127.0.0.1", self._port))))


class Pair:
    """A server, and a client with three connections to it by way of a relay."""

    def __init__(self, io_threads: int = 1) -> None:
        self.server = ZmqEndpoint(b"server", io_threads=io_threads)
        self.client = ZmqEndpoint(b"client", io_threads=io_threads)
        self.relay = Relay(int(self.server.listen(ANY).rpartition(":")[2]))
        self.client.connect(b"server", self.relay.address, connections=COUNT)
        self._number = 0

    def close(self) -> None:
        self.client.close()
        self.server.close()
        self.relay.close()

    def arrives(self, way: str, nbytes: int) -> bool:
        """Whether a message that is sent now arrives soon, whole."""
        sender, peer, receiver, own = {
            "there": (self.client, b"server", self.server, b"client"),
            "back": (self.server, b"client", self.client, b"server"),
        }[way]
        self._number += 1
        payload = b"%d " % self._number * (nbytes // len(b"%d " % self._number))
        assert sender.send(peer, [b"head", payload]) or way == "back"
        deadline = time.monotonic() + 1
        while (left := deadline - time.monotonic()) > 0:
            sender.receive(0)
            for message in receiver.receive(min(left, 0.05)):
                assert message.peer == own
                if bytes(message.frames[1]) == payload:
                    return True
        return False

    def settle(self, ways: str, nbytes: int) -> None:
        """Send until each connection has had its turn twice in a row without a loss, in each direction."""
        for way in ("there", "back") if ways == "both" else (ways,):
            good, deadline = 0, time.monotonic() + 30
            while good < 2 * COUNT:
                assert time.monotonic() < deadline, f"not all connections serve on the way {way}"
                good = good + 1 if self.arrives(way, nbytes) else 0

    def carried(self) -> list[tuple[int, int]]:
        """Bytes of each connection, the newest that presents itself so, in each direction."""
        found = [self.relay.of(route(b"client", number)) for number in range(COUNT)]
        return [(each[-1].passed[0], each[-1].passed[1]) if each else (0, 0) for each in found]


@pytest.fixture(params=[1, 2])
def fresh(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Nothing has been sent yet."""
    made = Pair(request.param)
    yield made
    made.close()


@pytest.fixture
def pair(fresh: Pair) -> Pair:
    """All connections have been used in both directions."""
    deadline = time.monotonic() + 30
    while min(min(each) for each in fresh.carried()) < LARGE:
        assert time.monotonic() < deadline, "not all connections are used"
        fresh.settle("both", LARGE)
    return fresh


def growth(pair: Pair, before: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In messages of :data:`LARGE` bytes."""
    return [
        ((there - first) // (LARGE - 100), (back - second) // (LARGE - 100))
        for (there, back), (first, second) in zip(pair.carried(), before, strict=True)
    ]


def test_large_messages_take_turns_and_small_ones_the_first(pair: Pair) -> None:
    before = pair.carried()
    for _ in range(4 * COUNT):
        assert pair.arrives("there", LARGE)
        assert pair.arrives("back", LARGE)
    assert growth(pair, before) == [(4, 4)] * COUNT
    before = pair.carried()
    for _ in range(100):
        assert pair.arrives("there", LARGE // 50)
        assert pair.arrives("back", LARGE // 50)
    assert growth(pair, before) == [(2, 2), *[(0, 0)] * (COUNT - 1)]


@pytest.mark.parametrize("number", [1, 2])
def test_a_further_connection_that_is_cut_is_done_without(pair: Pair, number: int) -> None:
    pair.relay.refuse()
    pair.relay.of(route(b"client", number))[-1].cut()
    pair.settle("both", LARGE)
    before = pair.carried()
    for _ in range(2 * COUNT):
        assert pair.arrives("there", LARGE)
        assert pair.arrives("back", LARGE)
    assert growth(pair, before)[number] == (0, 0)
    assert pair.arrives("there", 10)
    assert pair.arrives("back", 10)


def test_answers_do_without_the_first_connection(pair: Pair) -> None:
    pair.relay.refuse()
    pair.relay.of(b"client")[-1].cut()
    for nbytes in (10, LARGE):
        pair.settle("back", nbytes)


@pytest.mark.parametrize("number", range(COUNT))
def test_a_connection_that_was_cut_is_made_again(pair: Pair, number: int) -> None:
    identity = route(b"client", number)
    pair.relay.of(identity)[-1].cut()
    deadline = time.monotonic() + 30
    while len(pair.relay.of(identity)) < 2 and time.monotonic() < deadline:
        pair.client.receive(0.02)
    pair.settle("both", LARGE)
    while min(pair.carried()[number]) < LARGE and time.monotonic() < deadline:
        pair.settle("both", LARGE)
    assert min(pair.carried()[number]) >= LARGE


def test_the_first_answer_may_take_any_connection(fresh: Pair) -> None:
    """Also of a peer of which only small messages have come."""
    deadline = time.monotonic() + 30
    while min(back for _, back in fresh.carried()) < LARGE:
        assert time.monotonic() < deadline, "not all connections carry answers"
        fresh.arrives("there", 10)
        fresh.arrives("back", LARGE)
    assert max(there for there, _ in fresh.carried()) < LARGE


def test_nobody_can_pose_as_a_peer_by_a_further_connection() -> None:
    server, scheduler, forger, honest = (ZmqEndpoint(each) for each in (b"server", b"s", b"scheduler", b"honest"))
    server.connect(b"scheduler", scheduler.listen(ANY))
    address = server.listen(ANY)
    for client in (forger, honest):
        client.connect(b"server", address, connections=COUNT)
        for _ in range(4 * COUNT):
            client.send(b"server", [bytes(LARGE)])
    got: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(got) < 4 * COUNT and time.monotonic() < deadline:
        got += [each.peer for each in server.receive(0.1)]
    got += [each.peer for each in server.receive(0.3)]
    assert got == [b"honest"] * (4 * COUNT)
    server.send(b"scheduler", [b"for the real one", bytes(LARGE)])
    assert [bytes(each.frames[0]) for each in scheduler.receive(10)] == [b"for the real one"]
    assert forger.receive(0.2) == []
    for each in (server, scheduler, forger, honest):
        each.close()
