"""At which addresses and ports a ROUTER listens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import zmq

from byteps_py.errors import TransportError
from byteps_py.ports.claims import claim
from byteps_py.ports.holders import WILDCARD
from byteps_py.transport import listening
from byteps_py.transport.listening import bind
from tests.helpers.jobs import free_range, has_version_six

HERE = "127.0.0.1"
VERSION_SIX = pytest.mark.skipif(not has_version_six(), reason="this machine has no IPv6")
Router = Callable[[], "zmq.Socket[Any]"]


@pytest.fixture
def router() -> Iterator[Router]:
    """Makes sockets as the endpoint does."""
    with zmq.Context() as context, ExitStack() as opened:

        def make() -> zmq.Socket[Any]:
            made = opened.enter_context(context.socket(zmq.ROUTER))
            made.setsockopt(zmq.LINGER, 0)
            made.setsockopt(zmq.IPV6, 1)
            return made

        yield make


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names resolve to, beside those that are known."""
    known: dict[str, list[str]] = {}
    resolve = listening.resolve
    monkeypatch.setattr(listening, "resolve", lambda host, port: known.get(host) or resolve(host, port))
    return known


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 5):
            return True
    except OSError:
        return False


def wait_until_free(host: str, port: int) -> None:
    """libzmq closes what it listens with on another thread."""
    deadline = time.monotonic() + 10
    while answers(host, port):
        assert time.monotonic() < deadline, f"{host}:{port} is still listened at"


def free_ports(count: int) -> range:
    low, high = free_range(count)
    return range(low, high + 1)


