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
from byteps_py.standard_output import is_terminal, put_out
from byteps_py.tune import arguments, durable, factors, journal, records, running, wording
from byteps_py.tune.arguments import Asked, AskedReport, is_text
from byteps_py.tune.experiment import Outcome, counting, describe_setup, run, to_do
from byteps_py.tune.model import Design, Run
from byteps_py.tune.screen import Screen, fill_descriptors

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
    fill_descriptors()
    try:
        return _main(argv, environ)
    except SettingsError as error:
        # Some of it are words of the user, who may have pasted anything.
        raise SettingsError([wording.plain(each) for each in error.problems]) from error


def _main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    if argv[:1] == [arguments.REPORT]:
        asked = arguments.parse_report(argv[1:])
        if asked is None:
            return _print(arguments.help_text(report=True).rstrip())
        return _report_again(asked)
    experiment = arguments.parse(argv)
    if experiment is None:
        return _print(arguments.help_text().rstrip())
    return _show(experiment, environ) if experiment.dry_run else _experiment(experiment, environ)


def _print(text: str) -> int:
    """Print to standard output; returns the exit status."""
    problem = put_out(text, sys.stdout)
    if problem:
        Screen(sys.stderr).say(f"bps ab: standard output: {problem}")
    return FAILED if problem else 0


def _show(asked: Asked, environ: Mapping[str, str]) -> int:
    """A dry run."""
    design = _here(asked.design)
    _check_variables(design, environ)
    _check_cells(design, range(len(design.cells)), asked.out, environ, Screen(sys.stderr))
    lines = []
    for block, cell in factors.order(design):
        lines.append(f"# block {block + 1}/{design.repeats}, {design.cells[cell].label}")
        lines.append(running.as_shell_line(design, cell, block, asked.out, environ))
    return _print("\n".join(lines))


def _experiment(asked: Asked, environ: Mapping[str, str]) -> int:
    _check_variables(asked.design, environ)
    screen = Screen(sys.stderr)
    design = msgspec.structs.replace(
        _here(asked.design),
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
            # A job may have removed everything.
            there = journal.holds_experiment(book.folder)
            hint = "the same command goes on from here" if there else "begin again with another --out"
            screen.say(f"bps ab: {_describe(error)}: {hint}")
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
            "given up: every combination has failed, and none has ever worked. Mend the cause, and give the command "
            f"again, the same or a corrected one; as no run is good, it may have the same --out {book.folder}"
        )
    if book.runs:
        try:
            failed = bool(_report(book.design, book.runs, book.folder)) or failed
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
        design, runs = records.from_records(records.read(asked.folders))
    folder = asked.out or asked.folders[0]
    try:
        status = _report(design, runs, folder)
    except OSError as error:
        raise SettingsError(f"{_describe(error)}: the report cannot be written to {folder}") from error
    good = {each.cell for each in counting(runs) if not each.problem}
    return status if len(good) == len(design.cells) else FAILED


def _report(design: Design, runs: Sequence[Run], folder: Path) -> int:
    """Write the files, and print the table, also if they cannot be written. Returns the exit status of the printing.

    Raises:
        OSError: the files cannot be written.
    """
    from byteps_py.tune import analysis, report, table

    counted = counting(runs)
    result = analysis.analyse(design, counted, design.machine or wording.hosts(counted))
    width = max(80, shutil.get_terminal_size((100, 24)).columns)
    text = table.as_text(result, width, is_terminal(sys.stdout))
    try:
        durable.make_folder(folder)
        written = report.write(result, folder)
    except OSError:
        _print(text)
        raise
    return _print(f"{text}\nwritten: " + ", ".join(wording.plain(str(each)) for each in written))


def _here(design: Design) -> Design:
    """With the working folder, in which the runs are made.

    Raises:
        SettingsError: it has been removed, or its name is no UTF-8.
    """
    try:
        folder = os.getcwd()
    except OSError as error:
        raise SettingsError(f"the working folder: {error.strerror}: go into another one") from error
    if not is_text(folder):
        raise SettingsError(f"the working folder {folder!r} is not UTF-8: reach it by a link with another name")
    return msgspec.structs.replace(design, directory=folder)


def _check_variables(design: Design, environ: Mapping[str, str]) -> None:
    """What cannot be written down.

    Raises:
        SettingsError: with all that was found.
    """
    problems = [
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
    """What would make the runs of some cells fail, and can be told before anything is made.

    Raises:
        SettingsError: with all that was found.
    """
    if cells and (problems := list(_command_problems(design, environ))):
        raise SettingsError(problems)
    problems = running.check_cells(design, cells, folder, environ, screen.say)
    if problems:
        raise SettingsError(problems)


def _command_problems(design: Design, environ: Mapping[str, str]) -> Iterator[str]:
    if not Path(design.directory).is_dir():
        yield f"the working folder of the runs is gone, {design.directory}: make it again, or take another --out"
        return
    if arguments.launches_itself(design.command):
        yield "each run is started by bpslaunch: give the command without bpslaunch; its options stand before --"
        return
    program = design.command[0]
    if running.RUN_DIR in program or any(each.name == "PATH" for each in design.factors):
        return
    # As a shell does it, in the folder of the runs.
    path = os.path.join(design.directory, program) if os.sep in program else program
    if shutil.which(path, path=environ.get("PATH")) is None:
        hint = "is it the value of an option that is misspelt? " if program[:1].isdigit() else ""
        yield f"there is no command {program!r}: {hint}COMMAND begins at the first word that is no option"


def _machine() -> str:
    """For the report: on what the runs were made."""
    from byteps_py.version import package_version

    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        model = names[0] if names else model
    cores = wording.count(len(os.sched_getaffinity(0)), "core")
    return (
        f"{platform.node()}: {model}, {cores}; {platform.system()} "
        f"{platform.release()}; Python {platform.python_version()}, byteps_py {package_version()}"
    )
