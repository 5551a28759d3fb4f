"""Check of what is installed: versions, and whether the frameworks can be imported."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from byteps_py.doctor.findings import Finding, note, ok, warning
from byteps_py.doctor.loading import COMPANIONS, FRAMEWORKS, Loaded
from byteps_py.doctor.situation import Situation
from byteps_py.transport.library import zmq_versions
from byteps_py.version import package_version

__all__ = ["check_install", "judge_frameworks", "judge_zmq"]

_OLDEST_LIBZMQ: Final = (4, 3, 4)
"""The oldest that this package is tried with."""
_OLDEST_TORCH: Final = (2, 6)


def check_install(situation: Situation) -> Iterator[Finding]:
    """Versions of what every process needs, then of the frameworks."""
    pyzmq, libzmq = zmq_versions()
    versions = {
        "byteps_py": package_version(),
        "Python": platform.python_version(),
        "numpy": np.__version__,
        "pyzmq": pyzmq,
        "libzmq": libzmq,
    }
    yield ok(", ".join(f"{name} {version}" for name, version in versions.items()), versions=versions)
    yield from judge_zmq(libzmq)
    yield from judge_frameworks([step for steps in situation.loader.load() for step in steps[1:]], np.__version__)


def judge_zmq(version: str) -> Iterator[Finding]:
    """What is to be said of that libzmq; nothing if it is well known. Pure."""
    if _numbers(version) < _OLDEST_LIBZMQ:
        known = ".".join(map(str, _OLDEST_LIBZMQ))
        yield note(f"libzmq {version} is older than {known}, with which byteps_py is tested", "pip install -U pyzmq")


def judge_frameworks(steps: Sequence[Loaded], numpy: str) -> Iterator[Finding]:
    """Which frameworks there are, and why one cannot be imported. Pure.

    Args:
        steps: what was imported.
        numpy: its version.
    """
    found = [step for step in steps if step.name in FRAMEWORKS]
    for step in found:
        if not step.error:
            yield ok(f"{step.name} {step.version}", version=step.version)
            if step.name == "torch" and _numbers(step.version)[:2] < _OLDEST_TORCH:
                yield warning(f"byteps_py.torch needs torch 2.6 or newer, not {step.version}", "pip install -U torch")
        elif step.late:
            slow = (
                f"see what is slow (`python -X importtime -c 'import {step.name}'`), or give it more time (--timeout)"
            )
            yield warning(f"{step.name} is installed, but {step.error}", slow)
        elif step.name == "mxnet" and _numbers(numpy) >= (1, 24):
            yield warning(
                f"mxnet cannot be imported with numpy {numpy}, which has dropped names that it uses: {step.error}",
                "pip install 'byteps_py[mxnet]', or 'numpy<1.24', which needs Python 3.10 or 3.11",
            )
        else:
            yield warning(f"{step.name} is installed but cannot be imported: {step.error}", "reinstall it")
    if not found:
        yield note("no framework is installed: only arrays of NumPy can be exchanged")
    for step in steps:
        if step.name in COMPANIONS and step.error:
            yield note(f"{step.name} is installed but cannot be imported: {step.error}")


def _numbers(version: str) -> tuple[int, ...]:
    """``(2, 6, 0)`` for ``2.6.0+cpu``."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
