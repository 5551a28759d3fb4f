"""Processes at the ends of a lane are killed, stopped, or another user's."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from byteps_py.errors import TransportError
from byteps_py.transport.base import Message
from byteps_py.transport.host import HostEndpoint
from byteps_py.transport.shm import lane_name

pytestmark = pytest.mark.timeout(120)

ANY = "tcp://127.0.0.1:0"
NAME = b"fault-%d" % os.getpid()
OTHER_USER = 65533
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

CLIENT = """
import sys, time
from byteps_py.transport.host import HostEndpoint
endpoint = HostEndpoint(b"client", mode="shm")
endpoint.connect(b"server", sys.argv[1], sys.argv[2].encode())
payload = endpoint.allocate(1 << 20)
payload[:] = 7
endpoint.send(b"server", [b"head", payload.data])
time.sleep(1000)
"""
SERVER = """
import os, sys
from byteps_py.transport.host import HostEndpoint
endpoint = HostEndpoint(sys.argv[1].encode())
print(endpoint.listen("tcp://127.0.0.1:0"), flush=True)
while True:
    for message in endpoint.receive(None):
        endpoint.send(message.peer, message.frames)
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python with a script; kills what is left of it afterwards."""
    started: list[subprocess.Popen[str]] = []

    def build(script: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield build
    for each in started:
        each.kill()
        each.wait()
        assert each.stdout is not None
        each.stdout.close()


@pytest.fixture
def endpoint() -> Iterator[HostEndpoint]:
    made = HostEndpoint(NAME)
    yield made
    made.close()


def receive(endpoint: HostEndpoint, count: int) -> list[Message]:
    messages: list[Message] = []
    deadline = time.monotonic() + 60
    while len(messages) < count and time.monotonic() < deadline:
        messages += endpoint.receive(0.2)
    assert len(messages) == count
    return messages


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:byteps_py")


def until(condition: Callable[[], bool], act: Callable[[], object] = lambda: time.sleep(0.02)) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        act()


def test_after_a_worker_is_killed_its_memory_stays_as_long_as_it_is_read(
    endpoint: HostEndpoint, start: Callable[..., subprocess.Popen[str]]
) -> None:
    gc.collect()
    before = mappings()
    client = start(CLIENT, endpoint.listen(ANY), NAME.decode())
    files = len(os.listdir("/proc/self/fd"))
    (message,) = receive(endpoint, 1)
    client.send_signal(signal.SIGKILL)
    client.wait()
    until(lambda: not endpoint.is_lane(b"client"), lambda: endpoint.receive(0.1))
    assert mappings() == before + 1
    assert bytes(message.frames[1]) == b"\7" * (1 << 20)
    assert message.intact()
    assert endpoint.send(b"client", [b"anybody there?"]) is False
    del message
    assert mappings() == before
    assert len(os.listdir("/proc/self/fd")) == files


def test_after_a_server_is_killed_its_name_is_gone(
    endpoint: HostEndpoint, start: Callable[..., subprocess.Popen[str]]
) -> None:
    name = NAME + b"-server"
    server = start(SERVER, name.decode())
    assert server.stdout is not None
    endpoint.connect(b"server", server.stdout.readline().strip(), name)
    endpoint.send(b"server", [b"hello"])
    receive(endpoint, 1)
    server.send_signal(signal.SIGKILL)
    server.wait()
    until(lambda: not endpoint.send(b"server", [b"still there?"]))
    assert f"@byteps_py/{name.decode()}" not in Path("/proc/net/unix").read_text()
    assert "no process of this host" in endpoint.obstacle(b"server")


def test_a_server_that_is_stopped_holds_up_nobody(
    endpoint: HostEndpoint, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """What does not fit into the socket waits here, and arrives in order when the server goes on."""
    name = NAME + b"-server"
    server = start(SERVER, name.decode())
    assert server.stdout is not None
    endpoint.connect(b"server", server.stdout.readline().strip(), name)
    payload = endpoint.allocate(100_000)
    server.send_signal(signal.SIGSTOP)
    for number in range(3000):
        assert endpoint.send(b"server", [b"%d" % number, payload.data, bytes(number)])
    assert endpoint.receive(0) == []
    server.send_signal(signal.SIGCONT)
    messages = receive(endpoint, 3000)
    assert [int(bytes(each.frames[0])) for each in messages] == list(range(3000))
    assert {each.frames[1].nbytes for each in messages} == {100_000}


def as_other_user(action: Callable[[], None]) -> int:
    """Do something in a forked child that is another user's; its process id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setuid(OTHER_USER)
            action()
            status = 0
        finally:
            os._exit(status)
    return child


@as_root
def test_a_client_of_another_user_is_refused(endpoint: HostEndpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.listen(ANY)

    def connect() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
            connected.settimeout(30)
            connected.connect(lane_name(NAME))
            assert connected.recv(1) == b""

    child = as_other_user(connect)
    until(lambda: f"a process of user {OTHER_USER} wanted a lane" in caplog.text, lambda: endpoint.receive(0.1))
    assert os.waitpid(child, 0)[1] == 0


@as_root
@pytest.mark.parametrize("mode", ["auto", "shm"])
def test_a_server_of_another_user_is_not_trusted(mode: str) -> None:
    """It gets no lane, and with ``shm`` the reason is told."""
    reading, writing = os.pipe()
    ending, end = os.pipe()
    name = NAME + b"-foreign"

    def listen() -> None:
        os.close(end)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(lane_name(name))
            listener.listen()
            os.write(writing, b"x")
            os.read(ending, 1)

    child = as_other_user(listen)
    os.close(ending)
    assert os.read(reading, 1) == b"x"
    client = HostEndpoint(b"client", mode=mode)
    if mode == "auto":
        client.connect(b"server", "tcp://127.0.0.1:9", name)
        assert not client.is_lane(b"server")
    else:
        with pytest.raises(TransportError, match=f"is user {OTHER_USER}'s, this one 0's"):
            client.connect(b"server", "tcp://127.0.0.1:9", name)
    client.close()
    for each in (reading, writing, end):
        os.close(each)
    assert os.waitpid(child, 0)[1] == 0
