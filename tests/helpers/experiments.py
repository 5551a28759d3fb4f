"""Experiments that nobody ran: plausible runs, and what the program makes of them, for the tests of what people see."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec

from byteps_py.tune.analysis import analyse
from byteps_py.tune.model import Cell, Design, Factor, ProcessUse, Run, StageSum
from byteps_py.tune.results import Analysis

POLICY = Factor("omp-wait-policy", ("active", "passive"), "--omp-wait-policy")
SERVERS = Factor("num-servers", ("1", "2"), "--num-servers")
FOUNDING = (4337.0, 6057.0, 4578.0, 6479.0)
"""Images per second of the founding table: baseline, + PASSIVE, + Extra Servers, + Both."""

MACHINE = "Imaginary CPU, 2 cores; Linux 6.1; Python 3.11.2; byteps_py 0.1.0"

_WORKER_MS = {"queue": 0.9, "copy in": 1.3, "push": 4.2, "pull": 5.0, "copy out": 1.2}
"""Of each step; a pull takes besides what a server holds the contribution for."""
_SERVER_MS = {"wait for others": 6.5, "server queue": 1.05, "sum": 4.4}
"""The same of the servers, for each worker's contribution."""
_PARTITIONS = 2
_SECONDS = 12.5


def design(factors: Sequence[Factor], labels: Sequence[str], *, repeats: int = 5, metric: str = "") -> Design:
    """A design with as many cells as ``labels``; the first factor's level changes fastest."""
    combinations: list[tuple[str, ...]] = [()]
    for factor in reversed(factors):
        combinations = [(level, *rest) for rest in combinations for level in factor.levels]
    cells = tuple(Cell(levels, label, "_".join(levels)) for levels, label in zip(combinations, labels, strict=True))
    return Design(
        factors=tuple(factors),
        cells=cells,
        repeats=repeats,
        num_workers=2,
        warmup_steps=20,
        steps=100,
        metric=metric,
        command=("python", "train.py", "--name", "two words"),
        seed=7,
        timeout=600.0,
    )


def runs(plan: Design, values: Sequence[float], *, unit: str = "samples/s", noise: float = 0.02) -> tuple[Run, ...]:
    """One good run of each cell in each block; the first block is slow as a whole."""
    draw = random.Random(plan.seed)
    return tuple(
        Run(
            cell=index,
            block=block,
            value=value * (0.8 if block == 0 else 1.0) * math.exp(draw.gauss(0.0, noise)),
            unit=unit,
            seconds=_SECONDS,
            steps=plan.steps,
            processes=_processes(plan.cells[index], plan.num_workers, plan.steps),
            started=1_790_000_000.0 + 60.0 * (block * len(plan.cells) + index),
        )
        for block in range(plan.repeats)
        for index, value in enumerate(values)
    )


def failed(run: Run, problem: str, log: str = "") -> Run:
    """The same run without a value."""
    return msgspec.structs.replace(run, problem=problem, log=log, value=0.0, seconds=0.0, steps=0, processes=())


def analysis(plan: Design, made: Sequence[Run]) -> Analysis:
    """What the program makes of these runs."""
    return analyse(plan, made, MACHINE)


def founding(repeats: int = 5) -> Analysis:
    """The 2 x 2 grid of the founding table."""
    plan = _founding_design(repeats)
    return analysis(plan, runs(plan, FOUNDING))


def with_a_failed_cell() -> Analysis:
    """Every run of ``+ both`` failed, and one of ``+ num-servers=2``."""
    plan = _founding_design(5)
    log = "".join(f"[server 1] line {number}\n" for number in range(1, 31)) + "[server 1] MemoryError: no room\n"
    made = [
        failed(each, "server 1 exited with status 1", log)
        if each.cell == 3
        else failed(each, "no step within 600 s; the run was ended", "[worker 0] waiting\n")
        if (each.cell, each.block) == (2, 3)
        else each
        for each in runs(plan, FOUNDING)
    ]
    return analysis(plan, made)


def unfinished() -> Analysis:
    """Interrupted in the second block: the last cell has one pair, the others two."""
    plan = _founding_design(5)
    return analysis(plan, runs(plan, FOUNDING)[:7])


def without_intervals() -> Analysis:
    """One block, so nothing can be said."""
    return founding(repeats=1)


def with_a_metric() -> Analysis:
    """One factor and a number from the output, in which nothing differs."""
    factor = Factor("MY_SWITCH", ("0", "1", "a,b"))
    plan = design((factor,), ("baseline", "+ MY_SWITCH=1", "+ MY_SWITCH=a,b"), metric=r"accuracy: ([0-9.]+)")
    made = [msgspec.structs.replace(each, processes=()) for each in runs(plan, (0.91, 0.912, 0.909), unit="metric")]
    return analysis(plan, made)


