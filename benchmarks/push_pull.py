"""How fast gradients are summed: byteps_py, alone or in turn with what users would take instead.

    python -m benchmarks.push_pull --workers 2 --servers 2 --tensors 25 --bytes 4194304 --peer gloo --json FILE

Real processes on this machine: ours are started by bpslaunch.  A step sums `--tensors` tensors over all workers, each
in place, all of them on the way at once (or `--in-flight N` of them), and ends when the last one is back.

*Goodput*, GB/s (10^9 bytes) per worker = tensors x bytes / time of a step.  Bytes are those of the gradient, counted
once, whatever a system moves for them; the time is that of the slowest worker, over all steps of a window of about
`--seconds`.

*CPU-seconds per GB* = user and system time of all processes of the side in the window (workers, servers, scheduler,
launcher), over the GB of all workers: tensors x bytes x steps x workers.

*Latency* = time of a step, p50 and p99, in microseconds.  `--tensors 1 --bytes 1024` makes it that of one operation.

*Peak memory* = the largest proportional set size of each process, MB, looked at during the warm-up and after the
window.

With a peer the sides go in turn, A B A B ..., `--pairs` times: each time a job is started, checked, warmed up for about
a second, measured, checked again and ended.  `ratio_median` is the median of ours over the peer's, pair by pair.
Peers: `gloo`, torch's all_reduce, one at a time and 10 in flight, of which the better median counts; `gloo-fused`, one
all_reduce of all the bytes of a step; `mxnet`, MXNet's dist_sync store with as many servers, whose Python is
`--peer-python`.  OMP_NUM_THREADS is 1 for all processes of both sides, unless it is set.

*Checks*: before and after each window one step is made on fresh random integers, and each worker compares each tensor
with the sum, exactly.  One that differs ends the benchmark with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import environment, profiling, systems, turns
from benchmarks.side import Side, SideError
from benchmarks.turns import Turn, say

DTYPES = ("float32", "float64", "float16", "int32", "int64")
PEERS = ("none", "gloo", "gloo-fused", "mxnet")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the JSON file; returns the exit status."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        found = measure(options)
    except SideError as error:
        print(f"push_pull: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    print(as_text(found))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All pairs; returns what goes into the JSON file.

    Raises:
        SideError: a job has failed, or a result was wrong.
    """
    count = systems.elements(options.bytes, options.dtype)
    shape = (options.workers, options.servers, options.tensors, count, options.dtype)
    work = systems.Work(*shape, arena=options.arena == "yes")
    make_peer, peer_work = _peer(options, work)
    in_flights = systems.in_flights(options.peer, peer_work, options.in_flight)
    about = environment.describe()
    ours: list[Turn] = []
    theirs: list[Turn] = []
    times = options.seconds, options.warmup
    for pair in range(options.pairs):
        side = systems.ours(work, options.transport)
        ours.append(turns.take(side, work, (options.in_flight,), *times, profile=options.profile and not pair))
        line = f"pair {pair + 1} of {options.pairs}: ours {ours[-1].windows[options.in_flight].rate:.3f} GB/s"
        if make_peer is not None:
            theirs.append(turns.take(make_peer(), peer_work, in_flights, *times))
            line += f", {options.peer} " + ", ".join(f"{each.rate:.3f}" for each in theirs[-1].windows.values())
        say(line)
    found = _ours(ours, options.in_flight) | (_theirs(ours, theirs, options.in_flight) if theirs else _NO_PEER)
    found |= {"verified": all(each.verified for each in (*ours, *theirs)), "work": systems.summary(work)}
    return found | {"settings": _settings(options), "environment": about}


def _peer(options: argparse.Namespace, work: systems.Work) -> tuple[Callable[[], Side] | None, systems.Work]:
    if options.peer == "none":
        return None, work
    if options.peer == "mxnet":
        return lambda: systems.mxnet(work, options.peer_python), work
    peer_work = work.fused() if options.peer == "gloo-fused" else work
    return lambda: systems.gloo(peer_work), peer_work


_NO_PEER: dict[str, Any] = {
    "peer": [],
    "ratio_median": None,
    "time_ratio_median": None,
    "latency_ratio": None,
    "peer_cpu_s_per_gb": None,
    "peer_cpu_by_role": {},
    "peer_latency_us": None,
    "peer_in_flight": None,
    "peer_peak_pss_mb": {},
    "peer_windows": {},
}


def _ours(ours: Sequence[Turn], in_flight: int) -> dict[str, Any]:
    windows = [turn.windows[in_flight] for turn in ours]
    counted = [each.messages_per_step for each in windows if each.messages_per_step is not None]
    return {
        "ours": [each.rate for each in windows],
        "cpu_s_per_gb": statistics.median(each.cpu_s_per_gb for each in windows),
        "latency_us": _latency(windows),
        "messages_per_step": statistics.median(counted) if counted else None,
        "cpu_by_role": _by_role(windows),
        "stages_s_per_gb": {
            name: statistics.median(each.stages.get(name, 0.0) for each in windows) for name in windows[0].stages
        },
        "peak_pss_mb": _peaks(ours),
        "profile": ours[0].profile,
        "windows": [asdict(each) for each in windows],
    }


def _theirs(ours: Sequence[Turn], theirs: Sequence[Turn], in_flight: int) -> dict[str, Any]:
    chosen = turns.best(theirs)
    windows = [turn.windows[chosen] for turn in theirs]
    own = [turn.windows[in_flight] for turn in ours]
    rates = [each.rate for each in own], [each.rate for each in windows]
    return {
        "peer": rates[1],
        "ratio_median": turns.median_ratio(*rates),
        "time_ratio_median": turns.median_ratio(rates[1], rates[0]),
        "latency_ratio": turns.median_ratio([each.p50 for each in own], [each.p50 for each in windows]),
        "peer_cpu_s_per_gb": statistics.median(each.cpu_s_per_gb for each in windows),
        "peer_cpu_by_role": _by_role(windows),
        "peer_latency_us": _latency(windows),
        "peer_in_flight": chosen,
        "peer_peak_pss_mb": _peaks(theirs),
        "peer_windows": {key: [asdict(turn.windows[key]) for turn in theirs] for key in theirs[0].windows},
    }


