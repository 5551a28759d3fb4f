"""The command line of ``bps ab``.  Its options end at the first word that is none: there the training command begins.

That rule is applied here, before argparse would look for options behind the command too, or take abbreviations; and
all that is wrong is collected and told together.  argparse knows the options for the help and for the shells.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byteps_py.errors import SettingsError
from byteps_py.tune import factors
from byteps_py.tune.model import Design, Factor
from byteps_py.variables import integer, seconds

__all__ = [
    "REPORT",
    "Asked",
    "AskedReport",
    "add_options",
    "help_text",
    "is_text",
    "launches_itself",
    "parse",
    "parse_report",
]

REPORT = "report"
"""The word after ``bps ab`` that asks for a report alone."""

_DESCRIPTION = """\
Run a training job under different settings, several times each and in random order, and say which
of them makes it faster, and how sure that is. The job runs on this machine, as bpslaunch runs it.

  bps ab --vary NAME=VALUE,VALUE [--vary ...] [options] --out DIR [--] COMMAND ...
  bps ab report DIR ... [--out DIR]

A run is measured from step --warmup-steps to --steps later, as the script counts them with
bps.step(), and is ended then: the script may train for ever. What a run saves belongs into the
folder of its own that is in BYTEPS_RUN_DIR, and replaces {run_dir} in the words of COMMAND.

What can be varied: omp-wait-policy, omp-num-threads (of the servers), worker-omp-wait-policy,
worker-omp-num-threads, num-servers, num-workers; and any environment variable, by its name.
The first value of each is the baseline. COMMAND begins at the first word that is no option, or
after `--`, and gets all its words unchanged. It is what bpslaunch would get, without bpslaunch:
each run starts that by itself, with the options that stand before `--`.
"""

_FIXED = {name: form for name, form in factors.OPTIONS.items() if name != "num-workers"}
"""What all runs may have in common, by its option; the number of workers has a field of its own."""

_EPILOG = """\
examples:
  bps ab --vary omp-wait-policy=active,passive --vary num-servers=1,2 --omp-num-threads 2 \\
      --out policy -- python train.py
      steps per second of the four combinations, 5 runs each
  bps ab --vary BYTEPS_PARTITION_BYTES=1000000,4000000 --metric 'throughput: ([0-9.]+)' \\
      --repeats 10 --out partitions -- python train.py --epochs 1 --save {run_dir}
      the last number that each run prints after "throughput:"; each runs to its own end

