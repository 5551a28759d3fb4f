"""All lanes of a process: who listens, who connects, and who waits for them.

Three nested sets of descriptors (epoll(7)) let one thread wait for everything and another for the lanes alone:

=========  ================================================  ==========================================================
set        holds                                             waited for by
=========  ================================================  ==========================================================
inner      the lanes, and the socket that listens for them   nobody; looked at by :meth:`Lanes.receive`
outer      the inner set, but not between hold and resume    the thread in ``Endpoint.receive``, by :meth:`Lanes.fileno`
waiting    the inner set, and what :meth:`Lanes.wake` sets   the thread in :meth:`Lanes.wait`
=========  ================================================  ==========================================================

A peer that this side has connected to is tried again when something is sent to it and its lane is gone; a peer that
connects once more under the same identity takes the place of its former lane.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from byteps_py.errors import RemoteProtocolError, TransportError
from byteps_py.transport.arena import Arena
from byteps_py.transport.base import Buffer, LaneError, Message
from byteps_py.transport.packets import LONGEST_PACKET
from byteps_py.transport.shm import Lane, lane_name, user_of

__all__ = ["Lanes"]

_log = logging.getLogger("byteps_py.transport")
_BACKLOG: Final = 1024
_BATCH: Final = 64
"""Packets taken from one lane before the sockets get their turn."""
_MAX_STRANGERS: Final = 64
"""Most connections that have not said who they are."""
_RETRY_SECONDS: Final = 0.1
_in_use: weakref.WeakSet[Lanes] = weakref.WeakSet()


class _Target(NamedTuple):
    """A peer that this side connects to."""

    name: bytes
    identity: bytes


class Lanes:
    """The lanes of one endpoint; who may call what, and when, stands at :class:`byteps_py.transport.base.Endpoint`.

    Args:
        identity: the own one.
        arena: where frames may lie that are referred to.
        max_message_bytes: see :class:`~byteps_py.transport.shm.Lane`.
        refused: whoever presents one of these names is turned away.
    """

    def __init__(self, identity: bytes, arena: Arena, max_message_bytes: int, refused: Container[bytes] = ()) -> None:
        self._identity = identity
        self._arena = arena
        self._max_message_bytes = max_message_bytes
        self._refused = refused
        self._inner, self._outer, self._waiting = select.epoll(), select.epoll(), select.epoll()
        self._is_held = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_lock = threading.Lock()
        self._outer.register(self._inner, select.EPOLLIN)
        self._waiting.register(self._inner, select.EPOLLIN)
        self._waiting.register(self._wake_fd, select.EPOLLIN)
        self._listener: socket.socket | None = None
        self._is_accepting = True
        self._targets: dict[bytes, _Target] = {}
        self._retry_at: dict[bytes, float] = {}
        self._named: dict[bytes, Lane] = {}
        self._open: dict[int, Lane] = {}
        self._full: set[int] = set()
        self._space = memoryview(bytearray(LONGEST_PACKET))
        _in_use.add(self)

    def fileno(self) -> int:
        """What can be read when :meth:`receive` has something to do, unless another thread waits for that."""
        return self._outer.fileno()

    def listen(self) -> None:
        """Take connections from now on.

        Raises:
            TransportError: the name is taken, or too long.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(lane_name(self._identity))
            listener.listen(_BACKLOG)
        except (OSError, TransportError) as error:
            listener.close()
            raise TransportError(f"cannot listen for lanes as {_shown(self._identity)}: {error}") from error
        listener.setblocking(False)
        self._listener = listener
        self._inner.register(listener, select.EPOLLIN)

    def connect(self, peer: bytes, identity: bytes) -> None:
        """Make the lane to the process of that identity, which is called ``peer`` from now on.

        Raises:
            LaneError: there is nobody at the other end who takes it; nothing has changed, as below.
            TransportError: this process or its system cannot make it.
        """
        target = _Target(peer, identity)
        self._connect(target)
        self._targets[peer] = target

    def has(self, peer: bytes) -> bool:
        """Whether ``peer`` is reached by a lane, though it may be broken for the moment."""
        return peer in self._named or peer in self._targets

    def is_target(self, peer: bytes) -> bool:
        """Whether this side has connected to ``peer`` by a lane."""
        return peer in self._targets

    def obstacle(self, peer: bytes) -> str:
        """Why a lane to ``peer``, to which this side has connected, cannot be made; empty if it can."""
        try:
            self._dial(self._targets[peer].identity).close()
        except TransportError as error:
            return str(error)
        return ""

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        """Send to one of whom :meth:`has` is true. False if the lane is gone and cannot be made again at once."""
        lane = self._named.get(peer) or self._reconnect(peer)
        if lane is None:
            return False
        try:
            lane.send(frames)
        except OSError:
            self._close(lane)
            return False
        if lane.is_full:
            self._watch(lane)
        return True

    def has_taken(self, peer: bytes) -> bool:
        """Whether ``peer`` has read all that was sent to it, or its lane is gone."""
        lane = self._named.get(peer)
        return lane is None or lane.is_taken()

    def receive(self, passes: int = _BATCH) -> list[Message]:
        """Do what can be done without waiting: take messages and connections, send what was queued.

        Args:
            passes: how many packets are taken from each lane at most; there may be more.
        """
        messages: list[Message] = []
        for _ in range(passes):
            events = self._inner.poll(0)
            if not events:
                break
            for descriptor, event in events:
                lane = self._open.get(descriptor)
                if lane is None:
                    self._accept()
                else:
                    self._serve(lane, event, messages)
        return messages

    def wait(self, timeout: float | None) -> bool:
        """Until there is something for :meth:`receive`, or :meth:`wake`; False if the time was up."""
        events = self._waiting.poll(timeout)
        for descriptor, _ in events:
            if descriptor == self._wake_fd:
                with contextlib.suppress(BlockingIOError):  # another thread has seen it, too
                    os.eventfd_read(descriptor)
        return bool(events)

    def wake(self) -> None:
        """End a present or the next :meth:`wait`. Any thread."""
        with self._wake_lock:  # a closed descriptor's number may already be somebody else's
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def hold(self) -> None:
        """:meth:`fileno` shows nothing from now on."""
        with self._wake_lock:
            if not self._is_held and self._wake_fd >= 0:
                with contextlib.suppress(FileNotFoundError):  # interrupted here before
                    self._outer.unregister(self._inner)
                self._is_held = True

    def resume(self) -> None:
        """End :meth:`hold`."""
        with self._wake_lock:
            if self._is_held and self._wake_fd >= 0:
                with contextlib.suppress(FileExistsError):  # the same
                    self._outer.register(self._inner, select.EPOLLIN)
                self._is_held = False

    def close(self) -> None:
        """Close everything at once. Idempotent."""
        with self._wake_lock:
            self.forget()

    def forget(self) -> None:
        """As :meth:`close`, without any lock and without a word to the kernel's sets: these are shared by a process
        and its forked child, where this is called."""
        for each in self._open.values():
            each.close()
        if self._listener is not None:
            self._listener.close()
        for each_set in (self._outer, self._waiting, self._inner):
            each_set.close()
        descriptor, self._wake_fd = self._wake_fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def renew_lock(self) -> None:
        """In a forked child: a thread that the child does not have may have held it."""
        self._wake_lock = threading.Lock()

    def _dial(self, identity: bytes) -> socket.socket:
        dialling = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        dialling.setblocking(False)
        try:
            dialling.connect(lane_name(identity))
            user = user_of(dialling)
            if user != os.geteuid():
                raise LaneError(f"the process that listens there is user {user}'s, this one {os.geteuid()}'s")
        except OSError as error:
            dialling.close()
            if error.errno == errno.ECONNREFUSED:
                raise LaneError("no process of this host (or container) listens for its lanes") from error
            raise TransportError(f"a lane to {_shown(identity)} cannot be connected: {error.strerror}") from error
        except TransportError:
            dialling.close()
            raise
        return dialling

    def _connect(self, target: _Target) -> Lane:
        try:
            connection = self._dial(target.identity)
        except OSError as error:  # no descriptor left
            raise TransportError(
                f"cannot open a socket for the lane to {_shown(target.identity)}: {error.strerror}"
            ) from error
        lane = Lane(connection, self._identity, self._arena, self._max_message_bytes, *target)
        try:
            lane.greet(target.identity)
        except OSError as error:
            lane.close()
            raise LaneError(f"{_shown(target.identity)} has closed the lane: {error.strerror}") from error
        self._add(lane)
        self._named[target.name] = lane
        return lane

    def _reconnect(self, peer: bytes) -> Lane | None:
        target = self._targets.get(peer)
        now = time.monotonic()
        if target is None or now < self._retry_at.get(peer, now):
            return None
        self._retry_at[peer] = now + _RETRY_SECONDS
        try:
            return self._connect(target)
        except TransportError:
            return None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # at the limit of open files it would be tried again and again
            _log.warning("no lane can be accepted before another is closed: %s", error.strerror)
            self._inner.unregister(self._listener)
            self._is_accepting = False
            return
        user = user_of(connection)
        if user != os.geteuid():
            _log.warning("a process of user %d wanted a lane to this one of user %d: refused", user, os.geteuid())
            connection.close()
        elif len(self._open) - len(self._named) >= _MAX_STRANGERS:
            connection.close()
        else:
            self._add(Lane(connection, self._identity, self._arena, self._max_message_bytes))

    def _add(self, lane: Lane) -> None:
        self._open[lane.fileno()] = lane
        self._inner.register(lane.fileno(), select.EPOLLIN)
        if lane.is_full:
            self._watch(lane)

    def _serve(self, lane: Lane, event: int, messages: list[Message]) -> None:
        try:
            if event & select.EPOLLOUT:
                lane.flush()
                self._watch(lane)
            if event & ~select.EPOLLOUT:
                was_stranger = lane.peer is None
                if not lane.read(self._space, messages):
                    self._close(lane)
                elif was_stranger and lane.peer is not None:
                    self._admit(lane, lane.peer)
        except RemoteProtocolError as error:
            _log.warning("the lane of %s is closed, for it brought nonsense: %s", _shown(lane.peer or b"?"), error)
            self._close(lane)
        except OSError:
            self._close(lane)

    def _admit(self, lane: Lane, peer: bytes) -> None:
        if peer in self._refused:
            raise RemoteProtocolError("it presents the name of one whom this process has connected to")
        former = self._named.get(peer)
        if former is not None:
            self._close(former)
        self._named[peer] = lane
        lane.greet(peer)
        self._watch(lane)

    def _watch(self, lane: Lane) -> None:
        """Wait for room in the lane if it is full, and only then."""
        descriptor = lane.fileno()
        if lane.is_full == (descriptor in self._full):
            return
        if lane.is_full:
            self._full.add(descriptor)
            self._inner.modify(descriptor, select.EPOLLIN | select.EPOLLOUT)
        else:
            self._full.remove(descriptor)
            self._inner.modify(descriptor, select.EPOLLIN)

    def _close(self, lane: Lane) -> None:
        descriptor = lane.fileno()
        if self._open.pop(descriptor, None) is None:
            return
        self._inner.unregister(descriptor)  # a forked child may have the connection open for a while
        self._full.discard(descriptor)
        lane.close()
        if lane.peer is not None and self._named.get(lane.peer) is lane:
            del self._named[lane.peer]
        if not self._is_accepting and self._listener is not None:
            self._inner.register(self._listener, select.EPOLLIN)
            self._is_accepting = True


def _shown(identity: bytes) -> str:
    return repr(identity)[2:-1]


def _forget_in_child() -> None:
    """A forked child must not keep the lanes open: the other end is to notice when their owner is gone."""
    for each in list(_in_use):
        each.renew_lock()
        each.forget()


os.register_at_fork(after_in_child=_forget_in_child)
