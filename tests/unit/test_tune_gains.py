"""Ratios as gains: their digits, intervals and the axis."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_py.tune import gains
from byteps_py.tune.results import Interval
from tests.helpers import experiments


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "+0.0 %"),
        (0.99999, "-0.001 %"),
        (1.397, "+39.7 %"),
        (0.5, "-50.0 %"),
        (2.0, "+100 %"),
        (10.9, "+990 %"),
        (13.3, "> 1000 %"),
        (1e11, "> 1000 %"),
        (1.0004, "+0.04 %"),
        (1.0 - 1e-9, "+0.0 %"),
    ],
)
def test_a_ratio_as_a_gain(ratio: float, text: str) -> None:
    assert gains.percent(ratio) == text


def test_blocks_are_compared_only_where_both_ran_well() -> None:
    whole = experiments.with_a_failed_cell()
    assert len(gains.block_ratios(whole, 1)) == 5
    assert len(gains.block_ratios(whole, 2)) == 4
    assert gains.block_ratios(whole, 3) == ()


def test_an_interval_of_two_blocks_leaves_the_points_in_sight() -> None:
    whole = experiments.founding()
    wide = Interval(2, 1.4, 0.01, 300.0, 1.4, 90.0)
    cell = msgspec.structs.replace(whole.cells[1], against_baseline=wide)
    low, high = gains.gain_limits(msgspec.structs.replace(whole, cells=(whole.cells[0], cell, *whole.cells[2:])))
    assert low < 0
    assert 50 < high < 150


def test_a_size_has_no_sign() -> None:
    assert (gains.size(0.814), gains.size(1.186), gains.size(30.0)) == ("18.6 %", "18.6 %", "> 1000 %")


@pytest.mark.parametrize(
    ("low", "high", "long", "short"),
    [
        (1.372, 1.458, "+37.2 to +45.8 %", "37 to 46 %"),
        (1.372, 1.386, "+37.2 to +38.6 %", "37.2 to 38.6 %"),
        (0.98, 1.04, "-2.0 to +4.0 %", "-2 to 4 %"),
        (1.0001, 1.0002, "+0.01 to +0.02 %", "0.010 to 0.020 %"),
        (1e-9, 1e12, "-100 to > 1000 %", "-100 to > 1000 %"),
        (20.0, 30.0, "> 1000 %", "> 1000 %"),
        (1.0, 1.0, "+0.0 %", "in every block"),
        (None, None, "", "one block"),
    ],
)
def test_ends_of_intervals(low: float | None, high: float | None, long: str, short: str) -> None:
    interval = Interval(5, 1.0, low, high, 1.0, 1.0)
    assert (gains.range_words(interval), gains.short_range(interval)) == (long, short)


@given(st.floats(0.0, exclude_min=True), st.floats(0.0, exclude_min=True))
def test_any_interval_has_words(one: float, other: float) -> None:
    interval = Interval(5, one, min(one, other), max(one, other), one, 1.0)
    assert len(gains.range_words(interval)) <= 21
    assert len(gains.short_range(interval)) <= 18, "there is no more room beside the picture"


def test_an_axis_begins_at_minus_100_and_ends_at_1000_at_the_most() -> None:
    low, high = gains.gain_limits(experiments.with_wide_intervals())
    assert (low, high) == (-100.0, 1000.0)


def test_an_axis_with_nothing_but_0_has_room() -> None:
    assert gains.gain_limits(experiments.with_equal_values()) == (-1.0, 1.0)
    assert gains.gain_limits(experiments.with_only_failures()) == (-1.0, 1.0)
