"""What this machine can do at most: copies within a process, and bytes from one process to another.

Every figure is GB/s (10^9 bytes), of bytes that have arrived: a copied byte counts once, though it is read and written,
and so does one that is echoed, though it goes both ways.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import numpy.typing as npt
import zmq

Bytes = npt.NDArray[np.uint8]
IN_FLIGHT = (2, 4, 8, 16)
_ANSWER_MS = 30_000


class WrongBytes(Exception):
    """What came is not what was sent."""


def random_bytes(size: int, seed: int) -> Bytes:
    """Both ends can make them."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def memcpy(size: int, seconds: float, seed: int) -> float:
    """Copy ``size`` bytes again and again between two buffers, by one thread.

    Raises:
        WrongBytes: the copy differs.
    """
    source = random_bytes(size, seed)
    target = np.zeros_like(source)
    np.copyto(target, source)
    repeats, started = 0, time.perf_counter()
    while (taken := time.perf_counter() - started) < seconds or not repeats:
        np.copyto(target, source)
        repeats += 1
    _compare(target, source, "memcpy")
    return repeats * size / taken / 1e9


def stream(family: socket.AddressFamily, size: int, seconds: float, seed: int) -> float:
    """Send ``size`` bytes again and again over a plain stream socket into a prepared buffer of another process.

    Args:
        family: AF_INET, over loopback, or AF_UNIX.
        size, seconds, seed: of the buffer; about; of its content.

    Raises:
        WrongBytes: the last buffer differs from what was sent.
    """
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.bind(("127.0.0.1", 0) if family is socket.AF_INET else "")
        listening.listen(1)
        with _other(_send_stream, int(family), listening.getsockname(), size, seconds, seed):
            listening.settimeout(_ANSWER_MS / 1000)
            connection, _ = listening.accept()
            with connection:
                return _receive_stream(connection, size, seed)


def _receive_stream(connection: socket.socket, size: int, seed: int) -> float:
    """The first buffer is the warm-up."""
    buffer = np.zeros(size, np.uint8)
    view = buffer.data
    filled, total, started, last = 0, 0, 0.0, 0.0
    while count := connection.recv_into(view[filled:]):
        filled += count
        if filled == size:
            last = time.perf_counter()
            total += size if started else 0
            started, filled = started or last, 0
    _compare(buffer, random_bytes(size, seed), "the stream")
    return total / (last - started) / 1e9 if total else 0.0


def _send_stream(pipe: Connection, family: int, address: Any, size: int, seconds: float, seed: int) -> None:
    data = random_bytes(size, seed).data
    with socket.socket(socket.AddressFamily(family), socket.SOCK_STREAM) as sending:
        sending.connect(address)
        if family == socket.AF_INET:
            sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sending.sendall(data)
        started, sent = time.perf_counter(), 0
        while time.perf_counter() - started < seconds or not sent:
            sending.sendall(data)
            sent += 1


def zmq_echo(size: int, in_flight: int, seconds: float, seed: int) -> float:
    """Frames of ``size`` bytes from a DEALER to the ROUTER of another process and back, over loopback TCP.

    Neither end copies what it sends or receives (``copy=False``), but each frame that has come back is copied out into
    a prepared buffer, as a result must be.

    Args:
        size, seconds, seed: of a frame; about; of its content.
        in_flight: frames that are on the way at the same time.

    Raises:
        WrongBytes: a frame that came back differs from what was sent.
        TimeoutError: none came back.
    """
    data = random_bytes(size, seed)
    out = np.zeros_like(data)
    frame: Any = data.data  # pyzmq's types know no buffer before Python 3.12
    with _other(_echo) as pipe, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.set(zmq.LINGER, 0)
        dealer.set_hwm(0)
        dealer.connect(pipe.recv())
        for _ in range(in_flight):
            dealer.send(frame, copy=False)
        for _ in range(2 * in_flight):
            _one_back(dealer, out)
            dealer.send(frame, copy=False)
        _compare(out, data, "the echo")
        out.fill(0)
        frames, started = 0, time.perf_counter()
        while (taken := time.perf_counter() - started) < seconds or not frames:
            _one_back(dealer, out)
            dealer.send(frame, copy=False)
            frames += 1
        _compare(out, data, "the echo")
        for _ in range(in_flight):
            _one_back(dealer, out)
        dealer.send(b"")
        dealer.recv()
    return frames * size / taken / 1e9


def _one_back(dealer: zmq.Socket[bytes], out: Bytes) -> None:
    if not dealer.poll(_ANSWER_MS):
        raise TimeoutError(f"no frame came back within {_ANSWER_MS / 1000:.0f} s")
    np.copyto(out, np.frombuffer(dealer.recv(copy=False).buffer, np.uint8))


def _echo(pipe: Connection) -> None:
    """The other process: all frames go back, the empty one as the last."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.set_hwm(0)
        pipe.send(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
        while True:
            frames = router.recv_multipart(copy=False)
            router.send_multipart(frames, copy=False)
            if len(frames[-1].buffer) == 0:
                return


@contextlib.contextmanager
def _other(target: Any, *arguments: Any) -> Iterator[Connection]:
    """Another process that runs ``target(pipe, *arguments)``; it is ended with the block."""
    context = multiprocessing.get_context("spawn")  # threads of libzmq do not survive a fork
    ours, theirs = context.Pipe()
    process: BaseProcess = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
        process.join(5)
    finally:
        process.kill()
        process.join()
        ours.close()


def _compare(found: Bytes, sent: Bytes, what: str) -> None:
    if not np.array_equal(found, sent):
        raise WrongBytes(f"{what}: the bytes that came are not those that were sent")
