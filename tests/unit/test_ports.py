"""Ports: what may be shared, and who holds what."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from byteps_py.transport import ports
from byteps_py.transport.ports import WILDCARD, describe_exhausted, describe_holder, is_local, reserve
from tests.helpers.jobs import has_version_six

HERE = "127.0.0.1"
VERSION_SIX = pytest.mark.skipif(not has_version_six(), reason="this machine has no IPv6")


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bind(sockets: ExitStack, host: str = HERE, port: int = 0, *, shared: bool = True, listening: bool = False) -> int:
    """As a launcher holds a port or, ``listening``, as libzmq listens; returns the port."""
    made = sockets.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    if shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, port))
    if listening:
        made.listen()
    return int(made.getsockname()[1])


def refused(sockets: ExitStack, port: int, hosts: tuple[str, ...] = (HERE,)) -> bool:
    """Whether the port cannot be reserved."""
    try:
        sockets.enter_context(reserve(hosts, port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


class TestReserve:
    def test_a_listener_is_let_in_to_a_reserved_port(self, sockets: ExitStack) -> None:
        port = bind(sockets, listening=True)
        sockets.pop_all().close()
        with reserve([HERE], port):
            assert bind(sockets, port=port, listening=True) == port

    @pytest.mark.parametrize("listening", [False, True], ids=["held", "listening"])
    @pytest.mark.parametrize("hosts", [(HERE,), (WILDCARD,), ("127.0.0.2", HERE)], ids=str)
    def test_a_port_that_somebody_has_is_refused(
        self, sockets: ExitStack, listening: bool, hosts: tuple[str, ...]
    ) -> None:
        assert refused(sockets, bind(sockets, listening=listening), hosts)

    def test_two_do_not_reserve_the_same(self, sockets: ExitStack) -> None:
        with socket.socket() as other:
            other.bind((HERE, 0))
            port = other.getsockname()[1]
        assert not refused(sockets, port)
        assert refused(sockets, port)

    def test_nothing_stays_reserved_where_one_address_refuses(self, sockets: ExitStack) -> None:
        port = bind(sockets, "127.0.0.2")
        assert refused(sockets, port, (HERE, "127.0.0.2"))
        assert not refused(sockets, port, (HERE,))


@pytest.mark.parametrize(
    ("host", "local"),
    [(HERE, True), pytest.param("::1", True, marks=VERSION_SIX), ("192.0.2.254", False), ("2001:db8::1", False)],
)
def test_local_addresses(host: str, local: bool) -> None:
    assert is_local(host) is local


class Machine:
    """Connections and processes as psutil tells them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections: list[Any] = []
        self.processes: dict[int, list[str]] = {}
        monkeypatch.setattr(psutil, "net_connections", lambda kind: self.connections)
        monkeypatch.setattr(psutil, "Process", self._process)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def add(self, ip: str, port: int, pid: int | None, command: str = "", status: str = psutil.CONN_LISTEN) -> None:
        self.connections.append(SimpleNamespace(laddr=SimpleNamespace(ip=ip, port=port), pid=pid, status=status))
        if pid is not None:
            self.processes[pid] = command.split()

    def _process(self, pid: int) -> Any:
        if not self.processes[pid]:
            raise psutil.NoSuchProcess(pid)
        return SimpleNamespace(
            cmdline=lambda: self.processes[pid],
            name=lambda: "name",
            username=lambda: "ada",
            create_time=lambda: 1_700_000_000.0,
        )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(ports.time, "localtime", ports.time.gmtime)
    return Machine(monkeypatch)


