"""An analysis as text for a terminal: one row for each cell, and what explains the rows below them.

The text is ASCII but for what the user's own names and logs hold.  No line is longer than the width, down to 80.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from byteps_py.tune import remarks, wording
from byteps_py.tune.model import BASELINE
from byteps_py.tune.results import Analysis, CellResult

__all__ = ["as_text"]

_MIN_WIDTH = 80
_MIN_LABEL = 14
_NARROW = 96
"""Below this width a verdict takes two lines, so that more is left for the name of its cell."""
_GAP = "  "
_BOLD, _GREEN, _RED, _DIM = "1", "32", "31", "2"
_COLOURS = {"faster": _GREEN, "more": _GREEN, "slower": _RED, "less": _RED, "failed": _RED}


@dataclass(frozen=True)
class _Row:
    """A line of a table: one text for each column, and what is said below it. A text may have several lines."""

    texts: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def as_text(analysis: Analysis, width: int = 100, colour: bool = False) -> str:
    """The whole result, for people.

    Args:
        analysis: what to show.
        width: columns of the terminal; less than 80 is taken for 80.
        colour: whether to use the escape sequences of terminals.

    Returns:
        Lines, each ended by a newline.
    """
    paper = _Paper(max(width, _MIN_WIDTH), colour)
    _results(analysis, paper)
    _effects(analysis, paper)
    _stages(analysis, paper)
    _cpu(analysis, paper)
    _openmp(analysis, paper)
    if analysis.notes:
        paper.title("Notes")
        for note in analysis.notes:
            paper.text(wording.plain(note), "- ", "  ")
    _failures(analysis, paper)
    return "\n".join(paper.lines) + "\n"


class _Paper:
    """Lines as they are written, of at most ``width`` characters beside those that colour them."""

    def __init__(self, width: int, colour: bool) -> None:
        self.lines: list[str] = []
        self._width = width
        self._colour = colour
        self.narrow = width < _NARROW

    def title(self, text: str) -> None:
        """A line that begins a part."""
        if self.lines:
            self.lines.append("")
        self.lines += [self._paint(line, _BOLD) for line in _wrap(text, self._width)]

    def text(self, text: str, first: str = "", rest: str = "", code: str = "") -> None:
        """A paragraph; ``first`` and ``rest`` are put before its first line and the others."""
        wrapped = _wrap(text, self._width, first, rest)
        self.lines += [self._paint(line, code) for line in wrapped]

    def raw(self, lines: Sequence[str]) -> None:
        """Lines of a log: cut where they are too long, never wrapped."""
        for line in lines:
            shown = f"  | {line}"
            self.lines.append(shown if len(shown) <= self._width else shown[: self._width - 3] + "...")

    def table(self, titles: Sequence[str], rows: Sequence[_Row], left: Sequence[int] = (0,)) -> None:
        """A table whose first column takes the room that the others leave; ``left`` are not aligned to the right."""
        every = [tuple(titles), *(row.texts for row in rows)]
        widths = [max(len(line) for text in column for line in text.split("\n")) for column in zip(*every, strict=True)]
        room = self._width - sum(widths[1:]) - len(_GAP) * (len(widths) - 1)
        widths[0] = min(widths[0], max(room, _MIN_LABEL))
        self._line(titles, widths, left, _BOLD)
        for row in rows:
            self._line(row.texts, widths, left)
            for remark in row.remarks:
                self.text(remark, "    ", "      ", _RED if remark.startswith("failed") else "")

    def _line(self, texts: Sequence[str], widths: Sequence[int], left: Sequence[int], code: str = "") -> None:
        label = wording.fold(texts[0], widths[0])
        blocks = [label, *(text.split("\n") for text in texts[1:])]
        height = max(map(len, blocks))
        for line in range(height):
            pieces = []
            for column, (block, width) in enumerate(zip(blocks, widths, strict=True)):
                # Titles stand on their column's lowest line, everything else on its highest.
                place = line - (height - len(block) if code else 0)
                text = block[place] if 0 <= place < len(block) else ""
                padded = text.ljust(width) if column in left else text.rjust(width)
                pieces.append(self._paint(padded, code or _COLOURS.get(text, "")))
            self.lines.append(_GAP.join(pieces).rstrip())

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code and text.strip() else text


def _wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines that end behind blanks, but for that of a plus, which belongs to the name of a cell."""
    glued = text.replace("+ ", "+\xa0")
    lines = textwrap.wrap(glued, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def _results(analysis: Analysis, paper: _Paper) -> None:
    paper.title(wording.headline(analysis))
    paper.text(f"{wording.state(analysis)}.")
    if analysis.machine:
        paper.text(wording.plain(analysis.machine))
    if environment := wording.environment(analysis.design):
        paper.text(f"Environment of all runs: {wording.plain(environment)}")
    paper.lines.append("")
    units = wording.units(analysis)
    unit = units[0] if len(units) == 1 else "median"
    said = remarks.of_cells(analysis)
    rows = [
        _cell_row(cell, index, said.rows[index], paper, len(units) > 1) for index, cell in enumerate(analysis.cells)
    ]
    titles = ["", unit, "gain", "95 % interval", "", "runs"]
    if any(cell.failed for cell in analysis.cells):
        titles.append("failed")
    paper.table(titles, [_Row(row.texts[: len(titles)], row.remarks) for row in rows], left=(0, 4))
    for sentence in said.below:
        paper.text(sentence)
    if any(cell.against_baseline for cell in analysis.cells):
        shown = "" if unit == "median" else f"{unit}: the median of the runs. "
        paper.text(shown + remarks.MEANING, code=_DIM)


def _cell_row(cell: CellResult, index: int, said: tuple[str, ...], paper: _Paper, with_unit: bool) -> _Row:
    interval = cell.against_baseline
    if cell.median is None:
        median, verdict = "-", wording.without_value(cell)
    else:
        median = wording.number(cell.median) + (f" {cell.unit}" if with_unit else "")
        verdict = "" if index == BASELINE else wording.verdict_words(interval, cell.unit)
    texts = (
        wording.plain(cell.cell.label),
        median,
        *wording.gain_words(interval),
        _folded(verdict, paper),
        str(cell.done + cell.failed),
        str(cell.failed),
    )
    return _Row(texts, said)


def _effects(analysis: Analysis, paper: _Paper) -> None:
    if not wording.has_effects(analysis):
        return
    paper.title("Each factor by itself, averaged over the levels of the others")
    unit = wording.units(analysis)[0]
    said = remarks.of_effects(analysis.effects)
    rows = [
        _Row(
            (
                wording.effect_name(effect),
                *wording.gain_words(effect.interval),
                _folded(wording.verdict_words(effect.interval, unit), paper),
                str(effect.interval.blocks) if effect.interval is not None else "-",
            ),
            below,
        )
        for effect, below in zip(analysis.effects, said.rows, strict=True)
    ]
    paper.table(["", "gain", "95 % interval", "", "blocks"], rows, left=(0, 3))
    for sentence in said.below:
        paper.text(sentence)


def _folded(verdict: str, paper: _Paper) -> str:
    return "\n".join(textwrap.wrap(verdict, 13)) if paper.narrow else verdict


def _stages(analysis: Analysis, paper: _Paper) -> None:
    names = wording.stage_names(analysis)
    if not names:
        return
    paper.title("Where the time goes: ms per step of each worker, and the share of the sum of the stages")
    paper.text(wording.ABOUT_STAGES)
    rows = []
    for cell in analysis.cells:
        stages = {each.name: each for each in cell.stages}
        texts = [
            f"{wording.short(1000 * stages[name].seconds_per_step)}\n{100 * stages[name].share:.0f} %"
            if name in stages
            else "-"
            for name in names
        ]
        rows.append(_Row((wording.plain(cell.cell.label), *texts)))
    paper.table(["", *("\n".join(name.split()) for name in names)], rows)


def _cpu(analysis: Analysis, paper: _Paper) -> None:
    roles = [role for role in wording.ROLES if any(use.role == role for cell in analysis.cells for use in cell.cpu)]
    if not roles:
        return
    known = wording.cores(analysis)
    paper.title("CPU of all processes of a role: cores kept busy, and ms per step")
    if known:
        paper.text(f"For comparison: {known}.")
    rows = []
    for cell in analysis.cells:
        uses = {use.role: use for use in cell.cpu}
        texts = [
            text
            for role in roles
            for text in (
                (f"{uses[role].cores:.2f}", wording.short(1000 * uses[role].seconds_per_step))
                if role in uses
                else ("-", "-")
            )
        ]
        rows.append(_Row((wording.plain(cell.cell.label), *texts)))
    paper.table(["", *(title for role in roles for title in (f"{role}\ncores", f"{role}\nms/step"))], rows)


def _openmp(analysis: Analysis, paper: _Paper) -> None:
    if not any(wording.knows_openmp(cell) for cell in analysis.cells):
        return
    paper.title("OpenMP as the processes really had it: threads of a team, and how idle ones wait")
    titles = ["", "server\nengines", "server\nteam", "server\npolicy", "worker\nteam", "worker\npolicy"]
    rows = [_Row((wording.plain(cell.cell.label), *wording.openmp_facts(cell))) for cell in analysis.cells]
    paper.table(titles, rows, left=(0, 3, 5))


def _failures(analysis: Analysis, paper: _Paper) -> None:
    for index, cell in enumerate(analysis.cells):
        if not cell.failed:
            continue
        paper.title(f"{wording.plain(cell.cell.label)}: {wording.failed_words(cell.failed, cell.failed + cell.done)}")
        for problem in remarks.failures(analysis, index):
            paper.text(problem, "- ", "  ")
        end = wording.log_end(cell.log)
        if end:
            paper.text("The first of them ended its output so:")
            paper.raw(end)
