"""Runs the tests that need no torch on every Python from 3.10 to 3.13 that this machine has, and once more with the
oldest dependencies that pyproject.toml allows, NumPy 1.23.5 among them.

The Python of the environment that this runs in is left out: `make test` has it; so is the one that has the oldest
dependencies. Only the latter run all tests; the others run those in which one version may do something differently, and
a few whole jobs; those between the oldest and the newest only the jobs.

One wheel is installed in a virtual environment for each, so one wheel must be enough. The tests run from a copy of the
tree in which nothing was ever compiled, so that they cannot import anything but what is installed. The environments
stay in .venv-versions/ until pyproject.toml changes.

usage: .venv/bin/python scripts/versions.py [ARGUMENTS FOR PYTEST]
"""

from __future__ import annotations

import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".venv-versions"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PYTHONS_OF_THE_OLDEST = ("3.10", "3.11")
"""NumPy 1.23.5 has no wheel for later ones; the first that is here is taken."""

_GENERATED = shutil.ignore_patterns(
    *(".git", ".venv*", ".editable", "build", "_build", "dist", "*.egg-info", "*.so", "*.o", "__pycache__"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"),
)
_ASK = (
    "import sys, sysconfig; print('%d.%d.%d' % sys.version_info[:3], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
)
_NOT_THERE = (
    *("network", "fault", "integration/test_addresses.py", "integration/test_running.py"),
    *("integration/test_ab.py", "integration/test_troubleshooting.py", "integration/test_waiting.py"),
    *("integration/test_memory_bound.py", "integration/test_readme.py", "integration/test_launcher_[os]*.py"),
    *("integration/test_command_line.py", "integration/test_install.py", "integration/test_records.py"),
    *("integration/test_benchmarks*.py", "unit/test_benchmarks_*.py", "unit/test_kernel_benchmark.py"),
)
"""Tests of what does not depend on Python: the system, the network, the clock, the documentation, benchmarks."""
_ONCE = ("fuzz", "contract/test_kernels.py", "integration/test_[!j]*.py")
"""Beyond those, tests that run with the oldest dependencies only; of whole jobs, ``test_jobs.py`` is left."""
_BETWEEN = ("unit", "contract")
"""Beyond those, tests that only the oldest and the newest Python run."""
_VERSIONS = "import importlib.metadata as m; print(' '.join(m.version(x) for x in ('numpy', 'pyzmq', 'msgspec')))"
_TEST_SECONDS = 900.0


@dataclass(frozen=True)
class Interpreter:
    """A Python: the path of its executable, and its whole version, such as ``3.12.1``."""

    path: str
    version: str

    @property
    def minor(self) -> str:
        """``3.12``."""
        return self.version.rpartition(".")[0]


@dataclass(frozen=True)
class Outcome:
    """What one run of the tests came to; all are texts for the table."""

    python: str
    libraries: str
    result: str
    ok: bool


def main(arguments: list[str]) -> int:
    """Run the tests everywhere, ``arguments`` being pytest's; returns the exit status."""
    found = choose(ask(candidates()))
    pythons = dict(found)
    outcomes = [Outcome(f"{each}", "", "skipped: not on this machine", True) for each in PYTHONS if each not in pythons]
    own = pythons.pop(f"{sys.version_info.major}.{sys.version_info.minor}", None)
    if own is not None:
        outcomes.append(Outcome(own.version, "", "make test", True))
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), arguments)
        oldest = next((found[each] for each in PYTHONS_OF_THE_OLDEST if each in found), None)
        others = [each for each in pythons.values() if each is not oldest]
        outcomes += [runs.run(each, left_out=_BETWEEN if each is not others[-1] else ()) for each in others]
        if oldest is None:
            missing = " nor ".join(PYTHONS_OF_THE_OLDEST)
            outcomes.append(Outcome("oldest dependencies", "", f"skipped: neither Python {missing} is here", True))
        else:
            outcomes.append(runs.run(oldest, oldest=True))
    print("\n" + "\n".join(table(outcomes)))
    return 0 if all(each.ok for each in outcomes) else 1


def candidates() -> Iterator[str]:
    """Paths that may be Pythons: the one this runs on, those in ``PATH``, and those of pyenv."""
    yield str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
    for version in PYTHONS:
        found = shutil.which(f"python{version}")
        if found is not None:
            yield found
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    if shutil.which("pyenv") is not None:
        root = Path(subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip())
    yield from sorted(str(each) for each in root.glob("versions/*/bin/python"))


def ask(paths: Iterable[str]) -> Iterator[Interpreter]:
    """Those of the paths that are a Python, with its version; those without the GIL are left out: they need a wheel of
    their own."""
    for path in paths:
        try:
            done = subprocess.run([path, "-I", "-c", _ASK], capture_output=True, text=True, timeout=30, check=False)
        except OSError:
            continue
        version, _, free_threaded = done.stdout.strip().partition(" ")
        if done.returncode == 0 and free_threaded == "0":
            yield Interpreter(path, version)


