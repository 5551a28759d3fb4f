"""``bps ab`` and ``bps ab report``: from the words of the command line to the report."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from byteps_py.errors import SettingsError
from byteps_py.tune import arguments, durable, factors, journal, running, wording
from byteps_py.tune.arguments import Asked, AskedReport, is_text
from byteps_py.tune.experiment import Outcome, Screen, counting, describe_setup, run, to_do
from byteps_py.tune.model import Design, Run

__all__ = ["main"]

FAILED = 1
"""Exit status if some cell has no good run, or if runs were made and something could not be written."""
SIGNALLED = 128
"""What is added to the number of the signal that interrupted an experiment."""
_SEEDS = 10**6
"""A drawn seed is below this, so that it can be read and typed."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command; returns the exit status.

    Args:
        argv: the words after ``bps ab``.
        environ: the environment that the runs inherit.

    Raises:
        SettingsError: a usage error, a bad setting, or a folder that cannot be used; no run was started.
    """
    try:
        return _main(argv, environ)
    except SettingsError as error:
        # Some of it are words of the user, who may have pasted anything.
        raise SettingsError([wording.plain(each) for each in error.problems]) from error


def _main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    if argv[:1] == [arguments.REPORT]:
        asked = arguments.parse_report(argv[1:])
        if asked is None:
            print(arguments.help_text(report=True), end="")
            return 0
        return _report_again(asked)
    experiment = arguments.parse(argv)
    if experiment is None:
        print(arguments.help_text(), end="")
        return 0
    return _show(experiment, environ) if experiment.dry_run else _experiment(experiment, environ)


def _show(asked: Asked, environ: Mapping[str, str]) -> int:
    """A dry run."""
    design = asked.design
    _check_command(design, environ)
    _check_cells(design, range(len(design.cells)), asked.out, environ, Screen(sys.stderr))
    for block, cell in factors.order(design):
        print(f"# block {block + 1}/{design.repeats}, {design.cells[cell].label}")
        print(running.as_shell_line(design, cell, block, asked.out, environ))
    return 0


def _experiment(asked: Asked, environ: Mapping[str, str]) -> int:
    _check_command(asked.design, environ)
    screen = Screen(sys.stderr)
    design = msgspec.structs.replace(
        asked.design,
        seed=asked.design.seed if asked.has_seed else secrets.randbelow(_SEEDS),
        environment=_inherited(asked.design, environ),
        machine=_machine(),
    )

    def check(design: Design, runs: list[Run]) -> None:
        cells = sorted({cell for _, cell in to_do(design, runs, time.time())})
        _check_cells(design, cells, asked.out, environ, screen)

    with journal.open_journal(design, asked.out, screen.say, any_seed=not asked.has_seed, check=check) as book:
        for line in describe_setup(book, environ, time.time()):
            screen.say(line)
        try:
            outcome = run(book, environ, screen)
        except OSError as error:
            screen.say(f"bps ab: {_describe(error)}: the same command goes on from here")
            _finish(book, Outcome(), screen)
            return FAILED
        return _finish(book, outcome, screen)


def _finish(book: journal.Journal, outcome: Outcome, screen: Screen) -> int:
    """Tell how it ended, and write the report of what is there. Returns the exit status."""
    good = {each.cell for each in counting(book.runs) if not each.problem}
    failed = len(good) < len(book.design.cells)
    if outcome.number:
        screen.say(f"interrupted: the same command goes on from here (--out {book.folder})")
    if outcome.hopeless:
        screen.say(
            "given up: every combination has failed, and none has ever worked. Mend the cause, and give the same "
            "command again; another command needs another --out"
        )
    if book.runs:
        try:
            _report(book.design, book.runs, book.folder)
        except OSError as error:
            again = f"`bps ab report {book.folder}` makes it again"
            screen.say(f"bps ab: {_describe(error)}: the report cannot be written; {again}")
            failed = True
    if outcome.number:
        return SIGNALLED + outcome.number
    return FAILED if failed else 0


def _describe(error: OSError) -> str:
    return (f"{error.filename}: " if error.filename else "") + (error.strerror or str(error))


def _report_again(asked: AskedReport) -> int:
    experiments = [each for each in asked.folders if journal.holds_experiment(each)]
    if experiments and len(asked.folders) > 1:
        names = ", ".join(map(str, experiments))
        raise SettingsError(f"{names}: a report is of one experiment, or of folders with records: give it alone")
    if experiments:
        design, runs = journal.load(experiments[0])
    else:
        design, runs = _from_records(asked.folders)
    folder = asked.out or asked.folders[0]
    try:
        _report(design, runs, folder)
    except OSError as error:
        raise SettingsError(f"{_describe(error)}: the report cannot be written to {folder}") from error
    good = {each.cell for each in counting(runs) if not each.problem}
    return 0 if len(good) == len(design.cells) else FAILED


def _from_records(folders: Sequence[Path]) -> tuple[Design, list[Run]]:
    from byteps_py.tune import records

    return records.from_records(records.read(list(folders)))


def _report(design: Design, runs: Sequence[Run], folder: Path) -> None:
    """Write the files, and print the table, also if they cannot be written.

    Raises:
        OSError: they cannot.
    """
    from byteps_py.tune import analysis, report, table

    counted = counting(runs)
    result = analysis.analyse(design, counted, design.machine or wording.hosts(counted))
    width = max(80, shutil.get_terminal_size((100, 24)).columns)
    text = table.as_text(result, width, sys.stdout.isatty())
    try:
        durable.make_folder(folder)
        written = report.write(result, folder)
    finally:
        print(text)
    print("written: " + ", ".join(wording.plain(str(each)) for each in written))


def _check_command(design: Design, environ: Mapping[str, str]) -> None:
    """What would make every run fail, and can be told before anything is made.

    Raises:
        SettingsError: with all that was found.
    """
    problems = list(_command_problems(design, environ))
    problems += [
        f"the variable {name + '=' + value!r} is not UTF-8"
        for name, value in _inherited(design, environ).items()
        if not is_text(name + value)
    ]
    if problems:
        raise SettingsError(problems)


def _inherited(design: Design, environ: Mapping[str, str]) -> dict[str, str]:
    return factors.inherited(design.factors, environ)


def _check_cells(
    design: Design, cells: Sequence[int], folder: Path, environ: Mapping[str, str], screen: Screen
) -> None:
    """What would make the runs of some cells fail.

    Raises:
        SettingsError: with all that was found.
    """
    problems = running.check_cells(design, cells, folder, environ, screen.say)
    if problems:
        raise SettingsError(problems)


def _command_problems(design: Design, environ: Mapping[str, str]) -> Iterator[str]:
    program = design.command[0]
    if running.RUN_DIR in program or any(each.name == "PATH" for each in design.factors):
        return
    if shutil.which(program, path=environ.get("PATH")) is None:
        hint = "is it the value of an option that is misspelt? " if program[:1].isdigit() else ""
        yield f"there is no command {program!r}: {hint}COMMAND begins at the first word that is no option"


def _machine() -> str:
    """For the report: on what the runs were made."""
    from byteps_py.version import package_version

    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0))
    return (
        f"{platform.node()}: {model}, {cores} {'core' if cores == 1 else 'cores'}; {platform.system()} "
        f"{platform.release()}; Python {platform.python_version()}, byteps_py {package_version()}"
    )
