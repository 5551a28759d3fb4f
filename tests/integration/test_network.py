"""Connections that break, over TCP: nothing is lost, doubled or mixed up."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from byteps_py.session import Session
from byteps_py.transport.zmq import ZmqEndpoint
from byteps_py.types import DType, Operation, TensorSpec
from tests.helpers.cluster import cluster
from tests.helpers.jobs import free_port

ROUNDS, TENSORS, COUNT = 20, 4, 1 << 18
CUTS, BYTES_BETWEEN_CUTS = 20, 15_000_000


class Proxy:
    """Forwards connections, and cuts all of them in the middle of a message each time so many bytes have passed.

    Bytes are counted, not seconds, so that the cuts come however fast the machine is.

    Attributes:
        address: where it listens.
        target: the port of this machine to which it forwards.
        cuts: so far.
    """

    def __init__(self) -> None:
        self.target = 0
        self.cuts = 0
        self._passed = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def close(self) -> None:
        """End all connections and threads."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._threads[0].join()
        self._listener.close()
        self._cut()
        for each in self._threads:
            each.join()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            try:
                called = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the server has ended already
                caller.close()
                continue
            with self._lock:
                self._open |= {caller, called}
            for pair in ((caller, called), (called, caller)):
                self._threads.append(threading.Thread(target=self._forward, args=pair))
                self._threads[-1].start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with source, contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self._is_time(len(data)):
                    sink.sendall(data[: len(data) // 2])
                    self._cut()
                    break
                sink.sendall(data)
        with self._lock:
            self._open.discard(source)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def _is_time(self, count: int) -> bool:
        with self._lock:
            self._passed += count
            due = self.cuts < CUTS and self._passed >= (self.cuts + 1) * BYTES_BETWEEN_CUTS
            self.cuts += due
            return due

    def _cut(self) -> None:
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


class Endpoint(ZmqEndpoint):
    """Reaches servers by way of the proxy."""

    def __init__(self, identity: bytes, proxy: Proxy) -> None:
        super().__init__(identity)
        self._proxy = proxy

    def connect(self, peer: bytes, address: str, identity: bytes = b"", connections: int = 1) -> None:
        if peer.startswith(b"server-"):
            self._proxy.target = int(address.rpartition(":")[2])
            address = self._proxy.address
        super().connect(peer, address, identity, connections)


class Network:
    """Makes the endpoints of a cluster with one server."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def endpoint(self, identity: bytes) -> ZmqEndpoint:
        return Endpoint(identity, self._proxy)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


def data(rank: int, round_: int, index: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng([rank, round_, index]).standard_normal(COUNT, np.float32)


def train(session: Session) -> None:
    specs = [TensorSpec(f"t{index}", DType.FLOAT32, (COUNT,)) for index in range(TENSORS)]
    for round_ in range(ROUNDS):
        pending = [
            session.submit(spec, data(session.rank, round_, index), None, Operation.SUM, step=round_)
            for index, spec in enumerate(specs)
        ]
        for index, each in enumerate(pending):
            want = data(0, round_, index) + data(1, round_, index)
            assert each.wait().tobytes() == want.tobytes(), (round_, index)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("connections", [1, 3])
def test_sums_are_exact_while_all_connections_to_the_server_break_again_and_again(
    proxy: Proxy, connections: int
) -> None:
    network, port = Network(proxy), free_port()
    with cluster(2, 1, network=network, root_port=port, partition_bytes=1 << 18, tcp_connections=connections) as job:
        job.each(train)
        assert job.aborts == []
    assert proxy.cuts == CUTS
