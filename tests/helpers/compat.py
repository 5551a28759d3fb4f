"""The finder in this process, for a test; and whether a function can be called as BytePS's can."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from byteps_py.compat import finder

SCRIPTS = Path(__file__).resolve().parents[1] / "compat_scripts"
"""Scripts that import ``byteps`` only, in the manner of BytePS's public examples."""


class _Finder:
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return finder.find(self) if name == "byteps" else None


@contextlib.contextmanager
def byteps_known() -> Iterator[None]:
    """Within it ``byteps`` can be imported; afterwards it is unknown again."""
    made: Any = _Finder()
    sys.meta_path.insert(0, made)
    try:
        yield
    finally:
        sys.meta_path.remove(made)
        finder._told.clear()
        for name in [each for each in sys.modules if each == "byteps" or each.startswith("byteps.")]:
            del sys.modules[name]


def differences(function: Any, parameters: str, **known: Any) -> list[str]:
    """What keeps ``function`` from being called as one with BytePS's parameters can be.

    Args:
        function: ours.
        parameters: of BytePS's, as they stand in a definition.
        known: names that defaults use.
    """
    theirs = inspect.signature(eval(f"lambda {parameters}: None", known)).parameters
    ours = list(inspect.signature(function).parameters.values())
    found = []
    for place, (name, wanted) in enumerate(theirs.items()):
        if place >= len(ours) or (ours[place].name != name and ours[place].kind is not inspect.Parameter.VAR_KEYWORD):
            found.append(f"{name!r} is not parameter {place}")
        elif wanted.default is not wanted.empty and ours[place].default != wanted.default:
            found.append(f"{name!r} is {ours[place].default!r} by default, not {wanted.default!r}")
        elif wanted.default is wanted.empty and wanted.kind is not ours[place].kind:
            found.append(f"{name!r} is {ours[place].kind.description}")
    own = [each for each in ours[len(theirs) :] if each.kind is each.POSITIONAL_OR_KEYWORD]
    return found + [f"{each.name!r} has no default" for each in own if each.default is each.empty]
