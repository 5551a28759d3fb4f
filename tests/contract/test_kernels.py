"""Both kernel implementations, the C one with every instruction set of this machine, give the same, right bits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from byteps_py.errors import KernelError
from byteps_py.kernels import Kernels
from byteps_py.kernels._native import lib
from byteps_py.kernels.native import LEVELS, NativeKernels
from byteps_py.kernels.reference import ReferenceKernels
from byteps_py.types import DType

Array = npt.NDArray[Any]

COUNTS = (0, 1, 2, 7, 8, 17, 511, 512, 513, 1025)
GROUPS = ((1,), (2,), (3,), (8,), (1, 1), (2, 2), (1, 2), (2, 1), (1, 3, 1), (2, 1, 2), (1, 1, 1, 1))
DIVISORS = (1, 2, 3, 300)
EACH_FLOAT = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
QUIET_NAN = {
    DType.FLOAT32: 0x7FC00000,
    DType.FLOAT64: 0x7FF8000000000000,
    DType.FLOAT16: 0x7E00,
    DType.BFLOAT16: 0x7FC0,
}
LARGE = 4 << 20
"""Bytes: enough for a team of threads."""


@pytest.fixture(params=["reference", *LEVELS])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "reference":
        return ReferenceKernels()
    try:
        return NativeKernels(request.param)
    except KernelError as error:
        pytest.skip(str(error))


def total(
    kernels: Kernels, sources: Sequence[Array], dtype: DType, groups: Sequence[int] = (), divisor: int = 1
) -> Array:
    """The sum as a new array, all sources in one group unless told otherwise."""
    out = np.empty_like(sources[0])
    kernels.sum_groups(out, sources, groups or (len(sources),), dtype, out.size, divisor, 1)
    return out


def bfloat16(*values: float) -> Array:
    """Bits of values that bfloat16 holds exactly."""
    bits = np.array(values, np.float32).view(np.uint32)
    assert not (bits & np.uint32(0xFFFF)).any()
    upper: npt.NDArray[np.uint32] = bits >> np.uint32(16)
    return upper.astype(np.uint16)


def random_bits(dtype: DType, count: int, seed: int) -> Array:
    """Every kind of value: any bits at all, numbers near one another in size, infinities, zeros and NaNs."""
    generator = np.random.default_rng(seed)
    values: Array = np.frombuffer(generator.bytes(count * dtype.itemsize), dtype.storage).copy()
    if dtype.is_floating:
        ordinary = generator.random(count) < 0.5
        values[ordinary] = truncated(generator.normal(size=count), dtype)[ordinary]
        values[::11] = np.resize(truncated(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0]), dtype), len(values[::11]))
    return values


def truncated(values: Array, dtype: DType) -> Array:
    """``values`` in ``dtype``; for bfloat16 cut off."""
    if dtype is DType.BFLOAT16:
        return np.ascontiguousarray(values, np.float32).view(np.uint16)[1::2]
    return values.astype(dtype.storage)


def bits_of(values: Array) -> Array:
    return values.view(f"u{values.itemsize}")


class Oracle:
    """The definition, spelled out: whole numbers of Python for integers, float32 or float64 arrays for floats."""

    @staticmethod
    def expected(sources: Sequence[Array], groups: Sequence[int], dtype: DType, divisor: int) -> Array:
        if not dtype.is_floating:
            return Oracle._whole(sources, dtype, divisor)
        with np.errstate(all="ignore"):
            wide = [Oracle.widen(each, dtype) for each in sources]
            ends = list(itertools.accumulate(groups))
            parts = [
                functools.reduce(lambda x, y: x + y, wide[end - size : end])
                for end, size in zip(ends, groups, strict=True)
            ]
            result: Array = functools.reduce(lambda x, y: x + y, parts) / wide[0].dtype.type(divisor)
            return Oracle.narrow(result, dtype)

    @staticmethod
    def _whole(sources: Sequence[Array], dtype: DType, divisor: int) -> Array:
        bits, signed = 8 * dtype.itemsize, dtype.storage.kind == "i"
        results = []
        for column in zip(*(each.tolist() for each in sources), strict=True):
            wrapped = sum(column) % (1 << bits)
            if signed and wrapped >= 1 << (bits - 1):
                wrapped -= 1 << bits
            results.append(wrapped // divisor)
        return np.array(results, dtype.storage)

    @staticmethod
    def widen(values: Array, dtype: DType) -> Array:
        if dtype is DType.BFLOAT16:
            ml_dtypes = pytest.importorskip("ml_dtypes")
            wide: Array = values.view(ml_dtypes.bfloat16).astype(np.float32)
            return wide
        return values.astype(np.float32) if dtype is DType.FLOAT16 else values

    @staticmethod
    def narrow(values: Array, dtype: DType) -> Array:
        result: Array
        if dtype is DType.BFLOAT16:
            ml_dtypes = pytest.importorskip("ml_dtypes")
            result = values.astype(ml_dtypes.bfloat16).view(np.uint16)
        else:
            result = values.astype(dtype.storage)
        bits_of(result)[np.isnan(values)] = QUIET_NAN[dtype]
        return result


class TestSumAgainstTheOracle:
    @pytest.mark.parametrize("groups", GROUPS, ids=str)
    @pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
    def test_every_length_and_divisor(self, kernels: Kernels, dtype: DType, groups: tuple[int, ...]) -> None:
        for count in COUNTS:
            sources = [random_bits(dtype, count, seed) for seed in range(sum(groups))]
            for divisor in DIVISORS:
                found = total(kernels, sources, dtype, groups, divisor)
                expected = Oracle.expected(sources, groups, dtype, divisor)
                np.testing.assert_array_equal(bits_of(found), bits_of(expected), f"{count} elements / {divisor}")

    @pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
    @pytest.mark.parametrize("offset", [1, 3, 8])
    def test_buffers_may_start_anywhere_and_only_the_result_is_written(
        self, kernels: Kernels, dtype: DType, offset: int
    ) -> None:
        count = 1025
        sources = [random_bits(dtype, count, seed) for seed in range(3)]
        shifted = []
        for index, each in enumerate(sources):
            room = bytearray(each.nbytes + offset + index)
            room[offset + index :] = each.tobytes()
            shifted.append(memoryview(room)[offset + index :])
        out = bytearray(b"\xaa" * (count * dtype.itemsize + offset + 9))
        kernels.sum_groups(memoryview(out)[offset:], shifted, (2, 1), dtype, count, 1, 1)
        expected = Oracle.expected(sources, (2, 1), dtype, 1).tobytes()
        assert out == b"\xaa" * offset + expected + b"\xaa" * 9

    @pytest.mark.parametrize("groups", [(1,), (2,), (3,), (1, 2), (2, 2)], ids=str)
    @pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
    def test_in_place(self, kernels: Kernels, dtype: DType, groups: tuple[int, ...]) -> None:
        sources = [random_bits(dtype, 1025, seed) for seed in range(sum(groups))]
        expected = Oracle.expected(sources, groups, dtype, 3)
        kernels.sum_groups(sources[0], sources, groups, dtype, 1025, 3, 1)
        np.testing.assert_array_equal(bits_of(sources[0]), bits_of(expected))

    @pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
    def test_the_number_of_threads_changes_nothing(self, kernels: Kernels, dtype: DType) -> None:
        count = LARGE // dtype.itemsize + 3
        sources = [random_bits(dtype, count, seed) for seed in range(2)]
        expected = total(kernels, sources, dtype, divisor=2)
        for threads in (2, 3, 7):
            out = np.zeros_like(expected)
            kernels.sum_groups(out, sources, (2,), dtype, count, 2, threads)
            np.testing.assert_array_equal(bits_of(out), bits_of(expected))

    @pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT8], ids=lambda x: x.label)
    def test_results_that_no_cache_holds(self, kernels: Kernels, dtype: DType) -> None:
        """They are stored another way, from the first multiple of a cache line on."""
        count = lib.BYTEPS_PAST_CACHES // dtype.itemsize + 5
        patterns = [np.resize(random_bits(dtype, 4099, seed), count) for seed in range(3)]
        expected = np.resize(Oracle.expected([each[:4099] for each in patterns], (2, 1), dtype, 2), count)
        for offset, threads in ((0, 1), (dtype.itemsize, 2), (1, 1)):
            out = np.full(expected.nbytes + offset + 9, 0xAA, np.uint8)
            kernels.sum_groups(memoryview(out)[offset:], patterns, (2, 1), dtype, count, 2, threads)
            assert np.array_equal(out[offset:-9], expected.view(np.uint8))
            assert set(out[:offset].tolist()) <= {0xAA}
            assert out[-9:].tolist() == [0xAA] * 9


HALVES = (DType.FLOAT16, DType.BFLOAT16)


class TestSumInTwoSteps:
    """Each group is summed into float32, and these sums into elements."""

    @pytest.mark.parametrize("groups", GROUPS, ids=str)
    @pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.label)
    def test_the_bits_are_those_of_one_step(self, kernels: Kernels, dtype: DType, groups: tuple[int, ...]) -> None:
        for count in COUNTS:
            sources = [random_bits(dtype, count, seed) for seed in range(sum(groups))]
            left = list(sources)
            sums = [np.empty(count, np.float32) for _ in groups]
            for size, out in zip(groups, sums, strict=True):
                group = [left.pop(0) for _ in range(size)]
                kernels.sum_converting(out, group, (size,), dtype, count, 1, 1, widen=True)
            for divisor in DIVISORS:
                found = np.empty(count, dtype.storage)
                kernels.sum_converting(found, sums, (1,) * len(sums), dtype, count, divisor, 1, widen=False)
                expected = Oracle.expected(sources, groups, dtype, divisor)
                np.testing.assert_array_equal(bits_of(found), bits_of(expected), f"{count} elements / {divisor}")

    @pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.label)
    def test_the_first_step_is_exact_where_one_step_would_round(self, kernels: Kernels, dtype: DType) -> None:
        large, small = truncated(np.array([2.0**12]), dtype), truncated(np.array([2.0**-8]), dtype)
        out = np.empty(1, np.float32)
        kernels.sum_converting(out, [large, small], (2,), dtype, 1, 1, 1, widen=True)
        assert out.tolist() == [2.0**12 + 2.0**-8]

    @pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.label)
    def test_the_number_of_threads_changes_nothing(self, kernels: Kernels, dtype: DType) -> None:
        count = LARGE // 2 + 3
        sources = [random_bits(dtype, count, seed) for seed in range(2)]
        expected = total(kernels, sources, dtype, divisor=3)
        for threads in (1, 2, 7):
            wide, out = np.empty(count, np.float32), np.empty(count, dtype.storage)
            kernels.sum_converting(wide, sources, (2,), dtype, count, 1, threads, widen=True)
            kernels.sum_converting(out, [wide], (1,), dtype, count, 3, threads, widen=False)
            np.testing.assert_array_equal(bits_of(out), bits_of(expected))

    def test_of_what_cannot_be_converted(self, kernels: Kernels) -> None:
        room = bytearray(16)
        given: tuple[Any, ...] = ((1,), DType.FLOAT16, 4, 1, 1)
        with pytest.raises(KernelError, match="float32 is no 16-bit float"):
            kernels.sum_converting(room, [bytes(16)], (1,), DType.FLOAT32, 4, 1, 1, widen=True)
        with pytest.raises(KernelError, match="out has 16 bytes, but 20 are needed"):
            kernels.sum_converting(room, [bytes(16)], (1,), DType.FLOAT16, 5, 1, 1, widen=True)
        with pytest.raises(KernelError, match="source 0 has 8 bytes, but 16 are needed"):
            kernels.sum_converting(room, [bytes(8)], *given, widen=False)
        for widen in (True, False):
            with pytest.raises(KernelError, match="of another type"):
                kernels.sum_converting(room, [room], *given, widen=widen)


class TestSumByHand:
    def test_half_floats_are_averaged_before_they_are_rounded(self, kernels: Kernels) -> None:
        sources = [np.full(5, 20000, np.float16)] * 4
        assert total(kernels, sources, DType.FLOAT16, divisor=4).tolist() == [20000.0] * 5
        assert total(kernels, sources, DType.FLOAT16).tolist() == [np.inf] * 5

    def test_half_floats_stay_wide_between_groups(self, kernels: Kernels) -> None:
        sources = [np.array([each], np.float16) for each in (40000, 40000, -40000, -40000)]
        assert total(kernels, sources, DType.FLOAT16, (2, 2)).tolist() == [0.0]
        small = [np.array([each], np.float16) for each in (2048, 0.5, 0.5, 1)]
        assert total(kernels, small, DType.FLOAT16, (2, 2)).tolist() == [2050.0]

    def test_bfloat16_stays_wide_between_groups(self, kernels: Kernels) -> None:
        sources = [bfloat16(each) for each in (256, 0.5, 0.5, 1)]
        assert total(kernels, sources, DType.BFLOAT16, (2, 2)).tolist() == bfloat16(258).tolist()

    def test_the_grouping_is_kept(self, kernels: Kernels) -> None:
        sources = [np.array([each], np.float32) for each in (2.0**24, 1, 1, 1)]
        assert total(kernels, sources, DType.FLOAT32).tolist() == [2.0**24]
        assert total(kernels, sources, DType.FLOAT32, (2, 2)).tolist() == [2.0**24 + 2]
        assert total(kernels, sources, DType.FLOAT32, (1, 3)).tolist() == [2.0**24 + 4]
        assert total(kernels, sources, DType.FLOAT32, (1, 1, 1, 1)).tolist() == [2.0**24]

    def test_the_order_is_kept(self, kernels: Kernels) -> None:
        big, one = np.array([1e300]), np.array([1.0])
        assert total(kernels, [big, -big, one], DType.FLOAT64).tolist() == [1.0]
        assert total(kernels, [one, big, -big], DType.FLOAT64).tolist() == [0.0]

    def test_ties_of_half_floats_go_to_even(self, kernels: Kernels) -> None:
        smallest = 2.0**-24
        pairs = np.array([(2048, 1), (2050, 1), (65504, 15.992), (65504, 16), (1, 2.0**-11), (-2050, -1)], np.float16)
        found = total(kernels, list(np.ascontiguousarray(pairs.T)), DType.FLOAT16)
        assert found.tolist() == [2048, 2052, 65504, np.inf, 1, -2052]
        subnormal = np.array([smallest, 3 * smallest, 2 * smallest, 2.0**-14], np.float16)
        found = total(kernels, [subnormal], DType.FLOAT16, divisor=2)
        assert found.tolist() == [0, 2 * smallest, smallest, 2.0**-15]

    def test_ties_of_bfloat16_go_to_even(self, kernels: Kernels) -> None:
        largest = float.fromhex("0x1.fep127")
        left, right = bfloat16(256, 258, -258, largest), bfloat16(1, 1, -1, 2.0**119)
        found = total(kernels, [left, right], DType.BFLOAT16)
        assert found.tolist() == bfloat16(256, 260, -260, np.inf).tolist()

    def test_integers_wrap(self, kernels: Kernels) -> None:
        for dtype in (DType.INT8, DType.INT32, DType.INT64):
            limits = np.iinfo(dtype.storage)
            ends = np.array([limits.max, limits.min], dtype.storage)
            steps = np.array([1, -1], dtype.storage)
            assert total(kernels, [ends, steps], dtype).tolist() == [limits.min, limits.max]
        assert total(kernels, [np.array([200], np.uint8)] * 2, DType.UINT8).tolist() == [144]

    def test_averages_of_integers_round_down(self, kernels: Kernels) -> None:
        for dtype in (DType.INT8, DType.INT32, DType.INT64):
            lowest = np.iinfo(dtype.storage).min
            values = np.array([7, -7, -8, -1, 0, lowest], dtype.storage)
            assert total(kernels, [values], dtype, divisor=2).tolist() == [3, -4, -4, -1, 0, lowest // 2]
            assert total(kernels, [values], dtype, divisor=1000)[1] == -1
        assert total(kernels, [np.array([255], np.uint8)], DType.UINT8, divisor=2).tolist() == [127]

    @pytest.mark.parametrize("divisor", [1, 2, 3, 7, 127, 128, 129, 1 << 24])
    def test_every_average_of_int8(self, kernels: Kernels, divisor: int) -> None:
        values = np.arange(-128, 128, dtype=np.int8)
        expected = [each // divisor for each in range(-128, 128)]
        assert total(kernels, [values], DType.INT8, divisor=divisor).tolist() == expected

    @pytest.mark.parametrize("divisor", [2, 3, 5, 65535, (1 << 24) - 1, 1 << 24])
    def test_averages_of_int32_near_multiples_of_the_divisor(self, kernels: Kernels, divisor: int) -> None:
        multiples = np.linspace(-(1 << 31), (1 << 31) - 1, 10001).astype(np.int64) // divisor * divisor
        near = np.concatenate([multiples - 1, multiples, multiples + 1]).clip(-(1 << 31), (1 << 31) - 1)
        values = near.astype(np.int32)
        found = total(kernels, [values], DType.INT32, divisor=divisor)
        assert found.tolist() == [each // divisor for each in values.tolist()]

    @pytest.mark.parametrize("dtype", EACH_FLOAT, ids=lambda dtype: dtype.label)
    def test_infinities_and_zeros(self, kernels: Kernels, dtype: DType) -> None:
        def make(*values: float) -> Array:
            return bfloat16(*values) if dtype is DType.BFLOAT16 else np.array(values, dtype.storage)

        left, right = make(np.inf, -np.inf, -0.0, -0.0, 0.0), make(1, -np.inf, -0.0, 0.0, -0.0)
        expected = make(np.inf, -np.inf, -0.0, 0.0, 0.0)
        for divisor in (1, 2):
            found = total(kernels, [left, right], dtype, divisor=divisor)
            assert found.tobytes() == expected.tobytes()
        assert total(kernels, [left], dtype).tobytes() == left.tobytes()

    @pytest.mark.parametrize("dtype", EACH_FLOAT, ids=lambda dtype: dtype.label)
    def test_every_nan_becomes_the_same_one(self, kernels: Kernels, dtype: DType) -> None:
        kind = f"u{dtype.itemsize}"
        sign = 1 << (8 * dtype.itemsize - 1)
        infinity = {2: 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}[dtype.itemsize]
        if dtype is DType.BFLOAT16:
            infinity = 0x7F80
        # Signalling, quiet, negative, all ones; and infinity minus infinity.
        left = np.array([infinity + 1, QUIET_NAN[dtype] + 5, sign | (infinity + 3), 2 * sign - 1, infinity], kind)
        right = np.array([0, QUIET_NAN[dtype] + 9, 0, infinity + 1, sign | infinity], kind)
        sources = [np.resize(each, 1037).view(dtype.storage) for each in (left, right)]
        for divisor in (1, 3):
            found = total(kernels, sources, dtype, divisor=divisor)
            assert set(bits_of(found).tolist()) == {QUIET_NAN[dtype]}

    @pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda dtype: dtype.label)
    def test_every_16_bit_pattern_survives(self, kernels: Kernels, dtype: DType) -> None:
        patterns = np.arange(1 << 16, dtype=np.uint16)
        infinity = 0x7C00 if dtype is DType.FLOAT16 else 0x7F80
        expected = np.where((patterns & 0x7FFF) > infinity, QUIET_NAN[dtype], patterns)
        found = total(kernels, [patterns.view(dtype.storage)], dtype)
        np.testing.assert_array_equal(found.view(np.uint16), expected)

    @pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda dtype: dtype.label)
    def test_rounding_of_every_16_bit_pattern_divided(self, kernels: Kernels, dtype: DType) -> None:
        patterns = np.arange(1 << 16, dtype=np.uint16).view(dtype.storage)
        for divisor in (2, 3, 4096):
            expected = Oracle.expected([patterns], (1,), dtype, divisor)
            found = total(kernels, [patterns], dtype, divisor=divisor)
            np.testing.assert_array_equal(bits_of(found), bits_of(expected))

    def test_subnormals_are_kept(self, kernels: Kernels) -> None:
        tiny = np.array([1e-45, -1e-45, 1e-39], np.float32)
        assert total(kernels, [tiny, tiny], DType.FLOAT32).tolist() == (tiny * 2).tolist()
        assert total(kernels, [np.array([5e-324])] * 3, DType.FLOAT64).tolist() == [1.5e-323]
        half = np.array([2.0**-24, 2.0**-15], np.float16)
        assert total(kernels, [half, half], DType.FLOAT16).tolist() == [2.0**-23, 2.0**-14]

    def test_any_buffer_will_do(self, kernels: Kernels) -> None:
        values = np.array([[1, 2], [3, 4]], np.int32)
        out = np.zeros((2, 2), np.int32)
        sources = [values, values.tobytes(), bytearray(values.tobytes()), memoryview(values.tobytes())]
        kernels.sum_groups(out, sources, (4,), DType.INT32, 4, 1, 1)
        assert out.tolist() == [[4, 8], [12, 16]]

    def test_the_same_source_may_come_twice(self, kernels: Kernels) -> None:
        values = np.array([1.5, -2.0], np.float32)
        assert total(kernels, [values, values, values], DType.FLOAT32).tolist() == [4.5, -6.0]


class TestRefusals:
    GOOD: tuple[Any, ...] = (bytearray(8), [bytes(8), bytes(8)], (2,), DType.FLOAT32, 2, 1, 1)

    @pytest.mark.parametrize(
        ("position", "value", "message"),
        [
            (0, bytes(8), "out cannot be written to"),
            (0, bytearray(7), "out has 7 bytes, but 8 are needed"),
            (0, None, "out is no buffer"),
            (1, [], "there is no source"),
            (1, [bytes(8), bytes(7)], "source 1 has 7 bytes, but 8 are needed"),
            (1, [bytes(8), "text"], "source 1 is no buffer"),
            (1, [bytes(8), np.zeros((4, 2), np.float32)[:, 0]], "source 1 is not C-contiguous"),
            (2, (), r"groups \[\] do not divide 2 sources"),
            (2, (1,), r"groups \[1\] do not divide 2 sources"),
            (2, (2, 0), r"groups \[2, 0\] do not divide 2 sources"),
            (2, (3, -1), r"groups \[3, -1\] do not divide 2 sources"),
            (3, 99, "dtype 99 is no"),
            (4, -1, "count -1 is negative"),
            (5, 0, "divisor 0 is not from 1 to 16777216"),
            (5, -2, "divisor -2 is not"),
            (5, (1 << 24) + 1, "divisor 16777217 is not"),
            (6, 0, "threads 0 is less than 1"),
        ],
    )
    def test_of_a_sum(self, kernels: Kernels, position: int, value: object, message: str) -> None:
        arguments = list(self.GOOD)
        kernels.sum_groups(*arguments)
        arguments[position] = value
        with pytest.raises(KernelError, match=message):
            kernels.sum_groups(*arguments)

    @pytest.mark.parametrize("groups", [(1,), (2,)], ids=str)
    def test_of_overlap(self, kernels: Kernels, groups: tuple[int, ...]) -> None:
        room = np.zeros(10, np.float32)
        sources = [room[:8], np.ones(8, np.float32)][: sum(groups)]
        with pytest.raises(KernelError, match="shares memory"):
            kernels.sum_groups(room[1:9], sources, groups, DType.FLOAT32, 8, 1, 1)
        kernels.sum_groups(room[2:], [room[:2]], (1,), DType.FLOAT32, 2, 1, 1)

    def test_of_a_later_source_as_output(self, kernels: Kernels) -> None:
        values = np.ones(8, np.float32)
        with pytest.raises(KernelError, match="shares memory"):
            kernels.sum_groups(values, [np.ones(8, np.float32), values], (2,), DType.FLOAT32, 8, 1, 1)

    @pytest.mark.parametrize(
        ("out", "source", "nbytes", "threads", "message"),
        [
            (bytes(4), bytes(4), 4, 1, "out cannot be written to"),
            (bytearray(3), bytes(4), 4, 1, "out has 3 bytes, but 4 are needed"),
            (bytearray(4), bytes(3), 4, 1, "source has 3 bytes, but 4 are needed"),
            (bytearray(4), bytes(4), -1, 1, "nbytes -1 is negative"),
            (bytearray(4), bytes(4), 4, 0, "threads 0 is less than 1"),
        ],
    )
    def test_of_a_copy(
        self, kernels: Kernels, out: object, source: object, nbytes: int, threads: int, message: str
    ) -> None:
        with pytest.raises(KernelError, match=message):
            kernels.copy(out, source, nbytes, threads)

    def test_of_a_copy_onto_itself(self, kernels: Kernels) -> None:
        room = bytearray(8)
        with pytest.raises(KernelError, match="shares memory"):
            kernels.copy(memoryview(room)[1:], room, 7, 1)


class TestCopy:
    @pytest.mark.parametrize("nbytes", [0, 1, 7, 1001, LARGE + 13, lib.BYTEPS_PAST_CACHES + 7])
    @pytest.mark.parametrize("threads", [1, 3])
    @pytest.mark.parametrize("far", [False, True])
    def test_copies_just_the_bytes_asked_for(self, kernels: Kernels, nbytes: int, threads: int, far: bool) -> None:
        source = np.random.default_rng(nbytes).integers(0, 256, nbytes + 5, dtype=np.uint8)
        out = bytearray(b"\xaa" * (nbytes + 4))
        kernels.copy(memoryview(out)[1:], source[3:], nbytes, threads, far=far)
        assert out == b"\xaa" + source[3 : 3 + nbytes].tobytes() + b"\xaa" * 3

    def test_of_nothing_between_empty_buffers(self, kernels: Kernels) -> None:
        kernels.copy(bytearray(), b"", 0, 1)


def test_a_team_has_at_most_the_threads_allowed(kernels: Kernels) -> None:
    assert kernels.team(1) == 1
    assert 1 <= kernels.team(3) <= (3 if kernels.name == "native" else 1)
