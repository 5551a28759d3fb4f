"""The checker of traces: it takes what is valid and names what is not, as the strict one of the tests does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_py.telemetry.trace_file import Event
from byteps_py.traces.checking import Checker

NAMED = Event("M", 9, 1, "thread_name", args={"name": "lane 0"})


def problems(*events: Event) -> list[str]:
    checker = Checker()
    found = [problem for each in (NAMED, *events) if (problem := checker.take(each)) is not None]
    return found + list(checker.problems())


def span(begin: int, end: int) -> Event:
    return Event("X", 9, 1, "x", "Comm", begin, end - begin)


def arrow(kind: str, at: int, number: int | None = 1) -> Event:
    return Event(kind, 9, 1, "push", "flow", at, id=number)


def test_what_is_valid() -> None:
    assert problems(span(0, 9), span(2, 4), span(2, 3), span(4, 9), span(9, 9), span(9, 12)) == []
    assert problems(span(0, 2), span(4, 8), arrow("s", 2), arrow("f", 4)) == []
    assert problems() == []


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([span(0, 5), span(3, 8)], "cross"),
        ([span(5, 4)], "lasts -1"),
        ([Event("X", 9, 1, "x", "Comm", 5)], "lasts None"),
        ([Event("X", 9, 1, "x", "Comm", None, 1)], "no time"),
        ([Event("X", 9, 1, "", "Comm", 1, 1)], "no name"),
        ([Event("X", 0, 1, "x", "Comm", 1, 1)], "must be numbers"),
        ([Event("X", 9, 2, "x", "Comm", 1, 1)], "has no name"),
        ([Event("B", 9, 1, "x", "Comm", 1)], "a kind 'B'"),
        ([Event("M", 9, 1, "colour", args={"name": "red"})], "'colour' is nothing"),
        ([span(0, 9), arrow("s", 1)], "one end only"),
        ([span(0, 9), arrow("s", 3), arrow("f", 2)], "backwards"),
        ([span(0, 9), arrow("s", 1), arrow("s", 2)], "without a number of its own"),
        ([span(0, 9), arrow("s", 1, None), arrow("f", 2, None)], "without a number of its own"),
        ([span(0, 3), span(5, 9), arrow("s", 1), arrow("f", 4)], "where no span is"),
        ([span(1, 3), arrow("s", 0), arrow("f", 2)], "where no span is"),
        ([span(1, 3), arrow("s", 2), arrow("f", 4)], "where no span is"),
        ([span(1, 3), arrow("s", 2), Event("f", 9, 3, "push", "flow", 2, id=1)], "which has no span"),
    ],
)
def test_what_is_not(events: list[Event], text: str) -> None:
    found = problems(*events)
    assert found
    assert text in found[0]


@given(begins=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=6))
def test_it_finds_two_that_cross_exactly_where_there_are_two(begins: list[tuple[int, int]]) -> None:
    spans = [(begin, begin + length) for begin, length in begins]
    crossing = any(a < c < b < d for a, b in spans for c, d in spans)
    assert bool(problems(*(span(*each) for each in spans))) == crossing
