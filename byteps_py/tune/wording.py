"""What the reports of an experiment say, in words and numbers: the same in the terminal, the page and the picture.

Everything here is pure and may be used from any thread.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone

from byteps_py.tune import gains
from byteps_py.tune.model import Design, Run
from byteps_py.tune.results import Analysis, CellResult, Effect, Interval

__all__ = [
    "ABOUT_STAGES",
    "ROLES",
    "command_line",
    "cores",
    "count",
    "effect_name",
    "environment",
    "failed_words",
    "fold",
    "gain_words",
    "has_effects",
    "headline",
    "hosts",
    "is_metric",
    "knows_openmp",
    "listed",
    "log_end",
    "moment",
    "number",
    "openmp_facts",
    "pieces",
    "plain",
    "shell_word",
    "short",
    "stage_names",
    "state",
    "units",
    "verdict_words",
    "without_value",
]

ROLES = ("worker", "server", "scheduler")
"""The order in which roles are shown."""

ABOUT_STAGES = (
    "What a script computes itself is in no stage. Partitions travel side by side and each counts, so the stages "
    "together may be more than the time of a step."
)
"""What a reader must know of the times of the stages."""

_LOG_LINES = 15
_SPLITS = (
    re.compile(r"(?:\+ )?[^\s,]*(?:[\s,]+|$)"),
    re.compile(r"[^\s,]*(?:[\s,]+|$)"),
    re.compile(r"[^=]*(?:=+|$)"),
    re.compile(r"[^_./+-]*(?:[_./+-]+|$)"),
)
"""Behind what a name may be broken, the best places first. The plus belongs to what follows it."""
_NAMED = 3
"""How many cells a headline names of those that are faster, and of those that are slower."""


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
    if not abs(value) < 1e9:
        return f"{value:.3g}"
    return f"{value:.{min(4, max(0, 2 - math.floor(math.log10(abs(value)))))}f}"


def fold(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` characters, all but the first indented by two; at least one line.

    They end where :func:`pieces` do.
    """
    lines: list[str] = []
    line = ""
    for piece in pieces(text, width - 2):
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


def pieces(text: str, width: int, split: int = 0) -> list[str]:
    """``text`` in pieces between which a line may end: behind a comma or a blank.

    What is longer than ``width`` may be broken behind ``=``, and what still is behind other marks. ``split`` is the
    kind of place to begin with.
    """
    if split == len(_SPLITS) or not text:
        return [text] if text else []
    found = [each for each in _SPLITS[split].findall(text) if each]
    return [
        part for each in found for part in ([each] if len(each.rstrip()) <= width else pieces(each, width, split + 1))
    ]


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


def has_effects(analysis: Analysis) -> bool:
    """Whether more than one factor is varied, so that their effects say more than the rows of the cells."""
    return sum(len(each.levels) > 1 for each in analysis.design.factors) > 1 and bool(analysis.effects)


def effect_name(effect: Effect) -> str:
    """``omp-wait-policy: passive over active``."""
    return plain(f"{effect.factor}: {effect.level or repr('')} over {effect.baseline or repr('')}")


def count(number_of: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number_of} {noun}{'' if number_of == 1 else 's'}"


def gain_words(interval: Interval | None, nothing: str = "-") -> tuple[str, str]:
    """The ratio and the ends of its interval, each ``nothing`` where there is none."""
    if interval is None:
        return nothing, nothing
    return gains.percent(interval.ratio), gains.range_words(interval) or nothing


def without_value(cell: CellResult) -> str:
    """What is said in place of a cell's value: ``failed``, ``not run``; empty if it has one."""
    if cell.median is not None:
        return ""
    return "failed" if cell.failed else "not run"


