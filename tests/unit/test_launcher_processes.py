"""How a command is found and the end of a process is put into words; real processes are in the integration tests."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from byteps_py.launcher.processes import CommandError, Ends, describe_status, exit_status, find


@pytest.mark.parametrize(
    ("status", "text", "shell"),
    [
        (0, "exited with status 0", 0),
        (3, "exited with status 3", 3),
        (-9, "was killed by signal 9 (SIGKILL)", 137),
        (-15, "was killed by signal 15 (SIGTERM)", 143),
        (-50, "was killed by signal 50", 178),
        (128, "exited with status 128", 128),
        (137, "exited with status 137 (as by SIGKILL)", 137),
        (255, "exited with status 255", 255),
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
    for word, text in ((str(tmp_path / "notes"), "is not an executable file"), (str(tmp_path), "is a folder: ")):
        with pytest.raises(CommandError, match=text) as caught:
            find(word, None)
        assert caught.value.status == 126


def test_a_command_in_quotes() -> None:
    with pytest.raises(CommandError, match="'sh -c true': quotes make it one word; without them it is 'sh' with its"):
        find("sh -c true", None)


def test_a_script_as_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print()")
    with pytest.raises(CommandError) as caught:
        find("./train.py", None)
    text = "'./train.py' is not an executable file: run it with 'python ./train.py', or chmod +x it"
    assert (caught.value.status, str(caught.value)) == (126, text)
    with pytest.raises(CommandError) as caught:
        find("train.py", "/nowhere")
    text = "there is no command 'train.py', but a file of that name is here: run it with 'python train.py'"
    assert (caught.value.status, str(caught.value)) == (127, text)


def test_processes_end_in_an_order() -> None:
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(5)]
    ends = Ends()
    try:
        for child in children:
            ends.watch(child.pid)
        assert ends.take() == []
        order = [children[index].pid for index in (3, 0, 4, 1)]
        for pid in order:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ends.take() == order
        assert ends.take() == []
    finally:
        ends.close()
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.parametrize("word", ["", "/no/such/file", "no such command"])
def test_no_command(word: str) -> None:
    with pytest.raises(CommandError) as caught:
        find(word, os.environ["PATH"])
    assert caught.value.status == 127
