"""``byteps.keras``: there is no such plugin."""

from __future__ import annotations

from byteps_py.compat.absent import missing_plugin

__all__ = ()

raise missing_plugin("byteps.keras", "Keras")
