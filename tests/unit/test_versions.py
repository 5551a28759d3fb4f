"""scripts/versions.py: which Pythons are found and chosen, and which versions are the oldest."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def versions() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "scripts" / "versions.py"
    spec = importlib.util.spec_from_file_location("versions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def _python(path: Path, answer: str, status: int = 0) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {answer}\nexit {status}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_pythons_in_path_and_those_of_pyenv_are_candidates(
    versions: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_path = _python(tmp_path / "bin" / "python3.12", "3.12.1 0")
    of_pyenv = [_python(tmp_path / "root" / "versions" / each / "bin" / "python", "") for each in ("3.10.13", "3.13.0")]
    _python(tmp_path / "bin" / "pyenv", str(tmp_path / "root"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    own, *others = versions.candidates()
    assert Path(own).parent == Path(sys.base_prefix, "bin")
    assert others == [in_path, *of_pyenv]


def test_what_is_no_python_with_the_gil_is_left_out(versions: ModuleType, tmp_path: Path) -> None:
    paths = [
        _python(tmp_path / "shim", "no such version >&2", 127),
        _python(tmp_path / "free-threaded", "3.13.1 1"),
        str(tmp_path / "missing"),
        _python(tmp_path / "good", "3.13.0 0"),
    ]
    assert list(versions.ask(paths)) == [versions.Interpreter(paths[3], "3.13.0")]


def test_it_finds_the_python_that_it_runs_on(versions: ModuleType) -> None:
    (found,) = versions.ask([sys.executable])
    assert found.minor == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_the_first_of_each_version_is_taken_and_none_beyond_the_supported(versions: ModuleType) -> None:
    found = [versions.Interpreter(f"/{version}", version) for version in ("3.12.1", "3.9.18", "3.10.13", "3.12.4")]
    assert {minor: each.path for minor, each in versions.choose(found).items()} == {
        "3.10": "/3.10.13",
        "3.12": "/3.12.1",
    }


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("numpy>=1.23.5", "numpy==1.23.5"),
        ('pytest>=8.2; extra == "test"', None),
        ('torch>=2.6; extra == "torch"', None),
        ('numpy<1.24; python_version < "3.12" and extra == "mxnet"', None),
    ],
)
def test_the_lowest_version_of_a_requirement(versions: ModuleType, requirement: str, expected: str | None) -> None:
    assert versions.lowest(requirement) == expected


def test_columns_of_the_table_are_below_one_another(versions: ModuleType) -> None:
    outcomes = [
        versions.Outcome("3.10.13", "2.2.6 27.3.0 0.23.0", "5 passed in 3 s", True),
        versions.Outcome("3.13", "", "skipped: not on this machine", True),
    ]
    assert versions.table(outcomes) == [
        "Python   numpy, pyzmq, msgspec  result",
        "3.10.13  2.2.6 27.3.0 0.23.0    5 passed in 3 s",
        "3.13                            skipped: not on this machine",
    ]


def test_a_failure_anywhere_is_the_exit_status(versions: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Runs:
        def __init__(self, folder: Path, arguments: list[str]) -> None:
            assert arguments == ["-k", "x"]

        def run(self, python: Any, *, oldest: bool = False, left_out: tuple[str, ...] = ()) -> object:
            ran.append((python.minor, oldest))
            shorter.append(bool(left_out))
            return versions.Outcome("3", "", "", ok=not (oldest and failing))

    monkeypatch.setattr(versions, "Runs", Runs)
    own = "{}.{}".format(*sys.version_info)
    minors = sorted({"3.10", "3.12", "3.13", own}, key=lambda minor: int(minor[2:]))
    found = [versions.Interpreter("/" + each, f"{each}.1") for each in minors]
    monkeypatch.setattr(versions, "ask", lambda _: found)
    minors.remove(own)
    for failing in (False, True):
        ran: list[tuple[str, bool]] = []
        shorter: list[bool] = []
        assert versions.main(["-k", "x"]) == failing
        assert ran == [*[(each, False) for each in minors if each != "3.10"], ("3.10", True)]
        assert shorter == [True] * (len(ran) - 2) + [False, False]  # all that are between the oldest and the newest


def test_what_failed_is_not_buried_under_what_was_skipped(versions: ModuleType) -> None:
    output = "E  left behind: this\nSKIPPED [88] a.py:1: no avx512\nERROR a.py::test - Failed\n1 passed, 1 error\n"
    assert versions.shorten(output) == "E  left behind: this\nERROR a.py::test - Failed\n1 passed, 1 error\n"


def test_a_machine_without_a_python_for_mxnet_has_an_exit_status_of_its_own() -> None:
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    code = (
        f"import sys; sys.path.insert(0, {str(scripts)!r}); import mxnet_environment as made\n"
        "made.choose = lambda found: {}\n"
        "sys.exit(made.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("error: MXNet 1.9.1 needs Python 3.10 or 3.11, and neither is in PATH or of pyenv")
    assert f"    {done.returncode}) echo" in (scripts.parent / ".ci" / "run").read_text(encoding="utf-8")
