"""TCP transport over pyzmq: one ROUTER for peers that connect to us, a DEALER for each connection that we make.

Settings that matter, and why:

* ``ROUTER_MANDATORY``: a ROUTER otherwise drops messages for unknown peers without a word.
* ``ROUTER_HANDOVER``: a peer that reconnects with the same identity is otherwise never served again.
* No high-water mark: the byte window of ``core/pipeline.py`` bounds what is queued; a mark here would block or drop.
* ``LINGER`` 0: what must arrive is acknowledged by the protocol above; the rest must not delay an exit.
* ``MAXMSGSIZE``: libzmq allocates what a frame announces, so the announcement is bounded.
* TCP keepalive and a bound on retransmission: a connection that died without a word is noticed and made anew.
* The context is made by the endpoint, so after any fork of the process that uses it.
* ``IMMEDIATE`` on further connections to a peer: what is sent while one is not there takes another one.  The first has
  it not: what is sent before the peer listens waits there.
* ``PROBE_ROUTER`` on further connections: the empty message of :mod:`~byteps_py.transport.routes`.
* ``MAX_SOCKETS``: enough for the connections to a thousand servers.
* Only numeric addresses, from :mod:`~byteps_py.transport.dialing`: libzmq would look names up on its I/O thread.

Large frames are lent to libzmq by :mod:`~byteps_py.transport.lending`, and by pyzmq where that cannot be.

Exit: pyzmq keeps what it has lent to libzmq alive until its own exit handler, which it registers when the module of its
collector is imported, by default with the first large message.  Handlers run last in, first out, so it is imported
here, before anybody can register one that closes an endpoint: else libzmq would read freed memory.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

import zmq
import zmq.utils.garbage  # see "Exit" above

from byteps_py.errors import TransportError
from byteps_py.transport import descriptors, listening
from byteps_py.transport.base import Buffer, Message, WithoutLanes, tcp_address
from byteps_py.transport.dialing import Dial
from byteps_py.transport.lending import Lender, library
from byteps_py.transport.probe import probe
from byteps_py.transport.resolve import is_numeric, resolve, split_address
from byteps_py.transport.routes import LARGE_BYTES, Routes, is_large, nbytes_of, owner, route
from byteps_py.transport.timer import Timer

__all__ = ["ZmqEndpoint"]

_BATCH: Final = 64
"""Messages taken from one socket before the others get their turn."""
_MAX_SOCKETS: Final = 1 << 14
_NO_WAIT: Final = int(zmq.NOBLOCK)  # pyzmq takes longer to look at its own enumerations
_EVENTS: Final = int(zmq.EVENTS)
_READABLE: Final = int(zmq.POLLIN)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_RECONNECT_MS: Final = 100
_RECONNECT_MAX_MS: Final = 1000
_KEEPALIVE_SECONDS: Final = 10
_RETRANSMIT_MS: Final = 15_000


class ZmqEndpoint(WithoutLanes):
    """An :class:`~byteps_py.transport.base.Endpoint` over TCP.

    Args:
        identity: how this process presents itself to the peers it connects to; unique in the job, 1 to 255 bytes,
            not starting with a zero byte, without a slash.
        max_message_bytes: a peer that announces a longer frame is disconnected.
        peers: how many are expected to connect to this one, as far as that is known.
        io_threads: libzmq's threads that move the bytes; connections are spread over them.

    Raises:
        TransportError: the limit of open files is too low.
    """

    def __init__(
        self, identity: bytes, max_message_bytes: int = 1 << 30, peers: int = 0, *, io_threads: int = 1
    ) -> None:
        super().__init__()
        descriptors.need(descriptors.context(io_threads) + peers)
        self._identity = identity
        self._max_message_bytes = max_message_bytes
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._router: zmq.Socket[bytes] | None = None
        self._dealers: dict[bytes, zmq.Socket[bytes]] = {}
        self._turns: dict[bytes, deque[zmq.Socket[bytes]]] = {}
        self._connections: dict[bytes, int] = {}
        self._names: dict[zmq.Socket[bytes], bytes] = {}
        self._routes = Routes()
        self._addresses: dict[bytes, tuple[str, int]] = {}
        self._dials: dict[bytes, Dial] = {}
        self._poller = zmq.Poller()
        self._wake_lock = threading.Lock()
        self._lender = _lender()
        # What pyzmq lends starts its collector: now, since from Python 3.12 on nothing can be started in a process that
        # is exiting, and a worker may send its first large message then.
        zmq.Frame(bytes(zmq.COPY_THRESHOLD), copy=False)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake_fd, zmq.POLLIN)
        self._timer = Timer()
        self._poller.register(self._timer.fileno(), zmq.POLLIN)

    def listen(self, address: str, ports: Sequence[int] = ()) -> str:
        """See :meth:`byteps_py.transport.base.Endpoint.listen`, and :mod:`byteps_py.transport.listening`."""
        host, port = split_address(address)
        descriptors.raise_limit()
        descriptors.need(descriptors.LISTENER)
        router = self._open(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        try:
            bound = listening.bind(router, host, port, ports)
        except BaseException:
            router.close(0)  # an open socket would keep close() from ever returning
            raise
        self._router = router
        self._poller.register(router, zmq.POLLIN)
        return bound

    def connect(self, peer: bytes, address: str, identity: bytes = b"", connections: int = 1) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.connect`. A name is looked up meanwhile, and again."""
        if peer in self._addresses:
            raise TransportError(f"peer {peer!r} is connected already")
        host, port = split_address(address)
        descriptors.need(descriptors.CONNECTION * connections)
        self._connections[peer] = connections
        if is_numeric(host):
            self._attach(peer, tcp_address(resolve(host, port)[0], port))
        else:
            self._dials[peer] = Dial(host, port, self.wake)
        self._addresses[peer] = host, port

    def diagnose(self, peer: bytes) -> str:
        """See :meth:`byteps_py.transport.base.Endpoint.diagnose`."""
        dial = self._dials.get(peer)
        return probe(*self._addresses[peer]).text if dial is None else dial.trouble

    def obstacle(self, peer: bytes) -> str:
        """See :meth:`byteps_py.transport.base.Endpoint.obstacle`."""
        dial = self._dials.get(peer)
        if dial is not None and dial.connected is None:
            return dial.obstacle
        finding = probe(*self._addresses[peer])
        return finding.text if finding.is_in_the_way else ""

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        """See :meth:`byteps_py.transport.base.Endpoint.send`. Frames under 64 KiB are copied, larger ones are lent."""
        dealer = self._dealers.get(peer)
        try:
            if dealer is None and peer in self._dials:
                self._dials[peer].unsent.append(frames)
            elif dealer is not None and peer in self._turns and is_large(frames):
                return self._send_in_turn(self._turns[peer], frames)
            elif dealer is not None:
                self._send(dealer, frames)
            else:
                return self._router is not None and self._answer(self._router, peer, frames)
        except zmq.ZMQError as error:
            if error.errno in (errno.EHOSTUNREACH, errno.EAGAIN):
                return False
            raise TransportError(f"cannot send to {peer!r}: {error}") from error
        return True

    def receive(self, timeout: float | None) -> list[Message]:
        """See :meth:`byteps_py.transport.base.Endpoint.receive`."""
        milliseconds = None if timeout is None else max(0, -int(-timeout * 1000 // 1))
        messages: list[Message] = []
        if self._dials:
            self._follow_dials()
        if self._lender is not None:
            self._lender.collect()
        for source, _ in self._poller.poll(milliseconds):
            if source == self._wake_fd:
                os.eventfd_read(self._wake_fd)
            elif source == self._timer.fileno():
                self._timer.read()
            elif not isinstance(source, int):
                self._drain(source, messages)
        return messages

    def watch(self, descriptor: int) -> None:
        """From now on, :meth:`receive` also returns when ``descriptor`` can be read, which is left to the caller."""
        self._poller.register(descriptor, zmq.POLLIN)

    def wake(self) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.wake`."""
        with self._wake_lock:  # a closed descriptor's number may already be somebody else's
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def wake_in(self, seconds: float) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.wake_in`."""
        with self._wake_lock:
            if self._wake_fd >= 0:
                self._timer.set(seconds)

    def close(self) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.close`."""
        if self._wake_fd < 0:
            return
        for dial in self._dials.values():
            dial.stop()
        for each in (*self._names, self._router):
            if each is not None:
                each.close(0)
        self._context.term()
        if self._lender is not None:
            self._lender.collect()
        with self._wake_lock:
            os.close(self._wake_fd)
            self._timer.close()
            self._wake_fd = -1

    def _attach(self, peer: bytes, target: str) -> None:
        """Connect to a numeric address."""
        dealers = deque(self._dial(peer, target, number) for number in range(self._connections[peer]))
        self._dealers[peer] = dealers[0]
        if len(dealers) > 1:
            self._turns[peer] = dealers

    def _dial(self, peer: bytes, target: str, number: int) -> zmq.Socket[bytes]:
        """Make one connection of several."""
        dealer = self._open(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, route(self._identity, number))
        dealer.setsockopt(zmq.IMMEDIATE, number > 0)
        dealer.setsockopt(zmq.PROBE_ROUTER, number > 0)
        dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        try:
            dealer.connect(target)
        except zmq.ZMQError as error:
            dealer.close(0)
            raise TransportError(f"cannot connect to {target}: {error}") from error
        self._names[dealer] = peer
        self._poller.register(dealer, zmq.POLLIN)
        return dealer

    def _send_in_turn(self, dealers: deque[zmq.Socket[bytes]], frames: Sequence[Buffer]) -> bool:
        """By the next connection that is there."""
        for _ in range(len(dealers)):
            dealers.rotate(-1)
            try:
                self._send(dealers[0], frames)
            except zmq.ZMQError as error:
                if error.errno != errno.EAGAIN:
                    raise
            else:
                return True
        return False

    def _answer(self, router: zmq.Socket[bytes], peer: bytes, frames: Sequence[Buffer]) -> bool:
        """To one that connected to us."""
        for each in self._routes.candidates(peer, frames):
            try:
                router.send(each, _MORE)
            except zmq.ZMQError as error:
                if error.errno != errno.EHOSTUNREACH:
                    raise
                self._routes.drop(each)
            else:
                self._send(router, frames)
                return True
        return False

    def _send(self, socket: zmq.Socket[bytes], frames: Sequence[Buffer]) -> None:
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            flags = _MORE if index < last else _NO_WAIT
            if nbytes_of(frame) < LARGE_BYTES:
                socket.send(frame, flags)
                continue
            error = None if self._lender is None else self._lender.send(socket.underlying, frame, flags)
            if error is None:  # nothing of the kind here, or too many at once
                socket.send(frame, flags, copy=False)
            elif error:
                raise zmq.ZMQError(error)

    def _follow_dials(self) -> None:
        """Connect to what the searches have found since."""
        for peer, dial in self._dials.items():
            target = dial.target()
            if target is None:
                continue
            if dial.connected is None:
                self._attach(peer, target)
            else:  # what has not been answered there may be lost; the protocol above repeats it
                for dealer in self._turns.get(peer, (self._dealers[peer],)):
                    dealer.disconnect(dial.connected)
                    dealer.connect(target)
            dial.connected = target
            self._addresses[peer] = split_address(target)  # to look up the name again could take long
            unsent, dial.unsent = dial.unsent, []
            for frames in unsent:
                self.send(peer, frames)

    def _open(self, kind: int) -> zmq.Socket[bytes]:
        try:
            opened = self._context.socket(kind)
        except zmq.ZMQError as error:
            raise TransportError(f"cannot open a socket: {error}") from error
        opened.setsockopt(zmq.LINGER, 0)
        opened.setsockopt(zmq.SNDHWM, 0)
        opened.setsockopt(zmq.RCVHWM, 0)
        opened.setsockopt(zmq.IPV6, 1)
        opened.setsockopt(zmq.MAXMSGSIZE, self._max_message_bytes)
        opened.setsockopt(zmq.TCP_KEEPALIVE, 1)
        opened.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_SECONDS)
        opened.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_SECONDS)
        opened.setsockopt(zmq.TCP_KEEPALIVE_CNT, 2)
        opened.setsockopt(zmq.TCP_MAXRT, _RETRANSMIT_MS)
        return opened

    def _drain(self, source: zmq.Socket[bytes], messages: list[Message]) -> None:
        """Take what is there, at most a batch; all frames are taken over as they are."""
        peer = self._names.get(source)
        if peer in self._dials:
            self._dials.pop(peer).stop()  # it answers: this is the one that was searched
        receive = source.recv
        for _ in range(_BATCH):
            try:
                first = frame = receive(_NO_WAIT, copy=False)
            except zmq.Again:  # the poller may be wrong
                return
            frames = [] if peer is None else [first.buffer]
            while frame.more:
                frame = receive(_NO_WAIT, copy=False)
                frames.append(frame.buffer)
            sender = self._sender(first.bytes, frames) if peer is None else peer
            if sender is not None:
                messages.append(Message(sender, frames))
            if not int(source.get(_EVENTS)) & _READABLE:  # takes a third of the time of the exception
                return

    def _sender(self, presented: bytes, frames: Sequence[memoryview]) -> bytes | None:
        """Who sent what came from one that presents itself so; None if it is not to be delivered."""
        sender = owner(presented)
        # Nobody may pose as one whom we connected to. A name of libzmq's own making has a connection whose identity a
        # newer one has taken over: what it still holds is out of date, and nobody could be answered.
        if sender in self._addresses or presented[:1] == b"\0":
            return None
        if sender != presented:
            self._routes.add(sender, presented)
            if len(frames) == 1 and not frames[0].nbytes:
                return None
        return sender


def _lender() -> Lender | None:
    """None where memory must be lent in pyzmq's own way."""
    try:
        return Lender(library())
    except LookupError:
        return None
