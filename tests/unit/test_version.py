"""The version: that of what is installed."""

from __future__ import annotations

import importlib.metadata

import pytest

from byteps_py import version
from byteps_py.version import package_version


def test_the_installed_version() -> None:
    assert package_version() == importlib.metadata.version("byteps_py")


def test_a_source_tree_that_was_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", find_nothing)
    assert package_version() == "unknown"
