"""The hosts that the other tests stand on are as real as they need."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.helpers.namespaces import HAS_IPV6, Network, wait_until

Hosts: TypeAlias = Callable[[int], Network]

LISTEN = """
import signal, socket
both = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
listeners = [socket.create_server(("", port), **both) for port in (9000, 9001)]
print("ready", flush=True)
signal.pause()
"""
CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 2): print("connected")
except TimeoutError: print("silence")
except OSError: print("rejected")
"""


def connect(network: Network, address: str, port: int) -> str:
    """What comes of connecting from the second host."""
    return network.ask("host-b", [sys.executable, "-S", "-c", CONNECT, address, str(port)]).strip()


def test_each_has_its_own_name_processes_and_shared_memory(hosts: Hosts) -> None:
    network = hosts(2)
    script = "hostname; ls /proc | grep -c '^[0-9]'; touch /dev/shm/mine; ls /dev/shm; getent hosts host-a host-b"
    for host in ("host-a", "host-b"):
        output = network.folder / host
        process = network.run(host, ["sh", "-c", script], os.environ, output)
        assert process.wait(20) == 0
        name, processes, *rest = output.read_text().split()
        assert name == host
        assert int(processes) < 10
        known = (
            ["fd00::1", "host-a", "fd00::2", "host-b"] if HAS_IPV6 else ["10.77.0.1", "host-a", "10.77.0.2", "host-b"]
        )
        assert rest == ["mine", *known]
    assert not os.path.exists("/dev/shm/mine")


@pytest.mark.parametrize("reject", [False, True])
def test_a_blocked_port_is_silent_or_rejects_and_others_are_open(reject: bool, hosts: Hosts) -> None:
    network = hosts(2)
    output = network.folder / "listener"
    network.run("host-a", [sys.executable, "-S", "-c", LISTEN], os.environ, output)
    wait_until(lambda: "ready" in output.read_text(), output.read_text)
    network.block_port("host-a", 9000, reject=reject)
    for address in (network["host-a"].ipv4, network["host-a"].ipv6)[: 1 + HAS_IPV6]:
        assert connect(network, address, 9000) == ("rejected" if reject else "silence")
        assert connect(network, address, 9001) == "connected"
