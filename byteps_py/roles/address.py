"""The own address of a server: where workers connect to.

=================================== =====================================================================
set is                              the address is
=================================== =====================================================================
``DMLC_NODE_HOST``                  as it says
``DMLC_INTERFACE``                  of that interface, of the family in which the scheduler is reached
neither                             the one from which the scheduler is reached
neither, and the scheduler's name   the scheduler's name: this is its machine, and its own ``/etc/hosts``
is loopback here                    says ``127.0.1.1``, as on many systems; others know it by another
neither, and there is no route      loopback, with a warning
=================================== =====================================================================
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import psutil

from byteps_py.errors import SettingsError
from byteps_py.settings import JobSettings, ServerSettings
from byteps_py.transport.resolve import address_towards, is_local, is_loopback, is_numeric, wait_until_resolved

__all__ = ["OwnAddress", "check_interface", "check_port", "interface_addresses", "listening_ports", "own_address"]

_FAMILIES: Final = {4: "IPv4", 6: "IPv6"}

Interfaces = Mapping[str, Sequence[str]]


class OwnAddress(NamedTuple):
    """An address, or a name, and why it was chosen: part of a sentence."""

    host: str
    reason: str


def interface_addresses() -> dict[str, list[str]]:
    """The numeric addresses of each network interface; link-local ones with the interface, as they are needed."""
    wanted = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [_scoped(each.address, name) for each in addresses if each.family in wanted]
        for name, addresses in psutil.net_if_addrs().items()
    }


def check_interface(settings: JobSettings) -> None:
    """For roles that need no address of their own: a wrong name is told all the same.

    Raises:
        SettingsError: ``DMLC_INTERFACE`` is no interface of this machine; the text lists those there are.
    """
    if settings.interface is not None:
        _look_up(settings.interface, interface_addresses())


def own_address(settings: JobSettings, log: logging.Logger) -> OwnAddress:
    """Choose the address by which others know this process. Waits for the scheduler's name if it is not known yet.

    Raises:
        SettingsError: ``DMLC_INTERFACE`` is no interface of this machine, or has no address that fits.
        TransportError: a name is not known within ``BYTEPS_START_TIMEOUT``.
    """
    check_interface(settings)
    given = None if settings.node_host is None else OwnAddress(settings.node_host, "as DMLC_NODE_HOST says")
    if given is not None and not _reaches_only_itself(given.host):
        if not is_numeric(given.host):  # it is listened at, and so must be known here
            wait_until_resolved(given.host, settings.root_port, settings.start_timeout, log)
        return given
    targets = wait_until_resolved(settings.root_uri, settings.root_port, settings.start_timeout, log)
    if given is not None:
        chosen = given
    elif settings.interface is not None:
        chosen = choose_of_interface(settings.interface, interface_addresses(), targets)
    else:
        chosen = choose_by_route(settings.root_uri, targets, address_towards(targets, settings.root_port))
    _warn(chosen, settings, targets, log)
    return chosen


def choose_of_interface(name: str, interfaces: Interfaces, targets: Sequence[str]) -> OwnAddress:
    """The address of interface ``name`` that fits the scheduler's addresses best.

    The family of the first of ``targets`` that fits; and a link-local address, which means something only on the
    same link, if there is no other.

    Raises:
        SettingsError: there is none, or no such interface.
    """
    _look_up(name, interfaces)
    for version in dict.fromkeys(_version(each) for each in targets):
        fitting = [each for each in interfaces[name] if _version(each) == version]
        fitting.sort(key=lambda each: "%" in each)
        if fitting:
            return OwnAddress(fitting[0], f"the address of interface {name} (DMLC_INTERFACE)")
    needed = " or ".join(dict.fromkeys(_FAMILIES[_version(each)] for each in targets))
    raise SettingsError(
        f"DMLC_INTERFACE={name}: this interface has no {needed} address, which the scheduler at "
        f"{', '.join(targets)} needs; there are {_list(interfaces)}"
    )


def choose_by_route(root_uri: str, targets: Sequence[str], towards: str | None) -> OwnAddress:
    """The address without any setting.

    Args:
        root_uri: the scheduler, as the user wrote it.
        targets: its numeric addresses.
        towards: the own address from which the first of them that can be reached is reached.
    """
    if towards is None:
        return OwnAddress("127.0.0.1", "since there is no route to the scheduler")
    if is_loopback(towards) and not is_numeric(root_uri) and "localhost" not in root_uri.lower():
        return OwnAddress(root_uri, "the scheduler's name, which is this machine")
    return OwnAddress(towards, f"from which the scheduler at {root_uri} is reached")


def check_port(settings: ServerSettings, host: str, port: int, log: logging.Logger) -> None:
    """A server that came first to the scheduler's address and port would take itself for the scheduler.

    Args:
        settings: of the server.
        host: its own address.
        port: at which it is to listen, or does.
        log: told if a name has to be waited for.

    Raises:
        SettingsError: it would be so.
        TransportError: a name is not known within ``BYTEPS_START_TIMEOUT``.
    """
    if port != settings.root_port or not _is_scheduler_address(settings, host, log):
        return
    what = f"port {port}, the first that is free,"
    if settings.port:
        what = f"DMLC_PORT={port}"
    elif settings.port_range is not None:
        what = "BYTEPS_PORT_RANGE={}-{}: the only free port, {},".format(*settings.port_range, port)
    raise SettingsError(f"{what} is the scheduler's port (DMLC_PS_ROOT_PORT) on this machine: choose another")


def listening_ports(settings: JobSettings) -> tuple[int, ...]:
    """``BYTEPS_PORT_RANGE`` as candidates for a server, that of the scheduler last: it may live on this machine."""
    if settings.port_range is None:
        return ()
    low, high = settings.port_range
    return tuple(sorted(range(low, high + 1), key=lambda port: port == settings.root_port))


def _is_scheduler_address(settings: JobSettings, host: str, log: logging.Logger) -> bool:
    """Whether who listens at ``host`` can be reached at the scheduler's address."""
    there = wait_until_resolved(settings.root_uri, settings.root_port, settings.start_timeout, log)
    here = wait_until_resolved(host, settings.root_port, settings.start_timeout, log)
    everywhere = not any(is_local(each) for each in here)  # as listening.py does it
    return any(is_local(each) and (everywhere or each in here) for each in there)


