"""What a person sees: on a terminal, in a pipe, and where nothing can be written."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from byteps_py.standard_output import put_out
from byteps_py.tune import screen
from byteps_py.tune.screen import Screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_shorter_line_leaves_nothing_of_a_longer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    stream = Terminal()
    shown = Screen(stream)
    shown.show(lambda: "a long line")
    shown.show(lambda: "too soon")
    now[0] += 1.0
    shown.show(lambda: "short")
    shown.say("done")
    assert stream.getvalue() == "\ra long line\rshort      \r     \rdone\n"


def test_a_line_that_is_too_long_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    Screen(stream).show(lambda: "block 1/1, run 1/4, " + "x" * 100 + ": step 10 of 310, about 2 min left")
    line = stream.getvalue().removeprefix("\r")
    assert len(line) == 59
    assert line.startswith("block 1/1, run 1/4, ")
    assert line.endswith("step 10 of 310, about 2 min left"[-29:])


PROGRAM = """
import sys
from byteps_py.standard_output import put_out
from byteps_py.tune.screen import Screen, fill_descriptors
fill_descriptors()
shown = Screen(sys.stderr)
for number in range(3):
    shown.say("line")
    shown.show(lambda: "changes")
print(repr(put_out("text", sys.stdout)), file=open("result", "w"))
"""


@pytest.mark.parametrize(
    ("ends", "result"),
    [
        (">&- 2>&-", "''"),
        ("<&- >&- 2>&-", "''"),
        (">/dev/full 2>/dev/full", "'No space left on device'"),
        ("2>&1 | :", "''"),
        (">/dev/null", "''"),
    ],
)
def test_a_screen_that_cannot_be_written_is_silent(tmp_path: Path, ends: str, result: str) -> None:
    # Status 120 is Python's, if something is left in a stream at its end.
    wait = "sleep 0.3; " if "|" in ends else ""
    line = f"set -o pipefail; {{ {wait}{sys.executable} -c '{PROGRAM}'; }} {ends}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, timeout=60, check=False, capture_output=True)
    assert done.returncode == 0
    assert (tmp_path / "result").read_text() == result + "\n"


def test_a_terminal_that_was_closed_is_silent() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stream:
        shown = Screen(stream)
        shown.say("line")
        os.close(ours)
        shown.show(lambda: "changes")
        shown.say("line")
        assert put_out("text", stream) == ""
    with open(os.devnull, "w") as closed:
        pass
    assert not screen.is_terminal(closed)
    Screen(closed).say("line")


def test_a_reader_that_has_gone_is_no_error() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as stream:
        assert put_out("text", stream) == ""


def test_characters_that_the_locale_lacks_are_replaced() -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, "ascii")
    assert put_out("\u00b1 1", stream) == ""
    assert buffer.getvalue() == b"? 1\n"
