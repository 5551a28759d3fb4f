"""The endpoint of workers and servers: lanes to the peers of the same host, sockets to all others.

A lane is tried once, when the connection is made, and is then the only way to that peer; see
:mod:`byteps_py.transport.shm` for what it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_py.errors import TransportError
from byteps_py.transport import descriptors
from byteps_py.transport.arena import Arena
from byteps_py.transport.available import LARGE_ALLOCATION, OutOfMemory
from byteps_py.transport.base import Buffer, Message, plain_memory
from byteps_py.transport.lanes import Lanes
from byteps_py.transport.zmq import ZmqEndpoint

__all__ = ["HostEndpoint"]

_log = logging.getLogger("byteps_py.transport")


class HostEndpoint:
    """An :class:`~byteps_py.transport.base.Endpoint` with sockets and lanes.

    Args:
        identity: see :class:`~byteps_py.transport.zmq.ZmqEndpoint`; this process listens for lanes under it, if it
            has at most 96 bytes.
        max_message_bytes: a peer that announces a longer frame is disconnected.
        peers: how many are expected to connect to this one, as far as that is known.
        lanes_apart: whether messages of lanes come out of :meth:`receive_lanes` only.
        mode: ``auto``: lanes where they can be had; ``tcp``: none; ``shm``: it is an error if one cannot be had.
        io_threads: see :class:`~byteps_py.transport.zmq.ZmqEndpoint`.

    Raises:
        TransportError: the limit of open files is too low.
    """

    def __init__(
        self,
        identity: bytes,
        max_message_bytes: int = 1 << 30,
        peers: int = 0,
        *,
        lanes_apart: bool = False,
        mode: str = "auto",
        io_threads: int = 1,
    ) -> None:
        descriptors.need(descriptors.context(io_threads) + descriptors.LANES + 2 * peers)
        self._sockets = ZmqEndpoint(identity, max_message_bytes, peers, io_threads=io_threads)
        self._names: set[bytes] = set()
        self._arena = Arena()
        self._lanes = Lanes(identity, self._arena, max_message_bytes, self._names)
        self._lanes_apart = lanes_apart
        self._mode = mode
        self._has_arena = mode != "tcp"
        self._sockets.watch(self._lanes.fileno())

    def listen(self, address: str, ports: Sequence[int] = ()) -> str:
        """See :meth:`byteps_py.transport.base.Endpoint.listen`.

        Raises:
            TransportError: the address cannot be bound; or, if lanes are demanded, their name.
        """
        bound = self._sockets.listen(address, ports)
        if self._mode != "tcp":
            try:
                self._lanes.listen()
            except TransportError as error:
                if self._mode == "shm":
                    raise
                _log.warning("%s: the workers of this host will come by TCP", error)
        return bound

    def connect(self, peer: bytes, address: str, identity: bytes = b"", connections: int = 1) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.connect`."""
        if peer in self._names:
            raise TransportError(f"peer {peer!r} is connected already")
        obstacle = self._connect_lane(peer, identity) if identity else "it takes none"
        if obstacle:
            self._sockets.connect(peer, address, connections=connections)
        if identity:
            way = f"over TCP ({obstacle})" if obstacle else "through shared memory"
            _log.info("%s at %s: %s", peer.decode("ascii", "replace").replace("-", " "), address, way)
        self._names.add(peer)

    def listen_lanes(self) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.listen_lanes`."""
        self._need_lanes()
        self._lanes.listen()

    def connect_lane(self, peer: bytes, identity: bytes) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.connect_lane`."""
        self._need_lanes()
        if peer in self._names:
            raise TransportError(f"peer {peer!r} is connected already")
        descriptors.need(descriptors.CONNECTION)
        self._lanes.connect(peer, identity)
        self._names.add(peer)

    def has_taken(self, peer: bytes) -> bool:
        """See :meth:`byteps_py.transport.base.Endpoint.has_taken`."""
        return self._lanes.has_taken(peer)

    def diagnose(self, peer: bytes) -> str:
        """See :meth:`byteps_py.transport.base.Endpoint.diagnose`."""
        if not self._lanes.is_target(peer):
            return self._sockets.diagnose(peer)
        return self._lanes.obstacle(peer) or "its process takes connections on this host (it may be stopped or busy)"

    def obstacle(self, peer: bytes) -> str:
        """See :meth:`byteps_py.transport.base.Endpoint.obstacle`."""
        return self._lanes.obstacle(peer) if self._lanes.is_target(peer) else self._sockets.obstacle(peer)

    def is_lane(self, peer: bytes) -> bool:
        """See :meth:`byteps_py.transport.base.Endpoint.is_lane`."""
        return self._lanes.has(peer)

    def allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """See :meth:`byteps_py.transport.base.Endpoint.allocate`. Where the system has no sealed memory files, or no
        more of them, the memory is plain unless lanes are demanded, and copied on its way."""
        if self._has_arena:
            try:
                return self._arena.allocate(nbytes)
            except OutOfMemory:  # the arena goes on
                raise
            except TransportError as error:
                if self._mode == "shm":
                    raise
                if nbytes <= LARGE_ALLOCATION:  # else it may be the size
                    self._has_arena = False
                    _log.warning("%s: what travels through lanes is copied from now on", error)
        return plain_memory(nbytes)

    def renew(self, buffer: npt.NDArray[Any] | memoryview) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.renew`."""
        self._arena.renew(buffer)

    def owns(self, buffer: npt.NDArray[Any]) -> bool:
        """See :meth:`byteps_py.transport.base.Endpoint.owns`."""
        return self._arena.locate(buffer) is not None

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        """See :meth:`byteps_py.transport.base.Endpoint.send`."""
        return self._lanes.send(peer, frames) if self._lanes.has(peer) else self._sockets.send(peer, frames)

    def receive(self, timeout: float | None) -> list[Message]:
        """See :meth:`byteps_py.transport.base.Endpoint.receive`."""
        messages = [each for each in self._sockets.receive(timeout) if not self._lanes.is_target(each.peer)]
        return messages if self._lanes_apart else messages + self._lanes.receive()

    def receive_lanes(self) -> list[Message]:
        """See :meth:`byteps_py.transport.base.Endpoint.receive_lanes`."""
        return self._lanes.receive(passes=1)  # whoever reads lanes apart waits for them anew

    def wait_lanes(self, timeout: float | None) -> bool:
        """See :meth:`byteps_py.transport.base.Endpoint.wait_lanes`."""
        return self._lanes.wait(timeout)

    def wake_lanes(self) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.wake_lanes`."""
        self._lanes.wake()

    def hold_lanes(self) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.hold_lanes`."""
        self._lanes.hold()

    def resume_lanes(self) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.resume_lanes`."""
        self._lanes.resume()

    def wake(self) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.wake`."""
        self._sockets.wake()

    def wake_in(self, seconds: float) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.wake_in`."""
        self._sockets.wake_in(seconds)

    def close(self) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.close`."""
        self._lanes.close()
        self._sockets.close()

    def _need_lanes(self) -> None:
        if self._mode == "tcp":
            raise TransportError("BYTEPS_TRANSPORT=tcp forbids shared memory")

    def _connect_lane(self, peer: bytes, identity: bytes) -> str:
        """Why there is no lane; empty if there is one.

        Raises:
            LaneError: there must be one, and nobody at the other end takes it.
            TransportError: there must be one, and this process cannot make it.
        """
        if self._mode == "tcp":
            return "BYTEPS_TRANSPORT=tcp"
        try:
            descriptors.need(descriptors.CONNECTION)
            self._lanes.connect(peer, identity)
        except TransportError as error:
            if self._mode == "shm":
                raise
            return str(error)
        return ""
