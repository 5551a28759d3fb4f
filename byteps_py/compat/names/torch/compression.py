"""``byteps.torch.compression``. What is a class in BytePS is an object here; both have the same two methods."""

from __future__ import annotations

from byteps_py.torch.compression import Compression, Compressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]

NoneCompressor = Compression.none
FP16Compressor = Compression.fp16
