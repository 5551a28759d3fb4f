"""The ceilings of this machine, so that a figure of push_pull can be read as a share of a limit.

    python -m benchmarks.raw_transport [--push-pull] [--json FILE]

GB/s (10^9 bytes), each the best of `--repeats` windows of `--seconds`, since noise only ever takes away:

* *TCP, one way* and *Unix socket, one way*: plain stream sockets, from one process into a prepared buffer of another;
* *pyzmq echo*: frames of `--bytes` from a DEALER to a ROUTER and back, neither end copying, and copied out into a
  prepared buffer when they are back; the best of 2 to 16 frames on the way.  A byte counts once, though it goes both
  ways, as in push_pull;
* *memcpy*: by one thread, within the cache (256 KB) and far beyond it (256 MB); a copied byte counts once.

With `--push-pull` the echo goes in turn with `benchmarks.push_pull --workers 1 --servers 1 --transport tcp`, tensors of
the same size, `--pairs` times; `ratio_median` is the median of push_pull's goodput over the echo's rate, pair by pair.
`--repeats` and `--beyond` do not count then, nor do `--tensors`, `--pairs` and `--warmup` without it: they are refused.

All bytes that are moved are random, and compared at the other end before and after each window.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import arguments, ceilings, environment, figures, systems, turns
from benchmarks.side import perform
from benchmarks.turns import say

CACHED, BEYOND = 1 << 18, 1 << 28
"""Bytes of a copy within the cache of a core, and of one far beyond the last-level cache."""
ALONE: dict[str, Any] = {"repeats": 3, "beyond": BEYOND}
PAIRED: dict[str, Any] = {"tensors": 25, "pairs": 5, "warmup": 1.0}
"""Defaults of the options that count without `--push-pull` only, and with it."""


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write the JSON file; returns the exit status."""
    options = parse(words)
    about = environment.describe()

    def body() -> None:
        found = pairs(options) if options.push_pull else all_ceilings(options)
        settings = figures.settings(options, systems.ours_environment("tcp") if options.push_pull else {})
        figures.write(options.json, found | {"verified": True, "settings": settings, "environment": about})

    return perform("raw_transport", body, ceilings.WrongBytes, OSError)


def all_ceilings(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print each.

    Raises:
        WrongBytes: something arrived that was not sent.
    """
    size, seconds, beyond = options.bytes, options.seconds, options.beyond
    kinds: dict[str, tuple[str, Callable[[int], float]]] = {
        "tcp": ("TCP, one way", lambda seed: ceilings.stream(socket.AF_INET, size, seconds, seed)),
        "unix": ("Unix socket, one way", lambda seed: ceilings.stream(socket.AF_UNIX, size, seconds, seed)),
        "memcpy_cached": ("memcpy, in the cache", lambda seed: ceilings.memcpy(CACHED, seconds, seed)),
        "memcpy": ("memcpy, beyond the cache", lambda seed: ceilings.memcpy(beyond, seconds, seed)),
    }
    found: dict[str, Any] = {}
    for key, (title, measure) in kinds.items():
        found[key] = max(measure(_seed()) for _ in range(options.repeats))
        print(f"{title:28}{figures.rate(found[key]):>12}", flush=True)
    echoes = dict.fromkeys(ceilings.IN_FLIGHT, 0.0)
    for _ in range(options.repeats):
        for each, rate in _echoes(size, seconds).items():
            echoes[each] = max(rate, echoes[each])
    found |= {"zmq_echo": max(echoes.values()), "zmq_echo_by_in_flight": echoes}
    words = ", ".join(f"{each}: {figures.rate(rate)}" for each, rate in echoes.items())
    print(
        f"{'pyzmq echo, copied out':28}{figures.rate(found['zmq_echo']):>12}  (frames on the way: {words})", flush=True
    )
    return found


def pairs(options: argparse.Namespace) -> dict[str, Any]:
    """The echo in turn with push_pull over TCP.

    Raises:
        SideError, WrongBytes: see :mod:`benchmarks.side` and :mod:`benchmarks.ceilings`.
    """
    work = systems.Work(1, 1, options.tensors, systems.elements(options.bytes, "float32"), "float32")
    echo, ours = [], []
    for pair in range(options.pairs):
        echo.append(max(_echoes(options.bytes, options.seconds / len(ceilings.IN_FLIGHT)).values()))
        turn = turns.take(systems.ours(work, "tcp"), work, (0,), options.seconds, options.warmup)
        ours.append(turn.windows[0].rate)
        say(f"pair {pair + 1} of {options.pairs}: echo {figures.rate(echo[-1])}, push_pull {figures.rate(ours[-1])}")
    ratio = turns.median_ratio(ours, echo)
    print(f"push_pull over TCP, 1 worker + 1 server, over the pyzmq echo, median of the pairs: {figures.ratio(ratio)}")
    return {"ours": ours, "echo": echo, "ratio_median": ratio}


def _echoes(size: int, seconds: float) -> dict[int, float]:
    return {each: ceilings.zmq_echo(size, each, seconds, _seed()) for each in ceilings.IN_FLIGHT}


def _seed() -> int:
    return time.time_ns() & 0xFFFFFFFF


def parser() -> argparse.ArgumentParser:
    """The options; those of one kind of measurement are None here, see :func:`parse`."""
    found = arguments.parser("raw_transport", "Measure what this machine can do at most.")
    found.add_argument(
        "--bytes", type=arguments.natural, default=4194304, metavar="N", help="of a frame (default: %(default)s)"
    )
    found.add_argument("--seconds", type=arguments.seconds, default=2.0, help="of each window (default: %(default)s)")
    found.add_argument(
        "--json", type=arguments.json_file, metavar="FILE", help="write the figures there as well (default: nowhere)"
    )
    alone = found.add_argument_group("without --push-pull")
    alone.add_argument(
        "--repeats", type=arguments.natural, metavar="N", help=f"the best counts (default: {ALONE['repeats']})"
    )
    alone.add_argument(
        "--beyond", type=arguments.natural, metavar="N", help=f"bytes of the large copy (default: {ALONE['beyond']})"
    )
    paired = found.add_argument_group("with --push-pull")
    paired.add_argument(
        "--push-pull", action="store_true", help="the echo in turn with push_pull over TCP, only (default: no)"
    )
    paired.add_argument(
        "--tensors", type=arguments.natural, metavar="N", help=f"of a step of push_pull (default: {PAIRED['tensors']})"
    )
    paired.add_argument(
        "--pairs", type=arguments.natural, metavar="N", help=f"turns of each (default: {PAIRED['pairs']})"
    )
    paired.add_argument(
        "--warmup", type=arguments.warmup_seconds, help=f"seconds, of push_pull (default: {PAIRED['warmup']})"
    )
    return found


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options in force; those of the other kind of measurement are None.

    Raises:
        SystemExit: they do not fit together.
    """
    asked = parser()
    options = asked.parse_args(words)
    own, other = (PAIRED, ALONE) if options.push_pull else (ALONE, PAIRED)
    for name in other:
        if getattr(options, name) is not None:
            asked.error(f"--{name} counts only {'without' if options.push_pull else 'with'} --push-pull; leave it out")
    for name, default in own.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    if options.push_pull:
        arguments.check_items(asked, options.bytes, 4, "float32")
    largest = options.bytes * options.tensors if options.push_pull else max(options.bytes, options.beyond)
    arguments.check_memory(asked, 2 * largest, "two buffers")
    return options


if __name__ == "__main__":
    sys.exit(main())