DIR gets the report (report.html, .png, .csv, .json), and everything that was measured. An
experiment that was interrupted goes on with the same command, in the same environment; runs that
failed are made again, and those of the same block with them if they are old. More --repeats than
before add runs to it. Its runs stay in the working folder of its first one. As long as no run has
worked, a corrected command begins anew in the same DIR. The exit status is 0 if each combination
has a good run, else 1, and 1 also if something could not be written; 2 for a usage error or a bad
setting, when nothing has been started; 128+N after signal N.
"""

_REPORT = """\
Make the report again from what an experiment has left in DIR, or make one of runs that no
`bps ab` has started: each process of a job that has BYTEPS_AB_RECORD=DIR in its environment
writes a record into that folder, under the name in BYTEPS_AB_CELL. Gather the records of all
hosts, in one folder or in several.
"""

_LAUNCHER = "bpslaunch"
_LAUNCHER_MODULE = "byteps_py.launcher"
_WRAPPERS = frozenset(
    {"chrt", "env", "exec", "ionice", "nice", "nohup", "numactl", "setsid", "stdbuf", "taskset", "time"}
)
"""Programs that start the one in their words."""

_WIDTH = 100
_STEPS = 100


@dataclass(frozen=True)
class Asked:
    """An experiment that is asked for.

    Attributes:
        design: what to run; its seed is 0 unless ``has_seed``.
        out: the folder of the experiment.
        has_seed: whether ``--seed`` was given.
        dry_run: whether runs are only to be shown.
    """

    design: Design
    out: Path
    has_seed: bool
    dry_run: bool


@dataclass(frozen=True)
class AskedReport:
    """A report that is asked for: of what, and into which folder, None if that was not said."""

    folders: tuple[Path, ...]
    out: Path | None


@dataclass
class _Words:
    """The words of a command line, sorted."""

    values: dict[str, list[str]] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def read(self, name: str, kind: tuple[str, Callable[[str], Any]], default: Any) -> Any:
        """The value of an option that may be given once."""
        given = self.values.get(name, [])
        if len(given) > 1:
            self.problems.append(f"{name} is given {len(given)} times")
        if not given:
            return default
        form, parse = kind
        with contextlib.suppress(ValueError):
            return parse(given[-1])
        self.problems.append(f"{name} {given[-1]!r} must be {form}")
        return default


def parse(argv: Sequence[str]) -> Asked | None:
    """Parse the words after ``bps ab``; None if they ask for help.

    Raises:
        SettingsError: with everything that is wrong.
    """
    words = _split(argv, _options(), command=True)
    if "--help" in words.values:
        return None
    varied = _varied(words)
    metric = words.read("--metric", ("a regular expression with a group", _filled), "")
    steps = words.read("--steps", integer(0, 10**9), 0 if metric else _STEPS)
    if steps == 0 and not metric:
        words.problems.append("--steps 0 leaves nothing to measure: give --steps, or a --metric for runs to their end")
    seed = words.read("--seed", integer(0, 2**63 - 1), None)
    out = words.read("--out", ("the path of a folder", _path), None)
    if out is None and not any(each.startswith("--out") for each in words.problems):
        words.problems.append("--out DIR is missing: the folder for the experiment and its report")
    numbers = {
        "repeats": words.read("--repeats", integer(1, 10_000), 5),
        "num_workers": words.read("--num-workers", integer(1, 65535), 2),
        "warmup_steps": words.read("--warmup-steps", integer(0, 10**9), 20),
        "timeout": words.read("--timeout", seconds(1, 10**7), 600.0),
    }
    design = None
    try:
        design = factors.design(varied or (), command=words.rest, steps=steps, metric=metric, seed=seed or 0, **numbers)
    except SettingsError as error:
        # What could not be read has been told, and is not to be called missing as well.
        words.problems += [each for each in error.problems if varied is not None or "nothing is varied" not in each]
    if words.problems or design is None or out is None:
        raise SettingsError([*dict.fromkeys(words.problems), "`bps ab -h` shows examples"])
    return Asked(design, out, seed is not None, "--dry-run" in words.values)


def parse_report(argv: Sequence[str]) -> AskedReport | None:
    """Parse the words after ``bps ab report``; None if they ask for help.

    Raises:
        SettingsError: with everything that is wrong.
    """
    words = _split(argv, _report_options(), command=False)
    if "--help" in words.values:
        return None
    out = words.read("--out", ("the path of a folder", _path), None)
    folders = tuple(Path(each) for each in words.rest)
    if not folders:
        words.problems.append("a DIR is missing: the folder of an experiment, or of records")
    words.problems += [f"{each} is no folder" for each in folders if not each.is_dir()]
    if words.problems:
        raise SettingsError(words.problems)
    return AskedReport(folders, out)


def help_text(*, report: bool = False) -> str:
    """What ``-h`` prints."""
    return (_report_options() if report else _options()).format_help()


def is_text(word: str) -> bool:
    """Whether a word of the command line or the environment was UTF-8: others hold lone surrogates (PEP 383)."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def launches_itself(command: Sequence[str]) -> bool:
    """Whether a training command is one of bpslaunch: each run would be a job that starts jobs."""
    names = [word.rpartition("/")[2] for word in command]
    if names and names[0] in _WRAPPERS:
        start = next((index for index, name in enumerate(names) if name == _LAUNCHER or _is_python(name)), 0)
        names, command = names[start:], command[start:]
    if not names or names[0] == _LAUNCHER:
        return bool(names)
    if not _is_python(names[0]):
        return False
    for index, word in enumerate(command[1:], 1):
        if word.startswith("-m") and not word.startswith("--"):
            module = word[2:] or next(iter(command[index + 1 :]), "")
            return f"{module}.".startswith(f"{_LAUNCHER_MODULE}.")
        if not word.startswith("-"):
            return names[index] == _LAUNCHER
    return False


def _is_python(name: str) -> bool:
    return name.startswith("python")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``bps ab``, and its subcommand, to a parser that the shells' completion is made from."""
    _add_options(parser)
    commands = parser.add_subparsers(metavar="report", title="commands")
    _add_report_options(commands.add_parser(REPORT, help="make a report of what was measured", allow_abbrev=False))


def _varied(words: _Words) -> tuple[Factor, ...] | None:
    """The factors; None if some could not be read."""
    varied: tuple[Factor, ...] | None = ()
    try:
        varied = factors.factors(words.values.get("--vary", []))
    except SettingsError as error:
        words.problems += error.problems
        varied = None
    # One level: nothing to compare, but the experiment has it among what makes it up.
    values = {name: words.read(f"--{name}", form, None) for name, form in _FIXED.items()}
    for name in {each.name for each in varied or ()}.intersection(factors.OPTIONS):
        if f"--{name}" in words.values:
            words.problems.append(f"{name} is varied, and set for all runs by --{name} as well: leave one of them out")
            values[name] = None
    fixed = [Factor(name, (str(value),), f"--{name}") for name, value in values.items() if value is not None]
    if varied == ():
        words.problems.append("nothing is varied: --vary NAME=VALUE,VALUE, as in --vary omp-wait-policy=active,passive")
        return None
    return None if varied is None else (*varied, *fixed)


