"""Copies of the source tree, as somebody has it who never built anything."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PARTS = ("byteps_py", "launcher", "csrc", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
_GENERATED = shutil.ignore_patterns("*.so", "*.o", "__pycache__", "_native.c", "*.egg-info")


def copy_sources(target: Path) -> Path:
    """What an installation needs, without anything that was generated; returns ``target``."""
    target.mkdir()
    for name in _PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, symlinks=True, ignore=_GENERATED)
        else:
            shutil.copy2(source, target / name)
    return target