class TestHolder:
    def test_a_process_is_named(self, machine: Machine) -> None:
        machine.add("10.0.0.1", 9000, 42, "nginx -g daemon")
        assert describe_holder("10.0.0.1", 9000) == (
            "port 9000 on 10.0.0.1 is in use by process 42 of user ada since 2023-11-14 22:13:20 (nginx -g daemon): "
            "end it, or choose another port"
        )

    @pytest.mark.parametrize(
        "command", ["python -c code /src byteps_py scheduler", "/bin/bps scheduler", "python -m byteps_py scheduler"]
    )
    def test_a_stale_scheduler_is_called_that(self, machine: Machine, command: str) -> None:
        machine.add("0.0.0.0", 9000, 42, command)
        assert describe_holder("10.0.0.1", 9000).endswith(
            "it is the scheduler of another job, maybe a stale one: end it by `kill 42`, or choose another "
            "DMLC_PS_ROOT_PORT"
        )

    @pytest.mark.parametrize("command", ["/usr/bin/scheduler", "python -m byteps_py server", "bps server scheduler1"])
    def test_others_are_not(self, machine: Machine, command: str) -> None:
        machine.add("::", 9000, 42, command)
        assert "scheduler of another job" not in describe_holder("10.0.0.1", 9000)

    def test_what_cannot_be_seen_is_said_to_be_so(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        machine.add("127.0.0.1", 9000, None)
        assert describe_holder("127.0.0.1", 9000) == (
            "port 9000 on 127.0.0.1 is in use by a process of another user (root sees which one: `ss -ltnp`): choose "
            "another port"
        )
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert "cannot be seen from here, such as one in another container" in describe_holder("127.0.0.1", 9000)

    def test_a_process_that_ends_meanwhile(self, machine: Machine) -> None:
        machine.add("127.0.0.1", 9000, 42, "")
        assert "another user" in describe_holder("127.0.0.1", 9000)

    @pytest.mark.parametrize("ip", ["10.0.0.2", "fd00::1"])
    def test_another_address_is_no_holder(self, machine: Machine, ip: str) -> None:
        machine.add(ip, 9000, 42, "nginx")
        machine.add("10.0.0.1", 9001, 42, "nginx")
        assert describe_holder("10.0.0.1", 9000).startswith("port 9000 on 10.0.0.1 is in use, but nobody is seen")

    def test_an_address_of_version_four_inside_six(self, machine: Machine) -> None:
        machine.add("::ffff:10.0.0.1", 9000, 42, "nginx")
        assert "process 42" in describe_holder("10.0.0.1", 9000)

    def test_a_link_local_address(self, machine: Machine) -> None:
        machine.add("fe80::1", 9000, 42, "nginx")
        assert "process 42" in describe_holder("fe80::1%eth0", 9000)

    def test_ended_connections_hold_nothing(self, machine: Machine) -> None:
        machine.add("10.0.0.1", 9000, None, status=psutil.CONN_TIME_WAIT)
        assert "nobody is seen" in describe_holder("10.0.0.1", 9000)

    def test_the_listener_goes_before_its_connections(self, machine: Machine) -> None:
        machine.add("10.0.0.1", 9000, 41, "client", status=psutil.CONN_ESTABLISHED)
        machine.add("10.0.0.1", 9000, 42, "nginx")
        assert "process 42" in describe_holder(WILDCARD, 9000)

    def test_a_long_command_is_cut(self, machine: Machine) -> None:
        machine.add("10.0.0.1", 9000, 42, "word " * 1000)
        assert len(describe_holder(WILDCARD, 9000)) < 400

    def test_the_system_tells_nothing(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        def deny(kind: str) -> None:
            raise psutil.AccessDenied

        monkeypatch.setattr(psutil, "net_connections", deny)
        assert "another user" in describe_holder("10.0.0.1", 9000)


def test_an_exhausted_range_names_its_holders(machine: Machine) -> None:
    for port in (20000, 20001, 20002, 20003):
        machine.add("::", port, 42, "python -m byteps_py server")
    machine.add("::", 20004, None)
    text = describe_exhausted("10.0.0.1", range(20000, 20006))
    assert text == (
        "no port of BYTEPS_PORT_RANGE=20000-20005 is free: held are 20000, 20001 and 2 more by process 42 of user ada "
        "since 2023-11-14 22:13:20 (python -m byteps_py server); 20004 by a process of another user (root sees which "
        "one: `ss -ltnp`); 20005 by nobody who is seen: choose a wider range, or end what is stale"
    )
