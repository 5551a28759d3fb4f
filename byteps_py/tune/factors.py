"""What is varied: from the words after ``--vary`` to the cells of an experiment and the order of its runs.  Pure.

A factor is an option of ``bpslaunch`` by its long name, or any environment variable.  Values are checked before
anything starts: an experiment of an hour must not fail in its second block.  A variable that would do nothing, because
an option or ``bps ab`` itself goes before it, is refused: its "no difference" would be taken for an answer.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from byteps_py import known_names
from byteps_py.errors import SettingsError
from byteps_py.settings import LaunchSettings, SchedulerSettings, ServerSettings, WorkerSettings
from byteps_py.tune.limits import OVERRULED, grid_problems, metric_problems, number_problems
from byteps_py.tune.model import Cell, Design, Factor
from byteps_py.variables import Variable, choice, integer, variables_of

__all__ = [
    "MAX_LEVEL",
    "OF_ANOTHER_JOB",
    "OPTIONS",
    "design",
    "factor",
    "factors",
    "inherited",
    "label",
    "launch_options",
    "notes",
    "order",
    "problems_of",
    "slug",
    "unique",
    "variables",
]

MAX_LEVEL = 255
"""Most characters of one value."""

OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "omp-wait-policy": choice("passive", "active"),
    "num-servers": ("a whole number from 1 to 65535, or 0 for a single worker", integer(0, 65535)[1]),
    "omp-num-threads": integer(1, 1024),
    "worker-omp-wait-policy": choice("passive", "active"),
    "worker-omp-num-threads": integer(1, 1024),
    "num-workers": integer(1, 65535),
}
"""The options of ``bpslaunch`` that can be varied, each with the form of its values."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LIKENESS = 0.8
OF_ANOTHER_JOB = ("BYTEPS_AB_", "DMLC_")
"""Variables that begin so are of a job in which an experiment may have been started; no run inherits them."""
_TAKEN_NAMES = ("BYTEPS_RUN_DIR", "BYTEPS_LAUNCH_ID", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "OMP_DISPLAY_ENV")
_INSTEAD = {"BYTEPS_LOCAL_SIZE": "num-workers", "DMLC_NUM_WORKER": "num-workers", "DMLC_NUM_SERVER": "num-servers"}
_INHERITED = ("BYTEPS_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
"""Variables that begin so may make runs faster or slower."""
_SLUG_LENGTH = 80
_SHOWN_LENGTH = 40
_READ: dict[str, Variable] = {
    name: variable
    for table in (LaunchSettings, SchedulerSettings, WorkerSettings, ServerSettings)
    for _, variable in variables_of(table)
    for name in variable.names
}


def factors(words: Sequence[str]) -> tuple[Factor, ...]:
    """Parse all ``--vary`` words.

    Raises:
        SettingsError: with the problems of all of them.
    """
    found: list[Factor] = []
    problems: list[str] = []
    for word in words:
        try:
            found.append(factor(word))
        except SettingsError as error:
            problems += error.problems
    if problems:
        raise SettingsError(problems)
    return tuple(found)


def factor(text: str) -> Factor:
    r"""Parse one ``--vary`` word: ``NAME=v1,v2[,...]``; the first value is the baseline's.

    A comma inside a value is written ``\,``, or the whole value stands in double or single quotes.  Blanks around a
    value do not count unless they are quoted.  A value of a variable may be empty.

    Raises:
        SettingsError: the name can be no factor, or values are wrong, equal, or fewer than two.
    """
    name, equals, rest = text.partition("=")
    name = name.strip()
    form = "NAME=VALUE,VALUE[,...], such as omp-wait-policy=passive,active"
    if not equals or not name:
        raise SettingsError(f"--vary {text!r} must be {form}{_meant(name)}")
    if problem := _name_problem(name):
        raise SettingsError(f"--vary {text!r}: {problem}")
    values = _split(rest)
    levels, problems = _levels(name, values)
    if len(values) < 2:
        problems.append("a single value has nothing to be compared with: give two or more, with commas between them")
    if problems:
        raise SettingsError([f"--vary {text!r}: {problem}" for problem in problems])
    return Factor(name, levels, f"--{name}" if name in OPTIONS else "")


def design(
    varied: Sequence[Factor],
    *,
    command: Sequence[str],
    repeats: int,
    num_workers: int = 1,
    warmup_steps: int = 20,
    steps: int = 100,
    metric: str = "",
    seed: int = 0,
    timeout: float = 600.0,
) -> Design:
    """All combinations of the factors' levels: the baseline, then those that differ from it in one factor, in two ...

    The arguments are the fields of :class:`~byteps_py.tune.model.Design`.

    Raises:
        SettingsError: with all problems: nothing varied, a factor named twice, too many cells, workers without a
            server, a number out of its range, a bad regular expression, no command.
    """
    count = math.prod(len(each.levels) for each in varied)
    problems = [
        *grid_problems(varied, count, num_workers),
        *number_problems(repeats, num_workers, warmup_steps, steps, timeout),
        *metric_problems(metric),
        *([] if command else ["the training command is missing: put it behind --, as in -- python train.py"]),
    ]
    if problems:
        raise SettingsError(problems)
    combinations = _combinations(varied)
    labels = unique([label(varied, each) for each in combinations])
    slugs = unique([slug(_slug_words(varied, each)) for each in combinations])
    cells = tuple(map(Cell, combinations, labels, slugs))
    return Design(
        tuple(varied), cells, repeats, num_workers, warmup_steps, steps, metric, tuple(command), seed, timeout
    )


def problems_of(there: Design) -> list[str]:
    """Why a design that was read from a file is none that :func:`design` makes; empty if it is one.

    Labels and names of files may be those of another version.
    """
    for each in there.factors:
        if bool(each.option) != (each.name in OPTIONS) or each.option not in ("", f"--{each.name}"):
            return [f"{each.name!r} is set by {each.option or 'a variable'!r}"]
        if problems := _levels(each.name, each.levels)[1]:
            return [f"{each.name}: {problem}" for problem in problems]
    names = ("command", "repeats", "num_workers", "warmup_steps", "steps", "metric", "timeout")
    try:
        made = design(there.factors, **{name: getattr(there, name) for name in names})
    except SettingsError as error:
        return list(error.problems)
    if [each.levels for each in made.cells] != [each.levels for each in there.cells]:
        return ["its cells are not the combinations of its factors"]
    slugs = [each.slug for each in there.cells]
    if slugs != unique([slug(each) for each in slugs]):
        return ["its cells have names that cannot be those of folders"]
    return []


def launch_options(design: Design, cell: Cell) -> tuple[str, ...]:
    """The words for ``bpslaunch`` that make a cell, the number of workers among them."""
    chosen = {"num-workers": str(design.num_workers)}
    chosen.update((each.name, level) for each, level in zip(design.factors, cell.levels, strict=True) if each.option)
    return tuple(f"--{name}={value}" for name, value in chosen.items())


def variables(design: Design, cell: Cell) -> dict[str, str]:
    """The environment variables that make a cell; they replace those of the same names."""
    return {each.name: level for each, level in zip(design.factors, cell.levels, strict=True) if not each.option}


def inherited(varied: Sequence[Factor], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``environ`` that may matter and are the same in all runs, by name.

    Those are left out that are varied, that do nothing beside a factor, or that each run gets anew.
    """
    names = {each.name for each in varied}
    return {
        name: environ[name]
        for name in sorted(environ)
        if name.startswith(_INHERITED)
        and not _is_taken(name)
        and name not in names
        and OVERRULED.get(name) not in names
    }


def order(design: Design) -> list[tuple[int, int]]:
    """``(block, cell)`` of every run, in the order in which they are made: randomised complete blocks.

    It follows from the seed alone and is the same in every version of Python, so an interrupted experiment goes on in
    its own order: Python promises that ``random()`` gives the same numbers for a seed, not that ``shuffle()`` does.
    """
    draw = random.Random(design.seed).random
    runs = []
    for block in range(design.repeats):
        keys = [draw() for _ in design.cells]
        runs += [(block, cell) for cell in sorted(range(len(keys)), key=keys.__getitem__)]
    return runs


def notes(varied: Sequence[Factor]) -> list[str]:
    """What to tell before an experiment starts: names that may not mean what was meant."""
    lines = []
    for each in varied:
        if each.option:
            continue
        lines += list(dict.fromkeys(line for level in each.levels for line in known_names.report({each.name: level})))
        near = each.name.lower().replace("_", "-")
        if near in OPTIONS and each.name.startswith("OMP_"):
            lines.append(
                f"{each.name} is varied for servers and workers alike, unless an option or a variable of the role "
                f"goes before it; {near} is for servers, worker-{near} for workers"
            )
        elif near in OPTIONS:
            lines.append(f"{each.name} is taken for an environment variable of the command; the option is {near}")
    return lines


def label(varied: Sequence[Factor], levels: Sequence[str]) -> str:
    """A cell's name for tables, as the founding table has it: ``baseline (...)``, ``+ a=1``, ``+ both``."""
    pairs = [(each, level) for each, level in zip(varied, levels, strict=True)]
    changed = [(each, level) for each, level in pairs if level != each.levels[0]]
    if not changed:
        return f"baseline ({_words([pair for pair in pairs if len(pair[0].levels) > 1])})"
    if len(changed) == 2 and sorted(len(each.levels) for each in varied if len(each.levels) > 1) == [2, 2]:
        return "+ both"
    return f"+ {_words(changed)}"


def slug(words: str) -> str:
    """A text as part of a file name: letters, digits, ``-``, ``.``, ``_`` and ``=``, at most 80 characters; what is cut
    off a longer one leaves a mark in its place, so that two of them still differ."""
    plain = re.sub(r"[^A-Za-z0-9._=-]+", "-", words).strip("-.") or "cell"
    if len(plain) <= _SLUG_LENGTH:
        return plain
    mark = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{plain[: _SLUG_LENGTH - 9]}-{mark}"


def unique(names: Sequence[str]) -> list[str]:
    """The same names, each with a number behind it if it is there already, also in another case: ``a``, ``A.2``.

    Labels may be told apart by it, and names of files also where the file system takes no notice of case.
    """
    seen: set[str] = set()
    result = []
    for name in names:
        tried = (name, *(f"{name[: _SLUG_LENGTH * 4]}.{number}" for number in range(2, len(names) + 2)))
        chosen = next(each for each in tried if each.lower() not in seen)
        seen.add(chosen.lower())
        result.append(chosen)
    return result


def _combinations(varied: Sequence[Factor]) -> list[tuple[str, ...]]:
    baseline = tuple(each.levels[0] for each in varied)
    # The first factor changes fastest, as in the founding table.
    found = [each[::-1] for each in itertools.product(*(each.levels for each in reversed(varied)))]
    return sorted(found, key=lambda levels: sum(map(str.__ne__, levels, baseline)))


def _slug_words(varied: Sequence[Factor], levels: Sequence[str]) -> str:
    changed = [f"{each.name}={level}" for each, level in zip(varied, levels, strict=True) if level != each.levels[0]]
    return "_".join(changed) or "baseline"


def _words(pairs: Sequence[tuple[Factor, str]]) -> str:
    return ", ".join(f"{each.name}={_shown(level)}" for each, level in pairs)


def _shown(level: str) -> str:
    """A value as a label has it: bare if that can be read, else quoted; cut if it is long."""
    cut = level if len(level) <= _SHOWN_LENGTH else level[: _SHOWN_LENGTH - 3] + "..."
    return cut if cut and not re.search(r'[\s,"()]', cut) else json.dumps(cut, ensure_ascii=False)


def _split(text: str) -> list[str]:
    """The values of a list with commas, quotes and backslashes."""
    pattern = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)')\s*(?=,|$)|((?:\\[\\,]|[^,])*)""")
    values, position = [], 0
    while True:
        found = pattern.match(text, position)
        assert found is not None, "the last alternative matches everything, nothing included"
        quoted = found[1] if found[1] is not None else found[2]
        values.append(quoted if quoted is not None else re.sub(r"\\([\\,])", r"\1", found[3].strip()))
        position = found.end() + 1
        if position > len(text):
            return values


def _name_problem(name: str) -> str:
    """Why a name can be no factor; empty if it can."""
    if name in OPTIONS:
        return ""
    near = name.lower().replace("_", "-")
    if _VARIABLE.fullmatch(name) is None or (name.islower() and _nearest(near)):
        others = ", ".join(OPTIONS)
        return f"{name!r} is neither an option that can be varied ({others}) nor a variable's name{_meant(name)}"
    if _is_taken(name):
        hint = f"; vary {_INSTEAD[name]} instead" if name in _INSTEAD else ""
        return f"{name} is set for each run by `bps ab` or bpslaunch{hint}"
    return ""


def _is_taken(name: str) -> bool:
    return name.startswith(OF_ANOTHER_JOB) or name in _TAKEN_NAMES


def _nearest(name: str) -> str:
    return next(iter(difflib.get_close_matches(name.lower().replace("_", "-").lstrip("-"), OPTIONS, 1, _LIKENESS)), "")


def _meant(name: str) -> str:
    nearest = _nearest(name) if name else ""
    return f"; did you mean {nearest}?" if nearest not in ("", name) else ""


def _levels(name: str, values: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The values as they are set, and what is wrong with them."""
    levels: list[str] = []
    problems = [] if values else ["no value"]
    seen: dict[Any, str] = {}
    for value in values:
        try:
            level, meaning = _level(name, value)
        except ValueError as error:
            problems.append(str(error))
            continue
        if meaning in seen:
            problems.append(f"{value!r} is the same as {seen[meaning]!r}: levels must differ")
        seen.setdefault(meaning, value)
        levels.append(level)
    return tuple(levels), problems


def _level(name: str, value: str) -> tuple[str, Any]:
    """One value as it is set, and what it means; ValueError says what is wrong with it."""
    if name in OPTIONS:
        form, parse = OPTIONS[name]
        try:
            level = str(parse(value))
        except ValueError:
            raise ValueError(f"{value!r} must be {form}") from None
        return level, level
    if len(value) > MAX_LEVEL or (value and not value.isprintable()):
        raise ValueError(f"{value[:40]!r} must have at most {MAX_LEVEL} characters, all of them printable")
    variable = _READ.get(name)
    if variable is None or not value.strip():
        return value, value
    try:
        return value, repr(variable.parse(value))
    except ValueError:
        raise ValueError(f"{value!r} must be {variable.form} ({variable.meaning})") from None
