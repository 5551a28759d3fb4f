"""How fast the kernels sum, by element type and number of threads.

The figure is *bandwidth*: bytes that one sum must move, (sources + 1) x bytes of a buffer, over the time that it took,
in GB/s (10^9 bytes).  Each source counts as read once and the result as written once; that the processor also fetches
the cache lines it is about to write is not counted, nor are accumulators.  A sum that is limited by memory shows about
the same figure for any number of sources and any type; the time of a sum is that of moving its bytes at this rate.

The time is the shortest of all repeats within ``--seconds``, after one that is not counted: noise only ever adds.
Buffers are the same in every repeat, so those smaller than the last-level cache are measured in it.  The column
``numpy`` adds the sources one by one with ``numpy.add(out, source, out)`` and is given the same bytes to have moved.
Results are compared with the reference kernels before anything is timed.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_py import kernels
from byteps_py.types import DType

Array = npt.NDArray[Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for and print a table."""
    options = _parse(arguments)
    chosen, reference = kernels.select(options.kernels), kernels.select("reference")
    threads = options.threads or sorted({1, os.cpu_count() or 1})
    level = getattr(chosen, "level", "NumPy")
    print(f"{options.kernels} kernels ({level}), {options.sources} sources of {options.bytes} bytes, divisor", end=" ")
    print(f"{options.divisor}; GB/s = (sources + 1) x bytes / time")
    print(f"{'':10}" + "".join(f"{f'{each} threads':>12}" for each in threads) + f"{'numpy':>12}")
    for dtype in DType:
        count = options.bytes // dtype.itemsize
        sources = [_some_values(dtype, count, seed) for seed in range(options.sources)]
        out = np.zeros_like(sources[0])
        moved = (options.sources + 1) * count * dtype.itemsize
        row = []
        for team in threads:
            call = _sum_call(chosen, out, sources, dtype, options.divisor, team)
            _verify(call, out, _sum_call(reference, np.zeros_like(out), sources, dtype, options.divisor, 1))
            row.append(f"{moved / _shortest(call, options.seconds) / 1e9:12.1f}")
        numpy_time = _shortest(functools.partial(_add_one_by_one, out, sources), options.seconds)
        row.append(f"{'-':>12}" if dtype is DType.BFLOAT16 else f"{moved / numpy_time / 1e9:12.1f}")
        print(f"{dtype.label:10}" + "".join(row), flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the summation kernels.")
    parser.add_argument("--bytes", type=int, default=4096000, help="size of one buffer (default %(default)s)")
    parser.add_argument("--sources", type=int, default=2, help="buffers that are summed (default %(default)s)")
    parser.add_argument("--divisor", type=int, default=1, help="1 is a sum, more an average (default %(default)s)")
    parser.add_argument("--threads", type=int, nargs="+", help="numbers of threads (default: 1 and all cores)")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each figure (default %(default)s)")
    parser.add_argument("--kernels", choices=["native", "reference"], default="native")
    return parser.parse_args(arguments)


def _some_values(dtype: DType, count: int, seed: int) -> Array:
    values = np.random.default_rng(seed).normal(scale=20.0, size=count)
    if dtype is DType.BFLOAT16:
        return np.ascontiguousarray(values.astype(np.float32).view(np.uint16)[1::2])
    return values.astype(np.int8).astype(dtype.storage) if not dtype.is_floating else values.astype(dtype.storage)


def _sum_call(
    chosen: kernels.Kernels, out: Array, sources: Sequence[Array], dtype: DType, divisor: int, threads: int
) -> Callable[[], Array]:
    def call() -> Array:
        chosen.sum_groups(out, sources, (len(sources),), dtype, out.size, divisor, threads)
        return out

    return call


def _verify(call: Callable[[], Array], out: Array, expected: Callable[[], Array]) -> None:
    out.fill(0)
    if call().tobytes() != expected().tobytes():
        raise SystemExit("the result is wrong, so its time means nothing")


def _add_one_by_one(out: Array, sources: Sequence[Array]) -> None:
    if len(sources) == 1:
        np.copyto(out, sources[0])
        return
    np.add(sources[0], sources[1], out)
    for each in sources[2:]:
        np.add(out, each, out)


def _shortest(call: Callable[[], object], seconds: float) -> float:
    call()
    best = float("inf")
    end = time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


if __name__ == "__main__":
    main()
