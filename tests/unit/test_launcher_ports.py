"""Ports that are held: nobody else gets them, and whoever is to listen there can."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from byteps_py.launcher import ports

HOST = "127.0.0.1"


def listening(port: int) -> socket.socket:
    """A socket that listens as libzmq does."""
    made = socket.socket()
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


@pytest.fixture
def free_range() -> Iterator[tuple[int, int]]:
    """Three ports in a row that nobody has."""
    for first in range(21000, 30000, 3):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + 3):
                    stack.enter_context(socket.socket()).bind((HOST, port))
            except OSError:
                continue
        yield first, first + 2
        return
    pytest.fail("there is no free range")


def test_any_port_is_held_and_can_be_listened_at() -> None:
    with ports.hold(HOST, 2, None) as (first, second):
        assert first != second
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind((HOST, first))
        listening(first).close()


def test_ports_of_a_range_are_taken_in_order(free_range: tuple[int, int]) -> None:
    with ports.hold(HOST, 2, free_range) as held:
        assert held == (free_range[0], free_range[0] + 1)
        for port in held:
            listening(port).close()


def test_two_jobs_never_hold_the_same_port(free_range: tuple[int, int]) -> None:
    first = free_range[0]
    with ports.hold(HOST, 1, free_range) as (one,), ports.hold(HOST, 2, free_range) as others:
        assert (one, *others) == (first, first + 1, first + 2)
        message = f"BYTEPS_PORT_RANGE={first}-{first + 2} has 0 of the 1 free ports that the scheduler and the servers"
        with pytest.raises(OSError, match=message), ports.hold(HOST, 1, free_range):
            pass
    with ports.hold(HOST, 3, free_range) as held:
        assert len(held) == 3


def test_ports_that_others_listen_at_are_left_out(free_range: tuple[int, int]) -> None:
    with listening(free_range[0]), listening(free_range[0] + 1), ports.hold(HOST, 1, free_range) as held:
        assert held == (free_range[1],)


def test_a_port_is_free_again_when_a_connection_has_ended_there(free_range: tuple[int, int]) -> None:
    port = free_range[0]
    with listening(port) as listener, socket.create_connection((HOST, port)) as client:
        accepted, _ = listener.accept()
        # Whoever closes first is left with the ended connection.
        accepted.close()
        assert client.recv(1) == b""
    with ports.hold(HOST, 1, (port, port)) as held:
        assert held == (port,)
        with pytest.raises(OSError, match="has 0 of the 1 free ports"), ports.hold(HOST, 1, (port, port)):
            pass
        listening(port).close()


def test_nothing_is_held_where_nothing_is_asked_for(free_range: tuple[int, int]) -> None:
    with ports.hold(HOST, 0, None) as none, ports.hold(HOST, 0, free_range) as neither:
        assert none == neither == ()
