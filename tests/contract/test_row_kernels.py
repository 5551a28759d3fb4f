"""Sums of rows have the bits of dense sums, in both kernel implementations and with every instruction set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_py.errors import KernelError
from byteps_py.kernels import Kernels, RowSource
from byteps_py.kernels.native import LEVELS, NativeKernels
from byteps_py.kernels.reference import ReferenceKernels
from byteps_py.types import DType
from tests.contract.test_kernels import bits_of, random_bits

Array = npt.NDArray[Any]

ROWS = 40
GROUPS = ((1,), (3,), (1, 2), (2, 1, 1), (1, 1, 1))
HALVES = (DType.FLOAT16, DType.BFLOAT16)


def available() -> list[Kernels]:
    found: list[Kernels] = [ReferenceKernels()]
    for level in LEVELS:
        try:
            found.append(NativeKernels(level))
        except KernelError:
            break
    return found


KERNELS = available()


@pytest.fixture(params=KERNELS, ids=lambda each: f"{each.name}-{getattr(each, 'level', '')}")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    found: Kernels = request.param
    return found


def source(dtype: DType, width: int, density: float, seed: int) -> tuple[RowSource, Array]:
    """Some rows of any bits, and the same as a dense tensor."""
    generator = np.random.default_rng([seed, width])
    indices = np.flatnonzero(generator.random(ROWS) < density)
    values = random_bits(dtype, len(indices) * width, seed).reshape(-1, width)
    dense = np.zeros((ROWS, width), dtype.storage)
    dense[indices] = values
    return RowSource(len(indices), indices, values), dense


def sum_of(kernels: Kernels, sources: Sequence[RowSource], groups: Sequence[int], dtype: DType, width: int) -> Any:
    rows = kernels.merge_rows(sources)
    out = np.empty((len(rows), width), dtype.storage)
    kernels.sum_rows(out, rows, sources, groups, dtype, width, 3)
    return rows, out


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("dtype", DType, ids=lambda each: each.label)
def test_sums_are_those_of_dense_tensors(kernels: Kernels, dtype: DType, groups: tuple[int, ...]) -> None:
    for width in (1, 3, 64, 65):
        for density in (0.0, 0.3, 1.0):
            made = [source(dtype, width, density, seed) for seed in range(sum(groups))]
            rows, out = sum_of(kernels, [each for each, _ in made], groups, dtype, width)
            expected = np.empty((ROWS, width), dtype.storage)
            kernels.sum_groups(expected, [dense for _, dense in made], groups, dtype, expected.size, 3, 1)
            np.testing.assert_array_equal(rows, np.unique(np.concatenate([each.indices for each, _ in made])))
            np.testing.assert_array_equal(bits_of(out), bits_of(expected[rows]))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda each: each.label)
def test_two_steps_are_one(kernels: Kernels, dtype: DType) -> None:
    """Each group is summed into float32, and these sums into elements."""
    groups, width = (2, 1, 2), 9
    made = [source(dtype, width, 0.4, seed)[0] for seed in range(5)]
    rows, expected = sum_of(kernels, made, groups, dtype, width)
    parts, place = [], 0
    for size in groups:
        group = made[place : place + size]
        some = kernels.merge_rows(group)
        wide = np.empty((len(some), width), np.float32)
        kernels.sum_rows(wide, some, group, (size,), dtype, width, 1, widen=True)
        parts.append(RowSource(len(some), some, wide))
        place += size
    out = np.empty_like(expected)
    kernels.sum_rows(out, kernels.merge_rows(parts), parts, (1, 1, 1), dtype, width, 3, widen=False)
    np.testing.assert_array_equal(kernels.merge_rows(parts), rows)
    np.testing.assert_array_equal(bits_of(out), bits_of(expected))


@given(st.lists(st.dictionaries(st.integers(0, 12), st.floats(width=32), max_size=8), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_rows_of_any_floats(tables: list[dict[int, float]]) -> None:
    sources, dense = [], []
    for table in tables:
        indices = np.array(sorted(table), np.int64)
        values = np.array([table[each] for each in indices.tolist()], np.float32)
        sources.append(RowSource(len(indices), indices, values))
        dense.append(np.zeros(13, np.float32))
        dense[-1][indices] = values
    groups = (1, len(tables) - 1) if len(tables) > 1 else (1,)
    expected = np.empty(13, np.float32)
    KERNELS[0].sum_groups(expected, dense, groups, DType.FLOAT32, 13, 3, 1)
    for each in KERNELS:
        rows, out = sum_of(each, sources, groups, DType.FLOAT32, 1)
        np.testing.assert_array_equal(bits_of(out[:, 0]), bits_of(expected[rows]))


def test_a_zero_that_others_lack_loses_its_sign(kernels: Kernels) -> None:
    minus = np.array([-0.0], np.float32)
    first, other = np.array([3], np.int64), np.array([4], np.int64)
    sources = [RowSource(1, first, minus), RowSource(1, other, minus)]
    rows, out = sum_of(kernels, sources, (2,), DType.FLOAT32, 1)
    assert rows.tolist() == [3, 4]
    assert np.signbit(out).tolist() == [[False], [False]]
    _, out = sum_of(kernels, sources[:1] * 2, (2,), DType.FLOAT32, 1)
    assert np.signbit(out).tolist() == [[True]], "as -0.0 + -0.0 of dense tensors"


@pytest.mark.parametrize("dtype", DType, ids=lambda each: each.label)
def test_folds_are_sums_in_the_given_order(kernels: Kernels, dtype: DType) -> None:
    for width in (1, 5, 64):
        values = random_bits(dtype, 7 * width, width).reshape(7, width)
        order, sizes = np.array([6, 0, 3, 5, 1, 1], np.int64), np.array([1, 3, 2], np.int64)
        out = np.empty((3, width), dtype.storage)
        kernels.fold_rows(out, values, order, sizes, dtype, width)
        assert out[0].tobytes() == values[6].tobytes(), "one row alone is copied"
        for row, parts in ((1, [0, 3, 5]), (2, [1, 1])):
            expected = np.empty(width, dtype.storage)
            kernels.sum_groups(expected, [values[each] for each in parts], (len(parts),), dtype, width, 1, 1)
            np.testing.assert_array_equal(bits_of(out[row]), bits_of(expected))


def test_no_rows_at_all(kernels: Kernels) -> None:
    empty = RowSource(0, np.empty(0, np.int64), np.empty(0, np.float32))
    rows, out = sum_of(kernels, [empty, empty], (2,), DType.FLOAT32, 4)
    assert rows.shape == (0,)
    assert out.shape == (0, 4)
    kernels.fold_rows(out, out.copy(), np.empty(0, np.int64), np.empty(0, np.int64), DType.FLOAT32, 4)


def test_wrong_arguments_are_refused(kernels: Kernels) -> None:
    rows = np.array([1, 2], np.int64)
    values = np.zeros((2, 3), np.float32)
    out = np.empty_like(values)
    good = RowSource(2, rows, values)

    def attempt(**other: Any) -> None:
        arguments: dict[str, Any] = {
            "out": out,
            "rows": rows,
            "sources": [good],
            "groups": (1,),
            "dtype": DType.FLOAT32,
            "width": 3,
            "divisor": 1,
        }
        kernels.sum_rows(**arguments | other)

    attempt()
    for text, other in (
        ("no source", {"sources": []}),
        ("indices of source 0 has 8 bytes, but 16", {"sources": [RowSource(2, rows[:1], values)]}),
        ("source 0 has 12 bytes, but 24", {"sources": [RowSource(2, rows, values[:1])]}),
        ("-1 rows", {"sources": [RowSource(-1, rows, values)]}),
        ("groups", {"groups": (2,)}),
        ("divisor 0", {"divisor": 0}),
        ("row of 0", {"width": 0}),
        ("no 16-bit", {"widen": True}),
        ("out has 12 bytes, but 24", {"out": out[:1]}),
        ("shares memory", {"out": values}),
        ("int64 in one dimension", {"rows": rows.astype(np.int32)}),
        ("no byteps_py.types.DType", {"dtype": 1}),
    ):
        with pytest.raises(KernelError, match=text):
            attempt(**other)
    sizes = np.array([1, 1], np.int64)
    kernels.fold_rows(out, values, rows - 1, sizes, DType.FLOAT32, 3)
    for text, order, parts in (
        ("sizes do not divide 2 rows", rows - 1, sizes[:1]),
        ("names row -1", rows - 2, sizes),
        ("values has 24 bytes, but 36", rows, sizes),
    ):
        with pytest.raises(KernelError, match=text):
            kernels.fold_rows(out, values, order, parts, DType.FLOAT32, 3)