def _split(argv: Sequence[str], parser: argparse.ArgumentParser, *, command: bool) -> _Words:
    """Sort the words. Without a ``command``, options may follow the words that are none."""
    known = {name: action for action in parser._actions for name in action.option_strings}
    words = _Words()
    strange = [word for word in argv if not is_text(word)]
    if strange:
        hint = "an experiment is written down as UTF-8: rename the file, or reach it by a link with another name"
        raise SettingsError([*(f"{word!r} is not UTF-8" for word in strange), hint])
    index = 0
    while index < len(argv):
        word = argv[index]
        index += 1
        if word == "--":
            words.rest += argv[index:]
            break
        if not word.startswith("-") or word == "-":
            if command:
                words.rest += argv[index - 1 :]
                break
            words.rest.append(word)
            continue
        name, equals, value = word.partition("=")
        action = known.get(name)
        if action is None:
            words.problems.append(_no_option(name, known))
            # What follows may be its value, and is no reason to keep silent about the options behind it.
            index += int(not equals and index < len(argv) and not argv[index].startswith("-"))
            continue
        if action.nargs == 0:
            if equals:
                words.problems.append(f"{name} takes no value: {word!r}")
        elif not equals:
            if index == len(argv) or argv[index] == "--" or argv[index].partition("=")[0] in known:
                words.problems.append(f"{name}: the value {action.metavar} after it is missing")
                continue
            value = argv[index]
            index += 1
        words.values.setdefault(action.option_strings[-1], []).append(value)
    return words


def _no_option(word: str, known: Mapping[str, object]) -> str:
    like = [name for name in known if name.startswith(word)]
    like = like or difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {' or '.join(like)}?" if like else "-h lists them"
    return f"there is no option {word!r} ({hint}); a command that begins with '-' needs -- before it"


def _options() -> argparse.ArgumentParser:
    parser = _parser("bps ab", "bps ab [options] --out DIR [--] COMMAND ...", _DESCRIPTION, _EPILOG)
    _add_options(parser)
    return parser


def _report_options() -> argparse.ArgumentParser:
    parser = _parser("bps ab report", "bps ab report DIR ... [--out DIR]", _REPORT, "")
    _add_report_options(parser)
    return parser


def _parser(prog: str, usage: str, description: str, epilog: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=prog,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=_formatter,
        allow_abbrev=False,
    )


def _formatter(prog: str) -> argparse.HelpFormatter:
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=width)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--vary", metavar="NAME=V,V", action="append", help="a setting and its values; may be given several times")
    add("--num-workers", metavar="N", help="workers of each run (default: 2)")
    add("--num-servers", metavar="S", help="servers of each run (default: what bpslaunch takes, 1)")
    add("--omp-wait-policy", metavar="P", help="how idle OpenMP threads of the servers wait: passive or active")
    add("--omp-num-threads", metavar="N", help="OpenMP threads of each engine thread of a server")
    add("--worker-omp-wait-policy", metavar="P", help="the same for the workers")
    add("--worker-omp-num-threads", metavar="N", help="OpenMP threads of each worker")
    add("--repeats", metavar="R", help="runs of each combination (default: 5); below 2 nothing can be sure")
    add("--warmup-steps", metavar="N", help="steps that are not counted (default: 20)")
    add("--steps", metavar="N", help=f"steps that are (default: {_STEPS}; with --metric 0: a run goes to its own end)")
    add(
        "--metric",
        metavar="REGEX",
        help="compare a number above 0 from the output instead: the group of the last match in what worker 0 prints; "
        "if it prints none, all others must agree. More is better: of a loss or of seconds let it print the inverse",
    )
    add("--timeout", metavar="SECONDS", help="end a run that has taken so long: it has failed (default: 600)")
    add("--seed", metavar="N", help="for the order of the runs (default: drawn, and kept in DIR)")
    add("--out", metavar="DIR", help="the folder of the experiment and its report; new, or begun by this command")
    add("--dry-run", action="store_true", help="print every run as a command, in order, and start none")


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", metavar="DIR", nargs="+", help="of an experiment, or of records")
    parser.add_argument("--out", metavar="DIR", help="where the report goes (default: the first DIR)")


def _filled(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _path(text: str) -> Path:
    return Path(_filled(text))
