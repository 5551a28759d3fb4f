"""From the runs of an experiment to its result.  Pure.

A cell is compared with the baseline in each block where both have a good run.  The effect of one level of a factor is
that of all pairs of cells which differ in nothing else, averaged within each block: so a grid answers two questions
with the same runs, each with the data of all of them.

Where the time went is told per step and worker.  A partition's way, as a worker sees it, ends at the result:
``queue | push (sent, accepted) | pull (accepted, received)``, and a server sees its own part of it:
``wait for others | server queue | sum`` make up what it calls ``held``.  Workers' push and pull minus servers' held is
the time on the way, whatever the clocks say, since both are sums over the same contributions.  The mean time of a push
stands for that of contributions which got their result at once; the rest of the time on the way is the pull's.  A sum
is made once for all workers, and every one of them waits for it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from byteps_py.tune import circumstances
from byteps_py.tune.model import BASELINE, Design, ProcessUse, Run, StageSum
from byteps_py.tune.results import Analysis, CellResult, Effect, Interval, RoleCpu, StageShare
from byteps_py.tune.statistics import Pair, combine
from byteps_py.tune.wording import ROLES, count

__all__ = ["STAGES", "analyse", "stage_seconds"]

STAGES = ("queue", "copy in", "push", "wait for others", "server queue", "sum", "pull", "copy out")
"""Names of the stages, in the order of the way."""

_NOTHING = StageSum(0, 0.0)
_SHORT_SECONDS = 1.0
_ONE_WAY = 0.2
_MISMATCH = 0.15
"""Servers' figures that cover other contributions than the workers' do, by this share, say nothing about them."""
_T = TypeVar("_T")


def analyse(design: Design, runs: Sequence[Run], machine: str = "") -> Analysis:
    """Compare the cells of an experiment, complete or not.

    Args:
        design: what was asked.
        runs: what was made, in order of time: of a cell's runs in one block the last good one counts, else the last.
        machine: where; passed on.
    """
    board = _Board(design, runs)
    cells = tuple(_cell_result(board, cell) for cell in range(len(design.cells)))
    effects = tuple(_effects(board))
    finished = all((block, cell) in board.counted for block in range(design.repeats) for cell in range(len(cells)))
    return Analysis(design, cells, effects, tuple(runs), tuple(_notes(board, cells, effects)), machine, finished)


class _Board:
    """The runs that count, by block and cell.

    Attributes:
        design, runs: what was given.
        counted: the run of each block and cell.
        good: for each cell, its good runs by block.
        units: for each cell, the unit of most of its good runs; empty without any.
    """

    def __init__(self, design: Design, runs: Sequence[Run]) -> None:
        self.design = design
        self.runs = runs
        self.counted: dict[tuple[int, int], Run] = {}
        for run in runs:
            earlier = self.counted.get((run.block, run.cell))
            if earlier is None or earlier.problem or not run.problem:
                self.counted[run.block, run.cell] = run
        self.good: list[dict[int, Run]] = [
            {run.block: run for _, run in sorted(self.counted.items()) if run.cell == cell and not run.problem}
            for cell in range(len(design.cells))
        ]
        self.units = [_most_frequent(run.unit for run in good.values()) or "" for good in self.good]

    def failed(self, cell: int) -> list[Run]:
        return [run for _, run in sorted(self.counted.items()) if run.cell == cell and run.problem]

    def runs_at(self, factor: int, level: str) -> list[Run]:
        """The good runs of all cells that have a level of a factor."""
        return [
            run
            for cell, good in zip(self.design.cells, self.good, strict=True)
            if cell.levels[factor] == level
            for run in good.values()
        ]

    def pair(self, block: int, first: int, second: int) -> Pair | None:
        """The values of two cells in a block; None if one is missing, or if they have no ratio."""
        runs = self.good[first].get(block), self.good[second].get(block)
        if runs[0] is None or runs[1] is None or runs[0].unit != runs[1].unit:
            return None
        values = runs[0].value, runs[1].value
        return values if all(0 < value < math.inf for value in values) else None

    def compare(self, pairs_of_cells: Sequence[tuple[int, int]]) -> Interval | None:
        """The mean ratio of pairs of cells over the blocks that have all of them."""
        blocks = sorted({block for block, _ in self.counted})
        found = [[self.pair(block, *cells) for cells in pairs_of_cells] for block in blocks]
        complete = [[pair for pair in pairs if pair is not None] for pairs in found if None not in pairs]
        return combine(complete) if complete and pairs_of_cells else None


def _cell_result(board: _Board, cell: int) -> CellResult:
    failed = board.failed(cell)
    good = list(board.good[cell].values())
    values = tuple(run.value for run in good if run.unit == board.units[cell])
    processes = [each for run in good for each in run.processes]
    servers = [each for each in processes if each.role == "server"]
    workers = [each for each in processes if each.role == "worker"]
    return CellResult(
        cell=board.design.cells[cell],
        done=len(good),
        failed=len(failed),
        values=values,
        median=statistics.median(values) if values else None,
        unit=board.units[cell],
        against_baseline=None if cell == BASELINE else board.compare([(BASELINE, cell)]),
        stages=_stage_shares(good),
        cpu=tuple(_cpu(good)),
        server_team=_most_frequent(each.team for each in servers) or 0,
        server_engines=_most_frequent(each.engines for each in servers) or 0,
        server_policy=_most_frequent(each.policy for each in servers) or "",
        worker_team=_most_frequent(each.team for each in workers) or 0,
        worker_policy=_most_frequent(each.policy for each in workers) or "",
        problems=tuple(problem for problem, _ in Counter(run.problem for run in failed).most_common()),
        log=next((run.log for run in failed), ""),
    )


def _effects(board: _Board) -> Iterator[Effect]:
    cells = {cell.levels: index for index, cell in enumerate(board.design.cells)}
    for index, factor in enumerate(board.design.factors):
        baseline = factor.levels[0]
        for level in factor.levels[1:]:
            pairs = [
                (cells[partner], cell)
                for levels, cell in cells.items()
                if levels[index] == level
                and (partner := (*levels[:index], baseline, *levels[index + 1 :])) in cells
                # A cell that never works says nothing about the others.
                and board.good[cell]
                and board.good[cells[partner]]
            ]
            inert = circumstances.inert(factor, board.runs_at(index, level), board.runs_at(index, baseline))
            yield Effect(factor.name, level, baseline, board.compare(pairs), inert)


def stage_seconds(run: Run) -> dict[str, float]:
    """Seconds that each stage took per step and worker; empty if the run does not say.

    The parts from ``push`` to ``pull`` add up to what the workers measured from sending to receiving, unless different
    sampling times make the servers' part larger than that: then nothing is left for push and pull.  What the servers
    had a contribution for beyond waiting and summing is time in their queue, too.
    """
    workers = [each for each in run.processes if each.role == "worker"]
    servers = [each for each in run.processes if each.role == "server"]
    passes = len(workers) * run.steps
    ours, theirs = _total(workers), _total(servers)
    if not passes or not any(each.count for each in ours.values()):
        return {}
    pull = ours.get("pull", _NOTHING)
    held = theirs.get("held", _NOTHING)
    if held.count and abs(held.count - pull.count) > _MISMATCH * max(held.count, pull.count):
        return {}
    pushing, pulling = _on_the_way(ours, theirs)
    wait = theirs.get("wait for others", _NOTHING).seconds
    summing = theirs.get("sum", _NOTHING).seconds * len(workers)
    queued = theirs.get("server queue", _NOTHING).seconds * len(workers)
    queued = max(queued, held.seconds - wait - summing)
    seconds = {
        "queue": ours.get("queue", _NOTHING).seconds,
        "copy in": ours.get("copy in", _NOTHING).seconds,
        "push": pushing,
        "wait for others": wait,
        "server queue": queued,
        "sum": summing,
        "pull": pulling,
        "copy out": ours.get("copy out", _NOTHING).seconds,
    }
    return {name: seconds[name] / passes for name in STAGES}


def _on_the_way(ours: Mapping[str, StageSum], theirs: Mapping[str, StageSum]) -> tuple[float, float]:
    """Seconds of partitions between workers and servers, there and back, from the sums of all of each.

    Of partitions whose acceptance was told, both are known: the way there, word of it included, is the workers' time
    until they had it without the servers' time until they sent it; the way back is the rest without what the servers
    had it for.  Of those that were answered at once only the sum is known; it is divided in the same proportion.
    """

    def seconds(stages: Mapping[str, StageSum], name: str) -> float:
        return stages.get(name, _NOTHING).seconds

    there = max(0.0, seconds(ours, "push") - seconds(theirs, "accept"))
    kept = seconds(theirs, "held") - seconds(theirs, "direct") - seconds(theirs, "accept")
    back = max(0.0, seconds(ours, "pull") - seconds(ours, "answer") - kept)
    both = max(0.0, seconds(ours, "answer") - seconds(theirs, "direct"))
    share = there / (there + back) if there + back else 0.5
    return there + both * share, back + both * (1 - share)


def _total(processes: Iterable[ProcessUse]) -> Mapping[str, StageSum]:
    total: dict[str, StageSum] = {}
    for process in processes:
        for name, each in process.stages.items():
            before = total.get(name, _NOTHING)
            total[name] = StageSum(before.count + each.count, before.seconds + each.seconds)
    return total


def _stage_shares(good: Sequence[Run]) -> tuple[StageShare, ...]:
    found = [seconds for run in good if (seconds := stage_seconds(run))]
    if not found:
        return ()
    medians = {name: statistics.median(seconds[name] for seconds in found) for name in STAGES}
    whole = math.fsum(medians.values())
    return tuple(StageShare(name, each, each / whole if whole else 0.0) for name, each in medians.items())


def _cpu(good: Sequence[Run]) -> Iterator[RoleCpu]:
    measured = [run for run in good if run.steps > 0 and run.seconds > 0]
    for role in ROLES:
        found = [(run, [each for each in run.processes if each.role == role]) for run in measured]
        found = [(run, processes) for run, processes in found if processes]
        if found:
            yield RoleCpu(
                role,
                _most_frequent(len(processes) for _, processes in found) or 0,
                statistics.median(sum(each.cpu_seconds for each in some) / run.steps for run, some in found),
                statistics.median(sum(each.cpu_seconds for each in some) / run.seconds for run, some in found),
            )


def _notes(board: _Board, cells: Sequence[CellResult], effects: Sequence[Effect]) -> Iterator[str]:
    design = board.design
    yield from _missing(board, cells)
    yield from _measured(board)
    if any(_is_one_way(cell.stages) for cell in cells):
        yield (
            "push contains word of the acceptance, which comes back about as fast as a small result does: where pull "
            "is next to nothing beside it, take both as one time on the way, there and back"
        )
    units = sorted({run.unit for good in board.good for run in good.values()})
    if len(units) > 1:
        yield f"runs have different units ({', '.join(units)}): those of different units are not compared"
    bad = sum(not 0 < run.value < math.inf for good in board.good for run in good.values())
    if bad:
        text = "of a value that is not above 0, of which there is no ratio: left out of the comparisons"
        yield f"{count(bad, 'run')} {text}"
    by_cell = [list(good.values()) for good in board.good]
    if not design.command and len(cells) > 1 and design.cells[BASELINE].label.lower() != "baseline":
        yield f"no cell is named baseline: compared with {design.cells[BASELINE].label}, of which the first run is"
    yield from circumstances.also_different(design, by_cell)
    yield from circumstances.not_as_asked(design, by_cell)
    yield from circumstances.partly_inert(design, by_cell)
    intervals = [cell.against_baseline for cell in cells]
    # With one factor its effects are the comparisons of the cells once more.
    intervals += [each.interval for each in effects if not each.inert] if _is_grid(design) else []
    compared = [each for each in intervals if each is not None]
    if any(each.low is None for each in compared):
        yield "no interval from a single block: whether a difference is one cannot be said; use --repeats 5 or more"
    known = sum(each.low is not None for each in compared)
    if known == 1:
        yield "1 comparison: where there is no difference, one experiment in twenty shows one by chance"
    elif known:
        yield f"{known} comparisons: where there is no difference, one in twenty shows one by chance"


def _measured(board: _Board) -> Iterator[str]:
    """What is to be said about the figures of runs."""
    good = [run for runs in board.good for run in runs.values()]
    short = sum(0 < run.seconds < _SHORT_SECONDS for run in good if run.processes)
    if short:
        text = f"{count(short, 'run')} measured for less than {_SHORT_SECONDS:g} s"
        yield f"{text}: the servers' figures are cut from samples 0.1 s apart, so they are rough; use more --steps"
    replaced = sum(not run.problem for run in board.runs) - len(good)
    if replaced:
        were = "was" if replaced == 1 else "were"
        yield f"{count(replaced, 'run')} {were} made again although good: the last one counts"


def _missing(board: _Board, cells: Sequence[CellResult]) -> Iterator[str]:
    repeats = board.design.repeats
    for cell in cells:
        if cell.failed:
            rest = "it is compared in no block" if not cell.done else f"it is compared in at most {cell.done} blocks"
            yield f"{cell.cell.label}: {cell.failed} of {count(cell.failed + cell.done, 'run')} failed; {rest}"
    whole = repeats * len(cells)
    made = sum(block < repeats for block, _ in board.counted)
    if made < whole:
        yield f"{whole - made} of {count(whole, 'run')} are missing"
    again = sum(bool(run.problem) for run in board.runs) - sum(cell.failed for cell in cells)
    if again:
        yield f"{count(again, 'run')} failed and {'was' if again == 1 else 'were'} made again"
    if (dead := sum(not good for good in board.good)) and _is_grid(board.design):
        yield f"effects of factors leave out the comparisons with {dead} of {len(cells)} cells, which have no good run"


def _is_one_way(stages: Sequence[StageShare]) -> bool:
    """Whether the way back is so short beside the way there that a reader would draw the wrong conclusion."""
    seconds = {each.name: each.seconds_per_step for each in stages}
    return bool(seconds) and seconds["pull"] < _ONE_WAY * seconds["push"]


def _is_grid(design: Design) -> bool:
    """Whether several factors vary; one with a single level is what all cells have in common."""
    return sum(len(each.levels) > 1 for each in design.factors) > 1


def _most_frequent(values: Iterable[_T]) -> _T | None:
    """The first of the most frequent values; None without any."""
    found = Counter(values).most_common(1)
    return found[0][0] if found else None
