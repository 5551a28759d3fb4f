"""The folder that is put in front of PYTHONPATH."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from byteps_py.startup_folder import FOLDER, with_startup_folder


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, FOLDER),
        ("", FOLDER),
        ("/a", f"{FOLDER}:/a"),
        ("/a:/b", f"{FOLDER}:/a:/b"),
        (":/a", f"{FOLDER}::/a"),
        (FOLDER, FOLDER),
        (f"{FOLDER}:/a", f"{FOLDER}:/a"),
        (f"/a:{FOLDER}", f"{FOLDER}:/a:{FOLDER}"),
    ],
)
def test_it_stands_first_once(before: str | None, after: str) -> None:
    environ = {"HOME": "/root"} if before is None else {"HOME": "/root", "PYTHONPATH": before}
    given = dict(environ)
    assert with_startup_folder(environ) == {"HOME": "/root", "PYTHONPATH": after}
    assert environ == given


def test_it_holds_nothing_else_that_could_be_imported() -> None:
    assert [each for each in os.listdir(FOLDER) if each != "__pycache__"] == ["sitecustomize.py"]


def test_any_python_of_today_can_read_it() -> None:
    """A script may start that of the system, which is often an old one."""
    source = Path(FOLDER, "sitecustomize.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
    assert "from __future__" not in source


def test_it_lies_in_the_package() -> None:
    import byteps_py

    assert Path(FOLDER).parents[1] == Path(byteps_py.__file__).parent
