"""What the reports of an experiment say, in words and numbers: the same in the terminal, the page and the picture.

Everything here is pure and may be used from any thread.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

from byteps_py.tune.model import BASELINE, Design, Run
from byteps_py.tune.results import Analysis, CellResult, Effect, Interval

__all__ = [
    "ROLES",
    "block_ratios",
    "cell_remarks",
    "command_line",
    "cores",
    "count",
    "effect_name",
    "effect_remarks",
    "environment",
    "failures",
    "fold",
    "gain",
    "gain_limits",
    "gain_words",
    "has_effects",
    "headline",
    "hosts",
    "knows_openmp",
    "log_end",
    "number",
    "openmp_facts",
    "percent",
    "plain",
    "range_words",
    "run_count",
    "shell_word",
    "short",
    "stage_names",
    "state",
    "verdict_words",
    "without_value",
]

ROLES = ("worker", "server", "scheduler")
"""The order in which roles are shown."""

_LOG_LINES = 15
_ROOM = 1.0
"""How far intervals may stretch an axis beyond the points, as a part of the width that the points take."""
_PIECES = re.compile(r"[^\s_=,./+-]*(?:[\s_=,./+-]+|$)")
"""A name may be broken behind these."""
_BEYOND_USE = 2.0
"""An experiment that may miss this ratio says nothing; by how much it misses is of no interest."""


def number(value: float) -> str:
    """Four digits, or all before the point: ``4337``, ``12.35``, ``0.001235``."""
    if value == 0:
        return "0"
    text = f"{value:.4g}"
    if "e" not in text:
        return text
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else text


def short(value: float) -> str:
    """Three digits, all of them shown, for columns of like things: ``0.900``, ``12.3``, ``1234``."""
    if value == 0:
        return "0"
    return f"{value:.{min(4, max(0, 2 - math.floor(math.log10(abs(value)))))}f}"


def fold(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` characters, all but the first indented by two; at least one line.

    Lines end behind a blank or a mark such as ``_``, ``=``, ``-``; a longer piece is cut.
    """
    lines: list[str] = []
    line = ""
    for piece in _PIECES.findall(text):
        while len((line + piece).rstrip()) > width:
            if line.strip():
                lines.append(line.rstrip())
                line = "  "
            else:
                room = width - len(line)
                lines.append(line + piece[:room])
                line, piece = "  ", piece[room:]  # noqa: PLW2901 - what is left of it
        line += piece
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def gain(ratio: float) -> float:
    """What a ratio adds, in per cent."""
    return 100.0 * (ratio - 1.0)


def gain_limits(analysis: Analysis) -> tuple[float, float]:
    """Ends of an axis of gains in per cent: all points and blocks are on it, and 0.

    Of the intervals as much as leaves room for those: two blocks may give one a hundred times as wide.
    """
    points, ends = [0.0], [0.0]
    for index, cell in enumerate(analysis.cells):
        if (interval := cell.against_baseline) is not None:
            points += [gain(interval.ratio), *map(gain, block_ratios(analysis, index))]
            ends += [gain(each) for each in (interval.low, interval.high) if each is not None]
    width = max(max(points) - min(points), 2.0)
    low = max(min(points + ends), min(points) - _ROOM * width)
    high = min(max(points + ends), max(points) + _ROOM * width)
    margin = 0.05 * max(high - low, 2.0)
    return low - margin, high + margin


def percent(ratio: float, sign: bool = True) -> str:
    """A ratio as what it adds: 1.397 is ``+39.7 %``; one digit after the point below 100 %."""
    more = gain(ratio)
    digits = 1 if abs(more) < 99.95 else 0
    more = round(more, digits) + 0.0  # no minus before a zero
    return f"{more:{'+' if sign else ''}.{digits}f} %"


