"""What a design may be: how large, with which numbers, and which settings go together.  Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from byteps_py.tune.model import Factor

__all__ = ["MAX_CELLS", "OVERRULED", "grid_problems", "metric_problems", "number_problems"]

MAX_CELLS = 64
"""Most cells of one experiment: 64 cells of one minute and five blocks take more than five hours."""

OVERRULED = {
    "BYTEPS_SERVER_OMP_WAIT_POLICY": "omp-wait-policy",
    "BYTEPS_SERVER_OMP_NUM_THREADS": "omp-num-threads",
    "BYTEPS_WORKER_OMP_WAIT_POLICY": "worker-omp-wait-policy",
    "BYTEPS_WORKER_OMP_NUM_THREADS": "worker-omp-num-threads",
}
"""Variables that do nothing beside an option which is varied."""


def grid_problems(varied: Sequence[Factor], count: int, num_workers: int) -> Iterator[str]:
    """What is wrong with factors that make ``count`` cells together."""
    names = [each.name for each in varied]
    if not varied:
        yield "nothing is varied: name a setting and its values, as in --vary omp-wait-policy=passive,active"
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"--vary {name} is given {names.count(name)} times: put all its values into one"
        if (winner := OVERRULED.get(name)) in names:
            yield f"--vary {name} would do nothing beside {winner}, which goes before it: leave one of them out"
    if count > MAX_CELLS:
        sizes = " x ".join(str(len(each.levels)) for each in varied)
        yield f"{sizes} = {count} cells are more than {MAX_CELLS}: vary fewer settings at once, or fewer values"
    levels = {each.name: each.levels for each in varied}
    most = max(map(int, levels.get("num-workers", (str(num_workers),))))
    if "0" in levels.get("num-servers", ()) and most > 1:
        yield f"num-servers=0 with {most} workers: without a server nobody sums; use 1 to 65535"


def number_problems(repeats: int, num_workers: int, warmup_steps: int, steps: int, timeout: float) -> Iterator[str]:
    """What is wrong with the numbers of a design."""
    for name, value, low in (
        ("repeats", repeats, 1),
        ("num-workers", num_workers, 1),
        ("warmup-steps", warmup_steps, 0),
        ("steps", steps, 0),
    ):
        if value < low:
            yield f"--{name} {value} must be a whole number from {low} on"
    if not 0 < timeout < math.inf:
        yield f"--timeout {timeout} must be a number of seconds above 0"


def metric_problems(metric: str) -> Iterator[str]:
    """What is wrong with a regular expression."""
    if not metric:
        return
    try:
        groups = re.compile(metric).groups
    except re.error as error:
        yield f"--metric {metric!r} is no regular expression: {error}"
        return
    if not groups:
        yield f"--metric {metric!r} has no group: put round brackets around the number, as in 'loss=([0-9.]+)'"
