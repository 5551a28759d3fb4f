"""Runs what documents tell people to type."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path


def run(
    command: list[str],
    folder: Path,
    *,
    status: int = 0,
    path: tuple[Path, ...] = (),
    timeout: float = 110,
    **environ: str,
) -> str:
    """Both output streams of a command that must end so.

    Args:
        command: its words.
        folder: where it runs.
        status: the exit status that it must have.
        path: folders whose programs come first, before those of this environment.
        timeout: seconds after which it counts as hanging.
        environ: variables beside those that there are.
    """
    folders = (*map(str, path), str(Path(sys.executable).parent), os.environ["PATH"])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": os.pathsep.join(folders), **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def scripts_after(text: str) -> list[str]:
    """The scripts in the ``diff`` blocks of a document, with the change made."""
    return [after for _, after in _scripts(text)]


def scripts_before(text: str) -> list[str]:
    """The same scripts as they were."""
    return [before for before, _ in _scripts(text)]


def _scripts(text: str) -> list[tuple[str, str]]:
    found = []
    for block in re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = [(each[:1], each[1:]) for each in block.splitlines()]
        assert {sign for sign, _ in lines} <= {"", " ", "-", "+"}, block
        before, after = ("\n".join(line for sign, line in lines if sign != left_out) for left_out in "+-")
        for each in (before, after):
            ast.parse(each)
        found.append((before, after))
    return found
