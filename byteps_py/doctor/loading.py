"""What a training process loads: packages with their versions, and the OpenMP runtimes that come with them.

That is found out by processes of their own, which run this module as a program with names as arguments: frameworks take
seconds and hundreds of megabytes, may crash, and cannot all live in one process.  Each prints one JSON list.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["COMPANIONS", "FRAMEWORKS", "Loaded", "Loader", "Runtime", "openmp_runtimes"]

FRAMEWORKS: tuple[str, ...] = ("torch", "mxnet")
COMPANIONS: tuple[str, ...] = ("sklearn",)
"""What scripts use beside a framework, and brings an OpenMP runtime of its own."""
_KERNELS = "byteps_py.kernels.native"
_NAMES = {"libgomp": "GNU", "libiomp5": "Intel", "libomp": "LLVM", "libomp5": "LLVM"}
_FILE = re.compile(r"(libgomp|libiomp5|libomp5|libomp)[-.](?:[\w.+-]*\.)?so(?:\.[\d.]+)?$")
_LONGEST_LINE = 300
_PROGRAM = (
    "import sys; root, name = sys.argv[1:3]; sys.path[:] = [*filter(None, sys.path), root]; del sys.argv[1:3]; "
    "import runpy; runpy.run_module(name, run_name='__main__')"
)
"""As ``python -m``, but without the working directory in the path, where a ``json.py`` or ``torch.py`` may lie: ``-P``
does that from Python 3.11 on only."""
_ROOT = str(Path(__file__).parents[2])
"""Where this package lies: it may be found by the working directory alone."""


@dataclass(frozen=True)
class Runtime:
    """An OpenMP runtime in memory: where it lies, and whose it is (``GNU``, ``Intel`` or ``LLVM``)."""

    path: str
    kind: str


@dataclass(frozen=True)
class Loaded:
    """What was there after one more package was imported.

    Attributes:
        name: of the package; that of the kernels comes first.
        version: its own; empty if it has none.
        error: why it cannot be imported; empty if it can.
        late: whether that is so because it took too long.
        runtimes: of OpenMP, all that were in memory then.
    """

    name: str
    version: str = ""
    error: str = ""
    runtimes: tuple[Runtime, ...] = ()
    late: bool = False


class Loader:
    """Imports what is installed, each framework in a process of its own, once. Any thread.

    Args:
        environ: of these processes.
        timeout: seconds that all of them may take.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, timeout: float = 30.0) -> None:
        self._environ = None if environ is None else dict(environ)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._found: list[list[Loaded]] | None = None

    def load(self) -> list[list[Loaded]]:
        """For each process what it had loaded, step by step: the kernels, a framework if there is one, companions."""
        with self._lock:
            if self._found is None:
                companions = [name for name in COMPANIONS if is_installed(name)]
                frameworks = [[name] for name in FRAMEWORKS if is_installed(name)] or [[]]
                processes = [self._start([_KERNELS, *names, *companions]) for names in frameworks]
                deadline = time.monotonic() + self._timeout
                pairs = zip(processes, frameworks, strict=True)
                self._found = [self._finish(process, names, deadline) for process, names in pairs]
            return self._found

    def _start(self, names: Sequence[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _PROGRAM, _ROOT, __name__, *names]
        return subprocess.Popen(
            command,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def _finish(self, process: subprocess.Popen[str], names: Sequence[str], deadline: float) -> list[Loaded]:
        with process:
            try:
                output, errors = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                return [
                    Loaded(_KERNELS),
                    Loaded(names[0] if names else _KERNELS, error=_late(self._timeout), late=True),
                ]
        lines = output.splitlines()
        try:
            return [_loaded(each) for each in json.loads(lines[-1])]
        except (IndexError, ValueError, KeyError, TypeError):
            last = (errors.strip().splitlines() or ["it said nothing"])[-1].strip()
            why = f"the process that imported it ended with status {process.returncode}: {last[:_LONGEST_LINE]}"
            return [Loaded(_KERNELS), Loaded(names[0] if names else _KERNELS, error=why)]


def openmp_runtimes(maps: str) -> tuple[Runtime, ...]:
    """The OpenMP runtimes in the text of ``/proc/PID/maps``, each once, in the order of their paths."""
    found = {}
    for line in maps.splitlines():
        fields = line.split(None, 5)  # address, permissions, offset, device, inode, path
        path = fields[5].removesuffix(" (deleted)").strip() if len(fields) == 6 else ""
        match = _FILE.match(path.rpartition("/")[2])
        if match and path.startswith("/"):
            found[path] = Runtime(path, _NAMES[match[1]])
    return tuple(found[path] for path in sorted(found))


def is_installed(name: str) -> bool:
    """Whether a package of that name would be found; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _late(seconds: float) -> str:
    return f"it was not imported within {seconds:g} s"


def _loaded(row: Mapping[str, str | list[str]]) -> Loaded:
    maps = "\n".join(f"0 r 0 0 0 {path}" for path in row["files"])
    return Loaded(str(row["name"]), str(row["version"]), str(row["error"]), openmp_runtimes(maps))


def _import(name: str) -> dict[str, str | list[str]]:
    version = error = ""
    try:
        version = str(getattr(importlib.import_module(name), "__version__", ""))
    except Exception as failure:  # whatever a package does when it is imported
        error = f"{type(failure).__name__}: {failure}"
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return {"name": name, "version": version, "error": error, "files": [each.path for each in openmp_runtimes(maps)]}


if __name__ == "__main__":
    print(json.dumps([_import(each) for each in sys.argv[1:]]))
