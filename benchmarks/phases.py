"""How a benchmark and the workers that it has started go through a measurement together, phase by phase.

The benchmark writes ``phase-N.json`` into a folder: an object whose ``do`` names what is to be done.  Every worker does
it and writes ``done-N-RANK.json`` with its figures.  ``{"do": "end"}`` is the last phase.  Workers of any system take
part, with any Python and without byteps_py, and who starts them does not matter.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Order = Mapping[str, Any]
Handler = Callable[[Order], Mapping[str, Any]]

_POLL = 0.002
"""Seconds between two looks for the next phase: short against a phase, and hardly any CPU time."""
_PR_SET_PDEATHSIG = 1


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file that others see whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(path)


def read(path: Path) -> dict[str, Any]:
    """A file that was written by :func:`write`."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def follow(folder: Path, rank: int, handlers: Mapping[str, Handler]) -> None:
    """Do what the benchmark says, as worker ``rank``, until it says that this is the end.

    Raises:
        SystemExit: the benchmark is gone.
    """
    driver = int(read(folder / "work.json")["driver"])
    for number in itertools.count():
        path = folder / f"phase-{number}.json"
        while not path.exists():
            if not _lives(driver):
                sys.exit(f"worker {rank}: the benchmark that started this process is gone")
            time.sleep(_POLL)
        order = read(path)
        done = {} if order["do"] == "end" else handlers[order["do"]](order)
        write(folder / f"done-{number}-{rank}.json", done)
        if order["do"] == "end":
            return


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it dies, whatever it dies of."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
