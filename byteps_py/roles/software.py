"""Which software a process runs with, for one who compares the processes of a job."""

from __future__ import annotations

import platform
import sys

from byteps_py.wire.inquiry import MAX_SOFTWARE_TEXT

__all__ = ["describe_software"]

_LIBRARIES = ("numpy", "torch", "mxnet")


def describe_software() -> str:
    """``Python 3.11.7, numpy 2.1.0, torch 2.6.0``: of the libraries those that this process has loaded."""
    words = [f"Python {platform.python_version()}"]
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            words.append(f"{name} {version}")
    return ", ".join(words)[:MAX_SOFTWARE_TEXT]
