"""Intervals and stages as small drawings."""

from __future__ import annotations

import re

from byteps_py.tune import drawing, plot
from byteps_py.tune.results import Interval, StageShare


def test_an_interval_lies_where_its_numbers_are() -> None:
    svg = drawing.interval_bar(Interval(3, 1.5, 1.25, 1.75, 1.5, 1.2), (1.0, 2.0), (0.0, 100.0))
    whole, start = int(re.findall(r'width="(\d+)"', svg)[0]), int(re.findall(r'viewBox="(-\d+) 0 ', svg)[0])
    width = whole + 2 * start
    assert start <= -5, "room for marks at the ends"
    (left, right), *_ = re.findall(r'class="more"[^>]* x1="([\d.]+)" x2="([\d.]+)"', svg)
    assert [float(left), float(right)] == [width / 4, width * 3 / 4]
    assert [float(each) for each in re.findall(r'cx="([\d.]+)"', svg)] == [width / 2, 0.0, float(width)]
    assert 'aria-label="+50.0 %, 95 % interval +25.0 to +75.0 %"' in svg


def test_one_pair_is_a_point_without_a_bar() -> None:
    svg = drawing.interval_bar(Interval(1, 1.5, None, None, 1.5, None), (1.5,), (0.0, 100.0))
    assert "polyline" not in svg
    assert 'class="unknown"' in svg
    assert 'aria-label="+50.0 %"' in svg


def test_stages_are_as_long_as_they_take() -> None:
    stages = (StageShare("push", 0.001, 0.25), StageShare("sum", 0.003, 0.75), StageShare("new", 0.0, 0.0))
    svg = drawing.stage_bar(stages, 0.008)
    width = int(re.findall(r'width="(\d+)"', svg)[0])
    bars = re.findall(r'fill="(#\w+)" x="([\d.]+)" y="0" width="([\d.]+)"', svg)
    assert [(colour, float(left), float(length)) for colour, left, length in bars] == [
        (plot.COLOURS["push"], 0.0, width / 8),
        (plot.COLOURS["sum"], width / 8, width * 3 / 8),
    ]
    assert drawing.stage_bar((), 0.0) == ""
