"""Ports that are held: nobody else gets them, and whoever is to listen there can."""

from __future__ import annotations

import os
import socket
from contextlib import AbstractContextManager, ExitStack

import pytest

from byteps_py.launcher import ports
from byteps_py.ports.claims import claim
from tests.helpers.jobs import free_range

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
def three() -> tuple[int, int]:
    """A range of three ports."""
    return free_range(3)


def test_any_port_is_held_and_can_be_listened_at() -> None:
    with ports.hold(HOST, 2, None) as (first, second):
        assert first != second
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind((HOST, first))
        listening(first).close()


def test_ports_of_a_range_are_taken_in_order(three: tuple[int, int]) -> None:
    with ports.hold(HOST, 2, three) as held:
        assert held == (three[0], three[0] + 1)
        for port in held:
            listening(port).close()


def test_two_jobs_never_hold_the_same_port(three: tuple[int, int]) -> None:
    first = three[0]
    with ports.hold(HOST, 1, three) as (one,), ports.hold(HOST, 2, three) as others:
        assert (one, *others) == (first, first + 1, first + 2)
        message = (
            f"BYTEPS_PORT_RANGE={first}-{first + 2} has 0 of the 1 free ports that the scheduler and the servers of "
            f"this job need on {HOST}: widen it, or end what uses its ports: {first}, {first + 1}, {first + 2} by "
            f"process {os.getpid()} of user"
        )
        with pytest.raises(OSError, match=message), ports.hold(HOST, 1, three):
            pass
    with ports.hold(HOST, 3, three) as held:
        assert len(held) == 3


def test_a_port_that_a_server_of_another_job_is_about_to_listen_at_is_left_out(three: tuple[int, int]) -> None:
    with claim(three[0]), ports.hold(HOST, 1, three) as held:
        assert held == (three[0] + 1,)


def test_any_port_is_claimed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with ports.hold(HOST, 1, None) as (port,), pytest.raises(OSError, match="in use"), claim(port):
        pass
    tried: list[int] = []
    with ExitStack() as another:

        def claim_second(port: int) -> AbstractContextManager[None]:
            if not tried:
                another.enter_context(claim(port))
            tried.append(port)
            return claim(port)

        monkeypatch.setattr(ports, "claim", claim_second)
        with ports.hold(HOST, 1, None) as held:
            assert held == (tried[1],)


def test_a_range_that_is_too_small_has_no_holders(three: tuple[int, int]) -> None:
    message = r"has 3 of the 4 free ports .* end what uses its ports$"
    with pytest.raises(OSError, match=message), ports.hold(HOST, 4, three):
        pass
    with ports.hold(HOST, 3, three) as held:
        assert len(held) == 3, "nothing is left of the attempt"


def test_ports_that_cannot_be_had_for_another_reason(three: tuple[int, int]) -> None:
    message = f"port {three[0]} on 192.0.2.254 cannot be used: Cannot assign requested address"
    with pytest.raises(OSError, match=message), ports.hold("192.0.2.254", 1, three):
        pass


def test_ports_that_others_listen_at_are_left_out(three: tuple[int, int]) -> None:
    with listening(three[0]), listening(three[0] + 1), ports.hold(HOST, 1, three) as held:
        assert held == (three[1],)


def test_a_port_is_free_again_when_a_connection_has_ended_there(three: tuple[int, int]) -> None:
    port = three[0]
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


def test_nothing_is_held_where_nothing_is_asked_for(three: tuple[int, int]) -> None:
    with ports.hold(HOST, 0, None) as none, ports.hold(HOST, 0, three) as neither:
        assert none == neither == ()
