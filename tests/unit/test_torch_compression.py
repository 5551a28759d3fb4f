"""Narrower floats on the wire."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from byteps_py.torch import Compression  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("compressor", "narrow"), [(Compression.fp16, torch.float16), (Compression.bf16, torch.bfloat16)]
)
def test_wide_floats_travel_narrow_and_come_back_wide(compressor, narrow, dtype) -> None:
    tensor = torch.tensor([1.5, -2.0, 1 / 3], dtype=dtype)
    compressed, context = compressor.compress(tensor)
    assert compressed.dtype == compressor.wire_dtype(dtype) == narrow
    restored = compressor.decompress(compressed, context)
    assert restored.dtype == dtype
    assert torch.equal(restored, tensor.to(narrow).to(dtype))


@pytest.mark.parametrize("compressor", [Compression.none, Compression.fp16, Compression.bf16])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.uint8])
def test_all_other_dtypes_pass_unchanged(compressor, dtype) -> None:
    tensor = torch.ones(3, dtype=dtype)
    compressed, context = compressor.compress(tensor)
    assert compressed is tensor
    assert compressor.decompress(compressed, context) is tensor


def test_none_changes_nothing() -> None:
    tensor = torch.ones(3, dtype=torch.float64)
    assert Compression.none.compress(tensor)[0] is tensor


def test_they_say_what_they_are() -> None:
    assert [repr(each) for each in (Compression.none, Compression.fp16, Compression.bf16)] == [
        "Compression.none",
        "Compression.fp16",
        "Compression.bf16",
    ]
