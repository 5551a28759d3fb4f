"""Which byteps_py this is."""

from __future__ import annotations

__all__ = ["package_version"]


def package_version() -> str:
    """The version of the installed distribution; "unknown" in a source tree that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # loads a lot, and few ask

    try:
        return version("byteps_py")
    except PackageNotFoundError:
        return "unknown"
