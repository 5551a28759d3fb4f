"""What a trace costs while it records, and what it costs where there is none.

    python -m benchmarks.trace_overhead [--rounds 10] [--json FILE]

Jobs of three kinds go in turn, off on bare, off on bare ..., with the same steps: `off` has the defaults, `on` traces
every measured step, `bare` has neither a trace nor stage times (`BYTEPS_STAGE_TIMES=0`), the least there can be.  Each
round compares jobs that ran one after the other: the figure is the median, over the rounds, of the time of a step over
that of `off`.  Loads: `large`, 4 tensors of 4 MB a step, and `small`, 200 of 1 KB, where each partition's bookkeeping
weighs most.

The file is written after the last measured step, so that is no part of what is measured; it is done once in a job.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import arguments, figures
from benchmarks.side import SideError, perform
from benchmarks.systems import one_thread

WARMUP = 50
LOADS = {"large": (4, 1_000_000, 100), "small": (200, 250, 300)}
"""Tensors of a step, elements of each, and measured steps: few enough that the trace has room for all."""
KINDS = {
    "off": {"BYTEPS_TRACE_ON": "0", "BYTEPS_STAGE_TIMES": "1"},
    "on": {"BYTEPS_TRACE_ON": "1", "BYTEPS_STAGE_TIMES": "1"},
    "bare": {"BYTEPS_TRACE_ON": "0", "BYTEPS_STAGE_TIMES": "0"},
}
_LIMIT_SECONDS = 300


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = arguments.parser("trace_overhead", (__doc__ or "").partition("\n\n")[0])
    found.add_argument(
        "--rounds", type=arguments.whole(1, 10_000), default=10, metavar="N", help="of each load (default: %(default)s)"
    )
    found.add_argument(
        "--json", type=arguments.json_file, metavar="FILE", help="write the figures there as well (default: nowhere)"
    )
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print the ratios, write the JSON file; returns the exit status."""
    options = parser().parse_args(words)

    def body() -> None:
        found = {name: measure(name, options.rounds) for name in LOADS}
        for name, each in found.items():
            step = statistics.median(each["seconds"]["off"]) * 1e3
            ratios = ", ".join(f"{kind} {each['over_off'][kind]:.3f}" for kind in ("on", "bare"))
            print(f"{name}: a step takes {step:.3f} ms without a trace; the time of one over that, median: {ratios}")
        figures.write(options.json, found)

    return perform("trace_overhead", body)


def measure(load: str, rounds: int) -> dict[str, Any]:
    """Seconds of a step of each kind, by round, and the medians of their ratios.

    Raises:
        SideError: a job has failed.
    """
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in sorted(KINDS, key=lambda kind: (list(KINDS).index(kind) + number) % len(KINDS)):
            seconds[kind].append(_job(load, kind))
        last = ", ".join(f"{kind} {seconds[kind][-1] * 1e3:.3f}" for kind in KINDS)
        print(f"{load}, round {number + 1} of {rounds}, ms a step: {last}", file=sys.stderr, flush=True)
    ratios = {
        kind: statistics.median(each / off for each, off in zip(seconds[kind], seconds["off"], strict=True))
        for kind in KINDS
    }
    return {"seconds": seconds, "over_off": ratios, "tensors": LOADS[load][0], "elements": LOADS[load][1]}


def _job(load: str, kind: str) -> float:
    """Seconds of a step of the slowest worker."""
    with tempfile.TemporaryDirectory() as folder:
        steps = LOADS[load][2]
        environ = {
            **one_thread(),
            **KINDS[kind],
            "BYTEPS_TRACE_START_STEP": str(WARMUP + 1),
            "BYTEPS_TRACE_END_STEP": str(WARMUP + steps),
            "BYTEPS_TRACE_DIR": str(Path(folder) / "trace"),
        }
        launch = [sys.executable, "-m", "byteps_py.launcher", "-n", "2", "-s", "2", "--", sys.executable, "-m"]
        command = [*launch, "benchmarks.trace_overhead", "--worker", load, folder]
        done = subprocess.run(
            command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False
        )
        if done.returncode:
            raise SideError(f"a job with the trace {kind} has failed:\n{done.stderr[-2000:]}")
        files = list(Path(folder).rglob("comm.json"))
        if len(files) != (4 if kind == "on" else 0):
            raise SideError(f"a job with the trace {kind} has written {len(files)} traces")
        return max(float(json.loads(each.read_text())) for each in Path(folder).glob("worker-*.json"))


def work(load: str, folder: Path) -> None:
    """Be a worker: warm up, and write down how long a step took after that."""
    import byteps_py as bps

    tensors, elements, steps = LOADS[load]
    bps.init()
    arrays = [np.ones(elements, np.float32) for _ in range(tensors)]
    begun = 0.0
    for step in range(WARMUP + steps):
        if step == WARMUP:
            bps.barrier()
            begun = time.perf_counter()
        handles = [bps.push_pull_async(each, f"tensor.{index}", out=each) for index, each in enumerate(arrays)]
        for handle in handles:
            bps.synchronize(handle)
    taken = (time.perf_counter() - begun) / steps
    (folder / f"worker-{bps.rank()}.json").write_text(json.dumps(taken))
    bps.shutdown()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main())
