"""A turn of one side: start, check, warm up, measure, check, end.  And what the figures of two sides in turn say."""

from __future__ import annotations

import functools
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import profiling
from benchmarks.side import Side, SideError
from benchmarks.systems import Work

CpuByRole = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Measured:
    """The figures of one timed window.

    Attributes:
        rate: goodput, GB/s (10^9 bytes) per worker: bytes of gradient per worker and step, over the time of a step.
        cpu_s_per_gb: CPU seconds of all processes of the side, over the GB that all workers together have had reduced.
        p50, p99: of the time of a step, in microseconds, of the slowest worker.
        messages_per_step: data messages of a worker, both ways, a mean over workers; None if they are not counted.
        steps: in the window.
        cpu_by_role: user and system part of ``cpu_s_per_gb``, by role.
        stages: seconds of each stage of the workers' pipelines, over the same GB; they overlap.
    """

    rate: float
    cpu_s_per_gb: float
    p50: float
    p99: float
    messages_per_step: float | None
    steps: int
    cpu_by_role: dict[str, tuple[float, float]] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)


@dataclass
class Turn:
    """What came of a turn.

    Attributes:
        windows: by operations in flight.
        verified: whether every tensor was compared before and after all windows, and none was wrong.
        peaks: peak PSS in MB by process.
        profile: see :func:`benchmarks.profiling.during`; None if none was asked for.
    """

    windows: dict[int, Measured] = field(default_factory=dict)
    verified: bool = False
    peaks: dict[str, float] = field(default_factory=dict)
    profile: dict[str, Any] | None = None


def take(
    side: Side, work: Work, in_flights: Sequence[int], seconds: float, warmup: float, *, profile: bool = False
) -> Turn:
    """One turn of ``side``, which has not been started yet.

    Args:
        side: is entered and left.
        work: what it does in a step.
        in_flights: a window for each.
        seconds: of each window, about: the number of steps is fixed before, from the warm-up's.
        warmup: seconds before each window that are not counted; memory is watched in these.
        profile: whether a window more, behind the last one, is sampled.

    Raises:
        SideError: a process has failed, or a result is wrong.
    """
    turn = Turn()
    limit = 60.0 + 20 * (seconds + warmup)
    with side:
        for in_flight in in_flights:
            _verify(side, work, in_flight, limit)
            step_seconds = _warm_up(side, in_flight, warmup, limit)
            steps = max(1, math.ceil(seconds / step_seconds))
            reports = side.phase("run", limit=limit, steps=steps, in_flight=in_flight)
            turn.windows[in_flight] = _figures(reports, steps, side.cpu, work)
            side.note_memory()
            _verify(side, work, in_flight, limit)
        if profile:
            more = functools.partial(side.phase, "run", limit=limit, steps=steps, in_flight=in_flight)
            turn.profile = profiling.during(side.pids(), seconds, more)
    turn.peaks = dict(side.peaks)
    turn.verified = True
    return turn


def _verify(side: Side, work: Work, in_flight: int, limit: float) -> None:
    """Stop at a wrong result: nothing is worth timing then."""
    seed = time.time_ns() & 0xFFFFFFFF
    for rank, report in enumerate(side.phase("verify", limit=limit, seed=seed, in_flight=in_flight)):
        if report["compared"] != work.tensors:
            raise SideError(f"{side.name}: worker {rank} has compared {report['compared']} of {work.tensors} tensors")
        if report["wrong"]:
            raise SideError(
                f"{side.name}: the result is wrong on worker {rank}, for {len(report['wrong'])} of {work.tensors} "
                f"tensors, first tensor {report['wrong'][0]}, with seed {seed}"
            )


def _warm_up(side: Side, in_flight: int, warmup: float, limit: float) -> float:
    """Run until ``warmup`` seconds have been spent in steps; returns the seconds of a step in the last round."""
    steps, spent = 1, 0.0
    while True:
        reports = side.phase("run", limit=limit, watch_memory=True, steps=steps, in_flight=in_flight)
        seconds: float = max(each["seconds"] for each in reports)
        spent += seconds
        if spent >= warmup:
            return seconds / steps
        steps = min(steps * 10, max(1, math.ceil(0.6 * warmup * steps / seconds)))


def _figures(reports: Sequence[Mapping[str, Any]], steps: int, cpu: CpuByRole, work: Work) -> Measured:
    seconds = max(each["seconds"] for each in reports)
    moved = work.step_bytes * steps / 1e9
    together = moved * len(reports)
    counted: dict[str, float] = {}
    for each in reports:
        for name, value in each["counted"].items():
            counted[name] = counted.get(name, 0.0) + value
    messages = counted.pop("messages", None)
    return Measured(
        rate=moved / seconds,
        cpu_s_per_gb=sum(user + system for user, system in cpu.values()) / together,
        p50=1e6 * max(each["p50"] for each in reports),
        p99=1e6 * max(each["p99"] for each in reports),
        messages_per_step=None if messages is None else messages / len(reports) / steps,
        steps=steps,
        cpu_by_role={role: (user / together, system / together) for role, (user, system) in cpu.items()},
        stages={name: seconds / together for name, seconds in counted.items()},
    )


def best(turns: Sequence[Turn]) -> int:
    """The operations in flight whose median rate over all turns is the highest."""
    return max(turns[0].windows, key=lambda each: statistics.median(turn.windows[each].rate for turn in turns))


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The median of the ratios of the pairs, one by one, since both of a pair had the same noise around them."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)
