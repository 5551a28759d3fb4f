"""setup.py: where the kernels cannot be compiled, the last line is one sentence that says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.helpers.trees import copy_sources

_WITHOUT_HEADERS = """
import sysconfig
found = sysconfig.get_path
sysconfig.get_path = lambda name, *rest: "/nowhere" if name == "include" else found(name, *rest)
"""
_ELSEWHERE = "import setuptools.command.build_ext, sys; sys.platform = 'darwin'"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory.mktemp("setup") / "source")


def _setup(source: Path, *command: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run setup.py after the statements in ``before``."""
    code = f"{before}\nimport runpy, sys\nsys.path.insert(0, '')\nsys.argv = {['setup.py', *command]!r}\n"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code + "runpy.run_path('setup.py', run_name='__main__')"],
        cwd=source,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def _compiler(path: Path, condition: str) -> str:
    """A compiler that is gcc, but fails where a shell finds the condition on its arguments to hold."""
    path.write_text(f'#!/bin/sh\nif {condition}; then echo "unknown thing" >&2; exit 1; fi\nexec gcc "$@"\n')
    path.chmod(0o755)
    return str(path)


def _last_line(source: Path, before: str = "", **environment: str) -> str:
    done = _setup(source, "build_ext", before=before, **environment)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr.splitlines()[-1]


def test_no_compiler(source: Path) -> None:
    assert _last_line(source, CC="/nowhere/gcc") == (
        "byteps_py cannot compile its kernels: there is no C compiler '/nowhere/gcc'; "
        "install gcc (Debian: apt install gcc libc6-dev)."
    )


def test_no_headers_of_python(source: Path, tmp_path: Path) -> None:
    compiler = _compiler(tmp_path / "cc", "true")
    assert _last_line(source, before=_WITHOUT_HEADERS, CC=compiler) == (
        "byteps_py cannot compile its kernels: the headers of Python are not installed (/nowhere/Python.h); "
        "install them (Debian: apt install python3-dev)."
    )


def test_no_openmp(source: Path, tmp_path: Path) -> None:
    compiler = _compiler(tmp_path / "cc", 'case "$*" in *-fopenmp*) true;; *) false;; esac')
    assert _last_line(source, CC=compiler) == (
        f"byteps_py cannot compile its kernels: {compiler!r} cannot compile and link C with OpenMP; "
        "install gcc with libgomp and libc6-dev."
    )


def test_another_failure_shows_what_the_compiler_said(source: Path, tmp_path: Path) -> None:
    compiler = _compiler(tmp_path / "cc", 'case "$*" in *csrc*) true;; *) false;; esac')
    last = _last_line(source, CC=compiler)
    assert last.endswith(f"{compiler!r} failed as shown above, though it knows OpenMP; gcc 9 or later is needed.")


def test_other_systems_are_refused(source: Path) -> None:
    assert _last_line(source, before=_ELSEWHERE) == "byteps_py runs on Linux only, and this is darwin."


def test_the_source_distribution_has_all_that_is_compiled(source: Path, tmp_path: Path) -> None:
    done = _setup(source, "-q", "sdist", "--formats=tar", "--dist-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {f"csrc/{each.name}" for each in (source / "csrc").glob("*.[ch]")} <= names
    assert {"setup.py", "pyproject.toml", "csrc/build_kernels.py", "byteps_py/launcher/__init__.py"} <= names
    assert {"byteps_py/py.typed", "byteps_py/kernels/_native.pyi"} <= names
    assert not [name for name in names if name.endswith(".so")]
