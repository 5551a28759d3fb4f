"""How much sooner asynchronous training comes to an accuracy if one of two workers is slower.

    python -m benchmarks.asynchronous [--rounds 5] [--slowdown 3] [--json FILE]

Jobs of `examples/torch_async.py`, synchronous and asynchronous, go in turn, one after the other.  What is compared is
the wall time from the first step until worker 0, the faster one, finds 95 % of the held-out digits right; the figure is
the median, over the rounds, of the time of the asynchronous job over that of the synchronous one before or after it.
Both kinds have the learning rate with which a picture counts alike: a synchronous step is by the mean over both
workers, and its rate is twice that of the steps that each worker makes by itself.  Each round has a seed of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import arguments, figures
from benchmarks.side import SideError, perform
from benchmarks.systems import one_thread
from benchmarks.turns import median_ratio

WORKERS = 2
TARGET = 0.95
KINDS = {"synchronous": ("0", WORKERS), "asynchronous": ("1", 1)}
"""``BYTEPS_ENABLE_ASYNC``, and how many times the learning rate."""
RATE = 0.1
EXAMPLE = Path(__file__).parents[1] / "examples" / "torch_async.py"
_LIMIT_SECONDS = 300


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = arguments.parser("asynchronous", (__doc__ or "").partition("\n\n")[0])
    found.add_argument(
        "--rounds", type=arguments.whole(1, 10_000), default=5, metavar="N", help="of each kind (default: %(default)s)"
    )
    found.add_argument(
        "--slowdown",
        type=arguments.whole(1, 100),
        default=3,
        metavar="N",
        help="how many times as long the other worker computes (default: %(default)s)",
    )
    found.add_argument(
        "--json", type=arguments.json_file, metavar="FILE", help="write the figures there as well (default: nowhere)"
    )
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print the times and their ratio, write the JSON file; returns the exit status."""
    options = parser().parse_args(words)

    def body() -> None:
        found = measure(options.rounds, options.slowdown)
        times = ", ".join(f"{kind} {statistics.median(each):.2f} s" for kind, each in found["seconds"].items())
        print(
            f"until {TARGET:.0%} with a worker slowed {options.slowdown} times, medians: {times}; asynchronous over "
            f"synchronous: {found['ratio']:.2f}"
        )
        figures.write(options.json, found)

    return perform("asynchronous", body)


def measure(rounds: int, slowdown: int) -> dict[str, Any]:
    """What each job reported, by kind and round; the seconds, and the median of their ratios.

    Raises:
        SideError: a job has failed, or has not come to the accuracy.
    """
    jobs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        order = list(KINDS) if number % 2 == 0 else list(reversed(KINDS))
        for kind in order:
            jobs[kind].append(_job(kind, slowdown, seed=number + 1))
        last = ", ".join(f"{kind} {each[-1]['seconds']:.2f} s" for kind, each in jobs.items())
        print(f"round {number + 1} of {rounds}: {last}", file=sys.stderr, flush=True)
    seconds = {kind: [each["seconds"] for each in found] for kind, found in jobs.items()}
    ratio = median_ratio(seconds["asynchronous"], seconds["synchronous"])
    return {"slowdown": slowdown, "target": TARGET, "seconds": seconds, "ratio": ratio, "jobs": jobs}


def _job(kind: str, slowdown: int, seed: int) -> dict[str, Any]:
    """What worker 0 reported."""
    enabled, times = KINDS[kind]
    environ = {**os.environ, **one_thread(), "BYTEPS_ENABLE_ASYNC": enabled}
    launch = [sys.executable, "-m", "byteps_py.launcher", "-n", str(WORKERS), "-s", "1", "--", sys.executable]
    options = ["--slowdown", str(slowdown), "--seed", str(seed), "--lr", str(RATE * times), "--target", str(TARGET)]
    done = subprocess.run(
        [*launch, str(EXAMPLE), *options],
        env=environ,
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SideError(f"a job with {kind} training has failed:\n{done.stderr[-2000:]}")
    (line,) = (each for each in done.stdout.splitlines() if each.startswith(("[worker 0] {", "{")))
    found: dict[str, Any] = json.loads(line.removeprefix("[worker 0] "))
    if found["accuracy"] < TARGET:
        raise SideError(f"a job with {kind} training has come to {found['accuracy']} only, of {TARGET}")
    return found


if __name__ == "__main__":
    sys.exit(main())
