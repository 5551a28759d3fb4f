"""Steps that do nothing but exchange gradients: what `bps ab` compares settings with when no training is at hand.

    bps ab --vary omp-wait-policy=active,passive --out DIR -- python benchmarks/steps.py --bytes 4000000

Each step pushes and pulls all tensors and waits for them, and ends with `bps.step()`.  It goes on until it is ended, or
for `--steps` steps, and then prints the speed.
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np

import byteps_py as bps


def main() -> None:
    """Run as one worker of a job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=4_000_000, help="bytes of one tensor")
    parser.add_argument("--tensors", type=int, default=1, help="how many are on the way at the same time")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=0, help="0: until it is ended")
    options = parser.parse_args()
    bps.init()
    dtype = np.dtype(options.dtype)
    count = max(1, options.bytes // dtype.itemsize)
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
        print(f"{options.steps / seconds:.2f} steps/s, {moved / seconds / 1e9:.3f} GB/s per worker")
    bps.shutdown()


if __name__ == "__main__":
    main()
