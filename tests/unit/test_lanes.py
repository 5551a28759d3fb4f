"""Who connects to whom, what happens when a lane is gone, and who waits."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from byteps_py.errors import TransportError
from byteps_py.transport import lanes as module
from byteps_py.transport.arena import Arena
from byteps_py.transport.base import Message
from byteps_py.transport.lanes import Lanes
from byteps_py.transport.packets import Hello, encode_hello
from byteps_py.transport.shm import lane_name

Make = Callable[..., Lanes]
SERVER = b"server-%d" % os.getpid()
_numbers = itertools.count()


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes the lanes of a process, called as it is told, and closes them afterwards."""
    made: list[Lanes] = []

    def build(identity: bytes, refused: frozenset[bytes] = frozenset()) -> Lanes:
        made.append(Lanes(identity, Arena(), 1 << 20, refused))
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.fixture
def server(make: Make) -> Lanes:
    lanes = make(SERVER)
    lanes.listen()
    return lanes


@pytest.fixture
def client(make: Make, server: Lanes) -> Lanes:
    lanes = make(b"client")
    lanes.connect(b"the-server", SERVER)
    return lanes


def receive(lanes: Lanes, count: int) -> list[Message]:
    messages: list[Message] = []
    deadline = time.monotonic() + 10
    while len(messages) < count and time.monotonic() < deadline:
        lanes.wait(0.1)
        messages += lanes.receive()
    assert len(messages) == count
    return messages


def contents(lanes: Lanes, count: int = 1) -> list[tuple[bytes, bytes]]:
    return [(each.peer, bytes(each.frames[0])) for each in receive(lanes, count)]


def stranger() -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connected.connect(lane_name(SERVER))
    return connected


