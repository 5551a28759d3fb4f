"""The speed record."""

from __future__ import annotations

from byteps_py.telemetry.metrics import SpeedRecord


def test_nothing_to_report_looks_as_in_byteps() -> None:
    record = SpeedRecord(0.0)
    assert record.take() == (0, -5.0)
    record.add(9.9, 1000, 10)
    assert record.take() == (0, -5.0)


def test_a_point_is_divided_by_the_seconds_that_passed() -> None:
    record = SpeedRecord(100.0)
    record.add(105.0, 5_000, 30_000_000)
    record.add(120.0, 20_000, 10_000_000)
    record.add(130.0, 30_000, 50_000_000)
    assert record.take() == (20_000, 2.0)
    assert record.take() == (30_000, 5.0)
    assert record.take() == (0, -5.0)


def test_the_oldest_points_are_dropped_beyond_1024() -> None:
    record = SpeedRecord(0.0)
    for index in range(1, 1031):
        record.add(index * 10.0, index, 10_000_000)
    assert record.take() == (7, 1.0)
