"""Narrower floats on the wire: ``Compression.none``, ``.fp16`` and ``.bf16``.

A compressor casts 32- and 64-bit floating point tensors before they are pushed and back after they are pulled; all
others pass unchanged.  The servers accumulate 16-bit floats in float32 and divide before they round, so the average of
large values does not overflow; a single value beyond the narrow type's range does (65504 for fp16).
"""

from __future__ import annotations

from typing import Final

import torch

__all__ = ["Compression", "Compressor"]

_WIDE: Final = (torch.float32, torch.float64)


class Compressor:
    """Casts to one narrower dtype, or not at all. Immutable."""

    def __init__(self, name: str, narrow: torch.dtype | None) -> None:
        self._name = name
        self._narrow = narrow

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which a tensor of ``dtype`` is pushed."""
        return self._narrow if self._narrow is not None and dtype in _WIDE else dtype

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor to push, and what :meth:`decompress` needs. Differentiable."""
        return tensor.to(self.wire_dtype(tensor.dtype)), tensor.dtype

    def decompress(self, tensor: torch.Tensor, context: torch.dtype) -> torch.Tensor:
        """A tensor of the dtype that :meth:`compress` was given. Differentiable."""
        return tensor.to(context)

    def __repr__(self) -> str:
        return f"Compression.{self._name}"


class Compression:
    """The compressors to choose from."""

    none: Final = Compressor("none", None)
    fp16: Final = Compressor("fp16", torch.float16)
    bf16: Final = Compressor("bf16", torch.bfloat16)
