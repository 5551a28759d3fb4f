"""Bytes, speeds and times as people write and read them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["LINE_SHARE", "parse_bytes", "parse_speed", "say_bytes", "say_seconds", "say_speed"]

LINE_SHARE: Final = 0.95
"""What TCP makes of the bits of a line: frames, headers and gaps of Ethernet take the rest."""

_PREFIXES: Final = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)\s*"
_BYTES = re.compile(_NUMBER + r"(?:([kmgt]?)(i?)b?|bytes)", re.ASCII | re.IGNORECASE)
_BITS = re.compile(_NUMBER + r"([kKmMgGtT]?)(?:[bB]it(?:/s)?|bps)", re.ASCII)
_RATE = re.compile(_NUMBER + r"([kKmMgGtT]?)(i?)B(?:/s|ps)", re.ASCII)
"""A small b is a bit, a large one a byte."""
_MOST: Final = 1e18


def parse_bytes(text: str) -> int:
    """``25MB``, ``1.5GiB``, ``100M``, ``4096``: powers of ten, and of two with an ``i``.

    Raises:
        ValueError: it is none, or less than one byte.
    """
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} must be a number of bytes, as in 25MB, 1.5GiB or 100M")
    number, prefix, binary = found.groups()
    value = float(number) * (_BINARY if binary else _PREFIXES)[(prefix or "").lower()]
    if not 1 <= value <= _MOST:
        raise ValueError(f"{text!r} must be at least one byte, and no more than {_MOST:.0e}")
    return round(value)


def parse_speed(text: str) -> float:
    """Bytes per second that TCP carries: ``1.2GB/s`` as it is, of ``25Gbit`` of a line :data:`LINE_SHARE`.

    Raises:
        ValueError: it is none, or less than one byte per second.
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
    if not 1 <= value <= _MOST:
        raise ValueError(f"{text!r} must be at least one byte per second, and no more than {_MOST:.0e}")
    return value


def say_bytes(count: float) -> str:
    """``102 MB``."""
    return f"{_scaled(count)}B"


def say_speed(rate: float) -> str:
    """``2.97 GB/s``."""
    return f"{_scaled(rate)}B/s"


def say_seconds(seconds: float) -> str:
    """``1.15 s``, ``24.6 ms``, ``850 us``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 1e-6)} us"


def _scaled(value: float) -> str:
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
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
