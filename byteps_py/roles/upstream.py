"""The sums of a node on their way to the servers.

A sum waits for room in the window of its server, which is returned on acceptance, and is asked about, and pushed again,
as a worker does with its own contributions: what decides is :class:`~byteps_py.core.pipeline.Pipeline` and
:class:`~byteps_py.core.delivery.Delivery`, each key being a tensor of one partition.

Not thread-safe: the caller holds the worker's lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from byteps_py.core.delivery import Delivery
from byteps_py.core.pipeline import Pipeline, Start
from byteps_py.core.rejections import Terms
from byteps_py.core.window import Window
from byteps_py.roles.envelope import Envelope
from byteps_py.roles.rows import row_share
from byteps_py.telemetry.stages import WorkerTimes
from byteps_py.transport.base import Buffer
from byteps_py.types import DType, Partition
from byteps_py.wire.control import Welcome
from byteps_py.wire.header import Flag, Opcode, encode, is_wide

__all__ = ["Passage", "Upstream"]


class Passage:
    """One sum, from the last contribution of the node to the result.

    Attributes:
        submitted: when it was handed over, in monotonic seconds.
        payload: its bytes, which do not change before the result is here; None if all were absent.
        accepted: whether the server is known to have it.
        waits_for: ranks of other nodes that the server named as missing.
        width: elements of a row, where the payload is rows; else 0.
    """

    __slots__ = ("accepted", "contributors", "payload", "round", "submitted", "terms", "waits_for", "width")

    def __init__(
        self, round_: int, terms: Terms, payload: memoryview | None, contributors: int, width: int = 0
    ) -> None:
        self.round = round_
        self.terms = terms
        self.payload = payload
        self.contributors = contributors
        self.width = width
        self.submitted = 0.0
        self.accepted = False
        self.waits_for: tuple[int, ...] = ()


class Upstream:
    """All sums of one reducer.

    Args:
        envelope: of this worker.
        send: sends frames to the server of a rank.
        welcome: who is in the job.
        window: of each server.
        times: hears of sums on their way; None: nobody asks.
    """

    def __init__(
        self,
        envelope: Envelope,
        send: Callable[[int, list[Buffer], float], None],
        welcome: Welcome,
        window: Window,
        times: WorkerTimes | None = None,
    ) -> None:
        self._times = times
        self._envelope = envelope
        self._send = send
        self._pipeline = Pipeline(len(welcome.servers), window, welcome.rank % len(welcome.servers))
        self._delivery = Delivery()
        self._partitions: dict[int, Partition] = {}
        self._passages: dict[int, Passage] = {}
        self._last_id = 0

    def place(self, partition: Partition) -> None:
        """Where a partition that is summed here belongs."""
        self._partitions[partition.key] = partition

    def has(self, key: int) -> bool:
        """Whether ``key`` was placed."""
        return key in self._partitions

    def find(self, key: int, round_: int) -> Passage | None:
        """The sum of ``(key, round_)``, if it is on its way."""
        passage = self._passages.get(key)
        return passage if passage is not None and passage.round == round_ else None

    def silent(self) -> set[int]:
        """The servers that were sent sums which they have not accepted."""
        outstanding = self._pipeline.outstanding()
        return {partition.server for each in outstanding for partition in each.unaccepted}

    def push(self, now: float, key: int, passage: Passage) -> None:
        """Send a sum, or let it wait for room in the window."""
        passage.submitted = now
        self._passages[key] = passage
        self._last_id += 1
        dtype = DType.FLOAT32 if is_wide(passage.terms[0], passage.contributors) else passage.terms[0]
        itemsize, absent = dtype.itemsize, passage.payload is None
        if passage.width and passage.payload is not None:
            itemsize = row_share(passage.payload.nbytes, self._partitions[key].count)
        partitions = (self._partitions[key],)
        self._push_all(now, self._pipeline.submit(self._last_id, key, partitions, itemsize, 0, absent))

    def accepted(self, now: float, key: int, round_: int) -> None:
        """The server has a sum."""
        passage = self.find(key, round_)
        if passage is not None:
            passage.accepted = True
            if self._times is not None:
                self._times.accepted(key, round_, now)
            self._delivery.accepted(key, round_, now)
            self._push_all(now, self._pipeline.accepted(key, round_))

    def again(self, now: float, key: int, round_: int) -> None:
        """The server lacks a sum."""
        start = self._pipeline.find(key, round_)
        if start is not None:
            self._push(now, start)

    def received(self, now: float, key: int) -> None:
        """The result is here, and about to be copied; :meth:`finished` follows."""
        if self._times is not None:
            self._times.received(key, now)

    def copied(self, key: int, begun: float) -> None:
        """It has just been copied."""
        if self._times is not None:
            self._times.copied_out(key, begun)

    def finished(self, now: float, key: int, round_: int) -> None:
        """The result is where the node reads it."""
        if self.find(key, round_) is not None:
            del self._passages[key]
            self._delivery.finished(key, round_)
            self._push_all(now, self._pipeline.finished(key, round_)[1])

    def failed(self, now: float, key: int, round_: int) -> None:
        """There will be no result."""
        if self.find(key, round_) is not None:
            del self._passages[key]
            self._delivery.dropped(key)
            if self._times is not None:
                self._times.dropped(key)
            self._push_all(now, self._pipeline.failed(key, round_)[1])

    def tick(self, now: float) -> float | None:
        """Ask about what is overdue; returns when to call again."""
        for key, round_, server in self._delivery.due(now):
            self._send(server, [encode(self._envelope.header(Opcode.PULL, key, round_))], now)
        return self._delivery.next_deadline()

    def _push_all(self, now: float, starts: Sequence[Start]) -> None:
        for start in starts:
            self._push(now, start)

    def _push(self, now: float, start: Start) -> None:
        passage = self._passages[start.key]
        if self._times is not None:
            self._times.sent(start.key, start.round, passage.submitted, time.monotonic())
        dtype, operation, root, step, offset, count = passage.terms
        payload = passage.payload
        form = Flag.ABSENT if payload is None else Flag.ROWS if passage.width else Flag.NONE
        header = self._envelope.header(
            Opcode.PUSH,
            start.key,
            start.round,
            dtype=dtype,
            operation=operation,
            flags=Flag.PARTIAL | Flag.WANT_RESULT | form,
            root=root,
            detail=passage.contributors,
            step=step,
            offset=offset,
            count=count,
            length=0 if payload is None else payload.nbytes,
        )
        frames: list[Buffer] = [encode(header)]
        if payload is not None and payload.nbytes:
            frames.append(payload)
        self._send(start.server, frames, now)
        self._delivery.sent(start.key, start.round, start.server, now)
