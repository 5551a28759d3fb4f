"""Names and addresses."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from byteps_py.errors import TransportError, TransportTimeout
from byteps_py.transport import resolve as module
from byteps_py.transport.resolve import (
    UnresolvedName,
    address_towards,
    is_local,
    is_loopback,
    is_numeric,
    resolve,
    split_address,
    wait_until_resolved,
)
from tests.helpers.jobs import has_version_six

VERSION_SIX = pytest.mark.skipif(not has_version_six(), reason="this machine has no IPv6")
LOG = logging.getLogger("byteps_py.test")


@pytest.mark.parametrize(
    ("address", "parts"),
    [("tcp://host:5", ("host", 5)), ("tcp://[fd00::1]:5", ("fd00::1", 5)), ("tcp://*:0", ("*", 0))],
)
def test_an_address_is_split(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["ipc:///x", "tcp://host", "tcp://host:", "host:5", "tcp://host:x"])
def test_another_form_is_refused(address: str) -> None:
    with pytest.raises(TransportError, match="is not of the form tcp://host:port"):
        split_address(address)


@pytest.mark.parametrize(
    ("host", "numeric"),
    [("10.0.0.1", True), ("::1", True), ("[::1]", True), ("fe80::1%lo", True), ("localhost", False), ("a.b", False)],
)
def test_numeric(host: str, numeric: bool) -> None:
    assert is_numeric(host) is numeric


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("0.0.0.0", True),
        pytest.param("::1", True, marks=VERSION_SIX),
        ("192.0.2.254", False),
        ("2001:db8::1", False),
        ("fe80::1%none", False),
    ],
)
def test_local(address: str, local: bool) -> None:
    assert is_local(address) is local


@pytest.mark.parametrize("call", [is_numeric, lambda host: resolve(host, 1)], ids=["is_numeric", "resolve"])
@pytest.mark.parametrize("host", ["a..b", "a" * 80])
def test_an_impossible_name(host: str, call: Any) -> None:
    with pytest.raises(TransportError, match=f"the host name '{host}' is impossible"):
        call(host)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.1.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False), ("fd00::1", False)],
)
def test_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def answers(monkeypatch: pytest.MonkeyPatch, *replies: object) -> list[str]:
    """Let names resolve to ``replies``, one after the other; returns the names that were asked for."""
    asked: list[str] = []
    left = list(replies)

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        reply = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(reply, OSError):
            raise reply
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in reply]  # type: ignore[attr-defined]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_all_addresses_in_order_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, [("10.0.0.2", 9), ("10.0.0.1", 9), ("10.0.0.2", 9), ("fd00::1", 9, 0, 0)])
    assert resolve("[node]", 9) == ["10.0.0.2", "10.0.0.1", "fd00::1"]
    assert asked == ["node"]


def test_a_link_local_address_keeps_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, [("fe80::1", 9, 0, socket.if_nametoindex("lo"))])
    assert resolve("node", 9) == ["fe80::1%lo"]


def test_an_unknown_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, UNKNOWN)
    with pytest.raises(UnresolvedName) as caught:
        resolve("node", 9)
    assert str(caught.value) == "the host name 'node' cannot be resolved (Name or service not known)"


class TestWaiting:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The time, which passes by sleeping."""
        now = [1000.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds

        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(module.time, "sleep", sleep)
        return now

    def test_a_name_that_is_known_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
        answers(monkeypatch, [("10.0.0.2", 9)])
        assert wait_until_resolved("node", 9, 5, LOG) == ["10.0.0.2"]
        assert clock == [1000.0]

    def test_a_name_that_appears_late(
        self, monkeypatch: pytest.MonkeyPatch, clock: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        answers(monkeypatch, *[UNKNOWN] * 25, [("10.0.0.2", 9)])
        assert wait_until_resolved("node", 9, 0, LOG) == ["10.0.0.2"]
        unknown = "the host name 'node' cannot be resolved (Name or service not known)"
        assert caplog.messages == [f"{unknown}: trying again", *(f"waiting {at} s: {unknown}" for at in (10, 20))]

    def test_a_name_that_never_appears(self, monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
        answers(monkeypatch, UNKNOWN)
        with pytest.raises(TransportTimeout, match=r"'node' cannot .* for 30 s \(BYTEPS_START_TIMEOUT\): check the"):
            wait_until_resolved("node", 9, 30, LOG)
        assert 1030 <= clock[0] <= 1032


class TestTowards:
    @pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=VERSION_SIX)])
    def test_loopback_is_reached_from_itself(self, host: str) -> None:
        assert address_towards([host], 9) == host

    def test_the_first_that_has_a_route_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Probe(socket.socket):
            def connect(self, address: Any) -> None:
                if address[0] != "127.0.0.1":
                    raise OSError("Network is unreachable")
                super().connect(address)

        monkeypatch.setattr(socket, "socket", Probe)
        assert address_towards(["10.0.0.1", "fd00::1", "127.0.0.1"], 9) == "127.0.0.1"
        assert address_towards(["10.0.0.1"], 9) is None