def with_wide_intervals() -> Analysis:
    """Two blocks that say the opposite: nothing can be concluded, and the ends of intervals are far out."""
    plan = _founding_design(2)
    factors = {(1, 0): 4.0, (1, 1): 0.5, (2, 0): 0.3, (2, 1): 1.2, (3, 0): 40.0, (3, 1): 0.9}
    made = runs(plan, FOUNDING[:1] * 4)
    made = tuple(
        msgspec.structs.replace(each, value=each.value * factors.get((each.cell, each.block), 1.0)) for each in made
    )
    return analysis(plan, made)


def with_equal_values() -> Analysis:
    """A metric that is the same in every run."""
    whole = with_a_metric()
    return analysis(whole.design, [msgspec.structs.replace(each, value=0.5) for each in whole.runs])


def with_only_failures() -> Analysis:
    """No run of any cell has a value."""
    plan = _founding_design(5)
    return analysis(plan, [failed(each, "exit status 1") for each in runs(plan, FOUNDING)])


def with_slower_cells() -> Analysis:
    """Everything that was tried makes it slower."""
    plan = _founding_design(5)
    return analysis(plan, runs(plan, (4337.0, 3530.0, 4100.0, 2500.0)))


def with_an_inert_factor() -> Analysis:
    """A team of one has no wait policy."""
    plan = _founding_design(5)
    made = [
        msgspec.structs.replace(each, processes=tuple(msgspec.structs.replace(one, team=1) for one in each.processes))
        for each in runs(plan, (4337.0, 4350.0, 5900.0, 5880.0))
    ]
    return analysis(plan, made)


def large(cells: int = 16) -> Analysis:
    """A grid with long names."""
    values = tuple(str(4 * number) for number in range(1, cells // 2 + 1))
    factors = (Factor("BYTEPS_PARTITION_BYTES_OF_A_LONG_NAME", values), POLICY)
    labels = ["baseline"] + [
        f"+ BYTEPS_PARTITION_BYTES_OF_A_LONG_NAME={values[number % len(values)]}"
        + (" + omp-wait-policy=passive" if number >= len(values) else "")
        for number in range(1, cells)
    ]
    plan = design(factors, labels)
    return analysis(plan, runs(plan, [4000.0 * (1 + 0.03 * number) for number in range(cells)]))


def _founding_design(repeats: int) -> Design:
    labels = ("baseline", "+ omp-wait-policy=passive", "+ num-servers=2", "+ both")
    return design((POLICY, SERVERS), labels, repeats=repeats)


def _processes(cell: Cell, num_workers: int, steps: int) -> tuple[ProcessUse, ...]:
    passive = "passive" in cell.levels
    num_servers = 2 if cell.levels[-1:] == ("2",) else 1
    spin = 1.0 if passive else 1.7
    rounds = _PARTITIONS * steps
    # One sum for all workers, and each of them waits for it.
    sums = {name: ms / (2.5 if passive and name == "sum" else 1.0) for name, ms in _SERVER_MS.items()}
    held = sums["wait for others"] + num_workers * (sums["server queue"] + sums["sum"])
    workers = tuple(
        ProcessUse(
            *("worker", rank, "host", 100 + rank, 5.0 + 0.1 * rank, 1, "passive", 0, 2),
            {
                name: StageSum(rounds, (ms + (held if name == "pull" else 0.0)) / 1000 * steps)
                for name, ms in _WORKER_MS.items()
            },
        )
        for rank in range(num_workers)
    )
    policy = "passive" if passive else "active"
    part = num_workers / num_servers * steps / 1000
    count = num_workers * rounds // num_servers
    servers = tuple(
        ProcessUse(
            *("server", rank, "host", 200 + rank, 9.0 * spin, 2, policy, 1, 2),
            {
                **{name: StageSum(count, ms * part) for name, ms in sums.items()},
                "held": StageSum(count, held * part),
            },
        )
        for rank in range(num_servers)
    )
    return (*workers, *servers, ProcessUse("scheduler", 0, "host", 300, 0.05, 0, "", 0, 2, {}))


EXAMPLES: tuple[Callable[[], Analysis], ...] = (
    founding,
    with_a_failed_cell,
    unfinished,
    without_intervals,
    with_a_metric,
    with_an_inert_factor,
    with_wide_intervals,
    with_equal_values,
    with_only_failures,
    with_slower_cells,
    large,
)
"""All of the above, for what must hold for any experiment."""
