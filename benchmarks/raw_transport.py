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

All bytes that are moved are random, and compared at the other end before and after each window.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import ceilings, environment, systems, turns
from benchmarks.side import SideError
from benchmarks.turns import say

CACHED, BEYOND = 1 << 18, 1 << 28
"""Bytes of a copy within the cache of a core, and of one far beyond the last-level cache."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the JSON file; returns the exit status."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    about = environment.describe()
    try:
        found = pairs(options) if options.push_pull else all_ceilings(options)
    except (SideError, ceilings.WrongBytes, OSError) as error:
        print(f"raw_transport: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    settings = {name: str(each) if isinstance(each, Path) else each for name, each in vars(options).items()}
    found |= {"verified": True, "settings": settings, "environment": about}
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


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
        print(f"{title:28}{found[key]:8.2f} GB/s", flush=True)
    echoes = dict.fromkeys(ceilings.IN_FLIGHT, 0.0)
    for _ in range(options.repeats):
        for each, rate in _echoes(size, seconds).items():
            echoes[each] = max(rate, echoes[each])
    found |= {"zmq_echo": max(echoes.values()), "zmq_echo_by_in_flight": echoes}
    words = ", ".join(f"{each}: {rate:.2f}" for each, rate in echoes.items())
    print(f"{'pyzmq echo, copied out':28}{found['zmq_echo']:8.2f} GB/s  (frames on the way: {words})", flush=True)
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
        say(f"pair {pair + 1} of {options.pairs}: echo {echo[-1]:.3f} GB/s, push_pull {ours[-1]:.3f}")
    ratio = turns.median_ratio(ours, echo)
    print(f"push_pull over TCP, 1 worker + 1 server, over the pyzmq echo, median of the pairs: {ratio:.2f}")
    return {"ours": ours, "echo": echo, "ratio_median": ratio}


def _echoes(size: int, seconds: float) -> dict[int, float]:
    return {each: ceilings.zmq_echo(size, each, seconds, _seed()) for each in ceilings.IN_FLIGHT}


def _seed() -> int:
    return time.time_ns() & 0xFFFFFFFF


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.raw_transport", description="Measure what this machine can do at most."
    )
    parser.add_argument("--bytes", type=int, default=4194304, help="of a frame (default: %(default)s)")
    parser.add_argument("--beyond", type=int, default=BEYOND, help="of the large copy (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each window (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="the best counts (default: %(default)s)")
    parser.add_argument("--push-pull", action="store_true", help="the echo in turn with push_pull over TCP, only")
    parser.add_argument("--tensors", type=int, default=25, help="of a step of push_pull (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="of these (default: %(default)s)")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds, of push_pull (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
