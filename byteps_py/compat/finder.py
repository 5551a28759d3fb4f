"""Which package ``byteps`` is: a real one wherever there is one, else the folder ``names``.

The others are asked first, in the order in which Python would ask them, also those that the program has added after the
start.  A folder without an ``__init__.py`` is no package: a clone of BytePS that the program happens to be started
beside is such a one.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final

__all__ = ["NAMES", "find"]

NAMES: Final = Path(__file__).with_name("names")
"""The folder that is loaded as ``byteps``."""

_told: list[str] = []


def find(asking: object = None) -> ModuleSpec:
    """The spec of ``byteps``. Any thread.

    Args:
        asking: the finder in ``sys.meta_path`` that wants to know, which is not asked itself.
    """
    real = _find_elsewhere(asking)
    if real is not None:
        _tell(real)
        return real
    spec = importlib.util.spec_from_file_location(
        "byteps", NAMES / "__init__.py", submodule_search_locations=[str(NAMES)]
    )
    assert spec is not None  # that is for files of an unknown kind
    return spec


def _find_elsewhere(asking: object) -> ModuleSpec | None:
    for each in list(sys.meta_path):
        # Finders of old packages may have no such method, and Python passes over them as well.
        ask = None if each is asking else getattr(each, "find_spec", None)
        found: ModuleSpec | None = None if ask is None else ask("byteps", None)
        if found is not None and found.origin is not None:
            return found
    return None


def _tell(real: ModuleSpec) -> None:
    """Say once that a real one is used; nobody would see it otherwise. Children of ``multiprocessing`` are silent."""
    processes = sys.modules.get("multiprocessing.process")
    if _told or (processes is not None and processes.parent_process() is not None):
        return
    _told.append(str(real.origin))
    print(f"byteps_py: there is a package byteps, which is used instead of byteps_py: {real.origin}", file=sys.stderr)
