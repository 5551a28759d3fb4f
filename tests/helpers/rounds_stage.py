"""The data side of a server alone: the test plays the workers and the transport, lanes included."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_py import kernels
from byteps_py.roles.engine import Engine
from byteps_py.roles.envelope import Envelope, is_bundle, open_bundle, open_frames
from byteps_py.roles.member import worker_identity
from byteps_py.roles.rounds import Rounds
from byteps_py.transport.base import Buffer, Endpoint, Message, WithoutLanes
from byteps_py.types import DType, Operation, Participant, ServerInfo
from byteps_py.wire.bundle import ENTRY
from byteps_py.wire.control import Welcome
from byteps_py.wire.header import ACCEPT_ENTRY, Flag, Header, Opcode, encode

JOB = 77
SERVERS = (ServerInfo(0, "tcp://127.0.0.1:1", "host", 1, 600),)


class Stamp:
    """Memory of a worker that may be said to have changed, from a look at it on."""

    def __init__(self, looks: int = 1 << 30) -> None:
        self.looks = looks

    def intact(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


@dataclass(frozen=True)
class Item:
    """One contribution; without elements it is absent."""

    key: int
    elements: npt.NDArray[Any] | None
    round: int = 1
    count: int = 0
    dtype: DType = DType.FLOAT32
    operation: Operation = Operation.SUM
    step: int = 3

    @property
    def length(self) -> int:
        return self.count if self.elements is None else len(self.elements)

    @property
    def payload(self) -> bytes:
        return b"" if self.elements is None else self.elements.tobytes()


@dataclass
class Answer:
    """One message of the server to one worker."""

    header: Header
    payload: bytes = b""
    frames: list[Buffer] = field(default_factory=list)

    @property
    def opcode(self) -> Opcode:
        return self.header.opcode

    def accepted(self) -> list[tuple[int, int]]:
        return list(ACCEPT_ENTRY.iter_unpack(self.payload))

    def results(self) -> Iterator[tuple[int, int, bytes | None, int]]:
        """Key, round, bytes (None: all were absent) and number of contributors of each."""
        if self.opcode is Opcode.RESULT:
            absent = bool(self.header.flags & Flag.ABSENT)
            yield self.header.key, self.header.round, None if absent else self.payload, self.header.detail
            return
        for entry in np.frombuffer(self.frames[1], ENTRY):
            nbytes = int(entry["count"]) * DType(entry["dtype"]).itemsize
            place = int(entry["place"])
            data = None if entry["flags"] & Flag.ABSENT else self.payload[place : place + nbytes]
            yield int(entry["key"]), int(entry["round"]), data, int(entry["root"])


class RecordingEndpoint(WithoutLanes):
    """Keeps what is sent, allocated and renewed."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[bytes, list[Buffer]]] = []
        self.allocated: list[npt.NDArray[np.uint8]] = []
        self.renewed: list[int] = []
        self.unreachable: set[bytes] = set()

    def allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        self.allocated.append(super().allocate(nbytes))
        return self.allocated[-1]

    def renew(self, buffer: npt.NDArray[Any] | memoryview) -> None:
        self.renewed.append(next(index for index, each in enumerate(self.allocated) if each is buffer))

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        if peer in self.unreachable:
            return False
        self.sent.append((peer, list(frames)))
        return True

    def lies_in(self, frame: Buffer) -> int | None:
        """Which allocation a frame lies in."""
        array = np.frombuffer(frame, np.uint8)
        return next((index for index, each in enumerate(self.allocated) if np.may_share_memory(each, array)), None)


