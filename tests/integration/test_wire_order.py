"""The order on the wire when a link is congested: what the program needs first goes first."""

from __future__ import annotations

import numpy as np
import pytest

from byteps_py.errors import RemoteProtocolError
from byteps_py.roles.envelope import open_frames
from byteps_py.roles.pending import Pending
from byteps_py.session import Session
from byteps_py.transport.base import Message
from byteps_py.transport.loopback import LoopbackEndpoint, LoopbackNetwork
from byteps_py.types import DType, Operation, TensorSpec, split_key
from byteps_py.wire.header import Header, Opcode
from tests.helpers.cluster import cluster

PARTITION = 128 * 1024
BACK, FRONT = 6, 3
"""Layers that are ready first and needed last, and the other way round."""


class Congested(LoopbackNetwork):
    """Holds back what servers answer until :meth:`relieve`, and writes down what is pushed to them.

    Attributes:
        pushed: tensor and partition of each contribution, in the order in which they were sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pushed: list[tuple[int, int]] = []
        self._held: list[tuple[LoopbackEndpoint, Message]] | None = []

    def deliver(self, receiver: LoopbackEndpoint, message: Message) -> None:
        header = data_header(message)
        if header is not None and header.opcode is Opcode.PUSH:
            self.pushed.append(split_key(header.key))
        if header is not None and header.opcode in (Opcode.ACCEPT, Opcode.RESULT) and self._held is not None:
            self._held.append((receiver, message))
        else:
            super().deliver(receiver, message)

    def relieve(self) -> None:
        with self.lock:
            held, self._held = self._held or [], None
            for receiver, message in held:
                super().deliver(receiver, message)


def data_header(message: Message) -> Header | None:
    """None for a control message."""
    try:
        return open_frames(message.frames)[0]
    except RemoteProtocolError:
        return None


@pytest.mark.parametrize("credit", [1, 2])
def test_front_layers_overtake_back_layers_that_wait(credit: int) -> None:
    network = Congested()
    back = [TensorSpec(f"back {index}", DType.UINT8, (2 * PARTITION,)) for index in range(BACK)]
    front = [TensorSpec(f"front {index}", DType.UINT8, (2 * PARTITION,)) for index in range(FRONT)]

    def submit(session: Session, specs: list[TensorSpec], priority: int) -> list[Pending]:
        return [
            session.submit(each, np.full(each.shape, index, np.uint8), None, Operation.SUM, priority=priority + index)
            for index, each in enumerate(specs)
        ]

    with cluster(1, 1, network=network, partition_bytes=PARTITION, credit=credit) as job:
        (session,) = job.sessions
        session.declare([*back, *front])  # so the tensors have the numbers of this order
        pending = submit(session, back, 0)
        session.barrier()  # the scheduler's link is free, and it answers after all that was submitted before
        assert network.pushed == [(0, 0), (0, 1)][:credit]
        pending += submit(session, front, 100)
        session.barrier()
        assert len(network.pushed) == credit
        network.relieve()
        results = [each.wait() for each in pending]
    assert [each[0] for each in results] == [*range(BACK), *range(FRONT)]
    tensors = [*reversed(range(BACK, BACK + FRONT)), *reversed(range(BACK))]  # by falling priority
    wanted = [(tensor, index) for tensor in tensors for index in range(2)]
    sent_before = network.pushed[:credit]
    assert network.pushed == [*sent_before, *(each for each in wanted if each not in sent_before)]
