"""What a trace keeps of a server, or of a worker that sums for its node, as :mod:`byteps_py.telemetry.spans` does of a
worker; steps and threads are told there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from byteps_py.telemetry.stages import Arrived, Held, SumTimes
from byteps_py.telemetry.window import Window

__all__ = ["Round", "ServerSpans", "Summation", "Together"]


_OF_A_SUM: Final = 5
"""Spans of a round, or of rounds that were summed at once, beside one for each contribution: there may be hundreds."""


class Round:
    """One round of a key on a server: by rank when a contribution arrived and when it was taken in.

    ``replies`` counts the results that were handed to the socket, ``replied`` is when the last one was, 0 before;
    ``rejected`` is when a worker was first told that there will be none.
    ``room`` is for how many contributions there is room.
    """

    __slots__ = ("arrivals", "key", "rejected", "replied", "replies", "room", "round")

    def __init__(self, key: int, round: int, room: int) -> None:
        self.key = key
        self.round = round
        self.room = room
        self.arrivals: dict[int, tuple[float, float]] = {}
        self.replies = 0
        self.replied = self.rejected = 0.0


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
        open: the latest round of each key.
    """

    def __init__(self, window: Window) -> None:
        self.window = window
        self.rounds: list[Round] = []
        self.together: list[Together] = []
        self.sums: list[Summation] = []
        self.open: dict[int, Round] = {}

    def forget(self) -> None:
        """Free what was kept, when it is written. Any thread, when the window is closed."""
        for each in (self.rounds, self.together, self.sums, self.open):
            each.clear()

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
        self._open = spans.open
        self._last: Together | None = None

    def arrived(self, key: int, round: int, rank: int, now: float, stands_for: int = 1, size: int = 0) -> None:
        super().arrived(key, round, rank, now, stands_for, size)
        window = self._spans.window
        if window.first <= round <= window.last:
            current = self._open.get(key)
            if current is None or current.round < round:
                if current is not None:  # no more contributions to it will come: workers sum for others
                    window.left += current.room - len(current.arrivals)
                    current.room = len(current.arrivals)
                room = size or self._size
                if not window.takes(_OF_A_SUM + room):
                    return
                current = self._open[key] = Round(key, round, room)
                current.arrivals[rank] = now, time.monotonic()
                self._spans.rounds.append(current)
                window.seen((key,))
            elif current.round == round:
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

    def rejected(self, key: int, round: int) -> None:
        super().rejected(key, round)
        current, window = self._open.get(key), self._spans.window
        if current is None or current.round != round or current.replies or current.rejected:
            return  # or whoever asks too late for the result of a round is told that it is gone
        current.rejected = time.monotonic()
        if window.last:
            window.rejected(key, round)
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
        if max(rounds) < window.first or min(rounds) > window.last:
            return
        if not window.takes(_OF_A_SUM + len(bundles) + len(keys)):
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
