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
from collections.abc import Sequence
from typing import Final, NamedTuple

from byteps_py.telemetry.stages import Carried, Carrier, WorkerTimes
from byteps_py.telemetry.window import Window
from byteps_py.wire.bundle import ENTRY_LAYOUT

__all__ = ["Cargo", "Finished", "Passage", "WorkerSpans"]

_monotonic: Final = time.monotonic


class Passage:
    """One partition in one round: when it was submitted, sent, accepted, answered, copied out, or failed; 0: it was
    not."""

    __slots__ = ("accepted", "begun", "copied", "failed", "key", "received", "round", "sent", "submitted")

    def __init__(self, key: int, round: int, submitted: float, sent: float) -> None:
        self.key = key
        self.round = round
        self.submitted = submitted
        self.sent = sent
        self.accepted = self.received = self.begun = self.copied = self.failed = 0.0


class Finished(NamedTuple):
    """An operation that is over; ``copied`` are the seconds of the copy before it was submitted."""

    key: int
    round: int
    submitted: float
    copied: float
    completed: float


class Cargo:
    """A bundle: its number, its entries, when it was sent and accepted (0: not seen).

    ``results`` are (arrived, copied, keys), keys being None where all came at once; ``failed`` says by key when the
    operation of an entry ended without one.
    ``note`` takes begin and end of the copy of the next entry: two floats that exist anyway, and nothing is made.
    """

    __slots__ = ("_skipped", "_table", "_times", "accepted", "failed", "note", "number", "results", "sent")

    def __init__(self, number: int, table: bytearray) -> None:
        self.number = number
        self._table = table
        self._skipped = len(table)
        self._times: list[float] = []
        self.note = self._times.append
        self.sent = self.accepted = 0.0
        self.failed: dict[int, float] = {}
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

    def forget(self) -> None:
        """Free what was kept, when it is written. Any thread, when the window is closed."""
        for each in (self.passages, self.finished, self.cargo, self._open, self._bundles):
            each.clear()

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

    def dropped(self, key: int) -> None:
        super().dropped(key)
        passage, window = self._open.pop(key, None), self.window
        if passage is not None and not passage.received:
            passage.failed = time.monotonic()
            window.rejected(key, passage.round)
            self._look_back()
            window.check()

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
            if not bundle.left:  # all have failed before
                self._over(bundle, cargo)

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
            self._over(bundle, cargo)

    def bundle_dropped(self, bundle: Carrier, key: int, round: int) -> None:
        super().bundle_dropped(bundle, key, round)
        cargo, window = self._bundles.get(bundle.number), self.window
        if cargo is None:
            return
        cargo.failed[key] = time.monotonic()
        if window.first <= round <= window.last:
            window.rejected(key, round)
            self._look_back()
            window.check()
        if cargo.sent and not bundle.left:
            self._over(bundle, cargo)

    def _over(self, bundle: Carrier, cargo: Cargo) -> None:
        """Nothing more of a bundle is waited for."""
        self._bundles.pop(bundle.number, None)
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
