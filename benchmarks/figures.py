"""The JSON file of a benchmark, and figures in words."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def settings(options: argparse.Namespace, added: Mapping[str, str]) -> dict[str, Any]:
    """The options, and in ``variables`` those of BYTEPS_ and OMP_ that reach the processes that are measured.

    Args:
        options: of the command line.
        added: variables that these processes get beside those of this one, such as
            :func:`benchmarks.systems.ours_environment`.
    """
    given = {name: os.fspath(each) if isinstance(each, Path) else each for name, each in vars(options).items()}
    environ = {**os.environ, **added}
    given["variables"] = {name: environ[name] for name in sorted(environ) if name.startswith(("BYTEPS_", "OMP_"))}
    return given


def write(path: Path | None, content: object) -> None:
    """Write a JSON file, if one was named.

    Raises:
        SystemExit: it cannot be written; the message says why.
    """
    if path is None:
        return
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        sys.exit(f"the figures could not be written to {os.fspath(path)}: {error.strerror}; they are above")


def rate(gb_per_s: float) -> str:
    """In a unit that shows something: ``1.178 GB/s``, ``42.2 MB/s``, ``4.2 kB/s``."""
    if gb_per_s >= 0.1:
        return f"{gb_per_s:.3f} GB/s"
    return f"{1e3 * gb_per_s:.3g} MB/s" if gb_per_s >= 1e-4 else f"{1e6 * gb_per_s:.3g} kB/s"


def ratio(number: float) -> str:
    """With two decimals, or two digits where those would show nothing."""
    return f"{number:.2f}" if number >= 0.1 else f"{number:.2g}"


def in_flight(operations: int) -> str:
    """How many operations go at a time, in words; 0 is all of a step."""
    return {0: "all at once", 1: "one at a time"}.get(operations, f"{operations} in flight")
