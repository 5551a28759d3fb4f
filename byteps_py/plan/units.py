"""Bytes, speeds and times as people write and read them."""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "FASTEST",
    "LINE_SHARE",
    "MOST_BYTES",
    "SLOWEST",
    "parse_bytes",
    "parse_speed",
    "say_bytes",
    "say_count",
    "say_ratio",
    "say_seconds",
    "say_speed",
]

LINE_SHARE: Final = 0.95
"""What TCP makes of the bits of a line: frames, headers and gaps of Ethernet take the rest."""

_PREFIXES: Final = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_BINARY: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)\s*"
_BYTES = re.compile(_NUMBER + r"(?:([kmgtp]?)(i?)b?|bytes)", re.ASCII | re.IGNORECASE)
_BITS = re.compile(_NUMBER + r"([kKmMgGtT]?)(?:[bB]it(?:/s)?|bps)", re.ASCII)
_RATE = re.compile(_NUMBER + r"([kKmMgGtT]?)(i?)B(?:/s|ps)", re.ASCII)
"""A small b is a bit, a large one a byte."""
MOST_BYTES: Final = 1e15
"""Of a model: far more than any has, so it is a slip of the pen."""
SLOWEST: Final = 100.0
FASTEST: Final = 1e13
"""Bytes per second: links beyond these there are none."""
_TIMES: Final = (
    ("s", 1.0, 600.0),
    ("min", 60.0, 7200.0),
    ("h", 3600.0, 48 * 3600.0),
    ("days", 86400.0, 1000 * 86400.0),
)
"""Unit, its seconds, and the time from which on the next one is easier to read."""
_YEAR: Final = 365.25 * 86400.0
_MOST_YEARS: Final = 1000
_MOST_RATIO: Final = 1000


def parse_bytes(text: str) -> int:
    """``25MB``, ``1.5GiB``, ``100M``, ``4096``: powers of ten, and of two with an ``i``.

    Raises:
        ValueError: it is none, less than one byte, or more than :data:`MOST_BYTES`.
    """
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} must be a number of bytes, as in 25MB, 1.5GiB or 100M")
    number, prefix, binary = found.groups()
    value = float(number) * (_BINARY if binary else _PREFIXES)[(prefix or "").lower()]
    if not 1 <= value <= MOST_BYTES:
        raise ValueError(f"{text!r} must be at least one byte, and no more than {say_bytes(MOST_BYTES)}")
    return round(value)


def parse_speed(text: str) -> float:
    """Bytes per second that TCP carries: ``1.2GB/s`` as it is, of ``25Gbit`` of a line :data:`LINE_SHARE`.

    Raises:
        ValueError: it is none, or not from :data:`SLOWEST` to :data:`FASTEST`.
    """
    if found := _BITS.fullmatch(text.strip()):
        number, prefix = found.groups()
        value = float(number) * _PREFIXES[prefix.lower()] / 8 * LINE_SHARE
    elif found := _RATE.fullmatch(text.strip()):
        number, prefix, binary = found.groups()
        value = float(number) * (_BINARY if binary else _PREFIXES)[prefix.lower()]
    else:
        raise ValueError(
            f"{text!r} must be a speed, in bits as a line is sold (25Gbit, 200Mbit) or in bytes as measured (1.2GB/s)"
        )
    if not SLOWEST <= value <= FASTEST:
        raise ValueError(f"{text!r} must be a speed from {say_speed(SLOWEST)} to {say_speed(FASTEST)}")
    return value


def say_bytes(count: float) -> str:
    """``102 MB``."""
    return f"{_scaled(count)}B"


def say_speed(rate: float) -> str:
    """``2.97 GB/s``."""
    return f"{_scaled(rate)}B/s"


def say_seconds(seconds: float) -> str:
    """``1.15 s``, ``24.6 ms``, ``850 us``, ``15.6 min``, ``6.08 days``, ``over 1000 years``."""
    if seconds < 0.9995:
        unit, size = ("ms", 1e-3) if seconds >= 0.9995e-3 else ("us", 1e-6)
        return f"{_digits(seconds / size)} {unit}"
    for unit, size, until in _TIMES:
        if seconds < until:
            return f"{_digits(seconds / size)} {unit}"
    years = seconds / _YEAR
    return f"{_digits(years)} years" if years < _MOST_YEARS else f"over {_MOST_YEARS} years"


def say_ratio(ratio: float) -> str:
    """``1.07``, ``238``, ``over 1000``."""
    if ratio >= _MOST_RATIO:
        return f"over {_MOST_RATIO}"
    return f"{ratio:.{2 if ratio < 99.995 else 0}f}"


def say_count(number: int, noun: str) -> str:
    """``1 server``, ``2 servers``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _scaled(value: float) -> str:
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{_three(value / size)} {prefix}"
    return f"{_three(value)} "


def _digits(value: float) -> str:
    """Three digits, so that columns line up."""
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def _three(value: float) -> str:
    """At most three digits behind which no zeros stand, or all of a whole number."""
    text = _digits(value)
    return text.rstrip("0").rstrip(".") if "." in text else text
