"""How often each stage of a tensor's way was passed, and how many seconds that took: sums since the process started.

===================  ==================================================================  ==========================
stage                from, to                                                            counts
===================  ==================================================================  ==========================
``queue``            submitted, the partition is sent                                    partitions
``copy in``          the copy into the staging buffer                                    operations with a payload
``push``             sent, accepted by the server                                        see below
``pull``             accepted, or else sent; the result is here                          partitions
``answer``           the part of ``pull`` without an acceptance before it                see below
``copy out``         the copy out of the received frame                                  results with a payload
``accept``           a contribution arrives, word of that is handed to the socket        see below
``wait for others``  a contribution arrives, the last one of its round does              contributions
``server queue``     a sum is asked for, it begins                                       sums
``sum``              it begins, it is done                                               sums
``held``             a contribution arrives, the reply to it is handed to the socket     replies
``direct``           the part of ``held`` without an acceptance before it                see below
===================  ==================================================================  ==========================

Those up to ``copy out`` are a worker's, the others a server's.  A result says all that the acceptance before it would,
and then none is sent: such a partition is counted neither in ``accept`` nor in ``push``, and its whole way is ``pull``;
``direct`` and ``answer`` tell of these alone.
On a server a bundle of small contributions counts as one: in ``accept`` once, in ``wait for others``, ``held`` and
``direct`` once for each message of results that it has a part in (for the last that arrived of those, the others
waited), and the sums of such a message as one.  What is looked after one by one counts one by one.
Partitions are on their way at the same time, so seconds may add up to more than have passed.

A partition that travels with others counts like one that travels alone; the message is sent, accepted and answered for
all of them at once.

A bundle of absent contributions only is counted in none of ``wait for others``, ``held`` and ``direct``.

Threads: each ``StageTime`` is added to by one thread, so no addition is lost, and any thread may read it.  What a
reader finds as count and seconds may be some passages apart, in either direction; sums only grow, so the next look puts
that right.  Adding takes no lock and allocates nothing that stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

__all__ = [
    "WORKER_STAGES",
    "Arrived",
    "Carried",
    "Carrier",
    "Held",
    "NodeTimes",
    "StageTime",
    "Stages",
    "SumTimes",
    "WorkerTimes",
    "server_stages",
    "worker_stages",
]

WORKER_STAGES: Final = ("queue", "copy in", "push", "pull", "answer", "copy out")
SERVER_STAGES: Final = ("accept", "wait for others", "server queue", "sum", "held", "direct")

Stages: TypeAlias = dict[str, tuple[int, float]]
"""Count and seconds by the name of the stage."""


class Carrier(Protocol):
    """A bundle of light tensors as its worker sees it, see :class:`byteps_py.roles.flight.Bundle`; ``table`` has an
    entry (:mod:`byteps_py.wire.bundle`) for each of its ``keys``, and is not used again for another bundle."""

    number: int
    server: int
    keys: list[int]
    table: bytearray
    left: int
    accepted: bool
    since: float
    submitted: float


class Carried(Protocol):
    """One contribution in a bundle."""

    key: int

    @property
    def bundle(self) -> Carrier: ...


class Arrived(Protocol):
    """A bundle as a server has it, see :class:`byteps_py.roles.lent.Bundle`."""

    rank: int
    number: int
    arrived: float
    accepted: bool


class StageTime:
    """One stage as one thread has seen it."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """It was passed once more. Only the thread that this belongs to."""
        self.count += 1
        self.seconds += seconds

    def add_many(self, count: int, seconds: float) -> None:
        """It was passed ``count`` times more, in ``seconds`` altogether."""
        self.count += count
        self.seconds += seconds


class _Way:
    """How far a partition is: its round, and since when it is sent, or accepted."""

    __slots__ = ("accepted", "round", "since")

    def __init__(self, round: int, since: float) -> None:
        self.round = round
        self.since = since
        self.accepted = False


class WorkerTimes:
    """The stages of a worker. All methods belong to its thread; times are seconds of :func:`time.monotonic`.

    Here is where each stage begins and ends; a trace (:mod:`byteps_py.telemetry.spans`) hears of it by the same calls.

    Attributes:
        node: hear of what is done for the other workers of the node; None where nobody asks.
    """

    node: NodeTimes | None = None

    __slots__ = ("_ways", "answer", "copy_in", "copy_out", "pull", "push", "queue")

    clock = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.queue = StageTime()
        self.copy_in = StageTime()
        self.push = StageTime()
        self.pull = StageTime()
        self.answer = StageTime()
        self.copy_out = StageTime()
        self._ways: dict[int, _Way] = {}

    def sent(self, key: int, round: int, submitted: float, now: float) -> None:
        """A partition of an operation that was submitted then is sent; a repetition changes nothing."""
        way = self._ways.get(key)
        if way is None or way.round != round:
            self.queue.add(now - submitted)
            self._ways[key] = _Way(round, now)

    def accepted(self, key: int, round: int, now: float) -> None:
        """A server has it; a repetition changes nothing."""
        way = self._ways.get(key)
        if way is not None and way.round == round and not way.accepted:
            self.push.add(now - way.since)
            way.since = now
            way.accepted = True

    def received(self, key: int, now: float) -> None:
        """Its result is here, for the first time."""
        way = self._ways.pop(key, None)
        if way is not None:
            self.pull.add(now - way.since)
            if not way.accepted:
                self.answer.add(now - way.since)

    def dropped(self, key: int) -> None:
        """Its operation has failed."""
        self._ways.pop(key, None)

    def copied_out(self, key: int, begun: float) -> None:
        """Its result has just been copied, since ``begun``."""
        del key
        self.copy_out.add(time.monotonic() - begun)

    def completed(self, key: int, round: int, submitted: float, copied: float) -> None:
        """An operation is over, of which ``key`` is a partition; it was submitted then, after a copy that took so long,
        0 if there was none."""
        del key, round, submitted
        if copied:
            self.copy_in.add(copied)

    def joined(self, bundle: Carrier, round: int, begun: float, copied: bool) -> None:
        """A contribution that was submitted at ``begun`` is about to be added to the table of ``bundle``."""
        del bundle, round
        if copied:
            self.copy_in.add(self.clock() - begun)

    def bundle_sent(self, bundle: Carrier, now: float) -> None:
        """All in it are sent."""
        count = len(bundle.keys)
        self.queue.add_many(count, count * now - bundle.submitted)

    def bundle_accepted(self, bundle: Carrier, now: float) -> None:
        """A server has them; called once, before that is noted in ``bundle``."""
        self.push.add_many(bundle.left, bundle.left * (now - bundle.since))

    def copied_out_together(self, count: int, begun: float) -> None:
        """So many results of one message have just been copied."""
        self.copy_out.add_many(count, self.clock() - begun)

    def arrived(self, bundle: Carrier, count: int, now: float, flights: Sequence[Carried]) -> None:
        """So many results of ``bundle`` came at ``now``; they are among ``flights`` and not in ``bundle.left``."""
        del flights
        seconds = count * (now - bundle.since)
        self.pull.add_many(count, seconds)
        if not bundle.accepted:
            self.answer.add_many(count, seconds)

    def bundle_dropped(self, bundle: Carrier, key: int, round: int) -> None:
        """One operation in ``bundle`` has failed, and is not in ``bundle.left``."""


class NodeTimes(NamedTuple):
    """What hears of the work of one who sums for its node: of contributions, of sums, of these on their way."""

    held: Held
    sums: Callable[[], SumTimes]
    upstream: WorkerTimes


class SumTimes:
    """The sums of one engine thread, or of the owner's. All methods belong to that thread."""

    __slots__ = ("queue", "sum")

    def __init__(self) -> None:
        self.queue = StageTime()
        self.sum = StageTime()

    def add(self, asked: float, begun: float, key: int = -1, round: int = 0) -> None:
        """A sum that was asked for and begun then has just been done; without a key it was one of many keys."""
        del key, round
        self.queue.add(begun - asked)
        self.sum.add(time.monotonic() - begun)


