"""What is read from the output of a run: the number that is asked for, the end that explains a failure, and what each
OpenMP runtime says of itself.

A runtime that finds ``OMP_DISPLAY_ENV`` in its environment prints a block of lines when it is loaded.  Nobody wants to
read it, so it is left out of what is shown.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["find_metric", "read_policy", "tail"]

_LABEL = re.compile(r"^\[(?:scheduler|(?:server|worker) \d+)\] ")
"""What the launcher puts before each line."""
_POLICY = re.compile(r"OMP_WAIT_POLICY\s*=\s*'(\w+)'")
_DISPLAYED = re.compile(r"^\s*(?:\[\w+\]\s*)?_?(?:OMP|GOMP|KMP|LIBOMP|OPENMP)\w* ?= ?'.*'$")
_BLOCK_EDGE = re.compile(r"^\s*OPENMP DISPLAY ENVIRONMENT (?:BEGIN|END)$")
_TAIL_BYTES = 256 * 1024
_HEAD_BYTES = 256 * 1024
_LONGEST_LINE = 500


def find_metric(path: Path, metric: str) -> tuple[float, str]:
    """The number in the last match of ``metric``, and why there is none (empty if there is one).

    Lines are looked at one by one, without the label that the launcher puts before them; what a progress bar has
    written over counts as well.
    """
    pattern = re.compile(metric)
    found: re.Match[str] | None = None
    with path.open(encoding="utf-8", errors="replace", newline=None) as file:
        for line in file:
            for found in pattern.finditer(_LABEL.sub("", line.rstrip("\n"))):  # noqa: B007
                pass
    if found is None:
        return 0.0, f"nothing in the output matches --metric {metric!r}"
    text = found.group(1)
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        return 0.0, f"--metric {metric!r} found {text!r} in {found.group()!r}: a number above 0 is needed"
    return value, ""


def tail(path: Path, lines: int = 40) -> str:
    """The end of what a run has printed, without what OpenMP runtimes say of themselves."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"({path}: {error.strerror})"
    kept = [line[-_LONGEST_LINE:] for line in _without_blocks(text.splitlines())]
    return "\n".join(kept[-lines:]).strip("\n")


def read_policy(path: Path, *, told: str) -> str:
    """How idle threads of a process wait, in lower case: what its OpenMP runtime says in its log, if it does.

    libgomp calls it passive also if nobody has said how to wait; its threads then spin for a moment, so that is taken
    for what it was told: nothing.
    """
    try:
        with path.open("rb") as file:
            found = _POLICY.search(file.read(_HEAD_BYTES).decode(errors="replace"))
    except OSError:
        return told
    said = found.group(1).lower() if found else told
    return told if said == "passive" and not told else said


def _without_blocks(lines: list[str]) -> Iterator[str]:
    """Lines of several processes may alternate, so each is judged by itself."""
    for index, line in enumerate(lines):
        bare = _LABEL.sub("", line)
        following = _LABEL.sub("", lines[index + 1]) if index + 1 < len(lines) else ""
        begins_block = not bare.strip() and _BLOCK_EDGE.match(following)
        if not (begins_block or _DISPLAYED.match(bare) or _BLOCK_EDGE.match(bare)):
            yield line