class TestConnections:
    def test_messages_go_both_ways(self, server: Lanes, client: Lanes) -> None:
        assert client.send(b"the-server", [b"hello"])
        assert contents(server) == [(b"client", b"hello")]
        assert server.send(b"client", [b"answer"])
        assert contents(client) == [(b"the-server", b"answer")]
        assert (client.has(b"the-server"), server.has(b"client"), server.has(b"the-server")) == (True, True, False)
        assert (client.is_target(b"the-server"), server.is_target(b"client")) == (True, False)
        assert client.obstacle(b"the-server") == ""

    def test_where_nobody_listens_there_is_none(self, make: Make) -> None:
        client = make(b"client")
        with pytest.raises(TransportError, match=r"no process of this host .* listens for its lanes"):
            client.connect(b"peer", b"nobody")
        assert not client.has(b"peer")
        assert client.send(b"peer", [b"x"]) is False

    def test_a_name_is_taken_once(self, server: Lanes, make: Make) -> None:
        with pytest.raises(TransportError, match="cannot listen for lanes as server-"):
            make(SERVER).listen()

    def test_a_server_that_has_no_time_for_connections_is_told(self, make: Make) -> None:
        client = make(b"client")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(lane_name(SERVER))
            listener.listen(0)
            client.connect(b"peer", SERVER)
            with pytest.raises(TransportError, match="cannot be connected: Resource temporarily unavailable"):
                client.connect(b"the same", SERVER)

    def test_a_stranger_who_leaves_is_nobody(self, server: Lanes, caplog: pytest.LogCaptureFixture) -> None:
        """As one who only looks whether the lane can be made."""
        stranger().close()
        server.wait(10)
        assert server.receive() == []
        assert server.receive() == []
        assert caplog.records == []

    def test_strangers_are_bounded(self, server: Lanes, client: Lanes) -> None:
        strangers = [stranger() for _ in range(100)]
        client.send(b"the-server", [b"hello"])
        assert contents(server) == [(b"client", b"hello")]
        server.receive()
        gone = 0
        for each in strangers:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                gone += each.recv(1) == b""
            each.close()
        assert gone == 100 - 64

    def test_nobody_can_pose_as_one_whom_this_side_knows(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        server, forger = make(SERVER, frozenset([b"scheduler"])), make(b"scheduler")
        server.listen()
        forger.connect(b"server", SERVER)
        forger.send(b"server", [b"Welcome"])
        server.wait(10)
        assert server.receive() == []
        assert not server.has(b"scheduler")
        assert "presents the name of one whom this process has connected to" in caplog.text

    def test_nonsense_ends_its_own_lane_only(
        self, server: Lanes, client: Lanes, caplog: pytest.LogCaptureFixture
    ) -> None:
        with stranger() as bad:
            bad.send(encode_hello(Hello(b"bad", SERVER)))
            bad.send(b"nonsense")
            bad.send(b"nonsense")
            client.send(b"the-server", [b"hello"])
            assert contents(server) == [(b"client", b"hello")]
            server.receive()
            with pytest.raises(ConnectionResetError):
                bad.recv(100)
        assert [each.getMessage().partition(":")[0] for each in caplog.records] == [
            "the lane of bad is closed, for it brought nonsense"
        ]
        assert not server.has(b"bad")

    def test_at_the_limit_of_open_files_nothing_spins(
        self,
        server: Lanes,
        client: Lanes,
        make: Make,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        client.send(b"the-server", [b"hello"])
        contents(server)

        def refuse(_: socket.socket) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        other = make(b"other")
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "accept", refuse)
            other.connect(b"server", SERVER)
            other.send(b"server", [b"me too"])
            assert server.receive() == []
        assert server.wait(0) is False
        assert caplog.text.count("no lane can be accepted before another is closed") == 1
        client.close()
        assert contents(server) == [(b"other", b"me too")]


class TestLosses:
    def test_who_connects_again_takes_the_place_of_the_former(self, server: Lanes, make: Make) -> None:
        for attempt in (b"first", b"second"):
            client = make(b"client")
            client.connect(b"server", SERVER)
            client.send(b"server", [attempt])
            assert contents(server) == [(b"client", attempt)]
            server.send(b"client", [b"answer to " + attempt])
            assert contents(client) == [(b"server", b"answer to " + attempt)]

    def test_a_client_that_is_gone_cannot_be_sent_to(self, server: Lanes, client: Lanes) -> None:
        client.send(b"the-server", [b"hello"])
        contents(server)
        client.close()
        assert server.wait(10)
        assert server.receive() == []
        assert server.send(b"client", [b"x"]) is False
        assert not server.has(b"client")

    def test_a_server_that_is_gone_is_tried_again(
        self, server: Lanes, client: Lanes, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.send(b"the-server", [b"lost"])
        server.close()
        clock = iter([1000.0, 1000.01, 1000.09, 1000.11, 1000.12, 1001.0])
        now = 0.0
        tries: list[float] = []
        dial = client._dial
        monkeypatch.setattr(module.time, "monotonic", lambda: now)
        monkeypatch.setattr(client, "_dial", lambda identity: tries.append(now) or dial(identity))
        client.receive()
        for _ in range(5):
            now = next(clock)
            assert client.send(b"the-server", [b"lost"]) is False
            assert client.has(b"the-server")
        assert tries == [1000.0, 1000.11]
        assert "no process of this host" in client.obstacle(b"the-server")
        successor = make(SERVER)
        successor.listen()
        assert client.obstacle(b"the-server") == ""
        now = next(clock)
        assert client.send(b"the-server", [b"hello again"])
        monkeypatch.undo()
        assert contents(successor) == [(b"client", b"hello again")]

    def test_a_loss_that_shows_when_sending(self, server: Lanes, client: Lanes) -> None:
        client.send(b"the-server", [b"hello"])
        contents(server)
        client.close()
        assert server.send(b"client", [b"x"]) is False
        assert not server.has(b"client")

    def test_a_forked_child_does_not_keep_a_lane_open(self, server: Lanes, client: Lanes) -> None:
        client.send(b"the-server", [b"hello"])
        contents(server)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            client.wake()
            client.close()
            os.read(reading, 1)
            os._exit(0)
        client.send(b"the-server", [b"still there"])
        assert contents(server) == [(b"client", b"still there")]
        client.close()
        assert server.wait(10)
        server.receive()
        assert not server.has(b"client")
        os.close(writing)
        os.close(reading)
        assert os.waitpid(child, 0)[1] == 0


class TestWaiting:
    def is_shown(self, lanes: Lanes) -> bool:
        return bool(select.select([lanes], [], [], 0)[0])

    def test_between_hold_and_resume_nothing_shows(self, server: Lanes, client: Lanes) -> None:
        client.send(b"the-server", [b"first"])
        assert self.is_shown(server)
        server.hold()
        assert not self.is_shown(server)
        assert server.wait(10)
        assert contents(server) == [(b"client", b"first")]
        client.send(b"the-server", [b"second"])
        assert not self.is_shown(server)
        server.resume()
        assert self.is_shown(server)
        assert contents(server) == [(b"client", b"second")]
        assert not self.is_shown(server)

    def test_a_wake_shows_only_to_who_waits_for_lanes(self, server: Lanes) -> None:
        server.wake()
        assert not self.is_shown(server)
        assert server.receive() == []
        assert server.wait(10) is True
        assert server.wait(0) is False

    def test_one_waits_while_another_sends(self, server: Lanes, client: Lanes) -> None:
        """As worker threads do: one waits in the lanes, without the lock; all else is done under it."""
        lock, got = threading.Lock(), []
        client.hold()

        def wait() -> None:
            while len(got) < 100:
                client.wait(10)
                with lock:
                    got.extend(bytes(each.frames[0]) for each in client.receive())

        waiter = threading.Thread(target=wait)
        waiter.start()
        for number in range(100):
            with lock:
                client.send(b"the-server", [b"%d" % number])
            contents(server)
            server.send(b"client", [b"%d" % number])
        waiter.join(10)
        client.resume()
        assert got == [b"%d" % number for number in range(100)]

    def test_a_full_lane_is_emptied_when_there_is_room(self, server: Lanes, client: Lanes) -> None:
        for number in range(2000):
            assert client.send(b"the-server", [b"%d" % number, bytes(1000)])
        assert client.wait(0) is False
        seen: list[bytes] = []
        deadline = time.monotonic() + 20
        while len(seen) < 2000 and time.monotonic() < deadline:
            seen += [bytes(each.frames[0]) for each in server.receive()]
            client.wait(0)
            assert client.receive() == []
        assert seen == [b"%d" % number for number in range(2000)]
        assert client.wait(0) is False
