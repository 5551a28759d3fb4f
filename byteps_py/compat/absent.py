"""What BytePS has and byteps_py has not."""

from __future__ import annotations

__all__ = ["missing_plugin"]


def missing_plugin(module: str, framework: str) -> ImportError:
    """The error for ``import module``, which in BytePS is a plugin for ``framework``."""
    return ImportError(
        f"{module} is not there: byteps_py has no plugin for {framework}; those for PyTorch and MXNet are byteps.torch "
        "and byteps.mxnet, and byteps_py itself sums NumPy arrays (docs/migrating.md)",
        name=module,
    )
