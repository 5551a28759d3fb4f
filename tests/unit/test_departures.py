"""Goodbyes that are held back for a moment."""

from __future__ import annotations

from byteps_py.core.departures import HOLD_SECONDS, Departures


def test_each_is_due_once_after_the_hold() -> None:
    departures = Departures()
    assert not departures.pending
    departures.add(10.0, b"a", "")
    departures.add(10.5, b"b", "ValueError: x")
    assert departures.pending
    assert departures.due(10.0 + HOLD_SECONDS - 0.01) == []
    assert departures.due(10.0 + HOLD_SECONDS) == [b"a"]
    assert departures.pending
    assert departures.due(20.0) == [b"b"]
    assert departures.due(30.0) == []
    assert not departures.pending


def test_the_first_failure_is_remembered() -> None:
    departures = Departures()
    departures.add(1.0, b"a", "")
    assert departures.failed() is None
    departures.add(2.0, b"b", "one")
    departures.add(3.0, b"c", "two")
    departures.due(9.0)
    assert departures.failed() == b"b"
    assert [departures.reason(each) for each in (b"a", b"b", b"c")] == ["", "one", "two"]
