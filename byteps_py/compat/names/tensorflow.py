"""``byteps.tensorflow``: there is no such plugin."""

from __future__ import annotations

from byteps_py.compat.absent import missing_plugin

__all__ = ()

raise missing_plugin("byteps.tensorflow", "TensorFlow")