def _look_up(name: str, interfaces: Interfaces) -> None:
    if name not in interfaces:
        longer = sorted(each for each in interfaces if each.startswith(name))
        hint = f" (names must be exact: {', '.join(longer)}?)" if longer else ""
        raise SettingsError(
            f"DMLC_INTERFACE={name} is no network interface of this machine{hint}: there are {_list(interfaces)}"
        )


def _warn(chosen: OwnAddress, settings: JobSettings, targets: Sequence[str], log: logging.Logger) -> None:
    """An address that others cannot use must not be found out by a job that never begins."""
    advice = "set DMLC_NODE_HOST or DMLC_INTERFACE"
    if _reaches_only_itself(chosen.host) and not any(is_local(each) for each in targets):
        log.warning(
            "the own address is %s, %s: nobody on another machine reaches it, and the scheduler at %s is not here: %s",
            *chosen,
            settings.root_uri,
            advice,
        )
    elif "%" in chosen.host:
        log.warning(
            "the own address is %s, %s: a link-local address, which serves only where the interface to it has the "
            "same name on every machine",
            *chosen,
        )


def _reaches_only_itself(host: str) -> bool:
    return host in ("localhost", "0.0.0.0", "::") or (is_numeric(host) and is_loopback(host))


def _list(interfaces: Interfaces) -> str:
    """``eth0 (10.0.0.2, fd00::2), lo (127.0.0.1, ::1)``"""
    return ", ".join(f"{name} ({', '.join(each) or 'no address'})" for name, each in sorted(interfaces.items()))


def _version(address: str) -> int:
    return 6 if ":" in address else 4


def _scoped(address: str, interface: str) -> str:
    return f"{address}%{interface}" if address.startswith("fe80:") and "%" not in address else address
