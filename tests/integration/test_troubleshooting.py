"""Every row of the tables in ``docs/troubleshooting.md``: the command does what the document says."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.wrong_starts import WrongStart, files, play, wrong_starts

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
CHAPTER = re.findall(r"^## Wrong starts$(.*?)^## ", DOCUMENT, re.MULTILINE | re.DOTALL)[0]
ROWS = list(wrong_starts(CHAPTER))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the reader stands."""
    made = tmp_path / "folder"
    made.mkdir()
    for name, text in files(CHAPTER).items():
        (made / name).write_text(text, encoding="utf-8")
    return made


def test_there_are_as_many_as_promised() -> None:
    assert len(ROWS) >= 35
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.messages for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_wrong_start(row: WrongStart, folder: Path, tmp_path: Path) -> None:
    if "unshare" in row.command and _may_not_unshare():
        pytest.skip("needs the right to make a mount namespace")
    seen = play(row, folder, tmp_path / "output")
    assert seen.status is not None, f"it does not end:\n{seen.output}"
    for message in row.messages:
        assert seen.shows(message), f"not seen: {message}\nbut:\n{seen.output}"
    assert seen.status == row.status, seen.output
    if not any("Traceback" in message for message in row.messages):
        assert "Traceback" not in seen.output


def _may_not_unshare() -> bool:
    return subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0


def test_messages_are_in_order() -> None:
    tables = DOCUMENT.partition("\n## Messages\n")[2].split("\n### ")[1:]
    assert len(tables) == 5
    for table in tables:
        words = [re.sub("[^a-z_ ]", "", messages[0].casefold()).strip() for messages in _messages(table)]
        assert words == sorted(words)


def test_messages_exist() -> None:
    """Whoever changes a text finds its name in the document."""
    modules = [*(ROOT / "byteps_py").rglob("*.py"), *(ROOT / "launcher").glob("*.py")]
    pieces = {piece for path in modules for piece in _texts(path)}
    for messages in _messages(DOCUMENT.partition("\n## Messages\n")[2]):
        for part in (part.strip() for message in messages for part in message.split("...")):
            assert any(part in piece for piece in pieces), f"{part!r} of {messages}"


def _messages(text: str) -> Iterator[list[str]]:
    """The messages that each row of the tables begins with."""
    for line in text.splitlines():
        if line.startswith("| `"):
            yield re.findall(r"`([^`]+)`", line.split("|")[1])


def _texts(path: Path) -> Iterator[str]:
    """The texts of a module, cut where a value is put in."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
