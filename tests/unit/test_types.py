"""The small values that every layer speaks of."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from byteps_py.errors import UnsupportedError
from byteps_py.types import (
    DType,
    Operation,
    Participant,
    Role,
    ServerInfo,
    TensorSpec,
    check_shape,
    make_key,
    split_key,
)

CDEFS = Path(__file__).resolve().parents[2] / "csrc" / "cdefs.h"


class TestDType:
    @pytest.mark.parametrize(
        ("dtype", "tag", "label", "storage", "itemsize", "floating"),
        [
            (DType.FLOAT32, 1, "float32", np.float32, 4, True),
            (DType.FLOAT64, 2, "float64", np.float64, 8, True),
            (DType.FLOAT16, 3, "float16", np.float16, 2, True),
            (DType.BFLOAT16, 4, "bfloat16", np.uint16, 2, True),
            (DType.INT8, 5, "int8", np.int8, 1, False),
            (DType.UINT8, 6, "uint8", np.uint8, 1, False),
            (DType.INT32, 7, "int32", np.int32, 4, False),
            (DType.INT64, 8, "int64", np.int64, 8, False),
        ],
    )
    def test_table(self, dtype: DType, tag: int, label: str, storage: Any, itemsize: int, floating: bool) -> None:
        assert dtype == tag
        assert dtype.label == label
        assert dtype.storage == np.dtype(storage)
        assert dtype.itemsize == itemsize
        assert dtype.is_floating is floating

    def test_the_table_is_complete(self) -> None:
        assert list(DType) == list(range(1, 9))

    def test_c_has_the_same_tags(self) -> None:
        text = CDEFS.read_text(encoding="utf-8")
        tags = dict(re.findall(r"BYTEPS_(\w+)\s*=\s*(\d+)", text))
        assert {each.name: str(each.value) for each in DType}.items() <= tags.items()

    @pytest.mark.parametrize("dtype", [each for each in DType if each is not DType.BFLOAT16])
    def test_from_numpy(self, dtype: DType) -> None:
        assert DType.from_numpy(dtype.storage) is dtype
        assert DType.from_numpy(dtype.label) is dtype

    def test_bfloat16_is_known_by_its_name(self) -> None:
        assert DType.from_numpy(ml_dtypes.bfloat16) is DType.BFLOAT16

    @pytest.mark.parametrize(
        "dtype",
        [
            np.uint16,
            np.bool_,
            np.complex64,
            np.object_,
            "U3",
            "datetime64[s]",
            ml_dtypes.float8_e4m3fn,
            np.dtype(np.float32).newbyteorder(),
            np.dtype([("a", np.int8)]),
        ],
    )
    def test_what_is_not_carried_is_refused_by_name(self, dtype: Any) -> None:
        with pytest.raises(UnsupportedError, match=r"cannot be pushed; supported are float32, .*int64 in native byte"):
            DType.from_numpy(dtype)


def test_operations() -> None:
    names = ["SUM", "AVERAGE", "BROADCAST", "SEED", "DIFFERENCE"]
    assert [(each.name, each.value) for each in Operation] == [(name, place) for place, name in enumerate(names, 1)]
    assert [each.name for each in Operation if each.is_asynchronous] == ["SEED", "DIFFERENCE"]


def test_roles_are_spelt_as_in_the_environment() -> None:
    assert [str(each) for each in Role] == ["scheduler", "server", "worker"]
    assert f"DMLC_ROLE={Role.WORKER}" == "DMLC_ROLE=worker"


class TestTensorSpec:
    @pytest.mark.parametrize(
        ("dtype", "shape", "count", "nbytes"),
        [
            (DType.FLOAT32, (3, 4), 12, 48),
            (DType.BFLOAT16, (5,), 5, 10),
            (DType.FLOAT64, (), 1, 8),
            (DType.INT8, (7, 0, 2), 0, 0),
            (DType.INT64, (2**31, 4), 2**33, 2**36),
        ],
    )
    def test_size(self, dtype: DType, shape: tuple[int, ...], count: int, nbytes: int) -> None:
        spec = TensorSpec("w", dtype, shape)
        assert (spec.count, spec.nbytes) == (count, nbytes)

    def test_describe(self) -> None:
        assert TensorSpec("w", DType.FLOAT32, (3, 4)).describe() == "float32 (3, 4)"

    def test_is_a_value(self) -> None:
        spec = TensorSpec("w", DType.FLOAT32, (3, 4))
        assert spec == copy.deepcopy(spec)
        assert len({spec, copy.deepcopy(spec)}) == 1
        with pytest.raises(AttributeError):
            spec.name = "v"  # type: ignore[misc]


def test_members_describe_themselves() -> None:
    assert Participant(1, 0, 1, 2, "host-a", 4242, 7).describe() == "worker 1 (pid 4242 on host-a)"
    assert ServerInfo(0, "tcp://10.0.0.1:9000", "host-b", 17, 7).describe() == "server 0 (pid 17 on host-b)"


class TestKey:
    @pytest.mark.parametrize(
        ("tensor_id", "index", "key"),
        [(0, 0, 0), (0, 1, 1), (1, 0, 1 << 32), (7, 3, 0x0000000700000003), (2**32 - 1, 2**32 - 1, 2**64 - 1)],
    )
    def test_both_ways(self, tensor_id: int, index: int, key: int) -> None:
        assert make_key(tensor_id, index) == key
        assert split_key(key) == (tensor_id, index)


@pytest.mark.parametrize(
    ("shape", "checked"),
    [(3, (3,)), (np.int64(3), (3,)), ((), ()), ([2, np.int32(0)], (2, 0)), (iter((4, 5)), (4, 5))],
)
def test_shapes(shape: object, checked: tuple[int, ...]) -> None:
    assert check_shape(shape) == checked


@pytest.mark.parametrize("shape", ["x", "", b"3", 2.5, (2.0,), None, (None,)])
def test_what_is_no_shape(shape: object) -> None:
    with pytest.raises(TypeError, match=r"shape must be a whole number or a tuple of whole numbers, not "):
        check_shape(shape)


@pytest.mark.parametrize("shape", [-1, (2, -2), (0, 2**63)])
def test_shapes_that_cannot_be(shape: object) -> None:
    with pytest.raises(ValueError, match=r"shape .*: each dimension must be a number from 0 to "):
        check_shape(shape)
