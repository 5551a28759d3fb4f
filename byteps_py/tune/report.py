"""The report of an experiment as files: ``report.json``, ``report.csv``, ``report.png`` and ``report.html``.

Each is written under another name and then put in place, so that whoever reads one while an experiment goes on, or
after the power failed, finds a whole one: this or the last.
"""

from __future__ import annotations

import contextlib
import csv
import io
import logging
from pathlib import Path

import msgspec

from byteps_py.errors import SettingsError
from byteps_py.tune import durable, page, plot, wording
from byteps_py.tune.model import Design, Run
from byteps_py.tune.results import Analysis

__all__ = ["NO_PICTURE", "SCHEMA", "as_csv", "load", "write"]

SCHEMA = 1
"""Version of the form of ``report.json``."""

NO_PICTURE = "report.png is left out, since matplotlib is not installed: pip install 'byteps_py[plot]'"
"""What is said where there is no picture."""

_log = logging.getLogger("byteps_py.tune.report")


class _File(msgspec.Struct, frozen=True):
    """What ``report.json`` holds."""

    schema: int
    analysis: Analysis


class _Head(msgspec.Struct, frozen=True):
    """As much of it as every version has."""

    schema: int


def write(analysis: Analysis, folder: Path) -> tuple[Path, ...]:
    """Write all files of the report into ``folder``, which exists; those of an earlier one are replaced.

    Without matplotlib there is no picture: the log and the page say so, and that of an earlier report is removed, since
    it would show something else than the page.

    Returns:
        the paths of the files that were written.

    Raises:
        OSError: a file cannot be written; ``filename`` is its path. Those before it are written, it and the others are
            as they were.
    """
    picture = plot.as_png(analysis)
    shown = analysis
    if picture is None:
        _log.warning("%s", NO_PICTURE)
        shown = msgspec.structs.replace(analysis, notes=(*analysis.notes, NO_PICTURE))
    json = msgspec.json.format(msgspec.json.encode(_File(SCHEMA, analysis)), indent=1)
    contents = {
        "report.json": json + b"\n",
        "report.csv": as_csv(analysis).encode(),
        "report.png": picture,
        "report.html": page.as_html(shown, picture).encode(),
    }
    written = []
    for name, content in contents.items():
        path = folder / name
        if content is None:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                durable.sync_folder(folder)
            continue
        durable.replace(path, content)
        written.append(path)
    return tuple(written)


def load(path: Path) -> Analysis:
    """What :func:`write` was given, from its ``report.json``.

    Raises:
        OSError: the file cannot be read.
        SettingsError: it is no report, or one of another version of byteps_py.
    """
    content = path.read_bytes()
    try:
        schema = msgspec.json.decode(content, type=_Head).schema
        if schema != SCHEMA:
            raise SettingsError(
                f"{path} is a report of version {schema}, and this byteps_py reads version {SCHEMA}: make it again "
                "with `bps ab report DIR`, or read it with the byteps_py that wrote it"
            )
        return msgspec.json.decode(content, type=_File).analysis
    except msgspec.DecodeError as error:
        raise SettingsError(f"{path} is no report.json of `bps ab`: {error}") from error


def as_csv(analysis: Analysis) -> str:
    """One line for each run, in the order in which they were made, under a line of names.

    Blocks are counted from 1, as in the names of the runs' folders. The value is empty where a run failed. Times are in
    seconds, ``started`` is UTC; ``worker_cpu_seconds`` and its like are of all processes of the role while the run was
    measured, and empty where that is unknown. A factor whose name is that of another column is called ``factor NAME``.
    """
    design = analysis.design
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    measured = ("value", "unit", "seconds", "steps", "problem")
    after = [*measured, *(f"{role}_cpu_seconds" for role in wording.ROLES), "started"]
    taken = {"block", "cell", *after}
    factors = []
    for factor in design.factors:
        name = factor.name
        while name in taken:
            name = f"factor {name}"
        taken.add(name)
        factors.append(name)
    lines.writerow(["block", "cell", *factors, *after])
    for run in analysis.runs:
        lines.writerow(_csv_row(design, run))
    return text.getvalue()


def _csv_row(design: Design, run: Run) -> list[object]:
    cell = design.cells[run.cell]
    good = not run.problem
    cpu: list[object] = []
    for role in wording.ROLES:
        used = [each.cpu_seconds for each in run.processes if each.role == role]
        cpu.append(round(sum(used), 6) if used else "")
    when = wording.moment(run.started)
    started = when.isoformat(timespec="seconds") if when else ""
    measured = (run.value, run.unit, run.seconds, run.steps) if good else ("", "", "", "")
    return [run.block + 1, cell.label, *cell.levels, *measured, run.problem, *cpu, started]