def _latency(windows: Sequence[turns.Measured]) -> dict[str, float]:
    """Medians over the turns."""
    return {name: statistics.median(getattr(each, name) for each in windows) for name in ("p50", "p99")}


def _by_role(windows: Sequence[turns.Measured]) -> dict[str, dict[str, float]]:
    """Medians of the user and system parts of the CPU-seconds per GB."""
    none = 0.0, 0.0
    return {
        role: {
            mode: statistics.median(each.cpu_by_role.get(role, none)[index] for each in windows)
            for index, mode in enumerate(("user", "system"))
        }
        for role in windows[0].cpu_by_role
    }


def _peaks(all_turns: Sequence[Turn]) -> dict[str, float]:
    """The largest peak of each process over the turns."""
    names = sorted({name for turn in all_turns for name in turn.peaks})
    return {name: round(max(turn.peaks.get(name, 0.0) for turn in all_turns), 1) for name in names}


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options, and the variables that reach our processes."""
    given = {name: os.fspath(each) if isinstance(each, Path) else each for name, each in vars(options).items()}
    environ = {**os.environ, **systems.ours_environment(options.transport)}
    given["variables"] = {name: environ[name] for name in sorted(environ) if name.startswith(("BYTEPS_", "OMP_"))}
    return given


def as_text(found: dict[str, Any]) -> str:
    """The table: a row of medians for each side, and the ratios."""
    work, peer = found["work"], found["settings"]["peer"]
    rows = [("byteps_py", "ours", "cpu_s_per_gb", "latency_us", "peak_pss_mb")]
    if found["peer"]:
        name = f"{peer}, {found['peer_in_flight'] or 'all'} in flight" if peer != "gloo-fused" else peer
        rows.append((name, "peer", "peer_cpu_s_per_gb", "peer_latency_us", "peer_peak_pss_mb"))
    lines = [
        f"{work['workers']} workers, {work['servers']} servers, {work['tensors']} x {work['count']} {work['dtype']}, "
        f"transport {found['settings']['transport']}, arena {found['settings']['arena']}; "
        f"medians of {found['settings']['pairs']} turns, every result compared",
        f"{'':24}{'GB/s per worker':>16}{'CPU-s per GB':>14}{'step p50 us':>13}{'p99 us':>12}{'peak PSS MB':>13}",
    ]
    for name, rates, cpu, latency, peaks in rows:
        figures = f"{statistics.median(found[rates]):16.4g}{found[cpu]:14.4g}"
        figures += (
            f"{found[latency]['p50']:13.0f}{found[latency]['p99']:12.0f}{max(found[peaks].values(), default=0):13.0f}"
        )
        lines.append(f"{name:24}{figures}")
    if found["peer"]:
        lines.append(
            f"ours over the peer's, median of the pairs: rate {found['ratio_median']:.2f}, time of a step "
            f"{found['time_ratio_median']:.2f}, its p50 {found['latency_ratio']:.2f}"
        )
    lines += [
        f"{name}, CPU-s per GB: "
        + ", ".join(f"{role} {part['user']:.3g} user + {part['system']:.3g} system" for role, part in roles.items())
        for name, roles in (("byteps_py", found["cpu_by_role"]), (peer, found["peer_cpu_by_role"]))
        if roles
    ]
    if found["messages_per_step"] is not None:
        lines.append(f"messages per step and worker, both ways: {found['messages_per_step']:.1f}")
    if found["profile"] is not None:
        lines.append(profiling.as_text(found["profile"]))
    return "\n".join(lines)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.push_pull", description="Measure push_pull, alone or in turn with a peer."
    )
    parser.add_argument("--workers", type=_natural, default=2, help="default: %(default)s")
    parser.add_argument("--servers", type=_natural, default=2, help="default: %(default)s")
    parser.add_argument("--tensors", type=_natural, default=25, help="of a step (default: %(default)s)")
    parser.add_argument("--bytes", type=_natural, default=4194304, help="of one tensor (default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    parser.add_argument("--transport", choices=("auto", "tcp", "shm"), default="auto", help="default: %(default)s")
    parser.add_argument("--arena", choices=("yes", "no"), default="no", help="our tensors come from bps.empty")
    parser.add_argument(
        "--in-flight", type=int, default=0, metavar="N", help="operations at a time (default: 0, all of a step)"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window (default: %(default)s)")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before it (default: %(default)s)")
    parser.add_argument("--pairs", type=_natural, default=5, help="turns of each side (default: %(default)s)")
    parser.add_argument("--peer", choices=PEERS, default="none", help="default: %(default)s")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PATH", help="the Python that has MXNet")
    parser.add_argument("--profile", action="store_true", help="sample our processes with perf, in a window more")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args(arguments)
    if options.in_flight < 0:
        parser.error("--in-flight is 0 (all of a step) or a number of operations")
    if options.profile and not profiling.available():
        parser.error("--profile needs perf, which is not installed (Debian: apt install linux-perf)")
    if options.peer == "mxnet" and options.dtype not in ("float32", "float16"):
        parser.error(f"MXNet's store does not sum {options.dtype}; use float32")
    return options


def _natural(word: str) -> int:
    number = int(word)
    if number < 1:
        raise ValueError
    return number


if __name__ == "__main__":
    sys.exit(main())
