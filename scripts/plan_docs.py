"""Writes the outputs of `bps plan` into docs/plan.md, below the commands that stand there.

usage: python scripts/plan_docs.py [PATH]
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

from byteps_py import cli

TARGET = Path(__file__).resolve().parents[1] / "docs" / "plan.md"
_BLOCK = re.compile(r"^```console\n\$ bps (plan .*)\n(?:.*\n)*?```$", re.MULTILINE)


def main(arguments: list[str]) -> None:
    """Write the document to the path in ``arguments``, or to its place in the repository."""
    target = Path(arguments[0]) if arguments else TARGET
    target.write_text(render(TARGET.read_text(encoding="utf-8")), encoding="utf-8")


def render(text: str) -> str:
    """The document with the output of each command of it, as it is now."""
    return _BLOCK.sub(lambda found: f"```console\n$ bps {found[1]}\n{_output(found[1])}```", text)


def _output(words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        if cli.main(shlex.split(words)):
            raise SystemExit(f"bps {words} failed")
    return out.getvalue()


if __name__ == "__main__":
    main(sys.argv[1:])
