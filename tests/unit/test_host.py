"""Which way a connection takes."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from byteps_py.errors import TransportError
from byteps_py.transport import arena, mapping
from byteps_py.transport.base import LaneError, Message
from byteps_py.transport.host import HostEndpoint

ANY = "tcp://127.0.0.1:0"
Make = Callable[..., HostEndpoint]
_numbers = itertools.count()


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[HostEndpoint] = []

    def build(identity: bytes, **keywords: object) -> HostEndpoint:
        made.append(HostEndpoint(identity, **keywords))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.fixture
def name() -> bytes:
    """One that no other process has."""
    return b"host-%d-%d" % (os.getpid(), next(_numbers))


def receive(endpoint: HostEndpoint, count: int) -> list[Message]:
    messages: list[Message] = []
    deadline = time.monotonic() + 10
    while len(messages) < count and time.monotonic() < deadline:
        messages += endpoint.receive(0.1)
        messages += endpoint.receive_lanes()
    assert len(messages) == count
    return messages


@pytest.mark.parametrize(
    ("server_mode", "client_mode", "is_lane"),
    [("auto", "auto", True), ("shm", "shm", True), ("tcp", "auto", False), ("auto", "tcp", False)],
)
def test_both_sides_must_want_a_lane(
    make: Make, name: bytes, server_mode: str, client_mode: str, is_lane: bool
) -> None:
    server, client = make(name, mode=server_mode), make(b"client", mode=client_mode)
    client.connect(b"server", server.listen(ANY), name)
    payload = client.allocate(100_000)
    payload[:] = 3
    client.send(b"server", [b"head", payload.data])
    (message,) = receive(server, 1)
    assert client.is_lane(b"server") is server.is_lane(b"client") is is_lane
    assert bytes(message.frames[1]) == b"\3" * 100_000
    assert message.frames[1].readonly is (message.stamp is not None) is is_lane
    server.send(b"client", [b"answer"])
    assert bytes(receive(client, 1)[0].frames[0]) == b"answer"


def test_a_lane_that_is_demanded_and_cannot_be_had_is_an_error(make: Make, name: bytes) -> None:
    server, client = make(name, mode="tcp"), make(b"client", mode="shm")
    address = server.listen(ANY)
    with pytest.raises(LaneError, match="no process of this host"):
        client.connect(b"server", address, name)


def test_what_this_process_lacks_for_a_lane_is_not_laid_to_the_other(
    make: Make, name: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = make(name), make(b"client", mode="shm")
    address = server.listen(ANY)

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("byteps_py.transport.lanes.socket.socket", refuse)
    with pytest.raises(TransportError, match=f"cannot open a socket for the lane to {name.decode()}: Too many") as told:
        client.connect(b"server", address, name)
    assert not isinstance(told.value, LaneError)


def test_a_server_of_another_user_is_nobody_for_a_lane(
    make: Make, name: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = make(name), make(b"client", mode="shm")
    address = server.listen(ANY)
    monkeypatch.setattr("byteps_py.transport.lanes.user_of", lambda _: os.geteuid() + 1)
    with pytest.raises(LaneError, match=f"is user {os.geteuid() + 1}'s"):
        client.connect(b"server", address, name)


@pytest.mark.parametrize(
    ("server_mode", "client_mode", "said"),
    [
        ("auto", "auto", "through shared memory"),
        ("auto", "tcp", "over TCP (BYTEPS_TRANSPORT=tcp)"),
        ("tcp", "auto", "over TCP (no process of this host (or container) listens for its lanes)"),
    ],
)
def test_a_line_tells_which_way_a_server_is_reached(
    make: Make, name: bytes, server_mode: str, client_mode: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, client = make(name, mode=server_mode), make(b"client", mode=client_mode)
    address = server.listen(ANY)
    with caplog.at_level("INFO", "byteps_py.transport"):
        client.connect(b"server-0", address, name)
    assert f"server 0 at {address}: {said}" in caplog.messages


def test_where_the_name_is_taken_there_is_tcp_or_an_error(
    make: Make, name: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    make(name).listen(ANY)
    server = make(name)
    server.listen(ANY)
    assert "will come by TCP" in caplog.text
    with pytest.raises(TransportError, match="cannot listen for lanes"):
        make(name, mode="shm").listen(ANY)


def test_one_without_an_identity_is_reached_by_tcp(make: Make, name: bytes) -> None:
    server, client = make(name), make(b"client", mode="shm")
    client.connect(b"server", server.listen(ANY))
    assert not client.is_lane(b"server")


def test_what_is_in_the_way_of_a_lane_is_told(make: Make, name: bytes) -> None:
    server, client = make(name), make(b"client")
    client.connect(b"server", server.listen(ANY), name)
    assert client.obstacle(b"server") == ""
    assert "takes connections on this host" in client.diagnose(b"server")
    server.close()
    assert "no process of this host" in client.obstacle(b"server")
    assert "no process of this host" in client.diagnose(b"server")


def test_nobody_can_pose_by_tcp_as_one_who_is_reached_by_a_lane(make: Make, name: bytes) -> None:
    other, server, forger = make(name + b"-other"), make(name), make(b"other", mode="tcp")
    server.connect(b"other", other.listen(ANY), name + b"-other")
    forger.connect(b"server", server.listen(ANY), name)
    forger.send(b"server", [b"I am the other"])
    assert server.receive(0.3) == []


def test_one_large_allocation_for_which_there_is_no_room_is_plain_and_the_arena_goes_on(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make(b"client")
    map_file = mapping._map

    def no_room_for_much(descriptor: int, nbytes: int, protection: int) -> int:
        if nbytes > 65 << 20:
            raise OSError(12, "Cannot allocate memory")
        return map_file(descriptor, nbytes, protection)

    monkeypatch.setattr(mapping, "_map", no_room_for_much)
    assert not client.owns(client.allocate(70 << 20))
    assert client.owns(client.allocate(1 << 20))


def test_without_an_arena_payloads_are_copied(
    make: Make, name: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A system without seals, or at its limit."""

    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    server, client, demanding = make(name), make(b"client"), make(b"demanding", mode="shm")
    client.connect(b"server", server.listen(ANY), name)
    monkeypatch.setattr(arena.os, "memfd_create", refuse)
    payload, another = client.allocate(300_000), client.allocate(300_000)
    payload[:] = 3
    client.send(b"server", [payload.data])
    (message,) = receive(server, 1)
    assert (bytes(message.frames[0]), message.stamp) == (payload.tobytes(), None)
    assert another.nbytes == 300_000
    assert caplog.text.count("is copied from now on") == 1
    with pytest.raises(TransportError, match="Invalid argument"):
        demanding.allocate(10)


