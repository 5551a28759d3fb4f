"""Workers that sum for their node, in a job inside this process: what travels, what is lost, and what is refused."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from byteps_py.errors import AgreementError, RemoteProtocolError
from byteps_py.roles.envelope import open_frames
from byteps_py.session import Session
from byteps_py.transport.base import Message
from byteps_py.transport.loopback import LoopbackEndpoint, LoopbackNetwork
from byteps_py.types import DType, Operation, TensorSpec
from byteps_py.wire.header import Flag, Header, Opcode
from tests.helpers.cluster import cluster

COUNT = 1000
PARTITIONS = 5
SIZES = (3, 1)
DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.INT8)
TINY: dict[str, Any] = {"partition_bytes": 800, "local_reduce": "on"}


class Watched(LoopbackNetwork):
    """Notes the data messages, and loses some."""

    def __init__(self, loss: float = 0.0) -> None:
        super().__init__()
        self.seen: list[tuple[bytes, bytes, Header]] = []
        self._loss = loss
        self._random = random.Random(7)
        self._noting = threading.Lock()

    def deliver(self, receiver: LoopbackEndpoint, message: Message) -> None:
        try:
            header, _ = open_frames(message.frames)
        except RemoteProtocolError:
            super().deliver(receiver, message)
            return
        with self._noting:
            self.seen.append((receiver._identity, message.peer, header))
            lost = self._random.random() < self._loss
        if not lost:
            super().deliver(receiver, message)


def values(rank: int, round_: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng([rank, round_]).standard_normal(COUNT, np.float32)


def push_pull(session: Session, round_: int = 0, step: int = 0, name: str = "w") -> Any:
    spec = TensorSpec(name, DType.FLOAT32, (COUNT,))
    return session.submit(spec, values(session.rank, round_), None, Operation.SUM, step=step).wait()


def expected(round_: int = 0) -> bytes:
    first, second, third, fourth = (values(rank, round_) for rank in range(4))
    return ((first + second + third) + fourth).tobytes()


def test_a_server_gets_one_contribution_of_a_node_and_partition() -> None:
    network = Watched()
    with cluster(4, 1, sizes=SIZES, network=network, **TINY) as job:
        for result in job.each(push_pull):
            assert result.tobytes() == expected()
    at_server = [header for receiver, _, header in network.seen if receiver == b"server-connection-0"]
    pushes = [header for header in at_server if header.opcode is Opcode.PUSH]
    partial = [header for header in pushes if header.flags & Flag.PARTIAL]
    alone = [header for header in pushes if not header.flags & Flag.PARTIAL]
    assert Counter(each.key for each in partial) == dict.fromkeys((each.key for each in partial), 1)
    assert (len(partial), {each.detail for each in partial}) == (PARTITIONS, {3})
    assert (len(alone), {each.sender for each in alone}) == (PARTITIONS, {3})
    assert {each.sender for each in partial} == {0, 1, 2}  # the work is shared out


@pytest.mark.slow
def test_what_is_lost_is_asked_for() -> None:
    network = Watched(loss=0.1)
    with cluster(4, 2, sizes=SIZES, network=network, **TINY) as job:
        for round_ in range(2):
            for result in job.each(lambda session, round_=round_: push_pull(session, round_)):  # type: ignore[misc]
                assert result.tobytes() == expected(round_)
        network._loss = 0.0


def test_a_disagreement_between_nodes_is_told_to_all() -> None:
    def run(session: Session) -> str:
        with pytest.raises(AgreementError) as caught:
            push_pull(session, step=session.rank // 3)
        return str(caught.value)

    with cluster(4, 1, sizes=SIZES, **TINY) as job:
        for text in job.each(run):
            assert text.startswith("tensor 'w': workers disagree in round 1: worker "), text
            assert "at step 0" in text
            assert "at step 1" in text


def test_a_disagreement_within_a_node_names_ranks_of_the_job() -> None:
    def run(session: Session) -> str:
        if session.rank == 0:
            return "step 5 step 6"
        with pytest.raises(AgreementError) as caught:
            push_pull(session, step=4 + session.rank)
        return str(caught.value)

    with cluster(3, 1, sizes=(1, 2), **TINY) as job:
        for text in job.each(run):
            assert "step 5" in text
            assert "step 6" in text


@pytest.mark.parametrize(
    "dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.INT8], ids=lambda each: each.label
)
@pytest.mark.parametrize(
    "operation", [each for each in Operation if not each.is_asynchronous], ids=lambda each: each.name
)
def test_the_bits_are_the_same_as_without(dtype: DType, operation: Operation) -> None:
    """Any bits; rounds in which nobody, somebody, and everybody is absent."""

    def run(session: Session) -> bytes:
        found = b""
        for round_, absent in enumerate([(), (1,), (0, 1), (0, 2, 3), (0, 1, 2), (0, 1, 2, 3)]):
            generator = np.random.default_rng([session.rank, round_])
            mine = np.frombuffer(generator.bytes(COUNT * dtype.itemsize), dtype.storage)
            spec = TensorSpec("w", dtype, (COUNT,))
            source = None if session.rank in absent else mine
            pending = session.submit(spec, source, None, operation, root=2, step=round_)
            found += pending.wait().tobytes() + bytes([pending.absent])
        return found

    results = set()
    for choice in ("on", "off"):
        with cluster(4, 1, sizes=SIZES, partition_bytes=400, local_reduce=choice) as job:
            results.update(job.each(run))
    assert len(results) == 1


def test_who_poses_as_a_neighbour_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    network = LoopbackNetwork()
    with cluster(2, 1, sizes=(2,), network=network, **TINY) as job:
        job.each(push_pull)
        reducer = network.listeners[f"lane://worker-{1001:016x}:1"]
        junk = Message(b"worker-%016x" % 1000, [memoryview(b"junk")])
        reducer.enqueue(junk)
        job.each(lambda session: push_pull(session, 1, 1))
    assert "ignored from worker-00000000000003e8: a data header has 88 bytes" in caplog.text
