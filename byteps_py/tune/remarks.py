"""What is said below the rows of a table: what would have been seen, what cannot matter, which runs failed.

Everything here is pure and may be used from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byteps_py.tune.gains import percent
from byteps_py.tune.model import BASELINE
from byteps_py.tune.results import Analysis, CellResult, Effect, Interval
from byteps_py.tune.wording import listed, plain

__all__ = ["MEANING", "Remarks", "failures", "of_cells", "of_effects"]

MEANING = (
    "Gain: over the baseline in the same block, averaged; not the ratio of the medians, which mix slow and fast blocks."
)
"""Said below the table of cells."""

_BEYOND_USE = 2.0
"""An experiment that may miss this ratio says nothing; by how much it misses is of no interest."""
_LEAST = 1.0 + 1e-6
"""No reader wants to know of smaller differences."""
_BLOCKS = 5
"""With fewer, intervals are wide whatever the noise."""


@dataclass(frozen=True)
class Remarks:
    """Remarks of a table.

    Attributes:
        rows: those of each row, in lines.
        below: what holds for all rows, in sentences.
    """

    rows: tuple[tuple[str, ...], ...]
    below: tuple[str, ...]


def of_cells(analysis: Analysis) -> Remarks:
    """Of the table that has a row for each cell."""
    same = [_same(analysis, index) for index in range(len(analysis.cells))]
    more = [
        [*([f"inert: {inert}"] if (inert := _inert(analysis, cell)) else []), *failures(analysis, index)]
        for index, cell in enumerate(analysis.cells)
    ]
    return _remarks([each.against_baseline for each in analysis.cells], same, more)


def of_effects(effects: Sequence[Effect]) -> Remarks:
    """Of the table that has a row for each level of a factor."""
    more = [[f"inert: {plain(each.inert)}"] if each.inert else [] for each in effects]
    return _remarks([each.interval for each in effects], [False] * len(effects), more)


def failures(analysis: Analysis, index: int) -> list[str]:
    """One line for each reason why runs of a cell failed, with the blocks in which they did, counted from 1.

    Runs that failed and were made again with success are passed over.
    """
    mine = [run for run in analysis.runs if run.cell == index]
    good = {run.block for run in mine if not run.problem}
    blocks: dict[str, list[int]] = {}
    for run in {run.block: run for run in mine if run.block not in good}.values():
        blocks.setdefault(run.problem, []).append(run.block + 1)
    found = [
        f"failed in block{'s' if len(where) > 1 else ''} {listed(sorted(where))}: {plain(problem)}"
        for problem, where in blocks.items()
    ]
    return found or [f"failed: {plain(problem)}" for problem in analysis.cells[index].problems]


def _remarks(intervals: Sequence[Interval | None], same: Sequence[bool], more: Sequence[Sequence[str]]) -> Remarks:
    compared = [each for each in intervals if each is not None]
    everywhere = len(compared) > 1 and all(map(_is_useless, compared))
    rows = tuple(
        (*(() if everywhere else _seen(interval, equal)), *others)
        for interval, equal, others in zip(intervals, same, more, strict=True)
    )
    if not everywhere:
        return Remarks(rows, ())
    few = min(each.blocks for each in compared)
    return Remarks(rows, (f"Every row: {_useless(few)}.",))


def _seen(interval: Interval | None, equal: bool) -> tuple[str, ...]:
    """What an experiment that shows no difference would have shown."""
    if interval is None or interval.verdict != "none" or interval.detectable is None:
        return ()
    if equal:
        return ("every run gave the same value",)
    if interval.low == interval.high:
        return ("no block has any difference",)
    if _is_useless(interval):
        return (_useless(interval.blocks),)
    return (f"{percent(max(interval.detectable, _LEAST), sign=False)} or more would have been seen 9 times in 10",)


def _is_useless(interval: Interval) -> bool:
    return interval.verdict == "none" and interval.detectable is not None and interval.detectable > _BEYOND_USE


def _useless(blocks: int) -> str:
    missed = f"{percent(_BEYOND_USE, sign=False)} might not have been seen"
    if blocks < _BLOCKS:
        return f"too few blocks, or too noisy: {missed}; use --repeats {_BLOCKS} or more"
    return f"too noisy: {missed}"


def _same(analysis: Analysis, index: int) -> bool:
    """Whether a cell and the baseline have one value only."""
    return len({*analysis.cells[index].values, *analysis.cells[BASELINE].values}) == 1


def _inert(analysis: Analysis, result: CellResult) -> str:
    """Why a cell cannot differ from the baseline: all that it changes is inert. Empty if something may matter."""
    base = analysis.cells[BASELINE].cell.levels
    reasons: list[str] = []
    for factor, level, normal in zip(analysis.design.factors, result.cell.levels, base, strict=False):
        if level != normal:
            effect = next((e for e in analysis.effects if (e.factor, e.level) == (factor.name, level)), None)
            if effect is None or not effect.inert:
                return ""
            reasons.append(plain(effect.inert))
    return "; ".join(dict.fromkeys(reasons))
