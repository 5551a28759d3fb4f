"""The scheduler's clock as a process comes to know it, with clocks that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_py.telemetry.clock import ASK_SECONDS, FIRST_EXCHANGES, ClockProbe, Exchanged, shift

SECOND = 1_000_000_000
SKEW = 5 * SECOND


class Pair:
    """A probe, and a scheduler whose clock is ahead by ``skew`` and fast by ``rate`` parts in a million."""

    def __init__(self, skew: int = SKEW, rate: int = 0) -> None:
        self.now = 100 * SECOND
        self._began = self.now
        self._skew = skew
        self._rate = rate
        self.probe = ClockProbe(lambda: self.now, lambda: self.now + 7 * SECOND)

    def scheduler(self) -> int:
        return self.now + self._skew + (self.now - self._began) * self._rate // 1_000_000

    def exchange(self, there: int = 1000, at_work: int = 0, back: int = 1000) -> bool:
        """One exchange, of so many nanoseconds each; False if it is not time for one."""
        number = self.probe.ask()
        if number is None:
            return False
        self.now += there
        received = self.scheduler()
        self.now += at_work
        replied = self.scheduler()
        self.now += back
        self.probe.take(number, received, replied)
        return True


def test_without_an_answer_it_is_the_own_wall_clock() -> None:
    pair = Pair()
    points, bound = pair.probe.mapping()
    assert bound is None
    assert shift(points, 3) == 3 + 7 * SECOND


@given(
    there=st.integers(0, SECOND),
    at_work=st.integers(0, SECOND),
    back=st.integers(0, SECOND),
    skew=st.integers(-SKEW, SKEW),
)
def test_the_offset_is_within_its_bound_however_the_way_is_divided(
    there: int, at_work: int, back: int, skew: int
) -> None:
    pair = Pair(skew)
    pair.exchange(there, at_work, back)
    points, bound = pair.probe.mapping()
    assert bound is not None
    assert abs(shift(points, 0) - skew) <= bound <= (there + back) // 2 + 1


def test_the_quickest_exchange_counts() -> None:
    pair = Pair()
    for there, back in ((500_000, 9_000_000), (2000, 4000), (7_000_000, 10)):
        assert pair.exchange(there, 0, back)
    points, bound = pair.probe.mapping()
    assert bound == 3001
    assert abs(shift(points, 0) - SKEW) <= 3001


def test_the_first_exchanges_follow_one_another_and_then_there_is_one_in_a_second() -> None:
    pair = Pair()
    for _ in range(FIRST_EXCHANGES):
        assert pair.probe.wait() == 0
        assert pair.exchange()
    assert not pair.exchange()
    assert 0 < pair.probe.wait() <= ASK_SECONDS
    pair.now += SECOND
    assert pair.exchange()
    assert not pair.exchange()
    assert pair.probe.exchanges == FIRST_EXCHANGES + 1
    pair.probe.stop()
    pair.now += 10 * SECOND
    assert not pair.exchange()
    assert pair.probe.wait() > 60


def test_a_scheduler_that_does_not_answer_is_asked_once_a_second() -> None:
    pair = Pair()
    asked = 0
    for _ in range(1000):
        asked += pair.probe.ask() is not None
        pair.now += SECOND // 10
    assert asked == 100
    assert pair.probe.mapping()[1] is None
    pair.probe.take(1, 0, 0)  # long forgotten
    assert pair.probe.exchanges == 0
    pair.probe.take(100, pair.scheduler(), pair.scheduler())
    assert pair.probe.exchanges == 1


def test_an_answer_counts_once_and_others_do_not() -> None:
    pair = Pair()
    number = pair.probe.ask()
    assert number is not None
    pair.probe.take(number + 5, 0, 0)
    pair.probe.take(number, pair.scheduler(), pair.scheduler())
    pair.probe.take(number, 0, 0)
    assert pair.probe.exchanges == 1
    assert shift(pair.probe.mapping()[0], 0) == pytest.approx(SKEW, abs=2)


def test_drift_is_interpolated_when_it_is_proven() -> None:
    pair = Pair(rate=100)  # 100 microseconds in a second
    began = pair.now
    for _ in range(FIRST_EXCHANGES):
        pair.exchange()
    for _ in range(60):
        pair.now += SECOND
        pair.exchange()
    points, bound = pair.probe.mapping()
    assert len(points) == 2
    assert bound is not None
    for seconds in (0, 20, 40, 44):
        when = began + seconds * SECOND
        assert abs(shift(points, when) - (when + SKEW + seconds * 100_000)) < 100_000 * 17, "half-way it is half-way"
    middle = (points[0].when + points[1].when) // 2
    assert shift(points, middle) == pytest.approx(middle + (points[0].offset + points[1].offset) // 2, abs=2)


def test_what_may_be_no_drift_is_none() -> None:
    pair = Pair()
    pair.exchange(10_000, 0, 50_000)
    for _ in range(20):
        pair.now += SECOND
        pair.exchange(50_000, 0, 10_000)
    points, bound = pair.probe.mapping()
    assert len(points) == 1
    assert bound == 30_001


@given(
    offsets=st.tuples(st.integers(-SKEW, SKEW), st.integers(-1000, 1000)),
    times=st.lists(st.integers(0, 300 * SECOND), min_size=2, max_size=8),
)
def test_what_is_later_stays_later(offsets: tuple[int, int], times: list[int]) -> None:
    first, drift = offsets
    points = (Exchanged(100 * SECOND, first, 1), Exchanged(200 * SECOND, first + drift * 1000, 1))
    shifted = [shift(points, when) for when in sorted(times)]
    assert shifted == sorted(shifted)
