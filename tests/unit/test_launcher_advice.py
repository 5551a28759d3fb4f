"""Why a process cannot be started, in words that say what to do."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from byteps_py.launcher.advice import explain_absence, explain_start, how_to_run


def failure(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def test_too_many_open_files() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    text = explain_start(failure(errno.EMFILE), "python")
    assert text.startswith(f"Too many open files: raise the limit (ulimit -n, now {limit}); ")


@pytest.mark.parametrize(("number", "command"), [(errno.EAGAIN, "ulimit -u"), (errno.ENOMEM, "ulimit -v")])
def test_other_limits(number: int, command: str) -> None:
    assert f"raise the limit ({command}, now " in explain_start(failure(number))


def test_a_script_without_a_first_line(tmp_path: Path) -> None:
    text = explain_start(failure(errno.ENOEXEC), "./train.sh")
    assert text == (
        "'./train.sh': Exec format error: it is no program, and has no first line such as #!/bin/bash; "
        "run it with 'bash ./train.sh'"
    )


def test_a_script_whose_interpreter_is_missing(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_bytes(b"#!/bin/bash\r\necho\r\n")
    text = explain_start(failure(errno.ENOENT), str(tmp_path / "train.sh"))
    assert text.endswith(r"its first line names an interpreter that does not exist: '/bin/bash\r'")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
def test_anything_else(number: int) -> None:
    assert explain_start(failure(number), "/no/such") == f"'/no/such': {os.strerror(number)}"
    assert explain_start(failure(number)) == os.strerror(number)


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("train.py", "run it with 'python train.py'"),
        ("./run.sh", "run it with 'bash ./run.sh'"),
        ("data", "name the program that runs it, as in 'bash data'"),
    ],
)
def test_how_to_run(word: str, advice: str) -> None:
    assert how_to_run(word) == advice


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("nothing", ""),
        ("nothing at all", ""),
        (" ", ""),
        ("", ""),
        ("tool -x 1", ": quotes make it one word; without them it is 'tool' with its arguments"),
        (" tool", ": quotes make it one word; without them it is 'tool' with its arguments"),
        ("A_1=2", ": no shell reads this; to set a variable for the command, write `env A_1=2 ...`"),
        ("A=b c", ": no shell reads this; to set a variable for the command, write `env 'A=b c' ...`"),
        ("1=2", ""),
        ("src", ", but a folder of that name is here: a command is needed that does something with it"),
        ("train.py", ", but a file of that name is here: run it with 'python train.py'"),
    ],
)
def test_why_there_is_no_such_command(word: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "bin/tool"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch(0o755)
    (tmp_path / "src").mkdir()
    assert explain_absence(word, str(tmp_path / "bin")) == advice
