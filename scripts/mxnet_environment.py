"""Makes .venv-mxnet, in which the tests of the MXNet plugin run: MXNet 1.9.1 needs NumPy below 1.24, and a Python that
NumPy 1.23.5 has wheels for.

byteps_py is found there as .venv finds it, in the tree, with the kernels that were compiled for that: they need no more
of Python than its stable ABI.  The environment stays until pyproject.toml or the Python changes.

usage: .venv/bin/python scripts/mxnet_environment.py

The exit status is 3 where no such Python is here.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from importlib.metadata import requires

from packaging.requirements import Requirement
from versions import PYTHONS_OF_THE_OLDEST, ROOT, ask, candidates, choose, pip

FOLDER = ROOT / ".venv-mxnet"
NO_PYTHON = 3
PINS = ("mxnet==1.9.1", "numpy==1.23.5", "scikit-learn>=1.2")


def needed(requirements: list[str], python: str) -> list[str]:
    """Those of byteps_py's ``requirements`` that its tests need on ``python``, such as ``3.11``."""
    found = []
    for each in map(Requirement, requirements):
        environments = [{"extra": extra, "python_version": python} for extra in ("", "test", "mxnet")]
        if each.marker is None or any(each.marker.evaluate(environment) for environment in environments):
            found.append(f"{each.name}{each.specifier}")
    return found


def main() -> int:
    """Make it unless it is there; returns the exit status."""
    found = choose(ask(candidates()))
    python = next((found[each] for each in reversed(PYTHONS_OF_THE_OLDEST) if each in found), None)
    if python is None:
        print(
            "error: MXNet 1.9.1 needs Python 3.10 or 3.11, and neither is in PATH or of pyenv: install one of them",
            file=sys.stderr,
        )
        return NO_PYTHON
    state = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + repr((python, PINS)).encode()).hexdigest()
    stamp = FOLDER / "made-from"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == state:
        return 0
    print(f"This makes {FOLDER.name} with {python.path}, and downloads MXNet 1.9.1 (50 MB), NumPy and scikit-learn.")
    shutil.rmtree(FOLDER, ignore_errors=True)
    subprocess.run([python.path, "-m", "venv", "--without-pip", str(FOLDER)], check=True)
    target = str(FOLDER / "bin" / "python")
    pip("--python", target, "install", *PINS, *needed(requires("byteps_py") or [], python.minor))
    site = FOLDER / "lib" / f"python{python.minor}" / "site-packages"
    (site / "byteps_py.pth").write_text(f"{ROOT / '.editable'}\n", encoding="utf-8")
    stamp.write_text(state, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
