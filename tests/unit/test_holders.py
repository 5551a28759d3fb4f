"""Who holds a port, in words."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from byteps_py.launcher.processes import module_command
from byteps_py.ports import holders
from byteps_py.ports.claims import claim_name
from byteps_py.ports.holders import WILDCARD, describe_holder, describe_holders


class Machine:
    """Connections and processes as psutil tells them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections: list[Any] = []
        self.claims: list[Any] = []
        self.asked: list[object] = []
        self.processes: dict[int, list[str]] = {}
        monkeypatch.setattr(psutil, "net_connections", self._connections)
        monkeypatch.setattr(psutil, "Process", self._process)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def add(self, ip: str, port: int, pid: int | None, command: str = "", status: str = psutil.CONN_LISTEN) -> None:
        self.connections.append(SimpleNamespace(laddr=SimpleNamespace(ip=ip, port=port), pid=pid, status=status))
        if pid is not None:
            self.processes[pid] = command.split()

    def claim(self, port: int, pid: int | None, command: str = "") -> None:
        self.claims.append(SimpleNamespace(laddr=claim_name(port), pid=pid))
        if pid is not None:
            self.processes[pid] = command.split()

    def _connections(self, kind: str) -> list[Any]:
        self.asked.append(kind)
        return {"tcp": self.connections, "unix": self.claims}[kind]

    def _process(self, pid: int) -> Any:
        self.asked.append(pid)
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
    monkeypatch.setattr(holders.time, "localtime", holders.time.gmtime)
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

    def test_a_role_that_our_launcher_has_started_is_shown_as_one_would_type_it(self, machine: Machine) -> None:
        machine.add("0.0.0.0", 9000, 42)
        machine.processes[42] = list(module_command("byteps_py", "server"))
        assert f"({sys.executable} -m byteps_py server)" in describe_holder("10.0.0.1", 9000)

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

    def test_a_port_that_is_claimed_and_not_listened_at_yet(self, machine: Machine) -> None:
        machine.claim(9000, 42, "bpslaunch -n 2 python train.py")
        machine.claim(9001, None)
        assert "process 42 of user ada" in describe_holder("10.0.0.1", 9000)
        assert "another user" in describe_holder("10.0.0.1", 9001)
        assert "nobody is seen" in describe_holder("10.0.0.1", 9002)

    def test_who_listens_goes_before_who_has_claimed_it(self, machine: Machine) -> None:
        machine.claim(9000, 42, "bpslaunch")
        machine.add("10.0.0.1", 9000, 43, "python -m byteps_py server")
        assert "process 43" in describe_holder("10.0.0.1", 9000)


class TestHolders:
    def test_those_of_several_ports_are_named(self, machine: Machine) -> None:
        for port in (20000, 20001, 20002, 20003):
            machine.add("::", port, 42, "python -m byteps_py server")
        machine.add("::", 20004, None)
        assert describe_holders(["10.0.0.1"], range(20000, 20006)) == (
            "20000, 20001 and 2 more by process 42 of user ada since 2023-11-14 22:13:20 (python -m byteps_py server); "
            "20004 by a process of another user (root sees which one: `ss -ltnp`); 20005 by nobody who is seen"
        )

    def test_at_any_of_several_addresses(self, machine: Machine) -> None:
        machine.add("10.0.0.2", 20000, 42, "nginx")
        assert "20000 by process 42" in describe_holders(["10.0.0.1", "10.0.0.2"], [20000])

    def test_the_system_is_asked_once_for_all(self, machine: Machine) -> None:
        for port in range(20000, 20100):
            machine.add("::", port, 42, "nginx")
        describe_holders(["10.0.0.1", "10.0.0.2"], range(20000, 20200))
        assert machine.asked == ["tcp", 42, "unix"]
