"""The threads that sum."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from byteps_py import kernels
from byteps_py.core.aggregation import Sum
from byteps_py.errors import KernelError
from byteps_py.roles.engine import INLINE_BYTES, Engine, Summed, result_bytes
from byteps_py.roles.lent import Lent
from byteps_py.transport.base import Buffer, Message
from byteps_py.types import DType, Operation

WOKEN = threading.Event()


@pytest.fixture
def engine() -> Iterator[Engine]:
    WOKEN.clear()
    made = Engine(kernels.select("native"), 2, 1, WOKEN.set)
    yield made
    made.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("byteps-engine")]


def action(count: int, *values: float, divisor: int = 1, key: int = 5) -> Sum:
    sources = tuple(memoryview(bytearray(np.full(count, value, np.float32).tobytes())) for value in values)
    operation = Operation.SUM if divisor == 1 else Operation.AVERAGE
    return Sum(key, 1, DType.FLOAT32, operation, count, sources, (1,) * len(values), divisor)


def collect(engine: Engine, count: int) -> list[Summed]:
    results: list[Summed] = []
    deadline = time.monotonic() + 10
    while len(results) < count and time.monotonic() < deadline:
        WOKEN.wait(1)
        results += engine.collect()
    return results


def floats(summed: Summed) -> set[float]:
    return set(np.frombuffer(summed[2], np.float32).tolist())


def test_small_sums_are_done_at_once_over_the_first_source(engine: Engine) -> None:
    small = action(10, 1, 2, 4)
    done = engine.submit(small)
    assert done is not None
    assert done[:2] == (5, 1)
    assert floats(done) == {7.0}
    assert bytes(done[2]) == bytes(small.sources[0])  # type: ignore[call-overload]


def test_large_sums_are_done_by_the_threads(engine: Engine) -> None:
    count = INLINE_BYTES // 4
    for key in range(8):
        assert engine.submit(action(count, 1, key, divisor=2, key=key)) is None
    results = collect(engine, 8)
    assert {each.key: floats(each) for each in results} == {key: {(1 + key) / 2} for key in range(8)}


class Stamp:
    """Intact or not."""

    def __init__(self, intact: bool) -> None:
        self._intact = intact

    def intact(self) -> bool:
        return self._intact


def lent(count: int, value: float, rank: int, *, intact: bool = True) -> Lent:
    view = memoryview(np.full(count, value, np.float32).tobytes())
    return Lent(view, rank, Message(b"worker", [view], Stamp(intact)))


def summed(engine: Engine, action: Sum, out: Buffer | None = None) -> Summed:
    done = engine.submit(action, out)
    return collect(engine, 1)[0] if done is None else done


SIZES = pytest.mark.parametrize("count", [10, INLINE_BYTES // 4])
"""Of a sum that is made at once, and of one that is made by a thread."""


@SIZES
def test_the_result_goes_where_it_is_to_go(engine: Engine, count: int) -> None:
    out = np.zeros(4 * count, np.uint8)
    sources = (lent(count, 1, 0), memoryview(bytearray(4 * count)), lent(count, 4, 2))
    done = summed(engine, Sum(5, 1, DType.FLOAT32, Operation.SUM, count, sources, (2, 1), 1), out.data)
    assert floats(done) == {5.0}
    assert done.changed is None
    assert np.frombuffer(out, np.float32).tolist() == [5.0] * count
    assert not any(sources[1])  # type: ignore[arg-type]


@SIZES
@pytest.mark.parametrize("own", [False, True])
def test_one_source_is_copied_with_all_its_bits(engine: Engine, count: int, own: bool) -> None:
    nans = memoryview(bytearray(np.full(count, 0xFFA00001, np.uint32).tobytes()))
    source = nans if own else Lent(nans.toreadonly(), 0, Message(b"worker", [nans], Stamp(True)))
    done = summed(engine, Sum(5, 1, DType.FLOAT32, Operation.BROADCAST, count, (source,), (1,), 1))
    assert bytes(done.payload) == bytes(nans)
    assert not np.may_share_memory(np.frombuffer(done.payload, np.uint8), np.frombuffer(nans, np.uint8))


@SIZES
def test_one_source_that_is_divided_is_no_copy(engine: Engine, count: int) -> None:
    assert floats(summed(engine, action(count, 3, divisor=2))) == {1.5}


@SIZES
def test_who_changed_what_it_lent_is_named(engine: Engine, count: int) -> None:
    sources = (lent(count, 1, 0), lent(count, 1, 1, intact=False), lent(count, 1, 2, intact=False))
    assert summed(engine, Sum(5, 1, DType.FLOAT32, Operation.SUM, count, sources, (3,), 1)).changed == 1


def test_what_the_owner_sums_itself_is_timed_with_its_sums() -> None:
    timed = Engine(kernels.select("native"), 1, 1, WOKEN.set, timed=True)
    timed.count_own(time.monotonic())
    timed.close()
    assert (timed.times[-1].sum.count, timed.times[-1].queue.seconds) == (1, 0.0)


def test_nothing_to_sum_gives_nothing(engine: Engine) -> None:
    done = engine.submit(action(0, 1, 2))
    assert done is not None
    assert bytes(done[2]) == b""


def test_sums_are_timed_by_the_thread_that_makes_them() -> None:
    timed = Engine(kernels.select("native"), 2, 1, WOKEN.set, timed=True)
    timed.submit(action(10, 1, 2))
    for key in range(4):
        timed.submit(action(INLINE_BYTES // 4, 1, 2, key=key))
    assert len(collect(timed, 4)) == 4
    timed.close()
    assert len(timed.times) == 3
    assert timed.times[-1].sum.count == 1
    assert sum(each.sum.count for each in timed.times) == sum(each.queue.count for each in timed.times) == 5
    assert all(each.queue.seconds >= 0 and each.sum.seconds >= 0 for each in timed.times)


def test_without_times_there_are_none(engine: Engine) -> None:
    engine.submit(action(10, 1, 2))
    assert engine.times == ()


def test_read_only_memory_is_left_alone(engine: Engine) -> None:
    sources = (np.ones(4, np.float32).tobytes(), np.ones(4, np.float32).tobytes())
    done = engine.submit(Sum(1, 1, DType.FLOAT32, Operation.SUM, 4, sources, (2,), 1))
    assert done is not None
    assert floats(done) == {2.0}
    assert sources[0] == np.ones(4, np.float32).tobytes()


def test_the_owner_raises_what_a_thread_raised(engine: Engine) -> None:
    count = INLINE_BYTES // 4
    engine.submit(Sum(1, 1, DType.FLOAT32, Operation.SUM, count, (b"short", b"short"), (2,), 1))
    with pytest.raises(KernelError):
        collect(engine, 1)


HALVES = (DType.FLOAT16, DType.BFLOAT16)


def halves(dtype: DType, count: int, seed: int) -> memoryview:
    """Any bits at all."""
    return memoryview(bytearray(np.random.default_rng(seed).bytes(2 * count)))


def kept(engine: Engine, action: Sum, count: int) -> memoryview:
    """The result of a sum into memory of the caller."""
    out = bytearray(4 * count)
    done = summed(engine, action, memoryview(out))
    assert done.payload.nbytes == result_bytes(action)
    return done.payload


@SIZES
@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("divisor", [1, 3])
def test_sums_of_nodes_give_the_bits_of_one_sum(engine: Engine, dtype: DType, count: int, divisor: int) -> None:
    """Two nodes sum two sources each, one of a third is pushed by itself."""
    sources = tuple(halves(dtype, count, seed) for seed in range(5))
    operation = Operation.SUM if divisor == 1 else Operation.AVERAGE
    whole = Sum(5, 1, dtype, operation, count, sources, (2, 2, 1), divisor)
    expected = bytearray(2 * count)
    engine.kernels.sum_groups(expected, sources, whole.groups, dtype, count, divisor, 1)
    nodes = [
        bytes(kept(engine, Sum(5, 1, dtype, operation, count, pair, (2,), 1, partial=True), count))
        for pair in (sources[:2], sources[2:4])
    ]
    mixed = Sum(5, 1, dtype, operation, count, (nodes[0], *sources[2:]), (1, 2, 1), divisor, wide=(0,))
    assert bytes(kept(engine, mixed, count)) == bytes(expected)
    both = Sum(5, 1, dtype, operation, count, (*nodes, sources[4]), (1, 1, 1), divisor, wide=(0, 1))
    assert bytes(kept(engine, both, count)) == bytes(expected)


@SIZES
def test_the_sum_of_a_node_with_one_contribution_is_a_copy(engine: Engine, count: int) -> None:
    source = halves(DType.FLOAT16, count, 1)
    action = Sum(5, 1, DType.FLOAT16, Operation.AVERAGE, count, (source,), (1,), 1, partial=True)
    assert bytes(kept(engine, action, count)) == bytes(source)