def choose(found: Iterable[Interpreter]) -> dict[str, Interpreter]:
    """The first of each of :data:`PYTHONS`, in that order."""
    first: dict[str, Interpreter] = {}
    for each in found:
        first.setdefault(each.minor, each)
    return {version: first[version] for version in PYTHONS if version in first}


def lowest(requirement: str) -> str | None:
    """``numpy==1.23.5`` for ``numpy>=1.23.5``; None for what only optional parts need."""
    parsed = Requirement(requirement)
    if parsed.marker is not None:
        return None
    (bound,) = (each.version for each in parsed.specifier if each.operator == ">=")
    return f"{parsed.name}=={bound}"


def shorten(output: str) -> str:
    """What pytest printed, without the tests that were skipped: what failed must not be far from the end."""
    return "".join(line for line in output.splitlines(keepends=True) if not line.startswith("SKIPPED"))


def table(outcomes: list[Outcome]) -> list[str]:
    """Lines with columns below one another."""
    rows = [("Python", "numpy, pyzmq, msgspec", "result")]
    rows += [(each.python, each.libraries, each.result) for each in outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


class Runs:
    """Makes the environments, and runs the tests in them.

    Attributes:
        tree: a copy of the source tree, without what was generated.
        wheel: built from it.
    """

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self._folder = folder
        self._arguments = arguments
        self.tree = folder / "tree"
        shutil.copytree(ROOT, self.tree, symlinks=True, ignore=_GENERATED)
        # What the tests import as `tests`, in a folder that has no byteps_py.
        (folder / "modules").mkdir()
        (folder / "modules" / "tests").symlink_to(self.tree / "tests")
        (folder / "empty").mkdir()
        source = folder / "source"
        shutil.copytree(self.tree, source, symlinks=True)
        pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(source))
        (self.wheel,) = folder.glob("*.whl")

    def run(self, python: Interpreter, *, oldest: bool = False, left_out: tuple[str, ...] = ()) -> Outcome:
        """Run the tests on one Python: fewer of them, without ``left_out``, or, ``oldest``, all with the oldest
        dependencies."""
        title = python.version + (" oldest" if oldest else "")
        print(f"Python {title} ({python.path}):", end=" ", flush=True)
        environment = self._environment(python, ENVIRONMENTS / title.replace(" ", "-"), oldest=oldest)
        libraries = _output(str(environment / "bin" / "python"), "-I", "-c", _VERSIONS)
        started = time.monotonic()
        status, output = self._test(environment, (*_NOT_THERE, *left_out, *(() if oldest else _ONCE)))
        summary = re.sub(r" in [0-9.]+s.*", "", output.rstrip().rpartition("\n")[2].strip("= "))
        result = f"{summary} in {time.monotonic() - started:.0f} s"
        print(result if status == 0 else f"FAILED\n\n{shorten(output)}\nPython {title}: {result}", flush=True)
        return Outcome(title, libraries, result if status == 0 else f"FAILED: {result}", status == 0)

    def _environment(self, python: Interpreter, folder: Path, *, oldest: bool) -> Path:
        """Its folder; the wheel in it is always the one just built."""
        pins = [lowest(each) for each in _requirements(self.wheel)] if oldest else []
        state = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + repr(python).encode()).hexdigest()
        stamp = folder / "made-from"
        target = ("--python", str(folder / "bin" / "python"))
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != state:
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([python.path, "-m", "venv", "--without-pip", str(folder)], check=True)
            pip(*target, "install", f"{self.wheel}[test]", *(each for each in pins if each is not None))
            stamp.write_text(state, encoding="utf-8")
        pip(*target, "install", "--force-reinstall", "--no-deps", str(self.wheel))
        return folder

    def _test(self, environment: Path, left_out: tuple[str, ...]) -> tuple[int, str]:
        """Exit status and output of pytest, without the tests in files that match ``left_out``."""
        command = [
            str(environment / "bin" / "pytest"),
            "-c",
            str(self.tree / "pyproject.toml"),
            "-p",
            "no:cacheprovider",
        ]
        command += ["--rootdir", str(self.tree), "-o", f"pythonpath={self._folder / 'modules'}", "-q"]
        command += [
            "--hypothesis-profile",
            "few",
            "-m",
            "not slow",
            "-n",
            "4",
            *self._arguments,
            str(self.tree / "tests"),
        ]
        command += [f"--ignore-glob={self.tree / 'tests' / each}" for each in left_out]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environ["PYTHONWARNINGS"] = "error"  # for the processes that the tests start
        try:
            done = subprocess.run(
                command,
                cwd=self._folder / "empty",
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_TEST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return 1, f"{error.stdout!r}\nnot done after {_TEST_SECONDS:.0f} s"
        return done.returncode, done.stdout


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (each for each in opened.namelist() if each.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(opened.read(name)).get_all("Requires-Dist", [])


def pip(*arguments: str) -> None:
    """Run the pip of this environment; where it fails, say so and exit."""
    _output(sys.executable, "-m", "pip", "--quiet", *arguments)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"\nerror: {' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
