"""benchmarks/ceilings.py compares what has arrived."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from benchmarks import ceilings


def received(*buffers: np.ndarray, seed: int) -> float:
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def send() -> None:
            for each in buffers:
                ours.sendall(each.data)
            ours.shutdown(socket.SHUT_WR)

        sending = threading.Thread(target=send)
        sending.start()
        try:
            return ceilings._receive_stream(theirs, 100_000, seed)
        finally:
            sending.join()


def test_the_stream_is_compared() -> None:
    data = ceilings.random_bytes(100_000, 4)
    assert received(data, data, data, seed=4) > 0
    with pytest.raises(ceilings.WrongBytes, match="the bytes that came are not those that were sent"):
        received(data, data, seed=5)


def test_a_copy() -> None:
    assert ceilings.memcpy(4096, 0.0, 1) > 0
