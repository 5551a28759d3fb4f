"""Which byteps_py this is. The commands load this module, which loads a lot, only when they are asked."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["package_version"]


def package_version() -> str:
    """The version of the installed distribution; "unknown" in a source tree that was never installed."""
    try:
        return version("byteps_py")
    except PackageNotFoundError:
        return "unknown"