def moment(seconds: float) -> datetime | None:
    """A time of a run, in UTC; None if it does not say, or says what is no time."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc) if seconds else None
    except (ValueError, OverflowError, OSError):
        return None


def is_metric(analysis: Analysis) -> bool:
    """Whether a number from the output is compared, of which nobody knows whether more is faster."""
    return bool(analysis.design.metric) or any(each.unit == "metric" for each in analysis.cells if each.values)


def units(analysis: Analysis) -> list[str]:
    """Of the values that there are, each once; never empty."""
    found = dict.fromkeys(each.unit for each in analysis.cells if each.values)
    return list(found) or ["metric" if is_metric(analysis) else "value"]


def state(analysis: Analysis) -> str:
    """How much was run: ``4 cells, 20 runs in 5 blocks, 2 workers``, how much of it failed, and whether that is all.

    Of each cell and block one run counts, the last.
    """
    design = analysis.design
    cells, blocks = len(design.cells), design.repeats
    bad = sum(cell.failed for cell in analysis.cells)
    runs = bad + sum(cell.done for cell in analysis.cells)
    made = count(runs, "run") if analysis.finished else f"{runs} of {count(cells * blocks, 'run')}"
    text = f"{count(cells, 'cell')}, {made} in {count(blocks, 'block')}"
    if design.num_workers:
        text += f", {count(design.num_workers, 'worker')}"
    if bad:
        text += f"; {failed_words(bad, runs)}"
    if not analysis.finished:
        text += "; not finished"
    return text


def failed_words(failed: int, runs: int) -> str:
    """``1 of 5 runs failed``."""
    return f"{failed} of {count(runs, 'run')} failed"


def headline(analysis: Analysis) -> str:
    """The answer in one sentence, for those who read no table: what is faster and what is slower, and by how much."""
    metric = is_metric(analysis)
    shown = [(each, each.against_baseline) for each in analysis.cells if each.against_baseline is not None]
    more, less = (
        [
            (plain(cell.cell.label), gains.size(one.ratio))
            for cell, one in sorted(shown, key=lambda each: each[1].ratio, reverse=verdict == "more")
            if one.verdict == verdict
        ]
        for verdict in ("more", "less")
    )
    worse = "less" if metric else "slower"
    if more:
        label, much = more[0]
        what = f"the metric is {much} more than the baseline's" if metric else f"{much} faster than the baseline"
        also = f"; also {'more' if metric else 'faster'}: {_named(more[1:])}" if more[1:] else ""
        return f"{label}: {what}{also}{f'; {worse}: {_named(less)}' if less else ''}."
    if less:
        (label, much), *others = less
        loss = f"; {label} is {worse} by {much}{f', {_named(others)}' if others else ''}"
    elif any(one.verdict == "none" for _, one in shown):
        loss = ""
    else:
        return "Nothing can be said yet: a comparison needs two blocks in which both cells ran well."
    return f"Nothing was shown to {'give more of the metric' if metric else 'be faster'} than the baseline{loss}."


def _named(cells: Sequence[tuple[str, str]]) -> str:
    """``+ A by 41.4 %, + B by 7.4 % and 2 others``."""
    text = ", ".join(f"{label} by {much}" for label, much in cells[:_NAMED])
    rest = len(cells) - _NAMED
    return f"{text} and {count(rest, 'other')}" if rest > 0 else text


def stage_names(analysis: Analysis) -> list[str]:
    """The stages that any cell has, in the order of the way of a partition."""
    return list(dict.fromkeys(stage.name for cell in analysis.cells for stage in cell.stages))


def cores(analysis: Analysis) -> str:
    """How many cores all processes have together, as they said; empty if none did."""
    used = [use for run in analysis.runs for use in run.processes if use.cores]
    known, machines = sorted({use.cores for use in used}), {use.host for use in used}
    if not known:
        return ""
    if len(machines) == 1 and len(known) == 1:
        return f"the machine has {count(known[0], 'core')} for all of them"
    if len(machines) == 1:
        return f"a process may use {listed(known, 'or')} cores of the machine, which are there for all of them"
    if len(known) == 1:
        return f"each of the {len(machines)} machines has {count(known[0], 'core')} for all its processes"
    return f"cores for all processes of a machine: {hosts(analysis.runs)}"


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


def log_end(log: str, lines: int = _LOG_LINES) -> list[str]:
    """The last lines of a log that are not blank."""
    return [line.rstrip() for text in log.splitlines() if (line := plain(text)).strip()][-lines:]


def hosts(runs: Sequence[Run]) -> str:
    """Where runs were made, as their processes say: ``node-a: 8 cores; node-b: 4 cores``."""
    found: dict[str, set[int]] = {}
    for use in (use for run in runs for use in run.processes if use.host):
        found.setdefault(use.host, set()).update({use.cores} - {0})
    return "; ".join(
        f"{plain(host)}: {listed(sorted(known), 'or')} core{'s' if known != {1} else ''}" if known else plain(host)
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


def listed(numbers: Sequence[int], word: str = "and") -> str:
    texts = [str(each) for each in numbers]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {word} {texts[-1]}"
