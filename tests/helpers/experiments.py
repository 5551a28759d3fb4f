"""Experiments that nobody ran: analyses with plausible numbers, for the tests of what people see of them."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import msgspec

from byteps_py.tune.model import BASELINE, Cell, Design, Factor, ProcessUse, Run, StageSum
from byteps_py.tune.results import Analysis, CellResult, Effect, Interval, RoleCpu, StageShare

POLICY = Factor("omp-wait-policy", ("active", "passive"), "--omp-wait-policy")
SERVERS = Factor("num-servers", ("1", "2"), "--num-servers")
FOUNDING = (4337.0, 6057.0, 4578.0, 6479.0)
"""Images per second of the founding table: baseline, + PASSIVE, + Extra Servers, + Both."""

_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's t, two-sided 95 %, by degrees of freedom."""
_STAGES = (
    ("queue", 0.9),
    ("copy in", 1.3),
    ("push", 4.2),
    ("wait for others", 6.5),
    ("server queue", 2.1),
    ("sum", 8.8),
    ("pull", 5.0),
    ("copy out", 1.2),
)
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
            processes=_processes(plan.cells[index], plan.num_workers),
            started=1_790_000_000.0 + 60.0 * (block * len(plan.cells) + index),
        )
        for block in range(plan.repeats)
        for index, value in enumerate(values)
    )


def failed(run: Run, problem: str, log: str = "") -> Run:
    """The same run without a value."""
    return msgspec.structs.replace(run, problem=problem, log=log, value=0.0, seconds=0.0, steps=0, processes=())


def analysis(
    plan: Design, made: Sequence[Run], *, notes: Sequence[str] = (), inert: str = "", effects: bool = True
) -> Analysis:
    """Cells and effects of ``made``; ``inert`` is the reason of the first factor, if it cannot matter."""
    cells = tuple(_cell(plan, made, index) for index in range(len(plan.cells)))
    return Analysis(
        design=plan,
        cells=cells,
        effects=tuple(_effects(plan, made, inert)) if effects else (),
        runs=tuple(made),
        notes=("Intervals are for each comparison on its own; 3 comparisons were made.", *notes),
        machine="Imaginary CPU, 2 cores; Linux 6.1; Python 3.11.2; byteps_py 0.1.0",
        finished=len(made) >= plan.repeats * len(plan.cells),
    )


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
    return analysis(plan, runs(plan, FOUNDING)[:7], notes=("13 runs are missing.",))


def without_intervals() -> Analysis:
    """One block, so nothing can be said."""
    return founding(repeats=1)


def with_a_metric() -> Analysis:
    """One factor and a number from the output, in which nothing differs."""
    factor = Factor("MY_SWITCH", ("0", "1", "a,b"))
    plan = design((factor,), ("baseline", "+ MY_SWITCH=1", "+ MY_SWITCH=a,b"), metric=r"accuracy: ([0-9.]+)")
    made = [msgspec.structs.replace(each, processes=()) for each in runs(plan, (0.91, 0.912, 0.909), unit="metric")]
    return analysis(plan, made)


def with_an_inert_factor() -> Analysis:
    """A team of one has no wait policy."""
    plan = _founding_design(5)
    made = [
        msgspec.structs.replace(each, processes=tuple(msgspec.structs.replace(one, team=1) for one in each.processes))
        for each in runs(plan, (4337.0, 4350.0, 5900.0, 5880.0))
    ]
    return analysis(plan, made, inert="every server has a team of one thread, which has nobody to wait for")


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


def interval(ratios: Sequence[float]) -> Interval:
    """Student's interval of the mean log-ratio."""
    logs = [math.log(each) for each in ratios]
    middle = statistics.fmean(logs)
    low = high = detectable = None
    if len(logs) > 1:
        error = statistics.stdev(logs) / math.sqrt(len(logs))
        t = _T[len(logs) - 1]
        low, high, detectable = math.exp(middle - t * error), math.exp(middle + t * error), math.exp(1.5 * t * error)
    return Interval(len(logs), math.exp(middle), low, high, statistics.median(ratios), detectable)


def _founding_design(repeats: int) -> Design:
    labels = ("baseline", "+ omp-wait-policy=passive", "+ num-servers=2", "+ both")
    return design((POLICY, SERVERS), labels, repeats=repeats)