def range_words(interval: Interval | None) -> str:
    """The ends of the interval: ``+33.1 to +46.8 %``; empty without one."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"{percent(interval.low).removesuffix(' %')} to {percent(interval.high)}"


def verdict_words(interval: Interval | None, unit: str) -> str:
    """``faster``, ``slower``, or why neither can be said. Of a metric it is not known whether more is faster."""
    if interval is None:
        return "nothing to compare"
    verdict = interval.verdict
    if verdict == "unknown":
        return "one pair: unknown"
    if verdict == "none":
        return "no difference shown"
    if unit == "metric":
        return verdict
    return "faster" if verdict == "more" else "slower"


def cell_remarks(analysis: Analysis, index: int) -> list[str]:
    """What is to be said about a cell beyond its row: what would have been seen, what is inert, which runs failed."""
    cell = analysis.cells[index]
    inert = _inert(analysis, cell)
    remarks = _seen(cell.against_baseline)
    if inert:
        remarks.append(f"inert: {inert}")
    return [*remarks, *failures(analysis, index)]


def has_effects(analysis: Analysis) -> bool:
    """Whether more than one factor is varied, so that their effects say more than the rows of the cells."""
    return sum(len(each.levels) > 1 for each in analysis.design.factors) > 1 and bool(analysis.effects)


def effect_remarks(effect: Effect) -> list[str]:
    """The same for a row of the factors."""
    return _seen(effect.interval) + ([f"inert: {plain(effect.inert)}"] if effect.inert else [])


def effect_name(effect: Effect) -> str:
    """``omp-wait-policy: passive over active``."""
    return plain(f"{effect.factor}: {effect.level or repr('')} over {effect.baseline or repr('')}")


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
        f"failed in block{'s' if len(where) > 1 else ''} {_listed(sorted(where))}: {plain(problem)}"
        for problem, where in blocks.items()
    ]
    return found or [f"failed: {plain(problem)}" for problem in analysis.cells[index].problems]


def count(number_of: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number_of} {noun}{'' if number_of == 1 else 's'}"


def gain_words(interval: Interval | None, nothing: str = "-") -> tuple[str, str]:
    """The ratio and the ends of its interval, each ``nothing`` where there is none."""
    if interval is None:
        return nothing, nothing
    return percent(interval.ratio), range_words(interval) or nothing


def without_value(cell: CellResult) -> str:
    """What is said in place of a cell's value: ``failed``, ``not run``; empty if it has one."""
    if cell.median is not None:
        return ""
    return "failed" if cell.failed else "not run"


def run_count(analysis: Analysis, index: int) -> str:
    """``5``, or ``3/5`` where runs failed or are missing."""
    cell = analysis.cells[index]
    good = len(cell.values)
    wanted = max(analysis.design.repeats if not analysis.finished else 0, good + cell.failed)
    return str(good) if good == wanted else f"{good}/{wanted}"


def state(analysis: Analysis) -> str:
    """How much was run: ``4 cells, 20 runs in 5 blocks, 2 workers``, and whether that is all."""
    design = analysis.design
    cells, blocks = len(design.cells), design.repeats
    bad = sum(cell.failed for cell in analysis.cells)
    runs = bad + sum(cell.done for cell in analysis.cells)
    made = count(runs, "run") if analysis.finished else f"{runs} of {count(cells * blocks, 'run')}"
    text = f"{count(cells, 'cell')}, {made} in {count(blocks, 'block')}"
    if design.num_workers:
        text += f", {count(design.num_workers, 'worker')}"
    if bad:
        text += f"; {count(bad, 'run')} failed"
    if not analysis.finished:
        text += "; not finished"
    return text


def headline(analysis: Analysis) -> str:
    """The answer in one sentence, for those who read no table."""
    shown = [each for each in analysis.cells if each.against_baseline is not None]
    metric = any(each.unit == "metric" for each in shown)
    more, less = [
        [each for each in shown if each.against_baseline and each.against_baseline.verdict == verdict]
        for verdict in ("more", "less")
    ]
    best = max(more, key=_ratio, default=None)
    if best is not None and best.against_baseline is not None:
        much = percent(best.against_baseline.ratio, sign=False)
        return f"{plain(best.cell.label)}: {much} {'more' if metric else 'faster'} than the baseline."
    if any(each.against_baseline and each.against_baseline.verdict == "none" for each in shown) or less:
        loss = f"; {len(less)} of {len(shown)} are {'less' if metric else 'slower'}" if less else ""
        return f"Nothing was shown to {'give more' if metric else 'be faster'} than the baseline{loss}."
    return "Nothing can be said yet: a comparison needs two blocks in which both cells ran well."


def stage_names(analysis: Analysis) -> list[str]:
    """The stages that any cell has, in the order of the way of a partition."""
    return list(dict.fromkeys(stage.name for cell in analysis.cells for stage in cell.stages))


def cores(analysis: Analysis) -> str:
    """On how many cores a process may run, as the processes said; empty if none did."""
    known = sorted({use.cores for run in analysis.runs for use in run.processes if use.cores})
    return f"a process may use {' or '.join(map(str, known))} core{'s' if known != [1] else ''}" if known else ""


def knows_openmp(cell: CellResult) -> bool:
    """Whether any process of a cell said what its OpenMP is like."""
    return bool(cell.server_team or cell.server_policy or cell.worker_team or cell.worker_policy)


