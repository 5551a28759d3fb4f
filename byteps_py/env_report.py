"""``bps env``: every setting with the value in force and where it came from.

The sections are those of docs/env.md, which is made from :data:`SECTIONS` too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from byteps_py import known_names
from byteps_py.errors import SettingsError
from byteps_py.role import Role
from byteps_py.settings import (
    JobSettings,
    LaunchSettings,
    RecordSettings,
    inspect,
    runs_alone,
    settings_class,
)
from byteps_py.variables import Finding, Variable, examine, variables_of

__all__ = ["SECTIONS", "Report", "Section", "as_json", "as_text", "describes_a_job", "inspect_environment"]


@dataclass(frozen=True)
class Section:
    """A part of the table of variables.

    Attributes:
        title: its heading.
        role: whom it concerns; None for all.
        table: the class that has its fields.
        fields: their names, those of variables that must be set first.
    """

    title: str
    role: Role | None
    table: type
    fields: tuple[str, ...]

    @property
    def variables(self) -> list[Variable]:
        """Those of the fields."""
        table = dict(variables_of(self.table))
        return [table[name] for name in self.fields]


def _sections() -> Iterator[Section]:
    tables = {role: dict(variables_of(settings_class(role))) for role in Role}
    common = [
        name for name, _ in variables_of(JobSettings) if len({each[name].default for each in tables.values()}) == 1
    ]
    recorded = tuple(name for name, _ in variables_of(RecordSettings))
    common.sort(key=lambda name: tables[Role.WORKER][name].default is not None)
    title = "Every process of a distributed job: scheduler, servers and workers"
    yield Section(title, None, JobSettings, tuple(name for name in common if name not in recorded))
    for role, title in ((Role.SCHEDULER, "The scheduler"), (Role.SERVER, "Servers"), (Role.WORKER, "Workers")):
        yield Section(title, role, settings_class(role), tuple(name for name in tables[role] if name not in common))
    yield Section("Measuring, for processes of every kind", None, RecordSettings, recorded)
    fields = tuple(name for name, _ in variables_of(LaunchSettings))
    yield Section("Read before there is a role, by bpslaunch and others", None, LaunchSettings, fields)


SECTIONS: tuple[Section, ...] = tuple(_sections())
"""All variables that are read, in the order in which they are shown."""


@dataclass(frozen=True)
class Report:
    """What an environment means.

    Attributes:
        rows: for each section that is shown its title and its findings. A variable that is missing is a problem only
            where the environment describes a distributed job.
        problems: what is wrong beyond what the rows say.
        notes: what is good to know: what has no effect, what is misspelt, what is missing and may be.
    """

    rows: tuple[tuple[str, tuple[Finding, ...]], ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_bad(self) -> bool:
        """Whether a process with this environment would refuse it."""
        return bool(self.problems) or any(each.problem for _, findings in self.rows for each in findings)


def inspect_environment(environ: Mapping[str, str], role: Role | None) -> Report:
    """Look at everything in ``environ`` that concerns ``role``, or all roles. Pure."""
    notes = []
    missing_matters = describes_a_job(environ)
    if not missing_matters:
        notes.append(
            "no distributed job is described here; `bpslaunch COMMAND` starts a whole job on this machine, and one "
            "process is a job of its own"
        )
    elif role is Role.WORKER and _is_alone(environ):
        missing_matters = False
        notes.append("DMLC_NUM_WORKER=1: this worker is a job of its own (BYTEPS_FORCE_DISTRIBUTED=1 changes that)")
    rows = []
    for section in SECTIONS:
        if role is None or section.role in (None, role):
            found = {each.field: each for each in examine(section.table, environ)}
            findings = [found[name] for name in section.fields]
            if not missing_matters:
                findings = [dataclasses.replace(each, problem="") if each.missing else each for each in findings]
            rows.append((section.title, tuple(findings)))
    problems: dict[str, None] = {}
    if missing_matters:
        for each in Role if role is None else (role,):
            problems |= dict.fromkeys(inspect(settings_class(each), environ)[1])
    return Report(tuple(rows), tuple(problems), (*notes, *known_names.report(environ)))


def describes_a_job(environ: Mapping[str, str]) -> bool:
    """Whether anything is set that only a job of several machines needs."""
    needed = [variable for _, variable in variables_of(JobSettings) if variable.default is None]
    return any(environ.get(name, "").strip() for name in ("DMLC_ROLE", *(each.name for each in needed)))


def _is_alone(environ: Mapping[str, str]) -> bool:
    try:
        return runs_alone({**environ, "DMLC_ROLE": "worker"})
    except SettingsError:
        return False


def as_text(report: Report) -> str:
    """In aligned columns."""
    blocks = [[("setting", "value", "from")]]
    blocks += [[(title, "", ""), *(_cells(each) for each in findings)] for title, findings in report.rows]
    rows = [row for block in blocks for row in block if row[1]]
    name_width, value_width = (max(len(row[column]) for row in rows) + 2 for column in (0, 1))
    value_width = min(value_width, 48)
    lines = []
    for block in blocks:
        for name, value, origin in block:
            lines.append(f"  {name:{name_width}}{value:{value_width}}{origin}" if value else name)
        lines.append("")
    for title, texts in (("Problems", report.problems), ("Notes", report.notes)):
        if texts:
            lines += [title, *(f"  {text}" for text in texts), ""]
    return "\n".join(lines)


def _cells(finding: Finding) -> tuple[str, str, str]:
    name = finding.variable.name
    if finding.problem:
        return name, "?", finding.problem
    return name, _shown(finding) or "-", _origin(finding)


def _origin(finding: Finding) -> str:
    if finding.origin:
        return finding.origin
    return "default" if finding.variable.default else "not set"


def _shown(finding: Finding) -> str:
    """The value in force, as one would write it."""
    value = finding.value
    if not finding.origin:
        return finding.variable.default or ""
    if isinstance(value, bool):
        return str(int(value))
    return str(value) if isinstance(value, (str, int)) else finding.text.strip()


def as_json(report: Report) -> str:
    """The same as one JSON object."""
    settings = [
        {
            "section": title,
            "setting": each.variable.name,
            "names": each.variable.names,
            "value": _plain(each.value),
            "shown": _shown(each),
            "from": _origin(each),
            "problem": each.problem or None,
        }
        for title, findings in report.rows
        for each in findings
    ]
    return json.dumps({"settings": settings, "problems": report.problems, "notes": report.notes}, indent=2)


def _plain(value: Any) -> Any:
    """``value`` in the types that JSON has."""
    if isinstance(value, (tuple, frozenset)):
        return [_plain(each) for each in (sorted(value) if isinstance(value, frozenset) else value)]
    return value
