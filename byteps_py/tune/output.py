"""What is read from the output of a run: the number that is asked for, the end that explains a failure, and what each
OpenMP runtime says of itself.

A runtime that finds ``OMP_DISPLAY_ENV`` in its environment prints a block of lines when it is loaded.  Nobody wants to
read it, so it is left out of what is shown.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from byteps_py.tune import durable, searching
from byteps_py.tune.searching import LABEL

__all__ = ["find_metric", "leave_out_displays", "read_policy", "tail"]

_POLICY = re.compile(r"OMP_WAIT_POLICY\s*=\s*'(\w+)'")
_DISPLAYED = re.compile(r"^\s*(?:\[\w+\]\s*)?_?(?:OMP|GOMP|KMP|LIBOMP|OPENMP)\w* ?= ?'.*'$")
_BLOCK_EDGE = re.compile(r"^\s*OPENMP DISPLAY ENVIRONMENT (?:BEGIN|END)$")
_TAIL_BYTES = 256 * 1024
_HEAD_BYTES = 256 * 1024
_LONGEST_LINE = 500
_MOST_UNDECIDED = 1000
_PLAIN = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")
_SEARCH_SECONDS = 20.0
"""How long a metric is searched for in a file, and a second more for so many bytes:"""
_SEARCH_RATE = 2_000_000.0
_POLL_SECONDS = 0.1


def find_metric(logs: Path, metric: str, is_stopped: Callable[[], bool] = lambda: False) -> tuple[float, str]:
    """The number in the last match of ``metric``, and why there is none (empty if there is one).

    It is that of worker 0.  Only if it has none the other processes are asked, and those that have one must agree:
    which of them has printed last is chance.

    Args:
        logs: folder with the output of each process: ``worker-0.log``, ``server-0.log`` ...
        metric: regular expression with a group.
        is_stopped: asked ten times a second; if it is true there is no number.
    """
    first = logs / "worker-0.log"
    others = sorted((path for path in logs.glob("*.log") if path != first), key=_rank)
    problem = ""
    found: dict[str, tuple[float, str]] = {}
    for path in (first, *others):
        match, problem = _last_match(path, metric, is_stopped)
        if problem:
            return 0.0, problem
        if match:
            found[path.stem.replace("-", " ")] = _number(metric, *match)
            if path == first:
                return found["worker 0"]
    if not found:
        return 0.0, f"nothing in the output matches --metric {metric!r}"
    problem = next((problem for _, problem in found.values() if problem), "")
    values = {value for value, _ in found.values()}
    if not problem and len(values) > 1:
        shown = ", ".join(f"{value:.10g} of {name}" for name, (value, _) in found.items())
        problem = f"--metric {metric!r} found no number of worker 0, and different ones of others: {shown}"
    return (0.0, problem) if problem else (values.pop(), "")


def _rank(path: Path) -> tuple[bool, str, int, str]:
    """Workers first, by their numbers."""
    role, _, rank = path.stem.partition("-")
    return role != "worker", role, int(rank) if rank.isdecimal() else 0, path.name


def _last_match(path: Path, metric: str, is_stopped: Callable[[], bool]) -> tuple[list[str | None], str]:
    """The last match in a file: its first group and its whole; empty without one. And why it could not be searched."""
    try:
        seconds = _SEARCH_SECONDS + path.stat().st_size / _SEARCH_RATE
    except FileNotFoundError:
        return [], ""
    # Isolated: neither the working folder nor this one is looked at for modules.
    words = [sys.executable, "-I", "-S", searching.__file__, f"{seconds:.3f}", metric, str(path)]
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C at the terminal is for the experiment
    ) as process:
        while True:
            try:
                out, err = process.communicate(timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if is_stopped():
                    process.kill()
    if is_stopped():
        return [], "interrupted"
    if process.returncode == -signal.SIGALRM:
        given_up = f"--metric {metric!r} was given up after {seconds:.0f} s in the output of {path.stem}"
        return [], f"{given_up}: is it simple enough?"
    if process.returncode:
        why = (err.decode(errors="replace").strip().splitlines() or [f"status {process.returncode}"])[-1]
        return [], f"--metric {metric!r} could not be searched for in the output of {path.stem}: {why}"
    match: list[str | None] = msgspec.json.decode(out, type=list[str | None])
    return match, ""


def _number(metric: str, text: str | None, whole: str | None) -> tuple[float, str]:
    """The number that was found, and what is wrong with it."""
    # float() takes more than people do: 1_000, digits of other scripts.
    value = float(text) if text is not None and _PLAIN.fullmatch(text) else math.nan
    if math.isfinite(value) and value > 0:
        return value, ""
    return 0.0, f"--metric {metric!r} found {text!r} in {whole!r}: a number above 0 is needed, such as 12.5 or 1e-3"


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


def leave_out_displays(path: Path) -> None:
    """Rewrite what a run has printed without what OpenMP runtimes say of themselves.

    Raises:
        OSError: it cannot be; it is as it was.
    """
    temporary = path.with_name(durable.temporary_prefix(path.name))
    try:
        with (
            path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file,
            temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="\n") as kept,
        ):
            kept.writelines(_without_blocks(file))
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _without_blocks(lines: Iterable[str]) -> Iterator[str]:
    """Lines of several processes may alternate, so each is judged by itself; a blank one by the next of its process."""
    queue: list[str | None] = []
    undecided: dict[str, int] = {}
    for line in lines:
        found = LABEL.match(line)
        label = found.group() if found else ""
        bare = line[len(label) :].rstrip("\r\n")
        is_edge = _BLOCK_EDGE.match(bare) is not None
        if (place := undecided.pop(label, None)) is not None and is_edge:
            queue[place] = None
        if not bare.strip():
            undecided[label] = len(queue)
        if not (is_edge or _DISPLAYED.match(bare)):
            queue.append(line)
        if not undecided or len(queue) >= _MOST_UNDECIDED:
            yield from (each for each in queue if each is not None)
            queue.clear()
            undecided.clear()
    yield from (each for each in queue if each is not None)
