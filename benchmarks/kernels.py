"""How fast the kernels sum and copy, as shares of what plain C reaches in the same process.

    python -m benchmarks.kernels --bytes 4194304 67108864 --sources 2 4 8 --threads 1 --json FILE

*Rate*: bytes that a call must move over the time that it took, in GB/s (10^9 bytes).  A sum of n buffers moves
(n + 1) x bytes of a buffer, a copy 2 x: each source is read once, the result is written once.  That the processor also
fetches the lines it is about to write is not counted, nor are accumulators.  The rate is that of the shortest time,
because noise only ever adds.

*Share*: this rate over that of the reference, as the median over all rounds: each round takes every figure of a group
once, in turn, so that what disturbs the machine disturbs both.  Reference of a sum is a STREAM-like add of float32
(out = a + b, 3 x bytes), of a copy a STREAM-like copy, each on one thread, at the best instruction set, with ordinary
and with non-temporal stores: the one with the shorter time counts.

Buffers are the same in all rounds, so those smaller than the last-level cache are measured in it.  Values are random
anew in each run, and every result is compared with that of the reference kernels before it is timed.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import byteps_py
from benchmarks import arguments, figures
from byteps_py.errors import KernelError
from byteps_py.kernels import Kernels
from byteps_py.kernels._native import ffi, lib
from byteps_py.kernels.arguments import MAX_DIVISOR
from byteps_py.kernels.native import LEVELS, NativeKernels
from byteps_py.kernels.reference import ReferenceKernels
from byteps_py.types import DType

Array = npt.NDArray[Any]
Call = Callable[[], object]

POOL = 1 << 20
"""Random values that are drawn for each type; buffers repeat them, each from another one on."""

COMPARED = {"sum": "add", "copy": "copy"}
STORES = ("ordinary", "non-temporal")


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for, print a table, write the JSON file; returns the exit status."""
    options, chosen = parse(words)
    try:
        measure(options, chosen)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def measure(options: argparse.Namespace, chosen: NativeKernels) -> None:
    """Measure all groups.

    Raises:
        SystemExit: a result was wrong, or the file cannot be written.
    """
    print(f"kernels: {chosen.level}; divisor {options.divisor}; GB/s = (sources + 1) x bytes / time")
    print(f"{'kernel':6}{'dtype':>10}{'sources':>9}{'bytes':>11}{'threads':>9}{'GB/s':>8}{'share':>7}  of")
    rows: list[dict[str, Any]] = []
    for nbytes in options.bytes:
        for n_sources in options.sources:
            for threads in options.threads:
                for row in _group(chosen, options, nbytes, n_sources, threads):
                    rows.append(row)
                    _show(row)
    accepted = _acceptance(rows)
    for line in accepted.values():
        print(line["text"])
    report = {"environment": _environment(chosen), "settings": figures.settings(options, {})}
    figures.write(options.json, report | {"rows": rows, "acceptance": accepted})


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = arguments.parser("kernels", "Measure the kernels against plain additions and copies.")
    add = found.add_argument
    labels = [dtype.label for dtype in DType]
    natural = arguments.natural
    sizes, counts = [4 << 20, 64 << 20], [2, 4, 8]
    add(
        "--bytes", type=natural, nargs="+", default=sizes, metavar="N", help=f"of one buffer (default: {_words(sizes)})"
    )
    add(
        "--sources",
        type=natural,
        nargs="+",
        default=counts,
        metavar="N",
        help=f"how many buffers are summed (default: {_words(counts)})",
    )
    add("--threads", type=natural, nargs="+", default=[1], metavar="N", help="that may share a call (default: 1)")
    add(
        "--dtypes",
        nargs="+",
        choices=labels,
        default=labels,
        metavar="DTYPE",
        help=f"of {', '.join(labels)} (default: all)",
    )
    add(
        "--divisor",
        type=arguments.whole(1, MAX_DIVISOR),
        default=1,
        metavar="N",
        help="1 is a sum, more an average (default: %(default)s)",
    )
    add("--level", choices=LEVELS, help="the instruction set (default: the best one of this processor)")
    add("--seconds", type=arguments.seconds, default=3.0, help="for each group (default: %(default)s)")
    add("--json", type=arguments.json_file, metavar="FILE", help="write all figures there as well (default: nowhere)")
    return found


