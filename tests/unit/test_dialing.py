"""The search for a peer's address, with a resolver and probes that are told what to find."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from byteps_py.errors import TransportError
from byteps_py.transport import dialing
from byteps_py.transport.dialing import Dial
from byteps_py.transport.probe import Finding, Verdict
from byteps_py.transport.resolve import UnresolvedName

GREETS = Finding(Verdict.GREETS, "it greets")
FOREIGN = Finding(Verdict.FOREIGN, "a web server")
REFUSED = Finding(Verdict.REFUSED, "it refuses")
UNKNOWN = UnresolvedName("the host name 'node' cannot be resolved")


class World:
    """What names and addresses are, from one turn to the next; the last turn lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[list[str] | TransportError] = [[]]
        self.greeting: set[str] = set()
        self.foreign: set[str] = set()
        self.probed: list[str] = []
        self.turns = threading.Semaphore(0)
        """Released at the beginning of each turn."""
        self.woken = threading.Semaphore(0)
        monkeypatch.setattr(dialing, "resolve", self._resolve)
        monkeypatch.setattr(dialing, "probe", self._probe)
        monkeypatch.setattr(dialing, "_FIRST_PAUSE", 0.001)
        monkeypatch.setattr(dialing, "_LONGEST_PAUSE", 0.001)
        monkeypatch.setattr(dialing, "_CHECK_SECONDS", 0.001)

    def _resolve(self, host: str, port: int) -> list[str]:
        self.turns.release()
        found = self.names.pop(0) if len(self.names) > 1 else self.names[0]
        if isinstance(found, TransportError):
            raise found
        return found

    def _probe(self, address: str, port: int) -> Finding:
        self.probed.append(address)
        if address in self.foreign:
            return FOREIGN
        return GREETS if address in self.greeting else REFUSED

    def wait(self, turns: int) -> None:
        """Until so many turns have begun and all but the last are over."""
        for _ in range(turns):
            assert self.turns.acquire(timeout=10)

    def wait_for_target(self) -> None:
        assert self.woken.acquire(timeout=10)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def dials() -> Iterator[list[Dial]]:
    started: list[Dial] = []
    before = set(threading.enumerate())
    yield started
    for each in started:
        each.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def start(world: World, dials: list[Dial]) -> Dial:
    dials.append(Dial("node", 9, world.woken.release))
    return dials[-1]


def test_the_first_address_that_greets_is_the_target(world: World, dials: list[Dial]) -> None:
    world.names = [["10.0.0.1", "fd00::1", "10.0.0.3"]]
    world.greeting = {"fd00::1", "10.0.0.3"}
    dial = start(world, dials)
    world.wait_for_target()
    assert dial.target() == "tcp://[fd00::1]:9"
    assert world.probed[:2] == ["10.0.0.1", "fd00::1"]
    dial.connected = dial.target()
    assert dial.target() is None


def test_a_name_is_looked_up_until_it_is_known(
    world: World, dials: list[Dial], caplog: pytest.LogCaptureFixture
) -> None:
    world.names = [UNKNOWN, UNKNOWN, UNKNOWN, ["10.0.0.1"]]
    world.greeting = {"10.0.0.1"}
    dial = start(world, dials)
    world.wait_for_target()
    assert dial.target() == "tcp://10.0.0.1:9"
    assert caplog.messages == ["the host name 'node' cannot be resolved: trying again"]
    assert caplog.records[0].levelno == logging.WARNING


def test_what_is_wrong_with_each_address_is_known(world: World, dials: list[Dial]) -> None:
    world.names = [["10.0.0.1", "10.0.0.2"]]
    dial = start(world, dials)
    world.wait(3)
    assert dial.trouble == dial.obstacle == "10.0.0.1, 10.0.0.2: it refuses"
    assert dial.target() is None


def test_no_obstacle_is_where_somebody_takes_connections(world: World, dials: list[Dial]) -> None:
    world.names = [["10.0.0.1", "10.0.0.2"]]
    world.foreign = {"10.0.0.2"}
    dial = start(world, dials)
    world.wait(3)
    assert dial.trouble == "10.0.0.1: it refuses; 10.0.0.2: a web server"
    assert dial.obstacle == ""


def test_what_is_wrong_with_the_name_is_known(world: World, dials: list[Dial]) -> None:
    world.names = [UNKNOWN]
    dial = start(world, dials)
    world.wait(3)
    assert dial.trouble == dial.obstacle == "the host name 'node' cannot be resolved"


def test_an_address_that_greets_is_kept(world: World, dials: list[Dial]) -> None:
    world.names = [["10.0.0.1", "10.0.0.2"]]
    world.greeting = {"10.0.0.2"}
    dial = start(world, dials)
    world.wait_for_target()
    world.greeting = {"10.0.0.1", "10.0.0.2"}
    world.wait(world.probed.count("10.0.0.2") + 3)
    assert dial.target() == "tcp://10.0.0.2:9"
    assert not world.woken.acquire(blocking=False)
    assert dial.trouble == "it greets"
    assert dial.obstacle == ""


def test_a_peer_that_has_moved_is_followed(world: World, dials: list[Dial]) -> None:
    world.names = [["10.0.0.1"], ["10.0.0.2"]]
    world.greeting = {"10.0.0.1", "10.0.0.2"}
    dial = start(world, dials)
    world.wait_for_target()
    world.wait_for_target()
    assert dial.target() == "tcp://10.0.0.2:9"


def test_a_search_that_was_stopped_ends(world: World, dials: list[Dial]) -> None:
    dial = start(world, dials)
    world.wait(1)
    dial.stop()  # and the fixture waits for the thread
