"""Every transport keeps the promises of ``transport/base.py``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from byteps_py.errors import TransportError
from byteps_py.transport import dialing, lanes
from byteps_py.transport.base import ALIGNMENT, Endpoint, Message, tcp_address
from byteps_py.transport.host import HostEndpoint
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.transport.zmq import ZmqEndpoint

Make = Callable[[bytes], Endpoint]
ANY = "tcp://127.0.0.1:0"


class SeveralConnections(ZmqEndpoint):
    """Makes three connections to each peer."""

    def connect(self, peer: bytes, address: str, identity: bytes = b"", connections: int = 3) -> None:
        super().connect(peer, address, identity, connections)


class LaneEndpoint(HostEndpoint):
    """Knows the identities of those who listen, which the roles learn from the scheduler."""

    def __init__(self, identity: bytes, identities: dict[str, bytes], **keywords: Any) -> None:
        super().__init__(identity, **keywords)
        self._identity = identity
        self._identities = identities

    def listen(self, address: str, ports: Sequence[int] = ()) -> str:
        bound = super().listen(address, ports)
        self._identities[bound] = self._identity
        return bound

    def connect(self, peer: bytes, address: str, identity: bytes = b"", connections: int = 1) -> None:
        super().connect(peer, address, self._identities.get(address, b""), connections)

    def receive(self, timeout: float | None) -> list[Message]:
        return super().receive(timeout) + self.receive_lanes()


@pytest.fixture(
    params=["zmq", "three connections", "loopback", "host by TCP", "host by lanes", "host by lanes read apart"]
)
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes endpoints of one kind and closes them afterwards."""
    monkeypatch.setattr(lanes, "lane_name", lambda identity: b"\0test/%d/%s" % (os.getpid(), identity))
    network = LoopbackNetwork()
    identities: dict[str, bytes] = {}
    kinds: dict[str, Make] = {
        "zmq": ZmqEndpoint,
        "three connections": SeveralConnections,
        "loopback": network.endpoint,
        "host by TCP": lambda identity: LaneEndpoint(identity, identities, mode="tcp"),
        "host by lanes": lambda identity: LaneEndpoint(identity, identities),
        "host by lanes read apart": lambda identity: LaneEndpoint(identity, identities, lanes_apart=True),
    }
    made: list[Endpoint] = []

    def build(identity: bytes) -> Endpoint:
        made.append(kinds[request.param](identity))
        return made[-1]

    yield build
    for each in made:
        each.close()


def receive(endpoint: Endpoint, count: int) -> list[Message]:
    """Exactly ``count`` messages, within ten seconds."""
    messages: list[Message] = []
    deadline = time.monotonic() + 10
    while len(messages) < count and time.monotonic() < deadline:
        messages += endpoint.receive(0.2)
    assert len(messages) == count
    return messages


def contents(message: Message) -> list[bytes]:
    return [bytes(each) for each in message.frames]


def test_a_message_and_its_answer_arrive_whole(make: Make) -> None:
    server, client = make(b"server"), make(b"client-7")
    client.connect(b"the-server", server.listen(ANY))
    assert client.send(b"the-server", [b"head", b"x" * 300_000])
    (message,) = receive(server, 1)
    assert message.peer == b"client-7"
    assert contents(message) == [b"head", b"x" * 300_000]
    assert server.send(b"client-7", [b"answer"])
    (answer,) = receive(client, 1)
    assert answer.peer == b"the-server"
    assert contents(answer) == [b"answer"]


def test_nobody_can_pose_as_a_peer_that_was_connected_to(make: Make) -> None:
    scheduler, server, forger = make(b"s"), make(b"server"), make(b"scheduler")
    server.connect(b"scheduler", scheduler.listen(ANY))
    address = server.listen("tcp://127.0.0.1:0")
    honest = make(b"honest")
    for client in (forger, honest):
        client.connect(b"server", address)
        client.send(b"server", [b"hello"])
    (message,) = receive(server, 1)
    assert message.peer == b"honest"
    assert server.receive(0.2) == []


