"""Writes docs/env.md from the tables in byteps_py/settings.py.

usage: python scripts/env_docs.py [PATH]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from byteps_py.env_report import SECTIONS
from byteps_py.known_names import WITHOUT_EFFECT
from byteps_py.variables import Variable

TARGET = Path(__file__).resolve().parents[1] / "docs" / "env.md"

_HEAD = """\
# Environment variables

<!-- Made by `make docs` from byteps_py/settings.py and byteps_py/known_names.py; do not edit. -->

They are read once, when a process starts. An empty value counts as not set. What is wrong with them is told in one
message that names every variable, its value and the form expected; the exit status is then 2. A text has at most 255
characters.

Where a row has several names, the first that is set gives the value; an option of `bpslaunch` goes before all of them.
`bps env` shows every setting with the value in force and where it came from, `bps env --role server` those of a server,
`bps env --json` the same for programs; its exit status is 2 if something is wrong with them.
"""

_WITHOUT_EFFECT = """\
## Known, and without effect here

What BytePS, ps-lite and the tracker of dmlc read beside the above. One that is set to something else than what happens
anyway is told once for each job, by `bpslaunch`, or by a process that was started without it. A name that begins with
`BYTEPS_` or `DMLC_` and is in none of these tables is told as well, with the name that it resembles.

| variables | what happens instead |
| --- | --- |
"""


def main(arguments: list[str]) -> None:
    """Write the document to the path in ``arguments``, or to its place in the repository."""
    target = Path(arguments[0]) if arguments else TARGET
    target.write_text(render(), encoding="utf-8")


def render() -> str:
    """The whole document."""
    sections = [_section(each.title, each.variables) for each in SECTIONS]
    known = [f"| {', '.join(f'`{name}`' for name in group.names)} | {group.reason} |" for group in WITHOUT_EFFECT]
    return "\n".join([_HEAD, *sections, _WITHOUT_EFFECT + "\n".join([*known, ""])])


def _section(title: str, variables: Iterable[Variable]) -> str:
    lines = [f"## {title}", "", "| variable | value | default | meaning |", "| --- | --- | --- | --- |"]
    for each in variables:
        default = "must be set" if each.default is None else each.default or "not set"
        names = ", else ".join(f"`{name}`" for name in each.names)
        lines.append(f"| {names} | {each.form} | {default} | {each.meaning} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main(sys.argv[1:])
