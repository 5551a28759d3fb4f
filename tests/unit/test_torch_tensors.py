"""Between torch tensors and arrays."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from byteps_py.errors import UnsupportedError  # noqa: E402
from byteps_py.torch.tensors import as_array, as_bytes, check_dense, copy_back, spec_of, stage, to_tensor  # noqa: E402
from byteps_py.types import DType, TensorSpec  # noqa: E402

SUPPORTED = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.int8: DType.INT8,
    torch.uint8: DType.UINT8,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
}


@pytest.mark.parametrize("dtype", SUPPORTED)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3)])
def test_arrays_share_the_memory_of_plain_tensors(dtype, shape) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    array = as_array(stage(tensor))
    assert array.dtype == SUPPORTED[dtype].storage
    assert array.shape == shape
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = 0
    assert not tensor.any()
    assert torch.equal(to_tensor(array, dtype), tensor)
    assert spec_of("t", tensor) == TensorSpec("t", SUPPORTED[dtype], shape)


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64, torch.int16, torch.uint16, torch.float8_e4m3fn])
def test_other_dtypes_are_refused_by_name(dtype) -> None:
    with pytest.raises(UnsupportedError, match=rf"tensor 'mask' has dtype {dtype}.*supported are float32"):
        spec_of("mask", torch.zeros(2, dtype=dtype))


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (torch.eye(2).to_sparse(), "sparse_coo"),
        (torch.empty(2, device="meta"), "meta"),
    ],
    ids=["coo", "meta"],
)
def test_tensors_without_plain_data_are_refused(tensor, word) -> None:
    with pytest.raises(UnsupportedError, match=f"the gradient of 'x' is .*{word}"):
        check_dense(tensor, "the gradient of 'x'")


STRIDED = {
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
    "every second": lambda: torch.arange(6.0)[::2],
    "channels last": lambda: torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last),
    "negated lazily": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
def test_other_layouts_are_staged_and_copied_back(make) -> None:
    tensor = make()
    expected = tensor.clone() * 2
    staged = stage(tensor)
    assert staged.is_contiguous()
    assert torch.equal(staged, tensor)
    as_array(staged)[...] *= 2
    version = tensor._version
    copy_back(staged, tensor)
    assert torch.equal(tensor, expected)
    assert tensor._version > version


def test_a_result_in_shared_memory_counts_as_a_change() -> None:
    tensor = torch.ones(3, requires_grad=True)
    squared = (tensor * tensor).sum()
    staged = stage(tensor)
    as_array(staged)[...] = 5
    copy_back(staged, tensor)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.backward()


def test_inference_tensors_have_no_version_to_change() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
        copy_back(stage(tensor), tensor)


def test_staging_casts() -> None:
    staged = stage(torch.tensor([1 / 3], dtype=torch.float64), torch.bfloat16)
    assert staged.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex128, torch.float8_e5m2, torch.float32])
def test_any_dtype_can_be_seen_as_bytes(dtype) -> None:
    tensor = torch.ones((), dtype=dtype)
    assert as_bytes(tensor).shape == (dtype.itemsize,)
    as_bytes(tensor)[...] = 0
    assert not tensor.to(torch.complex128).any()
    assert np.asarray(as_bytes(torch.empty(0, 2, dtype=dtype))).shape == (0,)