def parse(words: Sequence[str] | None = None) -> tuple[argparse.Namespace, NativeKernels]:
    """The options in force, which have been found to fit together, and the kernels of their level.

    Raises:
        SystemExit: they do not, or this machine cannot do what they ask for.
    """
    asked = parser()
    options = asked.parse_args(words)
    widest = max((DType.FLOAT32, *(DType[label.upper()] for label in options.dtypes)), key=lambda each: each.itemsize)
    for nbytes in options.bytes:
        arguments.check_items(asked, nbytes, widest.itemsize, widest.label)
    # Buffers of every dtype live until their group has been measured.
    buffers = 3 + len(options.dtypes) * (max(options.sources) + 2)
    arguments.check_memory(asked, buffers * max(options.bytes), "the buffers of a group")
    cores = len(os.sched_getaffinity(0))
    if max(options.threads) > cores:
        asked.error(f"--threads {max(options.threads)} is more than the {cores} cores that this process may use")
    try:
        return options, NativeKernels(options.level)
    except KernelError as error:
        asked.error(f"--level: {error}")


def _words(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def _group(
    chosen: Kernels, options: argparse.Namespace, nbytes: int, n_sources: int, threads: int
) -> list[dict[str, Any]]:
    """The figures of one size, number of sources and number of threads, measured in turn."""
    calls: dict[tuple[str, str], Call] = {}
    moved: dict[tuple[str, str], int] = {}
    left, right = (_values(DType.FLOAT32, nbytes // 4, seed) for seed in range(2))
    total = np.zeros_like(left)
    for index, store in enumerate(STORES):
        calls["stream add", store] = _stream_add(total, left, right, index)
        calls["stream copy", store] = _stream_copy(total, left, index)
        moved |= {("stream add", store): 3 * left.nbytes, ("stream copy", store): 2 * left.nbytes}
    calls["copy", "bytes"] = functools.partial(chosen.copy, total, left, left.nbytes, threads)
    moved["copy", "bytes"] = 2 * left.nbytes
    for store in STORES:
        _verify(calls["stream add", store], total, left + right)
        _verify(calls["stream copy", store], total, left)
    _verify(calls["copy", "bytes"], total, left)
    for label in options.dtypes:
        dtype = DType[label.upper()]
        sources = [_values(dtype, nbytes // dtype.itemsize, seed) for seed in range(n_sources)]
        out, expected = np.zeros_like(sources[0]), np.zeros_like(sources[0])
        calls["sum", label] = _sum(chosen, out, sources, dtype, options.divisor, threads)
        _sum(ReferenceKernels(), expected, sources, dtype, options.divisor, 1)()
        _verify(calls["sum", label], out, expected)
        moved["sum", label] = (n_sources + 1) * out.nbytes
    times = _rounds(calls, options.seconds)
    rates = {name: [moved[name] / each for each in times[name]] for name in calls}
    rows = []
    for (kernel, label), found in rates.items():
        if kernel not in COMPARED:
            continue
        reference = f"stream {COMPARED[kernel]}"
        store = max(STORES, key=lambda each: max(rates[reference, each]))
        rows.append(
            {
                "kernel": kernel,
                "dtype": label,
                "sources": n_sources if kernel == "sum" else 1,
                "bytes": nbytes,
                "threads": threads,
                "gb_per_s": max(found) / 1e9,
                "share": _median_ratio(found, rates[reference, store]),
                "share_of_float32": _median_ratio(found, rates.get(("sum", "float32"), [])),
                "reference": f"{COMPARED[kernel]}, {store} stores",
                "reference_gb_per_s": max(rates[reference, store]) / 1e9,
                "rounds": len(found),
                "verified": True,
            }
        )
    return rows


def _values(dtype: DType, count: int, seed: int) -> Array:
    values = np.random.default_rng().normal(scale=20.0, size=min(POOL, count))
    values = np.resize(np.roll(values, seed), count)
    if dtype is DType.BFLOAT16:
        return np.ascontiguousarray(values.astype(np.float32).view(np.uint16)[1::2])
    return values.astype(np.int8).astype(dtype.storage) if not dtype.is_floating else values.astype(dtype.storage)


def _sum(chosen: Kernels, out: Array, sources: Sequence[Array], dtype: DType, divisor: int, threads: int) -> Call:
    return functools.partial(chosen.sum_groups, out, sources, (len(sources),), dtype, out.size, divisor, threads)


def _stream_add(out: Array, left: Array, right: Array, past_caches: int) -> Call:
    addresses = [ffi.from_buffer(ffi.typeof("float[]"), each) for each in (out, left, right)]
    return functools.partial(lib.byteps_stream_add, *addresses, out.size, past_caches)


def _stream_copy(out: Array, source: Array, past_caches: int) -> Call:
    return functools.partial(
        lib.byteps_stream_copy, ffi.from_buffer(out), ffi.from_buffer(source), out.nbytes, past_caches
    )


def _verify(call: Call, out: Array, expected: Array) -> None:
    out.view(np.uint8).fill(0xA5)
    call()
    if not np.array_equal(out.view(np.uint8), expected.view(np.uint8)):
        raise SystemExit("the result is wrong, so its time means nothing")


def _rounds(calls: dict[tuple[str, str], Call], seconds: float) -> dict[tuple[str, str], list[float]]:
    """Times of each call, one of each a round; the first round is not counted."""
    times: dict[tuple[str, str], list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while not next(iter(times.values())) or time.perf_counter() < end:
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return times


def _median_ratio(ours: Sequence[float], reference: Sequence[float]) -> float | None:
    if not reference:
        return None
    return statistics.median(one / other for one, other in zip(ours, reference, strict=True))


def _show(row: dict[str, Any]) -> None:
    print(f"{row['kernel']:6}{row['dtype']:>10}{row['sources']:9}{row['bytes']:11}{row['threads']:9}", end="")
    print(f"{row['gb_per_s']:8.3g}{row['share']:7.2f}  {row['reference']} {row['reference_gb_per_s']:.3g}", flush=True)


def _acceptance(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The shares that docs/kernels.md speaks of: sums on one thread, of 4 of the largest buffers if that was measured,
    else of the most."""
    sums = [row for row in rows if row["kernel"] == "sum" and row["threads"] == 1]
    if not sums:
        return {}
    largest = max(row["bytes"] for row in sums)
    counts = {row["sources"] for row in sums}
    n_sources = 4 if 4 in counts else max(counts)
    found = {row["dtype"]: row for row in sums if row["bytes"] == largest and row["sources"] == n_sources}
    lines: dict[str, dict[str, Any]] = {}
    for label, key, of in (
        ("float32", "share", "STREAM-like add"),
        ("float16", "share_of_float32", "float32 rate"),
        ("bfloat16", "share_of_float32", "float32 rate"),
    ):
        if label in found and found[label][key] is not None:
            share = found[label][key]
            text = f"{label}, {n_sources} sources of {largest} bytes, 1 thread: {figures.ratio(share)} of the {of}"
            lines[label] = {"share": share, "text": text}
    return lines


def _environment(chosen: NativeKernels) -> dict[str, Any]:
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "level": chosen.level,
        "past_caches_from_bytes": lib.BYTEPS_PAST_CACHES,
        "byteps_py": byteps_py.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kernel": platform.release(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    sys.exit(main())
