"""When does OMP_WAIT_POLICY=PASSIVE help? Finds a setting on this machine where it does, and one where it does not.

    python -m benchmarks.wait_policy [--blocks 7] [--out DIR]

Idle threads of an OpenMP team wait for their next work: PASSIVE, asleep; ACTIVE, by spinning.  A server's team is idle
most of the time, while the bytes of the next gradients come in; if it spins, that takes the cores from whoever brings
them.  So candidates differ in how many threads spin, how many cores there are, and how often there is team work at all.

First all candidates are compared in a few blocks.  Then the one with the clearest gain and the one with the clearest
absence of any are measured anew, with more blocks, since the best of many is partly the luckiest: only the second
measurement is printed as the result.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import arguments, figures
from byteps_py.tune import analysis, experiment, factors, journal, screen, table
from byteps_py.tune.model import Factor
from byteps_py.tune.results import Analysis, CellResult, Interval

WORKLOAD = Path(__file__).resolve().parent / "steps.py"
ACTIVE, PASSIVE = 0, 1
"""Cells of each experiment."""
LEAST_GAIN, LEAST_LOW = 1.4, 1.2
"""What is called a setting where the policy matters: the median of the pairs, and the lower end of the interval."""


@dataclass(frozen=True)
class Setting:
    """A job in which the policies are compared.

    Attributes:
        title: in words.
        expectation: what should come out, and why.
        engines, team: of each server: engine threads, and OpenMP threads of each.
        bytes, tensors: of one tensor, and how many are on the way together.
    """

    title: str
    expectation: str
    engines: int
    team: int
    bytes: int = 4_000_000
    tensors: int = 1
    workers: int = 2
    servers: int = 1


def candidates(cores: int) -> list[Setting]:
    """Settings to look at on a machine with ``cores`` cores."""
    whole = max(2, cores)
    found = [
        Setting(
            "two servers, each with a team as large as the machine",
            "each libgomp counts its own threads only, finds a core for each of them, and lets all of them spin",
            engines=1,
            team=whole,
            tensors=2,
            servers=2,
        ),
        Setting(
            "one team as large as the machine",
            "a sum takes a small part of a step; for the rest of it every core has a thread that spins",
            engines=1,
            team=whole,
        ),
        Setting(
            "many more threads than cores",
            "libgomp stops spinning by itself once it manages more threads than there are cores",
            engines=1,
            team=4 * whole,
        ),
        Setting(
            "small tensors",
            "a sum of 32 KB is done by the thread that received it, so the team never starts",
            engines=1,
            team=whole,
            bytes=32_000,
            tensors=32,
        ),
    ]
    if cores >= 8:
        half = Setting(
            "a team on half of the cores", "the other half is free for the workers", engines=1, team=cores // 2
        )
        found.insert(2, half)
    return found


def measure(setting: Setting, blocks: int, options: argparse.Namespace, folder: Path) -> Analysis:
    """Compare PASSIVE with ACTIVE in ``setting``.

    Raises:
        SystemExit: the experiment was interrupted, or no run worked.
    """
    command = [sys.executable, str(WORKLOAD), "--bytes", str(setting.bytes), "--tensors", str(setting.tensors)]
    servers = Factor("num-servers", (str(setting.servers),), "--num-servers")
    design = factors.design(
        (*factors.factors(["omp-wait-policy=active,passive"]), servers),
        command=command,
        num_workers=setting.workers,
        repeats=blocks,
        warmup_steps=options.warmup_steps,
        steps=options.steps,
        seed=options.seed,
    )
    environ = {
        **os.environ,
        "BYTEPS_SERVER_ENGINE_THREAD": str(setting.engines),
        "BYTEPS_SERVER_OMP_NUM_THREADS": str(setting.team),
        "BYTEPS_WORKER_OMP_NUM_THREADS": "1",
    }
    shown = screen.Screen(sys.stderr)
    with journal.open_journal(design, folder, shown.say) as book:
        outcome = experiment.run(book, environ, shown)
        if outcome.number or outcome.hopeless:
            sys.exit(128 + outcome.number if outcome.number else "no run has worked")
        return analysis.analyse(design, experiment.counting(book.runs))


def gain(result: Analysis) -> Interval | None:
    """PASSIVE over ACTIVE."""
    return result.cells[PASSIVE].against_baseline


def choose(screened: Sequence[tuple[Setting, Interval]]) -> tuple[Setting, Setting]:
    """The setting with the largest gain, and of the others the one whose interval lies closest around 1."""
    matters = max(screened, key=lambda each: each[1].ratio)[0]
    others = [each for each in screened if each[0] is not matters]
    return matters, min(others, key=lambda each: max(abs((each[1].low or 0) - 1), abs((each[1].high or 9) - 1)))[0]


def explain(setting: Setting, result: Analysis, cores: int) -> list[str]:
    """Threads against cores, and what CPU accounting says about spinning."""
    threads = setting.servers * setting.engines * setting.team
    lines = [
        f"{setting.workers} workers, {setting.servers} server(s) with {setting.engines} engine thread and a team of "
        f"{setting.team} each, on {cores} cores: {threads} threads of teams; {setting.tensors} x {setting.bytes} bytes"
    ]
    active, passive = (server_cpu(result.cells[each]) for each in (ACTIVE, PASSIVE))
    spun = max(0.0, active[1] - passive[1])
    lines.append(
        f"servers kept {active[0]:.2f} cores busy with ACTIVE and {passive[0]:.2f} with PASSIVE: of their "
        f"{1e3 * active[1]:.1f} ms CPU time a step, {1e3 * spun:.1f} ms were spent spinning"
    )
    lines.append(f"expected: {setting.expectation}")
    return lines


def server_cpu(cell: CellResult) -> tuple[float, float]:
    """Cores kept busy by the servers, and their CPU seconds a step."""
    return next(((each.cores, each.seconds_per_step) for each in cell.cpu if each.role == "server"), (0.0, 0.0))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = arguments.parser("wait_policy", (__doc__ or "").partition("\n\n")[0])
    add = found.add_argument
    blocks = arguments.whole(2, 10_000)  # one block says nothing about how sure a difference is
    add("--blocks", type=blocks, default=7, metavar="N", help="of the second measurement (default: %(default)s)")
    add("--screening-blocks", type=blocks, default=3, metavar="N", help="of the first one (default: %(default)s)")
    add(
        "--warmup-steps",
        type=arguments.whole(0, 10**9),
        default=20,
        metavar="N",
        help="of each run, which are not counted (default: %(default)s)",
    )
    add("--steps", type=arguments.whole(1, 10**9), default=120, metavar="N", help="of each run (default: %(default)s)")
    add("--seed", type=arguments.seed, default=1, metavar="N", help="of the order of runs (default: %(default)s)")
    add("--out", type=arguments.folder, metavar="DIR", help="for the experiments (default: a temporary one)")
    add("--json", type=arguments.json_file, metavar="FILE", help="write the figures there as well (default: nowhere)")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Screen, measure anew, print; exit status 1 if no setting was found in which the policy matters."""
    options = parser().parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        return _run(options, options.out or Path(temporary))


