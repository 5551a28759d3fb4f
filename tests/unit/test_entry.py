"""Ctrl-C while a command starts: status 130, and no word."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from byteps_py import entry

PROJECT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r'^(bps\w*) = "(.+)"$', PROJECT, re.MULTILINE))
AS_MODULE = {"bps": "byteps_py", "bpslaunch": "byteps_py.launcher"}

# In place of a module of Python's: presses Ctrl-C, minds no exception as some modules do, and becomes the real one.
FAKE = """
import os, signal, sys
try:
    os.kill(os.getpid(), signal.SIGINT)
    signal.getsignal(signal.SIGINT)
except BaseException:
    {}
print("after Ctrl-C", flush=True)
sys.path.remove(os.path.dirname(__file__))
del sys.modules[__name__]
__import__(__name__)
"""
SWALLOWS = FAKE.format("pass")
PASSES_ON = FAKE.format("raise")


def command(name: str, as_module: bool) -> list[str]:
    """The beginning of a command line, as ``python -m`` or as the script that pip makes."""
    if as_module:
        return [sys.executable, "-m", AS_MODULE[name]]
    module, function = SCRIPTS[name].split(":")
    return [sys.executable, "-c", f"import sys; from {module} import {function}; sys.exit({function}())"]


def pressed(
    folder: Path, words: list[str], module: str, source: str, prepare: Callable[[], object] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to which Ctrl-C is pressed when it imports ``module``."""
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    return subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        preexec_fn=prepare,
    )


def test_both_commands_are_looked_at() -> None:
    assert SCRIPTS.keys() == AS_MODULE.keys()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", [SWALLOWS, PASSES_ON], ids=["swallows", "passes on"])
@pytest.mark.parametrize("as_module", [True, False], ids=["module", "script"])
@pytest.mark.parametrize("name", list(AS_MODULE))
def test_while_modules_are_loaded(name: str, as_module: bool, source: str, tmp_path: Path) -> None:
    done = pressed(tmp_path, [*command(name, as_module), "--version"], "argparse", source)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.timeout(60)
def test_while_words_are_read(tmp_path: Path) -> None:
    done = pressed(tmp_path, [*command("bpslaunch", False), "--wrong"], "difflib", PASSES_ON)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", list(AS_MODULE))
def test_whoever_has_it_ignored_is_not_ended(name: str, tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    done = pressed(tmp_path, [*command(name, False), "--version"], "argparse", PASSES_ON, ignore)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"after Ctrl-C\n\w+ \S+\n", done.stdout)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_ignored", [False, True])
def test_the_command_of_a_worker_finds_what_the_launcher_found(is_ignored: bool, tmp_path: Path) -> None:
    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if is_ignored else signal.SIG_DFL)

    show = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    words = [*command("bpslaunch", False), "-n", "1", "--no-prefix", sys.executable, "-c", show]
    assert pressed(tmp_path, words, "of_nobody", "", prepare).stdout == f"{is_ignored}\n"


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def see(seen: list[object], ending: type[BaseException] | None = None) -> Callable[[], Callable[[], int]]:
    """What notes the handler while it is loaded, and while it runs."""

    def run() -> int:
        seen.append(signal.getsignal(signal.SIGINT))
        if ending is not None:
            raise ending
        return 7

    def load() -> Callable[[], int]:
        seen.append(signal.getsignal(signal.SIGINT))
        return run

    return load


@pytest.mark.usefixtures("handler")
def test_the_command_has_the_handler_of_python() -> None:
    seen: list[object] = []
    assert entry.run(see(seen)) == 7
    assert seen[0] is not signal.default_int_handler
    assert seen[1] is signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("other", [signal.SIG_IGN, signal.SIG_DFL])
def test_another_handler_is_left_alone(other: signal.Handlers) -> None:
    signal.signal(signal.SIGINT, other)
    seen: list[object] = []
    assert entry.run(see(seen)) == 7
    assert seen == [other, other]


@pytest.mark.usefixtures("handler")
def test_what_a_command_lets_through() -> None:
    assert entry.run(see([], KeyboardInterrupt)) == 130
    with pytest.raises(ZeroDivisionError):
        entry.run(see([], ZeroDivisionError))


@pytest.mark.usefixtures("handler")
def test_a_module_that_cannot_be_loaded() -> None:
    def load() -> Callable[[], int]:
        raise ImportError

    with pytest.raises(ImportError):
        entry.run(load)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
