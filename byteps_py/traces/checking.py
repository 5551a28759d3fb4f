"""Whether events are what viewers of Chrome traces need: kinds and numbers, tracks that nest, arrows with two ends."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from byteps_py.telemetry.trace_file import Event

__all__ = ["Checker"]

_NAMES: Final = frozenset(("process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"))
_FAR: Final = 2**53
"""Viewers hold numbers as floats of 64 bits."""


class Checker:
    """Takes events in any order and then says what is wrong with them.  32 bytes a span are kept. Not thread-safe."""

    def __init__(self) -> None:
        self._begins: dict[tuple[int, int], array[int]] = defaultdict(lambda: array("q"))
        self._ends: dict[tuple[int, int], array[int]] = defaultdict(lambda: array("q"))
        self._arrows: dict[int, dict[str, tuple[int, int, int]]] = defaultdict(dict)
        self._named: set[tuple[int, int]] = set()

    def take(self, event: Event) -> str | None:
        """What is wrong with this event by itself; None if nothing is."""
        track = event.pid, event.tid
        if not (0 < event.pid < _FAR and 0 <= event.tid < _FAR):
            return f"pid {event.pid} and tid {event.tid} must be numbers from 0 on, pid from 1"
        if event.ph == "M":
            if event.name not in _NAMES or not event.args:
                return f"{event.name!r} is nothing that a number can be told to mean"
            if event.name == "thread_name":
                self._named.add(track)
            return None
        if event.ts is None or not 0 <= event.ts < _FAR or not event.name:
            return f"{event.name!r} has no time, or no name"
        if event.ph == "X":
            if event.dur is None or not 0 <= event.dur < _FAR:
                return f"{event.name!r} at {event.ts} lasts {event.dur}"
            self._begins[track].append(event.ts)
            self._ends[track].append(event.ts + event.dur)
            return None
        if event.ph in ("s", "f"):
            ends = self._arrows[-1 if event.id is None else event.id]
            if event.id is None or event.ph in ends:
                return f"an arrow {event.name!r} at {event.ts} without a number of its own"
            ends[event.ph] = (*track, event.ts)
            return None
        return f"a kind {event.ph!r} of event, which is not written here"

    def problems(self) -> Iterator[str]:
        """What is wrong with all together. O(n log n)."""
        ends: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, arrow in self._arrows.items():
            if len(arrow) < 2:
                yield f"arrow {number} has one end only"
            elif arrow["s"][2] > arrow["f"][2]:
                yield f"arrow {number} runs backwards in time"
            for pid, tid, at in arrow.values():
                ends[pid, tid].append(at)
        for track in ends.keys() - self._begins.keys():
            yield f"arrows end on track {track}, which has no span"
        for track, begins in self._begins.items():
            if track not in self._named:
                yield f"track {track} has no name"
            yield from _track(track, begins, self._ends[track], sorted(ends[track]))


def _track(track: tuple[int, int], begins: array[int], ends: array[int], arrows: list[int]) -> Iterator[str]:
    """Spans nest, and where an arrow ends there is one."""
    covered: list[tuple[int, int]] = []
    open_ends: list[int] = []
    for index in sorted(range(len(begins)), key=lambda index: (begins[index], -ends[index])):
        begin, end = begins[index], ends[index]
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        if not open_ends:
            covered.append((begin, end))
        elif end > open_ends[-1]:
            yield f"spans on track {track} cross: one begins at {begin}, in another that ends at {open_ends[-1]}"
        open_ends.append(end)
    place = 0
    for at in arrows:
        while place < len(covered) - 1 and covered[place + 1][0] <= at:
            place += 1
        if not any(begin <= at <= end for begin, end in covered[max(0, place - 1) : place + 1]):
            yield f"an arrow ends on track {track} at {at}, where no span is"
