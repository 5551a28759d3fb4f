"""What a trace keeps while a job runs: the times that :mod:`byteps_py.telemetry.stages` hears of, one by one.

The classes here take the place of those that only add up.  So a process that is not traced has nothing of this, not
even a test for it.  Per partition, bundle, sum or round one object is kept; what viewers read is made of them at the
end (:mod:`byteps_py.telemetry.timeline`).

Steps are counted per tensor, as BytePS did: the n-th time that it is pushed is its step n, which is its *round* on the
way.  Workers and servers therefore agree on what is traced without a word.

Times are seconds of :func:`time.monotonic`.  Threads are as in the classes that these stand for; the reader must wait
until nothing is added any more, or copy the lists at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from byteps_py.telemetry.stages import Arrived, Carried, Carrier, Held, SumTimes, WorkerTimes
from byteps_py.wire.bundle import ENTRY_LAYOUT

__all__ = [
    "MOST_SPANS",
    "Cargo",
    "Finished",
    "Passage",
    "Round",
    "ServerSpans",
    "Summation",
    "Together",
    "Window",
    "WorkerSpans",
]

_monotonic: Final = time.monotonic
MOST_SPANS: Final = 400_000
"""So many are kept of one process; the file then has some 100 MB. Further ones are counted and left out."""


class Window:
    """Which steps are traced, how many spans there is room for, and whether all tensors have passed the last step.

    Args:
        first, last: steps, both traced.
        most: spans that are kept.
        on_over: called once when all tensors that were traced have passed the last step, by a thread that has more
            important things to do.

    Attributes:
        first, last: as given; once it is over there is no step between them.
        until: the last step, for ever.
        late: when a tensor is at this step, those that have not passed the last one are not waited for: they are
            pushed more seldom.
        dropped: spans that there was no room for.
    """

    __slots__ = ("_done", "_on_over", "_seen", "dropped", "first", "last", "late", "left", "until")

    def __init__(
        self, first: int, last: int, most: int = MOST_SPANS, on_over: Callable[[], None] | None = None
    ) -> None:
        self.first = first
        self.last = self.until = last
        self.late = 2 * last - first + 1
        self.left = most
        self.dropped = 0
        self._on_over = on_over
        self._seen: set[int] = set()
        self._done: set[int] = set()

    def takes(self, spans: int) -> bool:
        """Whether there is room for so many more."""
        if self.left >= spans:
            self.left -= spans
            return True
        self.dropped += spans
        return False

    def seen(self, keys: Sequence[int]) -> None:
        """These are traced."""
        self._seen.update(keys)

    def done(self, keys: Sequence[int]) -> None:
        """These have passed the last step."""
        self._done.update(keys)

    def check(self) -> None:
        """End the window if all have passed."""
        if self._done and len(self._done) >= len(self._seen):
            self.end()

    def end(self) -> None:
        """End the window, if it has not ended, and say so."""
        if self.last:
            self.close()
            if self._on_over is not None:
                self._on_over()

    def close(self) -> None:
        """Nothing further is traced."""
        self.last = 0


class Passage:
    """One partition in one round: when it was submitted, sent, accepted, answered, copied out; 0: it was not."""

    __slots__ = ("accepted", "begun", "copied", "key", "received", "round", "sent", "submitted")

    def __init__(self, key: int, round: int, submitted: float, sent: float) -> None:
        self.key = key
        self.round = round
        self.submitted = submitted
        self.sent = sent
        self.accepted = self.received = self.begun = self.copied = 0.0


class Finished(NamedTuple):
    """An operation that is over; ``copied`` are the seconds of the copy before it was submitted."""

    key: int
    round: int
    submitted: float
    copied: float
    completed: float


class Cargo:
    """A bundle: its number, its entries, when it was sent and accepted (0: not seen).

    ``results`` are (arrived, copied, keys), keys being None where all came at once.
    ``note`` takes begin and end of the copy of the next entry: two floats that exist anyway, and nothing is made.
    """

    __slots__ = ("_skipped", "_table", "_times", "accepted", "note", "number", "results", "sent")

    def __init__(self, number: int, table: bytearray) -> None:
        self.number = number
        self._table = table
        self._skipped = len(table)
        self._times: list[float] = []
        self.note = self._times.append
        self.sent = self.accepted = 0.0
        self.results: list[tuple[float, float, list[int] | None]] = []

    def __len__(self) -> int:
        return len(self._times) // 2

    def entries(self) -> list[tuple[int, int, float, float]]:
        """Key, round, and begin and end of the copy of each; some may be of a step outside the window."""
        table = ENTRY_LAYOUT.iter_unpack(bytes(self._table[self._skipped :]))
        times = list(self._times)
        return [
            (key, round, *two)
            for (key, round, *_), two in zip(table, zip(times[::2], times[1::2], strict=False), strict=False)
        ]

    def reaches(self, round: int) -> bool:
        """Whether the first or the last entry is of ``round``, or a later one."""
        ends = (self._skipped, len(self._table) - ENTRY_LAYOUT.size)
        return any(ENTRY_LAYOUT.unpack_from(self._table, place)[1] >= round for place in ends)


class WorkerSpans(WorkerTimes):
    """Counts as its base does, and keeps what lies in the window.

    Attributes:
        window: as given.
        passages, finished, cargo: what there is.
    """

    __slots__ = ("_bundles", "_copied", "_looked", "_open", "cargo", "finished", "node", "passages", "window")

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.node = None
        self.window = window
        self.passages: list[Passage] = []
        self.finished: list[Finished] = []
        self.cargo: list[Cargo] = []
        self._open: dict[int, Passage] = {}
        self._bundles: dict[int, Cargo] = {}
        self._copied = 0.0
        self._looked = 0

    def sent(self, key: int, round: int, submitted: float, now: float) -> None:
        super().sent(key, round, submitted, now)
        window = self.window
        if window.first <= round <= window.last:
            passage = self._open.get(key)
            if (passage is None or passage.round != round) and window.takes(4):
                self._open[key] = passage = Passage(key, round, submitted, now)
                self.passages.append(passage)
                window.seen((key,))
        elif round == window.late:
            window.end()

    def accepted(self, key: int, round: int, now: float) -> None:
        super().accepted(key, round, now)
        passage = self._open.get(key)
        if passage is not None and passage.round == round and not passage.received and not passage.accepted:
            passage.accepted = now

    def received(self, key: int, now: float) -> None:
        super().received(key, now)
        passage = self._open.get(key)
        if passage is not None and not passage.received:
            passage.received = now
            if passage.round == self.window.until:
                self.window.done((key,))

    def copied_out(self, key: int, begun: float) -> None:
        super().copied_out(key, begun)
        passage = self._open.pop(key, None)
        if passage is not None:
            passage.begun, passage.copied = begun, time.monotonic()

    def completed(self, key: int, round: int, submitted: float, copied: float) -> None:
        super().completed(key, round, submitted, copied)
        window = self.window
        if window.first <= round <= window.last and window.takes(2):
            self.finished.append(Finished(key, round, submitted, copied, time.monotonic()))
            if round == window.until:
                self._look_back()
                window.check()

    def joined(self, bundle: Carrier, round: int, begun: float, copied: bool) -> None:
        end = _monotonic()
        if copied:
            copy_in = self.copy_in
            copy_in.count += 1
            copy_in.seconds += end - begun
        cargo = self._bundles.get(bundle.number)
        if cargo is None:
            window = self.window
            if not window.first <= round <= window.last:
                if round == window.late:
                    window.end()
                return
            if window.left <= 0:
                window.dropped += 5
                return
            cargo = self._bundles[bundle.number] = Cargo(bundle.number, bundle.table)
            self.cargo.append(cargo)
        cargo.note(begun)  # perhaps of another step, which is seen to later
        cargo.note(end)

    def bundle_sent(self, bundle: Carrier, now: float) -> None:
        super().bundle_sent(bundle, now)
        cargo = self._bundles.get(bundle.number)
        if cargo is not None:
            cargo.sent = now
            self.window.left -= 5 * len(cargo)

    def bundle_accepted(self, bundle: Carrier, now: float) -> None:
        super().bundle_accepted(bundle, now)
        cargo = self._bundles.get(bundle.number)
        if cargo is not None:
            cargo.accepted = now

    def copied_out_together(self, count: int, begun: float) -> None:
        self._copied = self.clock()
        self.copy_out.add_many(count, self._copied - begun)

    def arrived(self, bundle: Carrier, count: int, now: float, flights: Sequence[Carried]) -> None:
        super().arrived(bundle, count, now, flights)
        cargo = self._bundles.get(bundle.number)
        if cargo is None:
            return
        keys = None if count == len(bundle.keys) else [each.key for each in flights if each.bundle is bundle]
        cargo.results.append((now, max(now, self._copied), keys))
        if not bundle.left:
            del self._bundles[bundle.number]
            window = self.window
            if window.last and cargo.reaches(window.until):
                window.done([each[0] for each in cargo.entries() if each[1] == window.until])
                self._look_back()
                window.check()

    def _look_back(self) -> None:
        """Note which light tensors there were: only now, when the last step is there, since nobody asked before."""
        for cargo in self.cargo[self._looked :]:
            if not cargo.sent:
                return
            self._looked += 1
            self.window.seen([key for key, round, _, _ in cargo.entries() if self.window.first <= round])


class Round:
    """One round of a key on a server: by rank when a contribution arrived and when it was taken in.

    ``replies`` counts the results that were handed to the socket, ``replied`` is when the last one was, 0 before.
    """

    __slots__ = ("arrivals", "key", "replied", "replies", "round")

    def __init__(self, key: int, round: int) -> None:
        self.key = key
        self.round = round
        self.arrivals: dict[int, tuple[float, float]] = {}
        self.replies = 0
        self.replied = 0.0


class Together:
    """Rounds of light tensors that were summed at once.

    Attributes:
        keys, rounds: of each.
        arrivals: (rank, number of the bundle, when it came).
        begun, summed, replied: of the sum, and the results.
    """

    __slots__ = ("arrivals", "begun", "keys", "replied", "rounds", "summed")

    def __init__(
        self, keys: list[int], rounds: list[int], arrivals: list[tuple[int, int, float]], begun: float, summed: float
    ) -> None:
        self.keys = keys
        self.rounds = rounds
        self.arrivals = arrivals
        self.begun = begun
        self.summed = self.replied = summed


class Summation(NamedTuple):
    """A sum: when it was asked for, begun and done."""

    key: int
    round: int
    asked: float
    begun: float
    done: float


class ServerSpans:
    """What a server keeps, or a worker that sums for its node.

    Args:
        window: which rounds are kept.

    Attributes:
        rounds, together, sums: what there is.
    """

    def __init__(self, window: Window) -> None:
        self.window = window
        self.rounds: list[Round] = []
        self.together: list[Together] = []
        self.sums: list[Summation] = []

    def held(self, size: int) -> Held:
        """What takes the place of :class:`~byteps_py.telemetry.stages.Held`."""
        return _HeldSpans(size, self)

    def sum_times(self) -> SumTimes:
        """What takes the place of :class:`~byteps_py.telemetry.stages.SumTimes`, for one thread."""
        return _SumSpans(self)


class _SumSpans(SumTimes):
    __slots__ = ("_spans",)

    def __init__(self, spans: ServerSpans) -> None:
        super().__init__()
        self._spans = spans

    def add(self, asked: float, begun: float, key: int = -1, round: int = 0) -> None:
        super().add(asked, begun)
        window = self._spans.window
        if key >= 0 and window.first <= round <= window.last and window.takes(2):
            self._spans.sums.append(Summation(key, round, asked, begun, time.monotonic()))


class _HeldSpans(Held):
    __slots__ = ("_last", "_open", "_spans")

    def __init__(self, size: int, spans: ServerSpans) -> None:
        super().__init__(size)
        self._spans = spans
        self._open: dict[int, Round] = {}
        self._last: Together | None = None

    def arrived(self, key: int, round: int, rank: int, now: float, stands_for: int = 1, size: int = 0) -> None:
        super().arrived(key, round, rank, now, stands_for, size)
        window = self._spans.window
        if window.first <= round <= window.last:
            current = self._open.get(key)
            if current is None or current.round < round:
                if not window.takes(6):
                    return
                current = self._open[key] = Round(key, round)
                self._spans.rounds.append(current)
                window.seen((key,))
            if current.round == round:
                current.arrivals.setdefault(rank, (now, time.monotonic()))
        elif round == window.late:
            window.end()

    def replied(self, key: int, round: int, rank: int) -> None:
        super().replied(key, round, rank)
        current = self._open.get(key)
        if current is not None and current.round == round:
            current.replied = time.monotonic()
            current.replies += 1
            window = self._spans.window
            if round == window.until and current.replies >= len(current.arrivals):
                window.done((key,))
                window.check()

    def bundles_replied(self, bundles: Sequence[Arrived], begun: float, table: Any) -> None:
        super().bundles_replied(bundles, begun, table)
        self._last = None
        window = self._spans.window
        if not window.last:
            return
        keys, rounds = table["key"].tolist(), table["round"].tolist()
        if max(rounds) >= window.late:
            window.end()
        if max(rounds) < window.first or min(rounds) > window.last or not window.takes(6):
            return
        arrivals = [(each.rank, each.number, each.arrived) for each in bundles]
        self._last = Together(keys, rounds, arrivals, begun, time.monotonic())
        self._spans.together.append(self._last)
        window.seen([key for key, round in zip(keys, rounds, strict=True) if window.first <= round])
        if max(rounds) >= window.until:
            window.done([key for key, round in zip(keys, rounds, strict=True) if round == window.until])

    def bundles_sent(self) -> None:
        if self._last is not None:
            self._last.replied = time.monotonic()
            if max(self._last.rounds) >= self._spans.window.until:
                self._spans.window.check()
