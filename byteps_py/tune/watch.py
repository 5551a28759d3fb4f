"""How far a run is, from what its workers write meanwhile."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

__all__ = ["Watch"]

_SHOWN_RANKS = 8


class Watch:
    """How far the workers of a run are: reads what their records have grown by.

    Args:
        folder: where the records are.
        workers: how many there are.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._workers = workers
        self._offsets: dict[Path, int] = {}
        self._steps: dict[Path, int] = {}

    @property
    def is_there(self) -> bool:
        """Whether the folder has not been removed."""
        return self._folder.is_dir()

    def steps(self) -> int:
        """Steps that every worker has made; 0 as long as one has no record."""
        for path in self._folder.glob("*/*/worker-*.jsonl"):
            self._read(path)
        return max((min(steps.values()) for steps in self._jobs() if len(steps) >= self._workers), default=0)

    def describe_silent(self) -> str:
        """Which workers have counted no step, while others of their job have; empty if it is not so."""
        found = [steps for steps in self._jobs() if any(steps.values())]
        ranks = [rank for rank in range(self._workers) if not found[-1].get(rank)] if found else []
        if not ranks:
            return ""
        shown = ", ".join(map(str, ranks[:_SHOWN_RANKS])) + (" ..." if len(ranks) > _SHOWN_RANKS else "")
        some = f"worker {shown} has" if len(ranks) == 1 else f"workers {shown} have"
        return f"{some} counted no step, though others have: every worker must call bps.step() after each one"

    def _jobs(self) -> list[dict[int, int]]:
        """Steps of each worker, by its rank, of each job that has a record."""
        jobs: dict[Path, dict[int, int]] = {}
        for path, steps in self._steps.items():
            rank = path.stem.removeprefix("worker-")
            if rank.isdecimal():
                jobs.setdefault(path.parent, {})[int(rank)] = steps
        return list(jobs.values())

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                text = file.read()
        except OSError:
            return
        self._steps.setdefault(path, 0)
        whole = text[: text.rfind(b"\n") + 1]
        self._offsets[path] = self._offsets.get(path, 0) + len(whole)
        for line in reversed(whole.splitlines()):
            with contextlib.suppress(msgspec.DecodeError, ValueError, TypeError, AttributeError):
                entry = msgspec.json.decode(line)
                if entry.get("kind") == "sample":
                    self._steps[path] = max(self._steps.get(path, 0), int(entry["steps"]))
                    return
