"""Writes docs/env.md from the tables in byteps_py/settings.py.

usage: python scripts/env_docs.py [PATH]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from byteps_py.settings import (
    OTHER_VARIABLES,
    JobSettings,
    SchedulerSettings,
    ServerSettings,
    Variable,
    WorkerSettings,
    variables_of,
)

TARGET = Path(__file__).resolve().parents[1] / "docs" / "env.md"

_HEAD = """\
# Environment variables

<!-- Made by `make docs` from byteps_py/settings.py; do not edit. -->

They are read once, when a process starts. An empty value counts as not set. What is wrong with them is told in one
message that names every variable, its value and the form expected; the exit status is then 2. A text has at most 255
characters.
"""


def main(arguments: list[str]) -> None:
    """Write the document to the path in ``arguments``, or to its place in the repository."""
    target = Path(arguments[0]) if arguments else TARGET
    target.write_text(render(), encoding="utf-8")


def render() -> str:
    """The whole document."""
    common = list(_variables(JobSettings))
    sections = [
        _section("Every process of a distributed job: scheduler, servers and workers", common),
        _section("The scheduler", (each for each in _variables(SchedulerSettings) if each not in common)),
        _section("Servers", (each for each in _variables(ServerSettings) if each not in common)),
        _section("Workers", (each for each in _variables(WorkerSettings) if each not in common)),
        _section("Read by bpslaunch and others", OTHER_VARIABLES),
    ]
    return "\n".join([_HEAD, *sections])


def _variables(settings: type[JobSettings]) -> Iterable[Variable]:
    return (variable for _, variable in variables_of(settings))


def _section(title: str, variables: Iterable[Variable]) -> str:
    lines = [f"## {title}", "", "| variable | value | default | meaning |", "| --- | --- | --- | --- |"]
    for each in variables:
        default = "must be set" if each.default is None else each.default or "not set"
        names = ", else ".join(f"`{name}`" for name in each.names)
        lines.append(f"| {names} | {each.form} | {default} | {each.meaning} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main(sys.argv[1:])
