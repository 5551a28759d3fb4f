"""Steps that do nothing but exchange gradients: what `bps ab` compares settings with when no training is at hand.

    bps ab --vary omp-wait-policy=active,passive --out DIR -- python benchmarks/steps.py --bytes 4000000

Each step pushes and pulls all tensors and waits for them, and ends with `bps.step()`.  It goes on until it is ended, or
for `--steps` steps, and then prints the speed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import byteps_py as bps

if not __package__:  # run as a script, which has its own folder on the path
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from benchmarks import arguments, figures


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = arguments.parser("steps", __doc__.splitlines()[0])
    add = found.add_argument
    add("--bytes", type=arguments.natural, default=4_000_000, metavar="N", help="of a tensor (default: %(default)s)")
    add(
        "--tensors",
        type=arguments.natural,
        default=1,
        metavar="N",
        help="how many are on the way at the same time (default: %(default)s)",
    )
    add("--dtype", choices=(*arguments.DTYPES, "int8", "uint8"), default="float32", help="default: %(default)s")
    add("--steps", type=arguments.whole(0), default=0, metavar="N", help="default: %(default)s, until it is ended")
    return found


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options in force.

    Raises:
        SystemExit: they do not fit together.
    """
    asked = parser()
    options = asked.parse_args(words)
    arguments.check_items(asked, options.bytes, np.dtype(options.dtype).itemsize, options.dtype)
    arguments.check_memory(asked, options.tensors * options.bytes, "the tensors")
    return options


def main() -> None:
    """Run as one worker of a job."""
    options = parse()
    bps.init()
    dtype = np.dtype(options.dtype)
    count = options.bytes // dtype.itemsize
    tensors = [np.ones(count, dtype) for _ in range(options.tensors)]
    names = [f"tensor-{index}" for index in range(options.tensors)]
    started = time.perf_counter()
    for step in itertools.count(1):
        handles = [
            bps.push_pull_async(each, name, bps.AVG, out=each) for each, name in zip(tensors, names, strict=True)
        ]
        for handle in handles:
            bps.synchronize(handle)
        bps.step()
        if step == options.steps:
            break
    seconds = time.perf_counter() - started
    if bps.rank() == 0:
        moved = options.steps * options.tensors * count * dtype.itemsize
        print(f"{options.steps / seconds:.2f} steps/s, {figures.rate(moved / seconds / 1e9)} per worker")
    bps.shutdown()


if __name__ == "__main__":
    main()
