"""A network inside one process, for tests: threads (or one thread, step by step) exchange messages.

Messages are delivered at once and in order.  ``network.deliver`` may be replaced to lose, repeat or hold messages.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from byteps_py.errors import TransportError
from byteps_py.transport.base import Buffer, Message, WithoutLanes

__all__ = ["LoopbackEndpoint", "LoopbackNetwork"]


class LoopbackNetwork:
    """Where the endpoints find each other. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.listeners: dict[str, LoopbackEndpoint] = {}
        self._ports = 0

    def endpoint(self, identity: bytes) -> LoopbackEndpoint:
        """A new endpoint that presents itself as ``identity``."""
        return LoopbackEndpoint(self, identity)

    def bind(self, address: str, endpoint: LoopbackEndpoint) -> str:
        """Give ``address`` to ``endpoint``; port 0 takes a free number."""
        with self.lock:
            host, _, port = address.rpartition(":")
            if port == "0":
                self._ports += 1
                address = f"{host}:{50000 + self._ports}"
            if address in self.listeners:
                raise TransportError(f"{address} is in use by another endpoint")
            self.listeners[address] = endpoint
            return address

    def deliver(self, receiver: LoopbackEndpoint, message: Message) -> None:
        """Hand one message over; tests replace this to disturb the traffic."""
        receiver.enqueue(message)


class LoopbackEndpoint(WithoutLanes):
    """An :class:`~byteps_py.transport.base.Endpoint` of a :class:`LoopbackNetwork`."""

    def __init__(self, network: LoopbackNetwork, identity: bytes) -> None:
        super().__init__()
        self._network = network
        self._identity = identity
        self._targets: dict[bytes, str] = {}
        self._unsent: dict[bytes, list[list[memoryview]]] = {}
        self._accepted: dict[bytes, tuple[LoopbackEndpoint, bytes]] = {}
        self._inbox: deque[Message] = deque()
        self._ready = threading.Condition(network.lock)
        self._woken = False
        self._address: str | None = None
        self._lane_address: str | None = None
        self._closed = False
        self._wake_at: float | None = None

    def listen(self, address: str, ports: Sequence[int] = ()) -> str:
        """See :meth:`byteps_py.transport.base.Endpoint.listen`; every number of ``ports`` counts as free."""
        if ports and address.endswith(":0"):
            address = f"{address[:-1]}{ports[0]}"
        self._address = self._network.bind(address, self)
        return self._address

    def connect(self, peer: bytes, address: str, identity: bytes = b"", connections: int = 1) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.connect`. There is one connection, whatever is asked for."""
        with self._network.lock:
            if peer in self._targets:
                raise TransportError(f"peer {peer!r} is connected already")
            self._targets[peer] = address
            self._unsent[peer] = []

    def listen_lanes(self) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.listen_lanes`; what comes by a lane is received as all else."""
        self._lane_address = self._network.bind(_lane(self._identity), self)

    def connect_lane(self, peer: bytes, identity: bytes) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.connect_lane`."""
        if _lane(identity) not in self._network.listeners:
            raise TransportError(f"nobody listens for lanes as {identity.decode()}")
        self.connect(peer, _lane(identity))

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        """See :meth:`byteps_py.transport.base.Endpoint.send`."""
        views = [memoryview(bytearray(each)) for each in frames]
        with self._network.lock:
            if peer in self._targets:
                self._unsent[peer].append(views)
                self.flush()
                return True
            target = self._accepted.get(peer)
            if target is None or target[0]._closed:
                return False
            self._network.deliver(target[0], Message(target[1], views))
            return True

    def diagnose(self, peer: bytes) -> str:
        """See :meth:`byteps_py.transport.base.Endpoint.diagnose`."""
        return ""

    def obstacle(self, peer: bytes) -> str:
        """See :meth:`byteps_py.transport.base.Endpoint.obstacle`."""
        return ""

    def flush(self) -> None:
        """Deliver what was sent before the listener was there."""
        for peer, address in self._targets.items():
            listener = self._network.listeners.get(address)
            if listener is None or listener._closed:
                continue
            queue, self._unsent[peer] = self._unsent[peer], []
            if self._identity in listener._targets:
                continue  # nobody may pose as one whom the listener connected to
            listener._accepted[self._identity] = (self, peer)
            for views in queue:
                self._network.deliver(listener, Message(self._identity, views))

    def enqueue(self, message: Message) -> None:
        """Called by the network."""
        with self._ready:
            if not self._closed:
                self._inbox.append(message)
                self._ready.notify_all()

    def receive(self, timeout: float | None) -> list[Message]:
        """See :meth:`byteps_py.transport.base.Endpoint.receive`."""
        with self._ready:
            self.flush()
            if self._wake_at is not None:
                left = max(0.0, self._wake_at - time.monotonic())
                timeout = left if timeout is None else min(left, timeout)
            self._ready.wait_for(lambda: self._inbox or self._woken, timeout)
            if self._wake_at is not None and time.monotonic() >= self._wake_at:
                self._wake_at = None
            self._woken = False
            messages = list(self._inbox)
            self._inbox.clear()
            return messages

    def wake(self) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.wake`."""
        with self._ready:
            self._woken = True
            self._ready.notify_all()

    def wake_in(self, seconds: float) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.wake_in`."""
        with self._ready:
            self._wake_at = time.monotonic() + seconds
            self._woken = True  # a present receive() sleeps for too long
            self._ready.notify_all()

    def close(self) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.close`."""
        with self._network.lock:
            self._closed = True
            for address in (self._address, self._lane_address):
                if address is not None and self._network.listeners.get(address) is self:
                    del self._network.listeners[address]


def _lane(identity: bytes) -> str:
    """Where that endpoint listens for lanes."""
    return f"lane://{identity.decode()}:1"
