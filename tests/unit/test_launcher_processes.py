"""How a command is found and the end of a process is put into words; real processes are in the integration tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from byteps_py.launcher.processes import CommandError, describe_status, exit_status, find


@pytest.mark.parametrize(
    ("status", "text", "shell"),
    [
        (0, "exited with status 0", 0),
        (3, "exited with status 3", 3),
        (-9, "was killed by signal 9 (SIGKILL)", 137),
        (-15, "was killed by signal 15 (SIGTERM)", 143),
        (-50, "was killed by signal 50", 178),
    ],
)
def test_statuses(status: int, text: str, shell: int) -> None:
    assert describe_status(status) == text
    assert exit_status(status) == shell


def test_a_command_is_found_in_the_path(tmp_path: Path) -> None:
    command = tmp_path / "train"
    command.write_text("#!/bin/sh\n")
    with pytest.raises(CommandError, match="there is no command 'train'") as caught:
        find("train", str(tmp_path))
    assert caught.value.status == 127
    command.chmod(0o755)
    find("train", os.pathsep.join(["/nowhere", str(tmp_path)]))
    find(str(command), None)


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("hello")
    for word in (str(tmp_path / "notes"), str(tmp_path)):
        with pytest.raises(CommandError, match="is not an executable file") as caught:
            find(word, None)
        assert caught.value.status == 126


@pytest.mark.parametrize("word", ["", "/no/such/file", "no such command"])
def test_no_command(word: str) -> None:
    with pytest.raises(CommandError) as caught:
        find(word, os.environ["PATH"])
    assert caught.value.status == 127
