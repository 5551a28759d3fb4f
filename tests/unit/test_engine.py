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
from byteps_py.roles.engine import INLINE_BYTES, Engine, Summed
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
    assert {key: floats((key, round_, out)) for key, round_, out in results} == {
        key: {(1 + key) / 2} for key in range(8)
    }


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