class TestLanesApart:
    @pytest.fixture
    def server(self, make: Make, name: bytes) -> HostEndpoint:
        server = make(name)
        self.address = server.listen(ANY)
        return server

    @pytest.fixture
    def client(self, make: Make, name: bytes, server: HostEndpoint) -> HostEndpoint:
        client = make(b"client", lanes_apart=True)
        client.connect(b"server", self.address, name)
        client.send(b"server", [b"hello"])
        receive(server, 1)
        client.receive_lanes()
        return client

    def test_a_message_ends_the_wait_and_is_read_apart(self, server: HostEndpoint, client: HostEndpoint) -> None:
        answer = threading.Timer(0.1, server.send, (b"client", [b"answer"]))
        answer.start()
        assert client.receive(30) == []
        answer.join()
        assert [bytes(each.frames[0]) for each in client.receive_lanes()] == [b"answer"]
        assert client.receive(0) == client.receive_lanes() == []

    def test_while_lanes_are_held_another_waits(self, server: HostEndpoint, client: HostEndpoint) -> None:
        client.hold_lanes()
        server.send(b"client", [b"first"])
        assert client.receive(0.1) == []
        assert client.wait_lanes(30) is True
        assert [bytes(each.frames[0]) for each in client.receive_lanes()] == [b"first"]
        returned = threading.Event()

        def pump() -> None:
            client.receive(30)
            returned.set()

        pumping = threading.Thread(target=pump)
        pumping.start()
        server.send(b"client", [b"second"])
        assert not returned.wait(0.2)
        client.resume_lanes()
        assert returned.wait(30)
        pumping.join()
        assert [bytes(each.frames[0]) for each in client.receive_lanes()] == [b"second"]


def test_a_lane_without_a_socket(make: Make, name: bytes) -> None:
    first, second = make(name, lanes_apart=True), make(b"second")
    first.listen_lanes()
    second.connect_lane(b"the-first", name)
    second.send(b"the-first", [b"hello"])
    (message,) = receive(first, 1)
    assert (message.peer, bytes(message.frames[0])) == (b"second", b"hello")
    first.send(b"second", [b"answer"])
    (answer,) = receive(second, 1)
    assert (answer.peer, bytes(answer.frames[0])) == (b"the-first", b"answer")


def test_a_lane_to_oneself(make: Make, name: bytes) -> None:
    alone = make(name, lanes_apart=True)
    alone.listen_lanes()
    alone.connect_lane(b"me", name)
    lent = alone.allocate(5000)
    lent[:] = 7
    alone.send(b"me", [b"head", lent.data])
    (message,) = receive(alone, 1)
    assert message.peer == name
    assert bytes(message.frames[1]) == bytes(lent)
    assert message.frames[1].readonly
    alone.send(name, [b"answer"])
    (answer,) = receive(alone, 1)
    assert (answer.peer, bytes(answer.frames[0])) == (b"me", b"answer")


def test_whether_a_peer_has_taken_what_was_sent(make: Make, name: bytes) -> None:
    reducer, worker = make(name), make(b"worker")
    reducer.listen_lanes()
    worker.connect_lane(b"reducer", name)
    worker.send(b"reducer", [b"hello"])
    receive(reducer, 1)
    worker.receive_lanes()
    assert reducer.has_taken(b"worker")
    assert reducer.has_taken(b"nobody")
    for count in (1, 400):  # some of them beyond what fits into the socket
        for _ in range(count):
            reducer.send(b"worker", [b"x" * 60_000])
        assert not reducer.has_taken(b"worker")
        received = 0
        deadline = time.monotonic() + 10
        while received < count and time.monotonic() < deadline:
            received += len(worker.receive_lanes())
            reducer.receive_lanes()
        assert received == count
        assert reducer.has_taken(b"worker")
    reducer.send(b"worker", [b"last"])
    worker.close()
    assert reducer.has_taken(b"worker")


def test_lanes_that_are_forbidden_or_not_there(make: Make, name: bytes) -> None:
    forbidden = make(name, mode="tcp")
    with pytest.raises(TransportError, match="BYTEPS_TRANSPORT=tcp forbids shared memory"):
        forbidden.listen_lanes()
    with pytest.raises(TransportError, match="BYTEPS_TRANSPORT=tcp forbids shared memory"):
        forbidden.connect_lane(b"peer", name)
    with pytest.raises(TransportError, match="no process of this host"):
        make(b"client").connect_lane(b"peer", name)
