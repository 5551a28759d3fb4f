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
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks import arguments, environment, figures, profiling, systems, turns
from benchmarks.side import Side, perform
from benchmarks.turns import Turn, say

PEERS = ("none", "gloo", "gloo-fused", "mxnet")


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the JSON file; returns the exit status."""
    options = parse(words)

    def body() -> None:
        found = measure(options)
        print(as_text(found))
        figures.write(options.json, found)

    return perform("push_pull", body)


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
    settings = figures.settings(options, systems.ours_environment(options.transport))
    ours: list[Turn] = []
    theirs: list[Turn] = []
    times = options.seconds, options.warmup
    for pair in range(options.pairs):
        side = systems.ours(work, options.transport)
        ours.append(turns.take(side, work, (options.in_flight,), *times, profile=options.profile and not pair))
        line = f"pair {pair + 1} of {options.pairs}: ours {figures.rate(ours[-1].windows[options.in_flight].rate)}"
        if make_peer is not None:
            theirs.append(turns.take(make_peer(), peer_work, in_flights, *times))
            line += f"; {options.peer} " + ", ".join(
                f"{figures.rate(each.rate)} {figures.in_flight(key)}" for key, each in theirs[-1].windows.items()
            )
        say(line)
    found = _ours(ours, options.in_flight) | (_theirs(ours, theirs, options.in_flight) if theirs else _NO_PEER)
    found |= {"verified": all(each.verified for each in (*ours, *theirs)), "work": systems.summary(work)}
    return found | {"settings": settings, "environment": about}


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


def as_text(found: dict[str, Any]) -> str:
    """The table: a row of medians for each side, and the ratios."""
    work, peer = found["work"], found["settings"]["peer"]
    rows = [("byteps_py", "ours", "cpu_s_per_gb", "latency_us", "peak_pss_mb")]
    if found["peer"]:
        name = f"{peer}, {figures.in_flight(found['peer_in_flight'])}" if peer != "gloo-fused" else peer
        rows.append((name, "peer", "peer_cpu_s_per_gb", "peer_latency_us", "peer_peak_pss_mb"))
    lines = [
        f"{work['workers']} workers, {work['servers']} servers, {work['tensors']} x {work['count']} {work['dtype']}, "
        f"transport {found['settings']['transport']}, arena {found['settings']['arena']}; "
        f"medians of {found['settings']['pairs']} turns, every result compared",
        f"{'':24}{'GB/s per worker':>16}{'CPU-s per GB':>14}{'step p50 us':>13}{'p99 us':>12}{'peak PSS MB':>13}",
    ]
    for name, rates, cpu, latency, peaks in rows:
        columns = f"{statistics.median(found[rates]):16.4g}{found[cpu]:14.4g}"
        columns += (
            f"{found[latency]['p50']:13.0f}{found[latency]['p99']:12.0f}{max(found[peaks].values(), default=0):13.0f}"
        )
        lines.append(f"{name:24}{columns}")
    if found["peer"]:
        lines.append(
            f"ours over the peer's, median of the pairs: rate {figures.ratio(found['ratio_median'])}, time of a step "
            f"{figures.ratio(found['time_ratio_median'])}, its p50 {figures.ratio(found['latency_ratio'])}"
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


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = arguments.parser("push_pull", "Measure push_pull, alone or in turn with a peer.")
    add = found.add_argument
    add("--workers", type=arguments.processes, default=2, metavar="N", help="default: %(default)s")
    add("--servers", type=arguments.processes, default=2, metavar="N", help="default: %(default)s")
    add("--tensors", type=arguments.natural, default=25, metavar="N", help="of a step (default: %(default)s)")
    add("--bytes", type=arguments.natural, default=4194304, metavar="N", help="of one tensor (default: %(default)s)")
    add("--dtype", choices=arguments.DTYPES, default="float32", help="default: %(default)s; NumPy has no bfloat16")
    arguments.add_transport(found)
    add("--arena", choices=("yes", "no"), default="no", help="our tensors come from bps.empty (default: %(default)s)")
    add(
        "--in-flight",
        type=arguments.whole(0),
        default=0,
        metavar="N",
        help="our operations at a time, and MXNet's (default: %(default)s, all of a step)",
    )
    add("--seconds", type=arguments.seconds, default=5.0, help="of each window (default: %(default)s)")
    add("--warmup", type=arguments.warmup_seconds, default=1.0, help="seconds before it (default: %(default)s)")
    add("--pairs", type=arguments.natural, default=5, metavar="N", help="turns of each side (default: %(default)s)")
    add("--peer", choices=PEERS, default="none", help="default: %(default)s")
    add("--peer-python", metavar="PATH", help="the Python that has MXNet (default: this one)")
    add("--profile", action="store_true", help="sample our processes with perf, in a window more (default: no)")
    add("--json", type=arguments.json_file, metavar="FILE", help="write the figures there as well (default: nowhere)")
    return found


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options in force, which have been found to fit together.

    Raises:
        SystemExit: they do not, or a peer is not installed.
    """
    asked = parser()
    options = asked.parse_args(words)
    options.transport = arguments.transport(asked, options.transport)
    arguments.check_items(asked, options.bytes, np.dtype(options.dtype).itemsize, options.dtype)
    together = options.workers * options.tensors * options.bytes
    arguments.check_memory(asked, together, "the tensors of all workers")
    if options.profile and not profiling.available():
        asked.error("--profile needs perf, which is not installed (Debian: apt install linux-perf)")
    if options.peer in ("gloo", "gloo-fused"):
        if options.workers < 2:
            asked.error(f"--peer {options.peer} needs at least 2 workers: gloo has nothing to do for one")
        arguments.check_torch(asked, f"--peer {options.peer}")
    if options.peer == "mxnet":
        _check_mxnet(asked, options)
    elif options.peer_python is not None:
        asked.error("--peer-python is for --peer mxnet only; leave it out, or add that")
    return options


def _check_mxnet(asked: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.dtype not in ("float32", "float16"):
        asked.error(f"MXNet's store does not sum {options.dtype}; use float32")
    python = sys.executable if options.peer_python is None else options.peer_python
    # Processes start in the clone; a link, as that of a virtual environment, must stay one.
    options.peer_python = os.path.abspath(python) if os.sep in python else python
    problem = systems.lacks_mxnet(options.peer_python)
    if problem is not None:
        asked.error(
            f"{python!r} cannot import mxnet: {problem}; give --peer-python PATH of a Python with mxnet==1.9.1 and "
            "numpy==1.23.5"
        )


if __name__ == "__main__":
    sys.exit(main())
