"""Spans on tracks: what a viewer draws as one line, on which every two spans are apart or one lies in the other.

Spans come in *groups*, such as all that happened to one partition in one step.  A group is kept together on a track of
its own while it lasts, so there are as many tracks as things on their way at the same time.  What would cross another
span of its group goes to a further track.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

__all__ = ["Span", "lay_out"]


class Span(NamedTuple):
    """From ``begin`` to ``end``, whole numbers of any unit, not rising backwards.

    Attributes:
        name: of what happened.
        details: further, for whoever looks closer.
    """

    begin: int
    end: int
    name: str
    details: dict[str, Any]


def lay_out(groups: Iterable[Sequence[Span]]) -> list[list[Span]]:
    """Spread groups over tracks, as few as possible.

    Each track is sorted so that a span comes before those that lie in it.  O(n log n).
    """
    layers = [layer for group in groups for layer in _layers(group)]
    extents = [(layer[0].begin, _until(layer)) for layer in layers]
    order = sorted(range(len(layers)), key=lambda index: (extents[index][0], -extents[index][1]))
    tracks: list[list[Span]] = []
    free: list[int] = []  # numbers of tracks, so that the lowest is taken
    busy: list[tuple[int, int]] = []  # until when, and which
    for index in order:
        begin, end = extents[index]
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, len(tracks))
            tracks.append([])
        track = heapq.heappop(free)
        heapq.heappush(busy, (end, track))
        tracks[track].extend(layers[index])
    return tracks


def _until(layer: Sequence[Span]) -> int:
    """From when on another group may follow: one of no length at the very end must not look like a part of that."""
    end = max(each.end for each in layer)
    return end + any(each.begin == end for each in layer)


def _layers(group: Sequence[Span]) -> list[list[Span]]:
    """The spans of a group, in order, in as many lists as it takes that each nests; mostly one."""
    layers: list[list[Span]] = []
    ends: list[list[int]] = []  # of the spans that are open in each layer
    for span in sorted(group, key=lambda each: (each.begin, -each.end)):
        for layer, open_ends in zip(layers, ends, strict=True):
            while open_ends and open_ends[-1] <= span.begin:
                open_ends.pop()
            if not open_ends or span.end <= open_ends[-1]:
                layer.append(span)
                open_ends.append(span.end)
                break
        else:
            layers.append([span])
            ends.append([span.end])
    return layers