def _run(options: argparse.Namespace, folder: Path) -> int:
    cores = len(os.sched_getaffinity(0))
    screened: list[tuple[Setting, Interval]] = []
    for setting in candidates(cores):
        print(f"\nlooking at: {setting.title}", file=sys.stderr)
        interval = gain(measure(setting, options.screening_blocks, options, folder / _slug("screening", setting)))
        if interval is not None:
            screened.append((setting, interval))
    if len(screened) < 2:
        print("Fewer than two settings could be compared; the lines above say why.", file=sys.stderr)
        return 1
    matters, indifferent = choose(screened)
    found = []
    for setting in (matters, indifferent):
        print(f"\nmeasuring: {setting.title}", file=sys.stderr)
        result = measure(setting, options.blocks, options, folder / _slug("measured", setting))
        print(f"\n=== {setting.title} ===\n")
        print("\n".join(explain(setting, result, cores)))
        print("\n" + table.as_text(result))
        found.append((setting, gain(result)))
    figures.write(options.json, [_figures(*each) for each in found])
    return _conclude(*found)


def _conclude(matters: tuple[Setting, Interval | None], indifferent: tuple[Setting, Interval | None]) -> int:
    gained = matters[1]
    shown = gained is not None and (gained.low or 0.0) >= LEAST_LOW and gained.median >= LEAST_GAIN
    none = indifferent[1] is not None and indifferent[1].verdict == "none"
    print(f"\nPASSIVE over ACTIVE: {matters[0].title}: {_words(matters[1])}")
    print(f"                     {indifferent[0].title}: {_words(indifferent[1])}")
    if not shown:
        print(f"No setting was found on this machine with a median of {LEAST_GAIN} and a lower end of {LEAST_LOW}.")
    if not none:
        print("No setting was found on this machine in which the policy makes no difference.")
    return 0 if shown and none else 1


def _words(interval: Interval | None) -> str:
    if interval is None or interval.low is None or interval.high is None:
        return "not known"
    words = (
        f"{interval.ratio:.2f} ({interval.low:.2f} to {interval.high:.2f}), median of the pairs {interval.median:.2f}"
    )
    return words + (": no difference shown" if interval.verdict == "none" else "")


def _figures(setting: Setting, interval: Interval | None) -> dict[str, object]:
    seen = {} if interval is None else {name: getattr(interval, name) for name in ("ratio", "low", "high", "median")}
    return {**asdict(setting), **seen}


def _slug(prefix: str, setting: Setting) -> str:
    """A folder's name, which is another one on a machine with other teams."""
    words = setting.title.replace(",", "").replace(" ", "-")
    return f"{prefix}-{words}-{setting.engines}x{setting.team}"


if __name__ == "__main__":
    sys.exit(main())
