"""What is said below the rows of a table."""

from __future__ import annotations

import msgspec

from byteps_py.tune import remarks
from byteps_py.tune.results import Analysis, Interval
from tests.helpers import experiments

NOISY = Interval(5, 1.1, 0.4, 3.0, 1.1, 7.0)
FEW = msgspec.structs.replace(NOISY, blocks=2)
FINE = Interval(5, 1.01, 0.99, 1.03, 1.01, 1.03)


def with_intervals(*intervals: Interval) -> Analysis:
    whole = experiments.founding()
    cells = [
        msgspec.structs.replace(cell, against_baseline=interval)
        for cell, interval in zip(whole.cells[1:], intervals, strict=False)
    ]
    return msgspec.structs.replace(whole, cells=(whole.cells[0], *cells))


def test_a_run_that_was_made_again_has_not_failed() -> None:
    whole = experiments.founding()
    again = experiments.failed(whole.runs[-1], "it was Monday")
    assert remarks.failures(msgspec.structs.replace(whole, runs=(again, *whole.runs)), 3) == []


def test_what_holds_for_all_rows_is_said_once_below() -> None:
    said = remarks.of_cells(with_intervals(FEW, FEW))
    assert said.rows == ((), (), ())
    assert said.below == (
        "Every row: too few blocks, or too noisy: 100 % might not have been seen; use --repeats 5 or more.",
    )
    noisy = remarks.of_cells(with_intervals(NOISY, NOISY))
    assert noisy.below == ("Every row: too noisy: 100 % might not have been seen.",)


def test_what_holds_for_some_rows_is_said_there() -> None:
    said = remarks.of_cells(with_intervals(NOISY, FINE))
    assert said.rows[1:] == (
        ("too noisy: 100 % might not have been seen",),
        ("3.0 % or more would have been seen 9 times in 10",),
    )
    assert said.below == ()
    alone = remarks.of_cells(with_intervals(FEW))
    assert alone.rows[1] == ("too few blocks, or too noisy: 100 % might not have been seen; use --repeats 5 or more",)
    assert alone.below == ()


def test_runs_of_one_value_are_said_to_be() -> None:
    said = remarks.of_cells(experiments.with_equal_values())
    assert said.rows == ((), ("every run gave the same value",), ("every run gave the same value",))


def test_blocks_that_differ_in_nothing_are_said_to() -> None:
    whole = experiments.with_equal_values()
    runs = [msgspec.structs.replace(each, value=1.0 + each.block) for each in whole.runs]
    said = remarks.of_cells(experiments.analysis(whole.design, runs))
    assert said.rows == ((), ("no block has any difference",), ("no block has any difference",))


def test_little_noise_has_its_digits() -> None:
    tiny = msgspec.structs.replace(FINE, low=0.9999, high=1.0002, detectable=1.0003)
    assert remarks.of_cells(with_intervals(tiny)).rows[1] == ("0.03 % or more would have been seen 9 times in 10",)
    less = msgspec.structs.replace(FINE, low=1 - 1e-12, high=1 + 1e-12, detectable=1 + 1e-12)
    assert remarks.of_cells(with_intervals(less)).rows[1] == ("0.0001 % or more would have been seen 9 times in 10",)
