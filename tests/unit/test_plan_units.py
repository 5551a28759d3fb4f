"""Bytes, speeds and times as people write and read them."""

from __future__ import annotations

import pytest

from byteps_py.plan.units import parse_bytes, parse_speed, say_bytes, say_count, say_ratio, say_seconds, say_speed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("1", 1),
        ("25MB", 25_000_000),
        ("25 mb", 25_000_000),
        ("100M", 100_000_000),
        ("1.5GiB", 3 << 29),
        (".5k", 500),
        ("64KiB", 65536),
        ("64Ki", 65536),
        ("7bytes", 7),
        (" 2TB ", 2 * 10**12),
    ],
)
def test_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "text", ["", "MB", "0", "0.4", "-1", "25 parsecs", "1_000", "nan", "inf", "1e6", "٣", "9" * 30]
)
def test_no_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200Mbit", 23.75e6),
        ("25Gbit", 2.96875e9),
        ("25 gbit/s", 2.96875e9),
        ("25Gbps", 2.96875e9),
        ("1.2GB/s", 1.2e9),
        ("900MiB/s", 900 * (1 << 20)),
        ("23.9MBps", 23.9e6),
    ],
)
def test_speeds(text: str, value: float) -> None:
    assert parse_speed(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "25", "25G", "25GB", "25Gb", "0Gbit", "-1Gbit", "1e9B/s", "fast", "9" * 30 + "bit"]
)
def test_no_speeds(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_speed(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.15, "1.15 s"),
        (0.9996, "1.00 s"),
        (123.4, "123 s"),
        (0.0246, "24.6 ms"),
        (85e-6, "85.0 us"),
        (0.0, "0.00 us"),
        (936.0, "15.6 min"),
        (5 * 3600.0, "5.00 h"),
        (525_000.0, "6.08 days"),
        (1e9, "31.7 years"),
        (1e30, "over 1000 years"),
    ],
)
def test_seconds_have_three_digits(seconds: float, text: str) -> None:
    assert say_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(25e6, "25 MB"), (102_228_128, "102 MB"), (1.5e9, "1.5 GB"), (61440, "61.4 kB"), (7, "7 B"), (1e15, "1 PB")],
)
def test_bytes_in_words(count: float, text: str) -> None:
    assert say_bytes(count) == text
    assert say_speed(count) == f"{text}/s"
    assert parse_bytes(say_bytes(count)) == pytest.approx(count, rel=0.005)


def test_ratios_and_counts() -> None:
    assert [say_ratio(each) for each in (1.0, 1.07, 99.99, 99.996, 238.4, 1e9)] == [
        "1.00",
        "1.07",
        "99.99",
        "100",
        "238",
        "over 1000",
    ]
    assert [say_count(each, "server") for each in (0, 1, 2)] == ["0 servers", "1 server", "2 servers"]
