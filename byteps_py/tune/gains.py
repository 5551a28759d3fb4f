"""Ratios of cells as people read them: gains in per cent, the ends of intervals, and the axis they are drawn on.

Everything here is pure and may be used from any thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from byteps_py.tune.model import BASELINE
from byteps_py.tune.results import Analysis, Interval

__all__ = ["LARGEST", "block_ratios", "gain", "gain_limits", "percent", "range_words", "short_range", "size"]

LARGEST = 1000.0
"""Per cent: how much more a gain is has no meaning for anybody, and its digits would fill the line."""

_LEAST = -100.0
"""Nothing can be slower by more."""
_ROOM = 1.0
"""How far intervals may stretch an axis beyond the points, as a part of the width that the points take."""
_NARROW = 2.0
"""Per cent: width of an axis on which there is nothing but 0, and of points that leave no room for intervals."""
_DIGITS = 4
"""At most so many behind the point: a ten-thousandth of a per cent is nothing that anybody measures."""


def gain(ratio: float) -> float:
    """What a ratio adds, in per cent."""
    return 100.0 * (ratio - 1.0)


def percent(ratio: float, sign: bool = True) -> str:
    """A ratio as what it adds: 1.397 is ``+39.7 %``.

    One digit after the point below 100 %, more where that would be 0; above :data:`LARGEST` ``> 1000 %``.
    """
    more = round(gain(ratio), 2 * _DIGITS)  # so that no 0.00999... is taken for less than 0.01
    if more > LARGEST:
        return f"> {LARGEST:.0f} %"
    digits = 1 if abs(more) < 99.95 else 0
    if 0 < abs(more) < 0.05:
        digits = min(_DIGITS, -math.floor(math.log10(abs(more))))
    more = round(more, digits) + 0.0  # no minus before a zero
    return f"{more:{'+' if sign else ''}.{digits if more else 1}f} %"


def size(ratio: float) -> str:
    """The same without a sign: 0.814 is ``18.6 %``, as 1.186 is."""
    return percent(ratio, sign=False).removeprefix("-")


def range_words(interval: Interval | None) -> str:
    """The ends of the interval: ``+33.1 to +46.8 %``, or one number if they are the same; empty without any."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    if gain(interval.low) > LARGEST or interval.low == interval.high:
        return percent(interval.low)
    return f"{percent(interval.low).removesuffix(' %')} to {percent(interval.high)}"


def short_range(interval: Interval) -> str:
    """The same with no more digits than its width needs: ``33 to 47 %``; ``one block`` where there is none."""
    if interval.low is None or interval.high is None:
        return "one block"
    if interval.low == interval.high:
        return "in every block"
    low, high = gain(interval.low), gain(interval.high)
    if low > LARGEST:
        return percent(interval.low)
    width = high - low
    largest = max(abs(low), abs(high))
    room = 1 if largest >= 10 else 2 if largest >= 1 else 3
    digits = 0 if width >= 3 else min(room, -math.floor(math.log10(max(width, 1e-9) / 3)))
    first, last = (f"{round(each, digits) + 0.0:.{digits}f}" for each in (low, min(high, LARGEST)))
    return f"{first} to {'> ' if high > LARGEST else ''}{last} %"


def block_ratios(analysis: Analysis, index: int) -> tuple[float, ...]:
    """Value over the baseline's, of each block that has both, in the order of blocks."""
    units = analysis.cells[index].unit, analysis.cells[BASELINE].unit
    values = {
        (run.cell, run.block): run.value
        for run in analysis.runs
        if not run.problem and 0 < run.value < math.inf and units == (run.unit, run.unit)
    }
    blocks = sorted(block for cell, block in values if cell == index and (BASELINE, block) in values)
    return tuple(values[index, block] / values[BASELINE, block] for block in blocks)


def gain_limits(analysis: Analysis) -> tuple[float, float]:
    """Ends of an axis of gains in per cent, from -100 to 1000 at most: all points and blocks between are on it, and 0.

    Of the intervals as much as leaves room for those: two blocks may give one a hundred times as wide.
    """
    points, ends = [0.0], [0.0]
    for index, cell in enumerate(analysis.cells):
        if (interval := cell.against_baseline) is not None:
            points += _on_axis([interval.ratio, *block_ratios(analysis, index)])
            ends += _on_axis(each for each in (interval.low, interval.high) if each is not None)
    width = max(max(points) - min(points), _NARROW)
    low = max(min(points + ends), min(points) - _ROOM * width)
    high = min(max(points + ends), max(points) + _ROOM * width)
    # A width that no digit shows is that of sums of rounded numbers.
    margin = 0.05 * (high - low) if high - low > 10.0**-_DIGITS else _NARROW / 2
    return max(low - margin, _LEAST), min(high + margin, LARGEST)


def _on_axis(ratios: Iterable[float]) -> list[float]:
    return [min(gain(each), LARGEST) for each in ratios]
