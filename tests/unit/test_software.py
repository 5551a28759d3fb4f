"""What a process says of the software that it runs with."""

from __future__ import annotations

import platform
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from byteps_py.roles.software import describe_software
from byteps_py.wire.inquiry import MAX_SOFTWARE_TEXT


def test_only_what_is_loaded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "mxnet"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert describe_software() == f"Python {platform.python_version()}, numpy {np.__version__}"
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.6.0+cpu"))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mxnet", SimpleNamespace())  # type: ignore[arg-type]
    assert describe_software().endswith(f"numpy {np.__version__}, torch 2.6.0+cpu")


def test_a_long_version_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2" * 1000))  # type: ignore[arg-type]
    assert len(describe_software()) == MAX_SOFTWARE_TEXT