class TestAddresses:
    def test_one_address(self, router: Router) -> None:
        port = port_of(address := bind(router(), HERE, 0))
        assert address == f"tcp://127.0.0.1:{port}"
        assert answers(HERE, port)
        assert not answers("::1", port)

    @VERSION_SIX
    def test_every_local_address_of_a_name_at_one_port(
        self, router: Router, names: dict[str, list[str]], caplog: pytest.LogCaptureFixture
    ) -> None:
        names["localhost"] = ["::1", HERE, "192.0.2.254"]
        caplog.set_level("INFO")
        port = port_of(bind(router(), "localhost", 0))
        assert answers("::1", port)
        assert answers(HERE, port)
        assert caplog.messages == [f"listening at tcp://[::1]:{port} and tcp://127.0.0.1:{port}"]

    @VERSION_SIX
    @pytest.mark.parametrize("host", [WILDCARD, "192.0.2.254"])
    def test_the_wildcard_takes_both_versions(
        self, router: Router, host: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        port = port_of(bind(router(), host, 0))
        assert answers("::1", port)
        assert answers("127.0.0.2", port)
        text = "192.0.2.254 is not an address of this machine (NAT or a container?): listening on all addresses"
        assert caplog.messages == ([] if host == WILDCARD else [text])

    def test_an_own_name_that_is_loopback_here(
        self, router: Router, names: dict[str, list[str]], caplog: pytest.LogCaptureFixture
    ) -> None:
        names["node1"] = ["127.0.1.1"]
        caplog.set_level("INFO")
        assert answers("127.0.0.2", port_of(bind(router(), "node1", 0)))
        assert caplog.messages == [
            "node1 is 127.0.1.1 on this machine, and surely another address elsewhere: listening on all addresses"
        ]

    def test_a_name_of_this_machine_and_its_address_elsewhere(
        self, router: Router, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names["node1"] = [HERE, "127.0.0.3"]
        monkeypatch.setattr(listening, "is_loopback", lambda address: address == HERE)
        port = port_of(bind(router(), "node1", 0))
        assert answers("127.0.0.3", port)
        assert not answers("127.0.0.2", port)

    @pytest.mark.skipif(subprocess.call(["unshare", "-n", "true"], stderr=subprocess.DEVNULL) != 0, reason="needs root")
    def test_a_machine_without_version_six(self) -> None:
        code = (
            "import socket, zmq\n"
            "from byteps_py.transport.listening import bind\n"
            "assert not open('/proc/net/if_inet6').read()\n"
            "context = zmq.Context(); router = context.socket(zmq.ROUTER); router.setsockopt(zmq.IPV6, 1)\n"
            "for host in ('*', '127.0.0.1', 'localhost', '::1'):\n"
            "    port = int(bind(router, host, 0, range(20000, 20100)).rpartition(':')[2])\n"
            "    socket.create_connection(('127.0.0.1', port), 5).close()\n"
            "router.close(0); context.term(); print('good')\n"
        )
        off = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set lo up"
        command = ["unshare", "-n", "bash", "-c", f'{off}; exec "$@"', "bash", sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "good\n", done.stderr


class TestPorts:
    def test_two_never_share_a_port(self, router: Router) -> None:
        port = port_of(bind(router(), HERE, 0))
        for host in (HERE, WILDCARD, "localhost"):
            with pytest.raises(TransportError, match=rf"port {port}( on .*)? is in use by process \d+ of user"):
                bind(router(), host, port)

    def test_the_others_of_a_range_are_taken_one_by_one(self, router: Router) -> None:
        ports = free_ports(3)
        hosts = (HERE, WILDCARD, HERE)
        assert [port_of(bind(router(), host, 0, ports)) for host in hosts] == list(ports)
        with pytest.raises(TransportError, match=f"no port of BYTEPS_PORT_RANGE={ports[0]}-{ports[-1]} is free: held"):
            bind(router(), WILDCARD, 0, ports)

    def test_a_given_port_goes_before_a_range(self, router: Router) -> None:
        port = port_of(bind(router(), HERE, 0))
        assert port_of(bind(router(), "127.0.0.2", port, (1, 2))) == port

    def test_a_port_that_a_launcher_holds_is_left_to_it(self, router: Router) -> None:
        ports = free_ports(2)
        with claim(ports[0]), socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((HERE, ports[0]))
            assert port_of(bind(router(), HERE, 0, ports)) == ports[1]
            assert port_of(bind(router(), HERE, ports[0])) == ports[0], "its own process gets it"

    def test_a_port_of_a_range_is_claimed_until_it_is_listened_at(
        self, router: Router, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ports = free_ports(1)
        bind_all = listening._bind_all

        def watched(*arguments: Any) -> list[str]:
            with pytest.raises(OSError, match="in use"), claim(ports[0]):
                pass
            return bind_all(*arguments)

        monkeypatch.setattr(listening, "_bind_all", watched)
        bind(router(), HERE, 0, ports)
        with claim(ports[0]):
            pass

    def test_an_exhausted_range_names_the_holders_at_any_of_the_addresses(
        self, router: Router, names: dict[str, list[str]]
    ) -> None:
        names["localhost"] = ["127.0.0.2", HERE]
        (port,) = ports = free_ports(1)
        message = (
            f"no port of BYTEPS_PORT_RANGE={port}-{port} is free: held are {port} by process {os.getpid()} of user"
        )
        with socket.create_server((HERE, port)), pytest.raises(TransportError, match=message):
            bind(router(), "localhost", 0, ports)

    def test_ended_connections_hold_no_port(self, router: Router) -> None:
        ports = free_ports(1)
        with socket.create_server((HERE, ports[0])) as server, socket.create_connection((HERE, ports[0])) as client:
            server.accept()[0].close()  # who closes first keeps the port for a minute
            client.recv(1)
        with socket.socket() as plain, pytest.raises(OSError, match="in use"):
            plain.bind((HERE, ports[0]))
        assert port_of(bind(router(), HERE, 0, ports)) == ports[0]

    def test_a_port_that_is_free_at_one_address_only(
        self, router: Router, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names["localhost"] = ["127.0.0.2", HERE]
        ports = free_ports(2)
        with socket.create_server((HERE, ports[0])):
            assert port_of(bind(router(), "localhost", 0, ports)) == ports[1]
            wait_until_free("127.0.0.2", ports[0])

    def test_a_given_port_is_taken_at_all_addresses_or_at_none(
        self, router: Router, names: dict[str, list[str]]
    ) -> None:
        names["localhost"] = ["127.0.0.2", HERE]
        (port,) = free_ports(1)
        with socket.create_server((HERE, port)):
            with pytest.raises(TransportError, match=f"port {port} on {HERE} is in use by process"):
                bind(router(), "localhost", port)
            wait_until_free("127.0.0.2", port)

    def test_any_port_that_is_free_at_all_addresses(
        self, router: Router, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names["localhost"] = ["127.0.0.2", HERE]
        bind_all, tries = listening._bind_all, []

        def unlucky(made: zmq.Socket[Any], hosts: list[str], port: int) -> list[str]:
            tries.append(port)
            if len(tries) == 2:
                with socket.create_server((HERE, port)):
                    return bind_all(made, hosts, port)
            return bind_all(made, hosts, port)

        monkeypatch.setattr(listening, "_bind_all", unlucky)
        port = port_of(bind(router(), "localhost", 0))
        assert tries == [0, tries[1], 0, port]
        wait_until_free("127.0.0.2", tries[1])
        assert answers(HERE, port)
        assert answers("127.0.0.2", port)

    def test_a_port_that_is_not_allowed_is_named(self, router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(*_: object) -> list[str]:
            raise OSError(13, "Permission denied")

        monkeypatch.setattr(listening, "_bind_all", denied)
        with pytest.raises(TransportError, match=r"cannot listen at tcp://127\.0\.0\.1:80: Permission denied"):
            bind(router(), HERE, 80)
