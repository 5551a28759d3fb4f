"""Numbered barriers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from byteps_py.core.barriers import Arrival, Barriers


def test_the_last_one_completes_it() -> None:
    barriers = Barriers(3)
    assert barriers.arrive(2, 1) is Arrival.WAITING
    assert barriers.arrive(0, 1) is Arrival.WAITING
    assert (barriers.arrived(), barriers.missing()) == ([0, 2], [1])
    assert barriers.arrive(1, 1) is Arrival.COMPLETE
    assert barriers.number == 2


def test_a_single_participant_never_waits() -> None:
    barriers = Barriers(1)
    assert [barriers.arrive(0, number) for number in (1, 2, 3)] == [Arrival.COMPLETE] * 3


def test_repeating_counts_once() -> None:
    barriers = Barriers(2)
    assert [barriers.arrive(0, 1) for _ in range(3)] == [Arrival.WAITING, *[Arrival.REPEATED] * 2]
    assert barriers.arrive(1, 1) is Arrival.COMPLETE


def test_a_finished_barrier_is_passed() -> None:
    barriers = Barriers(1)
    barriers.arrive(0, 1)
    barriers.arrive(0, 2)
    assert barriers.arrive(0, 1) is Arrival.PASSED
    assert barriers.arrive(0, 2) is Arrival.PASSED


def test_nobody_can_be_ahead() -> None:
    barriers = Barriers(2)
    barriers.arrive(0, 1)
    assert barriers.arrive(0, 2) is Arrival.AHEAD
    assert barriers.arrived() == [0]


def test_without_anyone_waiting_nobody_is_missing() -> None:
    barriers = Barriers(2)
    assert (barriers.arrived(), barriers.missing()) == ([], [])
    barriers.arrive(0, 1)
    barriers.arrive(1, 1)
    assert (barriers.arrived(), barriers.missing()) == ([], [])


@given(st.integers(1, 4), st.data())
def test_a_barrier_completes_exactly_when_all_are_there(size: int, data: st.DataObject) -> None:
    barriers = Barriers(size)
    there: list[set[int]] = [set() for _ in range(31)]
    done = 0
    for rank in data.draw(st.lists(st.integers(0, size - 1), max_size=30)):
        there[done].add(rank)
        complete = len(there[done]) == size
        assert (barriers.arrive(rank, done + 1) is Arrival.COMPLETE) == complete
        done += complete
