"""How often `bps ab` says the truth, on experiments whose truth is known.

Each synthetic experiment draws the speed of every run, as a log-normal number around its cell's true speed, times a
factor that all runs of a block share; then it goes through the same analysis as a real one.  Counted is how often a
difference is shown: where there is none this is a false one (meant to be one in twenty), where there is one of 10 % it
is found.  *expected* is what Student's t promises for such noise; it holds for differences that are there.

What 5 % of noise means decides what can be found.  If each run varies by 5 %, the ratio of two runs varies by 7 %, and
five blocks find 10 % in about two experiments of three: no honest test can do much better, since even with the noise
known, and not estimated from five numbers, it would be 85 in 100.  More blocks help, and so does a grid: the effect of
one of its factors is averaged over the levels of the other, from twice the runs.

With `--real 20` so many experiments are made with real jobs, whose two cells are the same.

The exit status is 1 if more than 7 % of the synthetic experiments without a difference show one, or more than 15 % of
the real ones, or if fewer than 90 % find a true one where Student's t says that they do.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks import arguments, figures
from byteps_py.tune import experiment, factors, journal, screen, statistics
from byteps_py.tune.analysis import analyse
from byteps_py.tune.model import Design, Run
from byteps_py.tune.results import Interval

BLOCKS = 5
NOISE = 0.05
BLOCK_NOISE = 0.3
DIFFERENCE = 1.1
MOST_FALSE = 0.07
MOST_FALSE_REAL = 0.15

TWO_CELLS = ("FIRST=off,on",)
GRID = ("FIRST=off,on", "SECOND=off,on")
LARGE = (*GRID, "THIRD=off,on")


@dataclass(frozen=True)
class Case:
    """Experiments of one kind.

    Attributes:
        name: for the table.
        varied: the factors; the first of them makes the difference, if there is one.
        blocks: number of blocks.
        ratio: true speed of the first factor's second level over its first.
        noise: standard deviation of the logarithm of each run's speed, by the level of the first factor.
        block_noise: the same of the blocks' speeds.
        asked: index of the factor whose effect is looked at.
        effect_noise: standard deviation of the logarithm of the ratio itself, between blocks.
    """

    name: str
    varied: tuple[str, ...] = TWO_CELLS
    blocks: int = BLOCKS
    ratio: float = 1.0
    noise: tuple[float, float] = (NOISE, NOISE)
    block_noise: float = 0.0
    asked: int = 0
    effect_noise: float = 0.0

    @property
    def truth(self) -> float:
        """The ratio that is looked for."""
        return self.ratio if self.asked == 0 else 1.0

    @property
    def expected(self) -> float:
        """The probability that a difference is shown.

        The effect in a grid has between one and two times the degrees of freedom of two cells, as chance has it.
        """
        if self.truth == 1.0:
            return round(1 - statistics.CONFIDENCE, 9)
        pairs = 2 ** (len(self.varied) - 1)
        dof = round((1.75 if pairs == 2 else 1.0) * (self.blocks - 1))
        return statistics.power(self.truth, math.hypot(*self.noise) / math.sqrt(pairs), self.blocks, dof)


@dataclass(frozen=True)
class Row:
    """What came of the experiments of one kind.

    Attributes:
        name, blocks, expected: of the case.
        difference: whether there was one to be found.
        experiments: how many were made.
        shown: how many showed one; a true one must be shown in its direction.
    """

    name: str
    blocks: int
    expected: float
    difference: bool
    experiments: int
    shown: int

    @property
    def rate(self) -> float:
        return self.shown / self.experiments

    @property
    def error(self) -> float:
        """Standard error of the rate."""
        return math.sqrt(max(self.rate * (1 - self.rate), 1 / self.experiments) / self.experiments)


def cases() -> list[Case]:
    """Experiments without a difference, and with one of 10 %."""
    of_run = (NOISE, NOISE)
    of_ratio = (NOISE / math.sqrt(2), NOISE / math.sqrt(2))
    needed = statistics.blocks_needed(DIFFERENCE, math.hypot(*of_run))
    ten = f"{100 * (DIFFERENCE - 1):.0f} %"
    return [
        Case("no difference"),
        Case("no difference, blocks vary by 30 %", block_noise=BLOCK_NOISE),
        Case("no difference, one cell three times as noisy", noise=(NOISE, 3 * NOISE)),
        Case("no difference: the other factor of a grid", GRID, ratio=DIFFERENCE, block_noise=BLOCK_NOISE, asked=1),
        Case("the same, if blocks change the effect by 2.5 %", GRID, effect_noise=NOISE / 2),
        Case("the same in a grid of 2x2x2, by 5 %", LARGE, effect_noise=NOISE),
        Case(f"{ten}, two cells, runs vary by 5 %", ratio=DIFFERENCE, block_noise=BLOCK_NOISE),
        Case(f"{ten}, two cells, their ratio varies by 5 %", ratio=DIFFERENCE, noise=of_ratio, block_noise=BLOCK_NOISE),
        Case(f"{ten}, a factor of a 2x2 grid, runs vary by 5 %", GRID, ratio=DIFFERENCE, block_noise=BLOCK_NOISE),
        Case(f"{ten}, two cells, more blocks", blocks=needed, ratio=DIFFERENCE, block_noise=BLOCK_NOISE),
    ]


def synthetic(experiments: int, seed: int) -> list[Row]:
    """Make ``experiments`` experiments of each case; the same seed gives the same ones."""
    return [measure(case, experiments, np.random.default_rng([seed, index])) for index, case in enumerate(cases())]


def measure(case: Case, experiments: int, generator: np.random.Generator) -> Row:
    """Make the experiments of one case."""
    design = factors.design(factors.factors(case.varied), command=["synthetic"], repeats=case.blocks)
    shown = sum(_shows(_experiment(case, design, generator), case.truth) for _ in range(experiments))
    return Row(case.name, case.blocks, case.expected, case.truth != 1.0, experiments, shown)


def _experiment(case: Case, design: Design, generator: np.random.Generator) -> Interval | None:
    """The interval of the effect that is asked for, of one experiment."""
    on = [int(cell.levels[0] == "on") for cell in design.cells]
    effects = math.log(case.ratio) + generator.normal(0.0, case.effect_noise, (case.blocks, 1))
    log_speeds = generator.normal(0.0, case.block_noise, (case.blocks, 1)) + np.array(on) * effects
    log_speeds = log_speeds + generator.normal(0.0, [case.noise[level] for level in on], log_speeds.shape)
    speeds = np.exp(log_speeds).tolist()
    runs = [Run(cell, block, value=value) for block, row in enumerate(speeds) for cell, value in enumerate(row)]
    return analyse(design, runs).effects[case.asked].interval


def _shows(interval: Interval | None, truth: float) -> bool:
    verdict = "unknown" if interval is None else interval.verdict
    return verdict == "more" if truth > 1.0 else verdict in ("more", "less")


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    width = max(len(row.name) for row in rows)
    print(f"{'':{width}}  blocks   difference shown   expected")
    for row in rows:
        rate = f"{row.rate:6.1%} +- {row.error:.1%}"
        print(f"{row.name:{width}}  {row.blocks:6}   {rate:>16}   {row.expected:8.1%}")


def passes(rows: Sequence[Row]) -> bool:
    """Whether differences that are none are shown rarely enough, and true ones where they should be."""
    found = [row.rate >= statistics.SURE - 2 * row.error for row in rows if row.difference and row.expected > 0.9]
    return all(found) and all(row.rate <= MOST_FALSE for row in rows if not row.difference)


def real(experiments: int, seed: int, folder: Path) -> list[Interval]:
    """Make experiments with real jobs, whose two cells differ in a variable that nobody reads.

    Raises:
        SystemExit: interrupted, or no run has worked.
    """
    command = [sys.executable, str(Path(__file__).resolve().parent / "steps.py"), "--bytes", "400000"]
    shown = screen.Screen(sys.stderr)
    found = []
    for index in range(experiments):
        asked = factors.factors(["UNUSED=one,other"])
        design = factors.design(
            asked, command=command, repeats=BLOCKS, num_workers=2, warmup_steps=20, steps=200, seed=seed + index
        )
        with journal.open_journal(design, folder / f"experiment-{index}", shown.say) as book:
            outcome = experiment.run(book, os.environ, shown)
            if outcome.number or outcome.hopeless:
                sys.exit(128 + outcome.number if outcome.number else "no run has worked")
            interval = analyse(design, experiment.counting(book.runs)).cells[1].against_baseline
        if interval is not None:
            found.append(interval)
            low, high = interval.low or math.nan, interval.high or math.nan
            print(f"{index + 1:3}: {interval.ratio:.3f} ({low:.3f} to {high:.3f}) {interval.verdict}", flush=True)
    return found


def _show_real(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        found = real(options.real, options.seed, options.out or Path(temporary))
    false = sum(each.verdict in ("more", "less") for each in found)
    print(f"{false} of {len(found)} real experiments with two identical cells show a difference")
    result = [{name: getattr(each, name) for name in ("ratio", "low", "high", "verdict")} for each in found]
    figures.write(options.json, {"seed": options.seed, "real": result})
    return int(len(found) < options.real or false > MOST_FALSE_REAL * options.real)


def main(words: Sequence[str] | None = None) -> int:
    """Make the experiments, print the table, and return the exit status."""
    options = parse(words)
    if options.real:
        return _show_real(options)
    rows = synthetic(options.experiments, options.seed)
    print(f"{options.experiments} synthetic experiments of each kind, seed {options.seed}")
    show(rows)
    result = [asdict(row) | {"rate": row.rate} for row in rows]
    figures.write(options.json, {"seed": options.seed, "synthetic": result})
    if not passes(rows):
        print(f"more than {MOST_FALSE:.0%} show a difference that is none, or too few find a true one", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = arguments.parser(
        "ab_honesty", "Count how often a comparison shows a difference that is there, and one that is not."
    )
    add = found.add_argument
    add("--experiments", type=arguments.natural, default=2000, metavar="N", help="of each kind (default: %(default)s)")
    add(
        "--real",
        type=arguments.whole(0, 1000),
        default=0,
        metavar="N",
        help="instead, so many with real jobs, of which 20 take about ten minutes (default: %(default)s, none)",
    )
    add("--out", type=arguments.folder, metavar="DIR", help="for the real experiments (default: a temporary one)")
    add("--seed", type=arguments.seed, default=1, metavar="N", help="of the random numbers (default: %(default)s)")
    add("--json", type=arguments.json_file, metavar="FILE", help="write the figures there as well (default: nowhere)")
    return found


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options in force.

    Raises:
        SystemExit: they do not fit together.
    """
    asked = parser()
    options = asked.parse_args(words)
    if options.out is not None and not options.real:
        asked.error("--out is for --real only; leave it out, or add that")
    return options


if __name__ == "__main__":
    sys.exit(main())
