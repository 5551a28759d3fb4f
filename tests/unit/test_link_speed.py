"""The measurement of a link, with answers at chosen times."""

from __future__ import annotations

import pytest

from byteps_py.roles.envelope import Envelope
from byteps_py.roles.link_speed import LinkSpeed, measure_link
from byteps_py.roles.neighbours import Peer
from byteps_py.transport.base import Buffer
from byteps_py.types import Participant, ServerInfo
from byteps_py.wire.control import Welcome
from byteps_py.wire.header import Header, Opcode, decode

JOB = 77
WORKER, SERVER = Envelope(0, JOB, 5, 1), Envelope(0, JOB, 6, 1)
BYTES = 65536
COUNT = 8


class Bench:
    """A measurement that begins at 100 s, and what it has sent."""

    def __init__(self) -> None:
        self.sent: list[list[Buffer]] = []
        self.speed = LinkSpeed(self.sent.append, WORKER, 100.0)

    def answer(self, number: int, now: float) -> None:
        self.speed.answered(now, probed(number))


def probed(number: int) -> Header:
    return SERVER.header(Opcode.PROBED, 0, number)


def test_what_is_sent() -> None:
    bench = Bench()
    assert len(bench.sent) == 1
    bench.answer(1, 100.1)
    headers = [decode(bytes(header), len(payload)) for header, payload in bench.sent]
    assert [each.round for each in headers] == list(range(1, COUNT + 2))
    assert [each.length for each in headers] == [1] + [BYTES] * COUNT


def test_from_sending_the_train_to_its_last_answer() -> None:
    bench = Bench()
    bench.answer(1, 101.0)
    for number in range(2, COUNT + 2):
        assert not bench.speed.is_known
        assert bench.speed.tick(101.0) == 103.0
        bench.answer(number, 101.5)
    assert bench.speed.is_known
    assert bench.speed.tick(200.0) is None
    assert bench.speed.bytes_per_second == 2 * COUNT * BYTES


def test_answers_at_once() -> None:
    bench = Bench()
    for number in range(1, COUNT + 2):
        bench.answer(number, 100.5)
    assert bench.speed.bytes_per_second > 10**11


def test_answers_in_any_order_and_some_twice() -> None:
    bench = Bench()
    for number in (2, 1, 1, 5, 4, 4, 9, 3, 12, 8, 7, 6):
        bench.answer(number, 100.5)
    assert not bench.speed.is_known
    bench.answer(2, 101.5)
    assert bench.speed.is_known
    assert bench.speed.bytes_per_second == COUNT * BYTES


def test_what_has_come_in_time_counts() -> None:
    bench = Bench()
    for number in (1, 3, 2):
        bench.answer(number, 100.0 + number / 10)
    assert bench.speed.tick(102.9) == 103.0
    assert bench.speed.tick(103.0) == 103.0, "the end is an event, too"
    assert bench.speed.is_known
    assert bench.speed.tick(103.1) is None
    assert bench.speed.bytes_per_second == pytest.approx(2 * BYTES / 0.1, rel=1e-6)
    bench.answer(4, 104.0)
    assert bench.speed.bytes_per_second == pytest.approx(2 * BYTES / 0.1, rel=1e-6)


@pytest.mark.parametrize("answers", [0, 1])
def test_nothing_has_arrived_in_time(answers: int) -> None:
    bench = Bench()
    for number in range(1, answers + 1):
        bench.answer(number, 102.0)
    bench.speed.tick(103.0)
    assert bench.speed.is_known
    assert bench.speed.bytes_per_second == 0


def test_servers_of_the_own_host_are_not_measured() -> None:
    """With BYTEPS_TRANSPORT=tcp they are reached over loopback, which says nothing about links."""
    participants = (Participant(0, 0, 0, 1, "host-a", 1, 5),)

    def measured(*hosts: str) -> list[bytes]:
        servers = tuple(ServerInfo(rank, "tcp://x:1", host, 1, 6) for rank, host in enumerate(hosts))
        endpoint = Sends()
        peers = [Peer(b"server-%d" % each.rank, each.rank, 6, "") for each in servers]
        found = measure_link(endpoint, Welcome(JOB, 1, 0, participants, servers), peers, WORKER, 100.0)  # type: ignore[arg-type]
        assert (found is None) is not bool(endpoint.peers)
        return endpoint.peers

    assert measured("host-a", "host-b", "host-c") == [b"server-1"]
    assert measured("host-a", "host-a") == []


class Sends:
    """An endpoint without shared memory."""

    def __init__(self) -> None:
        self.peers: list[bytes] = []

    def is_lane(self, peer: bytes) -> bool:
        return False

    def send(self, peer: bytes, frames: list[Buffer]) -> None:
        self.peers.append(peer)
