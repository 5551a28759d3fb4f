"""Trace files as the strict reader of a format sees them: every rule of the Chrome trace format that we keep."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

KINDS = {"X", "M", "s", "f"}


def load(path: Path) -> dict[str, Any]:
    """The whole file by the standard library, as any viewer would read it."""
    found = json.loads(path.read_text(encoding="utf-8"))
    assert set(found) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert found["displayTimeUnit"] == "ms"
    return dict(found)


def spans(path: Path) -> list[dict[str, Any]]:
    """The spans of a file."""
    return [each for each in load(path)["traceEvents"] if each["ph"] == "X"]


def check(path: Path) -> list[dict[str, Any]]:
    """Assert that a file is valid, without the code that is tested; returns its events."""
    events: list[dict[str, Any]] = load(path)["traceEvents"]
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    arrows: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    named: set[tuple[int, int]] = set()
    for event in events:
        assert event["ph"] in KINDS, event
        assert type(event["pid"]) is type(event["tid"]) is int, event
        if event["ph"] == "M":
            named.add((event["pid"], event["tid"]))
            continue
        assert type(event["ts"]) is int, event
        assert event["ts"] >= 0, event
        if event["ph"] == "X":
            assert type(event["dur"]) is int, event
            assert event["dur"] >= 0, event
            assert event["args"]["name"], event
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        else:
            assert event["ph"] not in arrows[event["id"]], event
            arrows[event["id"]][event["ph"]] = event
    assert named >= set(tracks)
    for track in tracks.values():
        open_ends: list[int] = []
        for begin, end in sorted(track, key=lambda each: (each[0], -each[1])):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], (begin, end, open_ends)
            open_ends.append(end)
    for arrow in arrows.values():
        assert set(arrow) == {"s", "f"}, arrow
        assert arrow["s"]["ts"] <= arrow["f"]["ts"], arrow
        for end in arrow.values():
            there = tracks[end["pid"], end["tid"]]
            assert any(begin <= end["ts"] <= over for begin, over in there), end
    return events
