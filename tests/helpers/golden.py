"""Reads the byte fixtures in ``tests/golden/``: hexadecimal digits, and comments from ``#`` to the end of the line."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "golden"


def read(name: str) -> list[bytes]:
    """The frames of one fixture; a line ``---`` divides frames."""
    lines = [line.partition("#")[0].strip() for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
    frames = "\n".join(lines).split("---")
    return [bytes.fromhex(each) for each in frames]