def openmp_facts(cell: CellResult) -> tuple[str, str, str, str, str]:
    """Engine threads, OpenMP threads of each and policy of the servers; the same of the workers without the first.

    As the processes had them, not as they were asked for. ``?`` where that is unknown, ``-`` without a server.
    """
    known = bool(cell.cpu or cell.worker_team or cell.server_team or cell.server_engines)
    servers = not cell.cpu or any(each.role == "server" for each in cell.cpu)
    server = (str(cell.server_engines or "?"), str(cell.server_team or "?"), plain(cell.server_policy) or "?")
    worker = (str(cell.worker_team or "?"), plain(cell.worker_policy) or "not set" if known else "?")
    return (*(server if servers else ("-", "-", "-")), *worker)


def block_ratios(analysis: Analysis, index: int) -> tuple[float, ...]:
    """Value over the baseline's, of each block that has both, in the order of blocks."""
    units = analysis.cells[index].unit, analysis.cells[BASELINE].unit
    values = {
        (run.cell, run.block): run.value
        for run in analysis.runs
        if not run.problem and 0 < run.value < math.inf and units == (run.unit, run.unit)
    }
    blocks = sorted(block for cell, block in values if cell == index and (BASELINE, block) in values)
    return tuple(values[index, block] / values[BASELINE, block] for block in blocks)


def log_end(log: str, lines: int = _LOG_LINES) -> list[str]:
    """The last lines of a log that are not blank."""
    return [line.rstrip() for text in log.splitlines() if (line := plain(text)).strip()][-lines:]


def hosts(runs: Sequence[Run]) -> str:
    """Where runs were made, as their processes say: ``node-a: 8 cores; node-b: 4 cores``."""
    found: dict[str, set[int]] = {}
    for use in (use for run in runs for use in run.processes if use.host):
        found.setdefault(use.host, set()).update({use.cores} - {0})
    return "; ".join(
        f"{plain(host)}: {_listed(sorted(known), 'or')} core{'s' if known != {1} else ''}" if known else plain(host)
        for host, known in sorted(found.items())
    )


def environment(design: Design) -> str:
    """The variables that all runs have inherited, as a shell takes them: ``A=1 B='x y'``; empty without any."""
    return " ".join(f"{name}={shell_word(value)}" for name, value in sorted(design.environment.items()))


def shell_word(word: str) -> str:
    """``word`` as a shell takes it, and as a terminal can show it: what does not print is escaped, but lines stay."""
    if all(each.isprintable() or each in "\n\t" for each in word):
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(letter: str) -> str:
    if letter in "\\'":
        return "\\" + letter
    if letter.isprintable():
        return letter
    return f"\\{ord(letter):03o}" if ord(letter) < 128 else f"\\U{ord(letter):08x}"


def plain(text: str) -> str:
    """``text`` in one line, without the sequences that would move the cursor of a terminal or colour it."""
    return "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in text)


def command_line(design: Design, out: str = "DIR") -> str:
    """The ``bps ab`` that makes the same experiment, quoted for a shell.

    Args:
        design: what to repeat.
        out: the folder for its results.

    Returns:
        Empty if the design has no command: nobody started those runs as an experiment.
    """
    if not design.command:
        return ""
    words = ["env", *(f"{name}={value}" for name, value in sorted(design.environment.items()))]
    words = [*(words if design.environment else []), "bps", "ab"]
    for factor in design.factors:
        if len(factor.levels) == 1 and factor.option:
            words += [factor.option, factor.levels[0]]
        else:
            words += ["--vary", f"{factor.name}={','.join(map(_level, factor.levels))}"]
    words += ["--num-workers", str(design.num_workers), "--repeats", str(design.repeats)]
    words += ["--warmup-steps", str(design.warmup_steps), "--steps", str(design.steps)]
    if design.metric:
        words += ["--metric", design.metric]
    words += ["--seed", str(design.seed), "--timeout", f"{design.timeout:g}", "--out", out, "--", *design.command]
    return " ".join(map(shell_word, words))


def _level(level: str) -> str:
    """A level as it is typed after ``--vary``, where a comma ends it and blanks around it do not count."""
    if level != level.strip() or level[:1] in ("'", '"'):
        quote = '"' if '"' not in level else "'"
        if quote not in level:
            return f"{quote}{level}{quote}"
    return level.replace("\\", "\\\\").replace(",", "\\,")


def _seen(interval: Interval | None) -> list[str]:
    if interval is None or interval.verdict != "none" or interval.detectable is None:
        return []
    if interval.detectable > _BEYOND_USE:
        return [f"too few blocks, or too noisy: {percent(_BEYOND_USE, sign=False)} might not have been seen"]
    return [f"{percent(interval.detectable, sign=False)} or more would have been seen 9 times in 10"]


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


def _ratio(cell: CellResult) -> float:
    return cell.against_baseline.ratio if cell.against_baseline is not None else 0.0


def _listed(numbers: Sequence[int], word: str = "and") -> str:
    texts = [str(each) for each in numbers]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {word} {texts[-1]}"
