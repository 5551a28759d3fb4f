"""The own address of a server, and why."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from byteps_py.errors import SettingsError
from byteps_py.roles import address as module
from byteps_py.roles.address import (
    OwnAddress,
    check_interface,
    check_port,
    choose_by_route,
    choose_of_interface,
    interface_addresses,
    listening_ports,
    own_address,
)
from byteps_py.settings import JobSettings, ServerSettings

LOG = logging.getLogger("byteps_py.test")
SETTINGS = JobSettings(num_worker=2, num_server=1, root_uri="10.0.0.1", root_port=9000)
INTERFACES = {
    "eth0": ["192.0.2.2", "fe80::2%eth0", "fd00::2"],
    "eth1": ["10.0.0.2"],
    "ib0": ["fe80::3%ib0"],
    "lo": ["127.0.0.1", "::1"],
    "tun0": [],
}
LISTED = "eth0 (192.0.2.2, fe80::2%eth0, fd00::2), eth1 (10.0.0.2), ib0 (fe80::3%ib0), lo (127.0.0.1, ::1), tun0 (no"


class TestInterface:
    @pytest.mark.parametrize(
        ("name", "targets", "host"),
        [
            ("eth1", ["10.0.0.1"], "10.0.0.2"),
            ("eth0", ["10.0.0.1"], "192.0.2.2"),
            ("eth0", ["fd00::1"], "fd00::2"),
            ("eth0", ["fd00::1", "10.0.0.1"], "fd00::2"),
            ("eth1", ["fd00::1", "10.0.0.1"], "10.0.0.2"),
            ("ib0", ["fe80::1%ib0"], "fe80::3%ib0"),
        ],
    )
    def test_of_the_family_in_which_the_scheduler_is_reached(self, name: str, targets: list[str], host: str) -> None:
        reason = f"the address of interface {name} (DMLC_INTERFACE)"
        assert choose_of_interface(name, INTERFACES, targets) == (host, reason)

    def test_a_wrong_name_lists_those_there_are(self) -> None:
        with pytest.raises(SettingsError) as caught:
            choose_of_interface("ens3", INTERFACES, ["10.0.0.1"])
        assert str(caught.value) == (
            f"DMLC_INTERFACE=ens3 is no network interface of this machine: there are {LISTED} address)"
        )

    def test_a_prefix_is_no_name(self) -> None:
        with pytest.raises(
            SettingsError, match=r"of this machine \(names must be exact: eth0, eth1\?\): there are eth0"
        ):
            choose_of_interface("eth", INTERFACES, ["10.0.0.1"])

    @pytest.mark.parametrize(
        ("name", "targets", "needed"),
        [
            ("tun0", ["10.0.0.1"], "IPv4"),
            ("eth1", ["fd00::1"], "IPv6"),
            ("tun0", ["fd00::1", "10.0.0.1"], "IPv6 or IPv4"),
        ],
    )
    def test_an_interface_without_an_address_that_fits(self, name: str, targets: list[str], needed: str) -> None:
        with pytest.raises(SettingsError) as caught:
            choose_of_interface(name, INTERFACES, targets)
        assert str(caught.value) == (
            f"DMLC_INTERFACE={name}: this interface has no {needed} address, which the scheduler at "
            f"{', '.join(targets)} needs; there are {LISTED} address)"
        )


class TestRoute:
    def test_where_the_scheduler_is_reached_from(self) -> None:
        assert choose_by_route("node1", ["10.0.0.1"], "10.0.0.2") == (
            "10.0.0.2",
            "from which the scheduler at node1 is reached",
        )

    @pytest.mark.parametrize("root_uri", ["127.0.0.1", "::1", "localhost", "ip6-localhost"])
    def test_loopback_on_purpose(self, root_uri: str) -> None:
        assert choose_by_route(root_uri, ["127.0.0.1"], "127.0.0.1").host == "127.0.0.1"

    def test_the_scheduler_is_here_by_a_name_that_is_loopback_only_here(self) -> None:
        chosen = choose_by_route("node1", ["127.0.1.1"], "127.0.0.1")
        assert chosen == ("node1", "the scheduler's name, which is this machine")

    def test_no_route(self) -> None:
        assert choose_by_route("10.0.0.1", ["10.0.0.1"], None) == (
            "127.0.0.1",
            "since there is no route to the scheduler",
        )


class TestOwnAddress:
    @pytest.fixture(autouse=True)
    def _machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "interface_addresses", lambda: INTERFACES)
        monkeypatch.setattr(module, "wait_until_resolved", lambda host, port, timeout, log: ["10.0.0.1"])
        monkeypatch.setattr(module, "address_towards", lambda targets, port: "10.0.0.2")

    def choose(self, **settings: object) -> OwnAddress:
        return own_address(dataclasses.replace(SETTINGS, **settings), LOG)  # type: ignore[arg-type]

    def test_what_is_set_goes_first(self, caplog: pytest.LogCaptureFixture) -> None:
        assert self.choose(node_host="here", interface="eth1") == ("here", "as DMLC_NODE_HOST says")
        assert self.choose(interface="eth1").host == "10.0.0.2"
        assert self.choose() == ("10.0.0.2", "from which the scheduler at 10.0.0.1 is reached")
        assert caplog.messages == []

    def test_a_wrong_interface_is_told_even_where_it_is_not_needed(self) -> None:
        with pytest.raises(SettingsError, match="ens3"):
            self.choose(node_host="here", interface="ens3")

    def test_an_own_address_of_loopback_and_a_scheduler_elsewhere(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(module, "address_towards", lambda targets, port: None)
        self.choose()
        assert caplog.messages == [
            "the own address is 127.0.0.1, since there is no route to the scheduler: nobody on another machine reaches "
            "it, and the scheduler at 10.0.0.1 is not here: set DMLC_NODE_HOST or DMLC_INTERFACE"
        ]
        self.choose(interface="lo")
        for host in ("127.0.0.1", "localhost", "0.0.0.0", "::"):
            self.choose(node_host=host)
        assert len(caplog.messages) == 6

    def test_loopback_is_good_enough_for_a_scheduler_on_this_machine(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(module, "is_local", lambda host: host == "10.0.0.1")
        self.choose(interface="lo")
        self.choose(node_host="127.0.0.1")
        assert caplog.messages == []

    def test_a_link_local_address_is_warned_about(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(module, "wait_until_resolved", lambda host, port, timeout, log: ["fe80::1%ib0"])
        assert self.choose(interface="ib0").host == "fe80::3%ib0"
        assert caplog.messages == [
            "the own address is fe80::3%ib0, the address of interface ib0 (DMLC_INTERFACE): a link-local address, "
            "which serves only where the interface to it has the same name on every machine"
        ]


def test_roles_without_an_own_address_check_the_name_too() -> None:
    check_interface(SETTINGS)
    check_interface(dataclasses.replace(SETTINGS, interface="lo"))
    with pytest.raises(SettingsError, match=r"DMLC_INTERFACE=no such .*lo \(127\.0\.0\.1"):
        check_interface(dataclasses.replace(SETTINGS, interface="no such"))


def test_the_interfaces_of_this_machine() -> None:
    found = interface_addresses()
    assert "127.0.0.1" in found["lo"]
    assert all("%" in each for addresses in found.values() for each in addresses if each.startswith("fe80:"))


def test_ports_of_a_range_with_that_of_the_scheduler_last() -> None:
    assert listening_ports(SETTINGS) == ()
    assert listening_ports(dataclasses.replace(SETTINGS, port_range=(8999, 9002))) == (8999, 9001, 9002, 9000)


class TestThePortOfTheScheduler:
    def check(self, host: str, root_uri: str, bound: int = 9000, **changed: Any) -> None:
        settings = ServerSettings(num_worker=2, num_server=1, root_uri=root_uri, root_port=9000, **changed)
        check_port(settings, host, bound, LOG)

    @pytest.mark.parametrize(("host", "root_uri"), [("127.0.0.1", "localhost"), ("localhost", "127.0.0.1")])
    def test_at_the_same_address_it_is_refused(self, host: str, root_uri: str) -> None:
        with pytest.raises(SettingsError) as caught:
            self.check(host, root_uri)
        assert str(caught.value).endswith("is the scheduler's port (DMLC_PS_ROOT_PORT) on this machine: choose another")

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"port": 9000}, "DMLC_PORT=9000 is the scheduler's"),
            ({"port_range": (9000, 9002)}, "BYTEPS_PORT_RANGE=9000-9002: the only free port, 9000, is the scheduler's"),
            ({}, "port 9000, the first that is free, is the scheduler's"),
        ],
    )
    def test_the_message_says_where_it_is_from(self, changed: dict[str, Any], words: str) -> None:
        with pytest.raises(SettingsError) as caught:
            self.check("127.0.0.1", "127.0.0.1", **changed)
        assert str(caught.value).startswith(words)

    def test_who_listens_everywhere_does_so_at_the_address_of_the_scheduler(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "is_local", lambda address: address == "127.0.0.1")
        with pytest.raises(SettingsError, match="is the scheduler's port"):
            self.check("192.0.2.1", "127.0.0.1")

    def test_at_another_address_or_machine_it_will_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.check("127.0.0.1", "127.0.0.1", bound=9001)
        self.check("127.0.0.1", "127.0.0.2")
        monkeypatch.setattr(module, "is_local", lambda address: address == "127.0.0.1")
        self.check("127.0.0.1", "192.0.2.1")
        self.check("192.0.2.1", "192.0.2.1")  # another machine behind the same NAT