def test_a_lane_is_there_if_both_can_have_it(make: Make, request: pytest.FixtureRequest) -> None:
    server, client = make(b"server"), make(b"client")
    client.connect(b"the-server", server.listen(ANY))
    client.send(b"the-server", [b"hello"])
    receive(server, 1)
    expected = "lanes" in request.node.callspec.params["make"]
    assert client.is_lane(b"the-server") is server.is_lane(b"client") is expected
    assert client.is_lane(b"nobody") is server.is_lane(b"nobody") is False
    assert client.obstacle(b"the-server") == ""


@pytest.mark.parametrize("nbytes", [0, 1, 64, 4095, 1 << 20])
def test_allocated_memory_is_aligned_and_travels(make: Make, nbytes: int) -> None:
    server, client = make(b"server"), make(b"client")
    client.connect(b"server", server.listen(ANY))
    mine = client.allocate(nbytes)
    assert (mine.dtype, mine.shape) == (np.uint8, (nbytes,))
    assert nbytes == 0 or mine.ctypes.data % ALIGNMENT == 0
    mine[:] = np.arange(nbytes) % 251
    client.send(b"server", [b"head", mine.data, mine.data[nbytes // 2 :]])
    (message,) = receive(server, 1)
    assert message.intact()
    assert contents(message) == [b"head", mine.tobytes(), mine[nbytes // 2 :].tobytes()]


def test_a_reference_is_void_when_the_memory_is_to_change(make: Make) -> None:
    """A copy stays good."""
    server, client = make(b"server"), make(b"client")
    client.connect(b"server", server.listen(ANY))
    mine, other = client.allocate(100_000), client.allocate(100_000)
    mine[:] = 1
    for _ in range(2):
        client.send(b"server", [b"head", other.data, mine.data[50_000:]])
    first, second = receive(server, 2)
    referred = first.frames[2].readonly
    client.renew(other[7:])
    client.renew(np.zeros(10))
    assert first.intact() is second.intact() is not referred
    client.send(b"server", [b"head", mine.data])
    (third,) = receive(server, 1)
    assert third.intact()
    client.renew(mine.data[5:6])
    mine[:] = 2
    assert third.intact() is not referred
    assert bytes(third.frames[1][:3]) == (b"\2\2\2" if referred else b"\1\1\1")


def test_a_wake_ends_a_wait_for_lanes(make: Make) -> None:
    endpoint = make(b"sleeper")
    endpoint.wake_lanes()
    assert endpoint.wait_lanes(30) is True
    assert endpoint.wait_lanes(0) is False
    waker = threading.Timer(0.1, endpoint.wake_lanes)
    waker.start()
    assert endpoint.wait_lanes(30) is True
    waker.join()
    assert endpoint.receive_lanes() == []


def test_holding_and_resuming_lanes_twice_is_harmless(make: Make) -> None:
    server, client = make(b"server"), make(b"client")
    client.connect(b"server", server.listen(ANY))
    for change in (server.hold_lanes, server.hold_lanes, server.resume_lanes, server.resume_lanes):
        change()
    client.send(b"server", [b"hello"])
    assert contents(receive(server, 1)[0]) == [b"hello"]


def test_order_is_kept_per_peer(make: Make) -> None:
    server = make(b"server")
    address = server.listen(ANY)
    clients = [make(b"client-%d" % index) for index in range(3)]
    for client in clients:
        client.connect(b"server", address)
    for number in range(200):
        for client in clients:
            client.send(b"server", [b"%d" % number])
    seen: dict[bytes, list[int]] = {}
    for message in receive(server, 600):
        seen.setdefault(message.peer, []).append(int(bytes(message.frames[0])))
    assert seen == {b"client-%d" % index: list(range(200)) for index in range(3)}


def test_what_was_sent_before_the_peer_listens_arrives(make: Make) -> None:
    first = make(b"first")
    address = first.listen(ANY)
    first.close()
    client = make(b"client")
    client.connect(b"server", address)
    assert client.send(b"server", [b"early"])
    server = make(b"server")
    assert server.listen(address) == address
    client.receive(0)
    assert contents(receive(server, 1)[0]) == [b"early"]


def test_an_unknown_peer_is_told_by_false(make: Make) -> None:
    server = make(b"server")
    assert server.send(b"nobody", [b"x"]) is False
    server.listen(ANY)
    assert server.send(b"nobody", [b"x"]) is False


def test_received_memory_is_the_receivers_own(make: Make) -> None:
    server, client = make(b"server"), make(b"client")
    client.connect(b"server", server.listen(ANY))
    mine = bytearray(b"a" * 200_000)
    client.send(b"server", [b"head", mine])
    (message,) = receive(server, 1)
    message.frames[1][0] = ord("b")
    assert mine == b"a" * 200_000


def test_wake_ends_a_wait_from_another_thread(make: Make) -> None:
    endpoint = make(b"sleeper")
    endpoint.listen(ANY)
    waker = threading.Timer(0.1, endpoint.wake)
    waker.start()
    assert endpoint.receive(30) == []
    waker.join()


def test_a_wake_before_the_wait_is_not_lost(make: Make) -> None:
    endpoint = make(b"sleeper")
    endpoint.wake()
    assert endpoint.receive(30) == []


def test_an_address_in_use_is_named(make: Make) -> None:
    address = make(b"one").listen(ANY)
    with pytest.raises(TransportError, match=address.rpartition(":")[2]):
        make(b"two").listen(address)


def test_connecting_twice_is_refused(make: Make) -> None:
    client = make(b"client")
    client.connect(b"server", "tcp://127.0.0.1:1")
    with pytest.raises(TransportError, match="connected already"):
        client.connect(b"server", "tcp://127.0.0.1:1")


def test_close_twice_and_wake_after_close_are_harmless(make: Make) -> None:
    endpoint = make(b"x")
    endpoint.listen(ANY)
    endpoint.close()
    endpoint.close()
    endpoint.wake()
    endpoint.wake_lanes()
    endpoint.hold_lanes()
    endpoint.resume_lanes()


def test_a_reconnecting_peer_is_served_again(make: Make) -> None:
    server = make(b"server")
    address = server.listen(ANY)
    for attempt in (b"first", b"second"):
        client = make(b"client")
        client.connect(b"server", address)
        client.send(b"server", [attempt])
        assert contents(receive(server, 1)[0]) == [attempt]
        assert server.send(b"client", [b"answer to " + attempt])
        assert contents(receive(client, 1)[0]) == [b"answer to " + attempt]
        client.close()


def test_a_replaced_connection_speaks_for_nobody() -> None:
    """What it holds came under a name that libzmq made up, when a newer one took over its identity."""
    server = SeveralConnections(b"server")
    address = server.listen(ANY)
    for _ in range(4):
        client = SeveralConnections(b"client")
        client.connect(b"server", address)
        client.send(b"server", [b"hello"])
        time.sleep(0.2)  # it arrives, and is not read
        client.close()
    messages: list[Message] = []
    while found := server.receive(0.5):
        messages += found
    server.close()
    assert {each.peer for each in messages} == {b"client"}


@pytest.mark.parametrize("ports", [(), tuple(range(20401, 20421))])  # tests of other kinds take some meanwhile
def test_a_free_port_is_taken_from_those_that_are_allowed(make: Make, ports: tuple[int, ...]) -> None:
    server, client = make(b"server"), make(b"client")
    address = server.listen(ANY, ports)
    assert not ports or int(address.rpartition(":")[2]) in ports
    client.connect(b"server", address)
    client.send(b"server", [b"hello"])
    assert contents(receive(server, 1)[0]) == [b"hello"]


def test_a_peer_is_connected_once(make: Make) -> None:
    server, client = make(b"server"), make(b"client")
    address = server.listen(ANY)
    client.connect(b"server", address)
    with pytest.raises(TransportError, match="connected already"):
        client.connect(b"server", address)


class TestZmqAddresses:
    def test_an_address_must_be_tcp(self) -> None:
        endpoint = ZmqEndpoint(b"x")
        with pytest.raises(TransportError, match="tcp://host:port"):
            endpoint.connect(b"y", "ipc:///somewhere")
        endpoint.close()

    @pytest.mark.parametrize("host", ["a..b", "a" * 80])
    def test_an_impossible_name_is_named(self, host: str) -> None:
        endpoint = ZmqEndpoint(b"x")
        with pytest.raises(TransportError, match=f"{host}.*impossible"):
            endpoint.connect(b"y", f"tcp://{host}:1")
        with pytest.raises(TransportError, match=f"{host}.*impossible"):
            endpoint.listen(f"tcp://{host}:1")
        endpoint.close()

    def test_an_unknown_name_cannot_be_listened_at(self) -> None:
        endpoint = ZmqEndpoint(b"x")
        with pytest.raises(TransportError, match=r"'no-such-host\.invalid' cannot be resolved"):
            endpoint.listen("tcp://no-such-host.invalid:1")
        endpoint.close()

    def test_brackets_for_version_six(self) -> None:
        assert tcp_address("::1", 5) == "tcp://[::1]:5"
        assert tcp_address("host", 5) == "tcp://host:5"

    def test_a_frame_beyond_the_limit_is_not_read(self) -> None:
        server, client = ZmqEndpoint(b"s", max_message_bytes=1000), ZmqEndpoint(b"c")
        client.connect(b"s", server.listen(ANY))
        client.send(b"s", [b"x" * 100_000])
        assert server.receive(0.3) == []
        server.close()
        client.close()

    def test_the_first_large_message_may_be_sent_by_a_process_that_exits(self) -> None:
        """A worker delivers what it has begun; Python starts no thread any more by then."""
        script = f"""
import atexit
from byteps_py.transport.zmq import ZmqEndpoint
server, client = ZmqEndpoint(b"s"), ZmqEndpoint(b"c")
client.connect(b"s", server.listen({ANY!r}))

@atexit.register
def deliver():
    client.send(b"s", [bytes(1 << 20)])
    print(len(server.receive(30)[0].frames[0]))
    server.close()
    client.close()
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout, done.stderr) == ("1048576\n", "")


class Names:
    """What ``node.test`` resolves to: a list of addresses, or nothing yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: list[str] = []
        self.asked = threading.Semaphore(0)
        self.askers: set[threading.Thread] = set()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def wait_for(self, count: int) -> None:
        """Until the name has been looked up that often."""
        for _ in range(count):
            assert self.asked.acquire(timeout=10)

    def _look_up(self, host: str, port: int, *arguments: Any, **keywords: Any) -> Any:
        if host != "node.test":
            return self._real(host, port, *arguments, **keywords)
        flags = keywords.get("flags", 0)
        if not flags & socket.AI_NUMERICHOST:
            self.askers.add(threading.current_thread())
            self.asked.release()
        if flags & socket.AI_NUMERICHOST or not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in self.addresses]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    monkeypatch.setattr(dialing, "_CHECK_SECONDS", 0.05)
    return Names(monkeypatch)


@pytest.fixture(params=[ZmqEndpoint, SeveralConnections])
def open_endpoint(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[ZmqEndpoint] = []

    def build(identity: bytes) -> ZmqEndpoint:
        made.append(request.param(identity))
        return made[-1]

    yield build
    for each in made:
        each.close()


def exchange(server: Endpoint, client: Endpoint, count: int) -> None:
    """``count`` messages that the client sends or has sent arrive in order, and an answer comes back."""
    got: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(got) < count and time.monotonic() < deadline:
        client.receive(0.05)  # which is when a search is followed
        got += [bytes(each.frames[0]) for each in server.receive(0.05)]
    assert got == [b"%d" % number for number in range(count)]
    server.send(b"client", [b"answer"])
    assert contents(receive(client, 1)[0]) == [b"answer"]


class TestZmqNames:
    """Peers that are known by name, over TCP."""

    def connect(self, client: Endpoint, address: str, count: int = 50) -> None:
        """By the name, with messages that are sent at once."""
        client.connect(b"server", f"tcp://node.test:{address.rpartition(':')[2]}")
        for number in range(count):
            assert client.send(b"server", [b"%d" % number])

    def test_what_was_sent_before_the_name_is_known_arrives_in_order(self, open_endpoint: Make, names: Names) -> None:
        server, client = open_endpoint(b"server"), open_endpoint(b"client")
        self.connect(client, server.listen(ANY))
        names.wait_for(3)
        assert "'node.test' cannot be resolved" in client.diagnose(b"server")
        names.addresses = ["127.0.0.1"]
        exchange(server, client, 50)

    def test_the_address_that_works_is_found(self, open_endpoint: Make, names: Names) -> None:
        """The first refuses, the second is another program that says nothing."""
        server, client = open_endpoint(b"server"), open_endpoint(b"client")
        address = server.listen("tcp://127.0.0.3:0")
        with socket.create_server(("127.0.0.2", int(address.rpartition(":")[2]))):
            names.addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
            self.connect(client, address)
            exchange(server, client, 50)

    def test_why_none_works_is_told(self, open_endpoint: Make, names: Names) -> None:
        server, client = open_endpoint(b"server"), open_endpoint(b"client")
        names.addresses = ["127.0.0.1", "127.0.0.2"]
        self.connect(client, server.listen("tcp://127.0.0.3:0"))
        names.wait_for(3)
        assert client.diagnose(b"server") == ("127.0.0.1, 127.0.0.2: connections are refused (nothing listens there)")

    def test_what_is_in_the_way_is_told_without_another_look_up(self, open_endpoint: Make, names: Names) -> None:
        """A look-up may take half a minute, and the thread that asks must go on."""
        server, client = open_endpoint(b"server"), open_endpoint(b"client")
        self.connect(client, server.listen(ANY))
        names.wait_for(3)
        assert "'node.test' cannot be resolved" in client.obstacle(b"server")
        names.addresses = ["127.0.0.1"]
        exchange(server, client, 50)
        assert client.obstacle(b"server") == ""
        server.close()
        assert "connections are refused" in client.obstacle(b"server")
        assert "connections are refused" in client.diagnose(b"server")
        assert threading.current_thread() not in names.askers

    def test_a_peer_that_moves_before_it_has_said_a_word_is_followed(self, open_endpoint: Make, names: Names) -> None:
        mute, client = open_endpoint(b"server"), open_endpoint(b"client")
        names.addresses = ["127.0.0.2"]
        address = mute.listen("tcp://127.0.0.2:0")
        self.connect(client, address, 1)
        deadline = time.monotonic() + 20
        while not mute.receive(0.05) and time.monotonic() < deadline:
            client.receive(0.05)
        mute.close()
        server = open_endpoint(b"server")
        server.listen(address.replace("127.0.0.2", "127.0.0.3"))
        names.addresses = ["127.0.0.3"]
        while not (arrived := server.receive(0.05)) and time.monotonic() < deadline:
            client.send(b"server", [b"again"])
            client.receive(0.05)
        assert contents(arrived[0]) == [b"again"]

    def test_nobody_can_pose_as_one_who_is_still_searched(self, open_endpoint: Make, names: Names) -> None:
        endpoint, forger = open_endpoint(b"server"), open_endpoint(b"scheduler")
        endpoint.connect(b"scheduler", "tcp://node.test:9")
        forger.connect(b"server", endpoint.listen(ANY))
        forger.send(b"server", [b"Welcome"])
        assert endpoint.receive(0.3) == []

    def test_an_endpoint_that_searches_can_be_closed(self, open_endpoint: Make, names: Names) -> None:
        client = open_endpoint(b"client")
        self.connect(client, "tcp://node.test:9")
        client.close()


def test_why_an_address_does_not_answer_is_found_out(open_endpoint: Make) -> None:
    server, client = open_endpoint(b"server"), open_endpoint(b"client")
    address = server.listen(ANY)
    client.connect(b"server", address)
    assert "speaks ZeroMQ" in client.diagnose(b"server")
    assert client.obstacle(b"server") == ""
    server.close()
    assert "connections are refused" in client.diagnose(b"server")
    assert "connections are refused" in client.obstacle(b"server")