class _Round:
    """The open round of a key: when each contribution arrived, by rank; 0 if it has not, or was answered.

    ``accepted`` has one bit for each rank that was told so.
    """

    __slots__ = ("accepted", "arrived", "missing", "round", "size", "total")

    def __init__(self, round: int, workers: int, size: int) -> None:
        self.round = round
        self.arrived = [0.0] * workers
        self.accepted = 0
        self.missing = self.size = size
        self.total = 0.0


class Held:
    """How long a server has contributions. All methods belong to the thread that owns its endpoint.

    Args:
        size: number of workers.
    """

    __slots__ = ("_rounds", "_size", "accept", "direct", "held", "wait")

    def __init__(self, size: int) -> None:
        self.accept = StageTime()
        self.wait = StageTime()
        self.held = StageTime()
        self.direct = StageTime()
        self._size = size
        self._rounds: dict[int, _Round] = {}

    def arrived(self, key: int, round: int, rank: int, now: float, stands_for: int = 1, size: int = 0) -> None:
        """A contribution is here, which was not refused; a repetition changes nothing.

        Args:
            key, round, rank: what it is, and whose.
            now: monotonic seconds.
            stands_for: for how many workers it is.
            size: how many contribute to the key; 0: all.
        """
        current = self._rounds.get(key)
        if current is None or current.round < round:
            current = self._rounds[key] = _Round(round, self._size, size or self._size)
        if current.round != round or current.arrived[rank] or not current.missing:
            return
        current.arrived[rank] = now
        current.total += stands_for * now
        current.missing -= stands_for
        if not current.missing:
            self.wait.count += current.size
            self.wait.seconds += max(0.0, current.size * now - current.total)

    def accepted(self, key: int, round: int, rank: int, now: float) -> None:
        """A worker is about to be told that its contribution is here; only the first time counts, before the reply."""
        current = self._rounds.get(key)
        if (
            current is not None
            and current.round == round
            and current.arrived[rank]
            and not current.accepted >> rank & 1
        ):
            current.accepted |= 1 << rank
            self.accept.add(now - current.arrived[rank])

    def replied(self, key: int, round: int, rank: int) -> None:
        """The result is about to be handed to the socket; only the first reply to a contribution counts."""
        current = self._rounds.get(key)
        if current is not None and current.round == round and current.arrived[rank]:
            seconds = time.monotonic() - current.arrived[rank]
            self.held.add(seconds)
            if not current.accepted >> rank & 1:
                self.direct.add(seconds)
            current.arrived[rank] = 0.0

    def rejected(self, key: int, round: int) -> None:
        """A worker is about to be told that a round cannot complete, or that it is long over."""

    def bundle_accepted(self, arrived: float, now: float) -> None:
        """A worker is about to be told that a bundle which arrived then is here."""
        self.accept.add(now - arrived)

    def bundles_replied(self, bundles: Sequence[Arrived], begun: float, table: Any) -> None:
        """Results of many are about to be handed to the socket.

        Args:
            bundles: those that they are made of.
            begun: when they began to be summed.
            table: what they are, dtype :data:`~byteps_py.wire.bundle.ENTRY`.
        """
        del table
        now = time.monotonic()
        last = max((each.arrived for each in bundles), default=begun)
        for each in bundles:
            self.wait.add(max(0.0, last - each.arrived))
            self.held.add(now - each.arrived)
            if not each.accepted:
                self.direct.add(now - each.arrived)

    def bundles_sent(self) -> None:
        """They have been handed to the socket."""


def worker_stages(times: WorkerTimes | None) -> Stages:
    """What a worker has counted; zeros without times."""
    if times is None:
        return dict.fromkeys(WORKER_STAGES, (0, 0.0))
    found = (times.queue, times.copy_in, times.push, times.pull, times.answer, times.copy_out)
    return {name: (each.count, each.seconds) for name, each in zip(WORKER_STAGES, found, strict=True)}


def server_stages(held: Held | None, sums: Iterable[SumTimes]) -> Stages:
    """What the threads of a server have counted; zeros for what is not there."""
    sums = tuple(sums)
    found = (
        _total([] if held is None else [held.accept]),
        _total([] if held is None else [held.wait]),
        _total(each.queue for each in sums),
        _total(each.sum for each in sums),
        _total([] if held is None else [held.held]),
        _total([] if held is None else [held.direct]),
    )
    return dict(zip(SERVER_STAGES, found, strict=True))


def _total(times: Iterable[StageTime]) -> tuple[int, float]:
    count, seconds = 0, 0.0
    for each in times:
        count += each.count
        seconds += each.seconds
    return count, seconds