class RoundsStage:
    """Rounds, and workers on the machines ``nodes``."""

    def __init__(
        self, nodes: Sequence[int] = (0, 1), kernel: str = "native", *, timed: bool = False, bound: int | None = None
    ) -> None:
        self.participants = tuple(
            Participant(rank, node, 0, 1, "host", 1, 500 + rank) for rank, node in enumerate(nodes)
        )
        self.endpoint = RecordingEndpoint()
        self._woken = threading.Event()
        self.engine = Engine(kernels.select(kernel), 1, 1, self._woken.set, timed=timed)
        welcome = Welcome(job=JOB, epoch=1, rank=0, participants=self.participants, servers=SERVERS)
        endpoint: Endpoint = self.endpoint  # type: ignore[assignment]
        self.rounds = Rounds(endpoint, self.engine, welcome, 600, timed=timed, bound=bound)
        self.bundles = 0

    def close(self) -> None:
        self.engine.close()

    def send(self, rank: int, opcode: Opcode, *frames: memoryview, stamp: Stamp | None = None, **fields: Any) -> None:
        """A message of worker ``rank``; ``frames`` come behind the header."""
        envelope = Envelope(rank, JOB, 500 + rank, 1)
        length = frames[-1].nbytes if frames else 0
        header = envelope.header(opcode, fields.pop("key", 0), fields.pop("round", 1), length=length, **fields)
        message = Message(worker_identity(500 + rank), [memoryview(encode(header)), *frames], stamp)
        self.rounds.receive(message, 10.0)

    def push(self, rank: int, item: Item, stamp: Stamp | None = None, **fields: Any) -> None:
        """A PUSH; with a stamp the elements lie in the worker's memory."""
        payload = item.payload
        flags = Flag.WANT_RESULT | (Flag.ABSENT if item.elements is None else Flag.NONE)
        self.send(
            rank,
            Opcode.PUSH,
            *([frame_of(payload, stamp)] if payload else []),
            stamp=stamp,
            **{
                "key": item.key,
                "round": item.round,
                "dtype": item.dtype,
                "operation": item.operation,
                "step": item.step,
                "count": item.length,
                "flags": flags,
                **fields,
            },
        )

    def push_many(self, rank: int, items: Sequence[Item], stamp: Stamp | None = None, **entry_fields: Any) -> int:
        """A PUSH_MANY, with fields of its first entry changed; returns its number."""
        self.bundles += 1
        table = np.zeros(len(items), ENTRY)
        payload = b""
        for index, item in enumerate(items):
            flags = Flag.WANT_RESULT | (Flag.ABSENT if item.elements is None else Flag.NONE)
            place = len(payload)
            table[index] = (
                item.key,
                item.round,
                item.step,
                place,
                item.length,
                0,
                item.dtype,
                item.operation,
                flags,
                b"",
            )
            payload += item.payload + bytes(-len(item.payload) % 8)
        for name, value in entry_fields.items():
            table[name][0] = value
        frames = [frame_of(table.tobytes(), stamp), frame_of(payload, stamp)]
        self.send(rank, Opcode.PUSH_MANY, *frames, stamp=stamp, round=self.bundles, detail=len(items))
        return self.bundles

    def pull(self, rank: int, key: int, round: int = 1) -> Answer:
        """The one answer to a PULL."""
        self.received(rank)
        self.send(rank, Opcode.PULL, key=key, round=round)
        (answer,) = self.received(rank)
        return answer

    def advance(self, *, summed: bool = False) -> None:
        """Go on; with ``summed`` after an engine thread has said that a sum is there."""
        if summed:
            assert self._woken.wait(10)
            self._woken.clear()
        self.rounds.advance()

    def received(self, rank: int) -> list[Answer]:
        """What worker ``rank`` was sent since the last look. What has come by then was all that came together."""
        self.rounds.advance()
        peer = worker_identity(500 + rank)
        mine = [frames for to, frames in self.endpoint.sent if to == peer]
        self.endpoint.sent = [each for each in self.endpoint.sent if each[0] != peer]
        return [_open(frames) for frames in mine]


def floats(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def frame_of(payload: bytes, stamp: Stamp | None) -> memoryview:
    """Read-only where it is the sender's memory, else the receiver's own."""
    return memoryview(payload) if stamp is not None else memoryview(bytearray(payload))


def _open(frames: list[Buffer]) -> Answer:
    views = [memoryview(each) for each in frames]
    if is_bundle(views):
        header, _, many = open_bundle(views)
        return Answer(header, bytes(many), frames)
    header, payload = open_frames(views)
    return Answer(header, b"" if payload is None else bytes(payload), frames)
