"""Memory lent to libzmq comes back by a flag."""

from __future__ import annotations

import errno
import importlib
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import zmq

from byteps_py.kernels._native import lib
from byteps_py.transport import lending
from byteps_py.transport import zmq as transport
from byteps_py.transport.lending import LOANS, Lender
from byteps_py.transport.zmq import ZmqEndpoint

LIBRARY = lending.library()


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """Two sockets; in one process a frame is not copied on its way."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    left, right = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    left.bind("inproc://lending")
    right.connect("inproc://lending")
    yield left, right
    left.close(0)
    right.close(0)
    context.term()


def test_nothing_is_copied_and_nothing_kept_for_longer(pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]) -> None:
    lender = Lender(LIBRARY)
    memory = np.arange(100_000, dtype=np.uint8)
    end = weakref.ref(memory)
    assert lender.send(pair[0].underlying, memory.data, zmq.SNDMORE) == 0
    assert lender.send(pair[0].underlying, memory.data[:10], 0) == 0
    first, second = pair[1].recv_multipart(copy=False)
    memory[0] = 77
    assert bytes(first.buffer[:3]) == b"\x4d\x01\x02"
    assert len(second) == 10
    del memory
    lender.collect()
    assert end() is not None
    del first, second
    lender.collect()
    assert end() is None


def test_what_is_not_sent_is_not_lent() -> None:
    lender, before = Lender(LIBRARY), len(lending._free)
    with zmq.Context() as context, context.socket(zmq.PAIR) as alone:
        assert lender.send(alone.underlying, bytes(10), int(zmq.NOBLOCK)) == errno.EAGAIN
    lender.collect()
    assert len(lending._free) == before


def test_the_number_of_loans_is_limited(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lender = Lender(LIBRARY)
    monkeypatch.setattr(lending, "_free", type(lending._free)([LOANS - 1]))
    assert lender.send(pair[0].underlying, b"once", 0) == 0
    assert lender.send(pair[0].underlying, b"twice", 0) is None
    assert pair[1].recv() == b"once"
    assert lender.send(pair[0].underlying, b"thrice", 0) == 0
    assert pair[1].recv() == b"thrice"
    lender.collect()


def test_the_number_is_that_of_the_extension() -> None:
    assert lib.BYTEPS_MAX_LOANS == LOANS


def test_a_library_that_is_not_libzmq() -> None:
    with pytest.raises(LookupError, match=r"cannot be lent to libzmq: .*zmq_msg_init_data"):
        Lender(importlib.import_module("_ctypes").__file__ or "")


def test_a_pyzmq_without_an_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "_EXTENSIONS", ("zmq.backend.none",))
    with pytest.raises(LookupError, match=r"pyzmq has none of zmq\.backend\.none"):
        lending.library()
    assert transport._lender() is None


@pytest.mark.parametrize("way", ["own", "pyzmq's"])
def test_endpoints_send_large_frames_either_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "own":
        monkeypatch.setattr(transport, "_lender", lambda: None)
    server, client = ZmqEndpoint(b"server"), ZmqEndpoint(b"client")
    try:
        client.connect(b"server", server.listen("tcp://127.0.0.1:0"))
        large = [np.full(200_000, number, np.uint8) for number in range(5)]
        assert client.send(b"server", [b"head", *(each.data for each in large)])
        (message,) = next(found for _ in range(100) if (found := server.receive(1.0)))
        assert [bytes(each) for each in message.frames[1:]] == [each.tobytes() for each in large]
        assert server.send(message.peer, [message.frames[2], b"tail"])
        (answer,) = next(found for _ in range(100) if (found := client.receive(1.0)))
        assert [bytes(each) for each in answer.frames] == [large[1].tobytes(), b"tail"]
    finally:
        client.close()
        server.close()