def _ratios(made: Sequence[Run], index: int, other: int) -> list[float]:
    good = {(each.cell, each.block): each.value for each in made if not each.problem}
    blocks = sorted(block for cell, block in good if cell == index and (other, block) in good)
    return [good[index, block] / good[other, block] for block in blocks]


def _cell(plan: Design, made: Sequence[Run], index: int) -> CellResult:
    mine = [each for each in made if each.cell == index]
    good = sorted((each for each in mine if not each.problem), key=lambda each: each.block)
    values = tuple(each.value for each in good)
    ratios = _ratios(made, index, BASELINE)
    servers = [one for each in good[:1] for one in each.processes if one.role == "server"]
    workers = [one for each in good[:1] for one in each.processes if one.role == "worker"]
    bad = [each for each in mine if each.problem]
    return CellResult(
        cell=plan.cells[index],
        done=len(good),
        failed=len(bad),
        values=values,
        median=statistics.median(values) if values else None,
        unit=mine[0].unit if mine else "steps/s",
        against_baseline=interval(ratios) if ratios and index != BASELINE else None,
        stages=_shares(servers, index),
        cpu=tuple(_cpu(good[0], role) for role in ("worker", "server", "scheduler")) if servers else (),
        server_team=servers[0].team if servers else 0,
        server_engines=servers[0].engines if servers else 0,
        server_policy=servers[0].policy if servers else "",
        worker_team=workers[0].team if workers else 0,
        worker_policy=workers[0].policy if workers else "",
        problems=tuple(dict.fromkeys(each.problem for each in bad)),
        log=bad[0].log if bad else "",
    )


def _shares(servers: Sequence[ProcessUse], index: int) -> tuple[StageShare, ...]:
    if not servers:
        return ()
    times = {
        name: ms / 1000 / (1.0 if name != "sum" or servers[0].policy != "passive" else 2.5) * (1 + 0.05 * (index % 3))
        for name, ms in _STAGES
    }
    whole = sum(times.values())
    return tuple(StageShare(name, seconds, seconds / whole) for name, seconds in times.items())


def _cpu(run: Run, role: str) -> RoleCpu:
    mine = [each for each in run.processes if each.role == role]
    seconds = sum(each.cpu_seconds for each in mine)
    return RoleCpu(role, len(mine), seconds / run.steps, seconds / run.seconds)


def _effects(plan: Design, made: Sequence[Run], inert: str) -> list[Effect]:
    found = []
    for place, factor in enumerate(plan.factors):
        for level in factor.levels[1:]:
            pairs = [
                (index, other)
                for index, cell in enumerate(plan.cells)
                for other, base in enumerate(plan.cells)
                if cell.levels[place] == level
                and base.levels[place] == factor.levels[0]
                and cell.levels[:place] + cell.levels[place + 1 :] == base.levels[:place] + base.levels[place + 1 :]
            ]
            ratios = [_ratios(made, index, other) for index, other in pairs]
            whole = list(zip(*ratios)) if all(ratios) else []  # noqa: B905 - only the blocks that all have
            averaged = [statistics.geometric_mean(each) for each in whole]
            said = inert if place == 0 else ""
            found.append(Effect(factor.name, level, factor.levels[0], interval(averaged) if averaged else None, said))
    return found


def _processes(cell: Cell, num_workers: int) -> tuple[ProcessUse, ...]:
    passive = "passive" in cell.levels
    num_servers = 2 if cell.levels[-1:] == ("2",) else 1
    spin = 1.0 if passive else 1.7
    stages = {"queue": StageSum(200, 0.4), "push": StageSum(200, 1.5)}
    workers = tuple(
        ProcessUse("worker", rank, "host", 100 + rank, 5.0 + 0.1 * rank, 1, "passive", 0, 2, stages)
        for rank in range(num_workers)
    )
    policy = "passive" if passive else "active"
    servers = tuple(
        ProcessUse("server", rank, "host", 200 + rank, 9.0 * spin, 2, policy, 1, 2, {"sum": StageSum(400, 3.0)})
        for rank in range(num_servers)
    )
    return (*workers, *servers, ProcessUse("scheduler", 0, "host", 300, 0.05, 0, "", 0, 2, {}))
