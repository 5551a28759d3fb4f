"""Narrower floats on the wire: ``Compression.none`` and ``.fp16``.

A compressor casts 32- and 64-bit floating point arrays before they are pushed and back after they are pulled; all
others pass unchanged.  The servers accumulate float16 in float32, so a sum is rounded once; a value beyond the range
of float16 (65504) does not survive.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = ["Compression", "Compressor"]

_WIDE: Final = (np.dtype(np.float32), np.dtype(np.float64))


class Compressor:
    """Casts to one narrower dtype, or not at all. Immutable; waits for no array."""

    def __init__(self, name: str, narrow: str | None) -> None:
        self._name = name
        self._narrow = narrow

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """The NDArray to push, and what :meth:`decompress` needs."""
        if self._narrow is None or np.dtype(tensor.dtype) not in _WIDE:
            return tensor, None
        return tensor.astype(self._narrow), tensor.dtype

    def decompress(self, tensor: Any, context: Any) -> Any:
        """An NDArray of the dtype that :meth:`compress` was given."""
        return tensor if context is None else tensor.astype(context)

    def __repr__(self) -> str:
        return f"Compression.{self._name}"


class Compression:
    """The compressors to choose from."""

    none: Final = Compressor("none", None)
    fp16: Final = Compressor("fp16", "float16")
