"""All roles together: results are those of NumPy, in the promised order, and errors reach everybody."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from byteps_py.errors import AgreementError, ParticipantLeft, UnsupportedError
from byteps_py.session import Session
from byteps_py.types import DType, Operation, TensorSpec
from tests.helpers.cluster import Cluster, cluster
from tests.helpers.fake_session import reduce

SUM, AVERAGE, BROADCAST = Operation.SUM, Operation.AVERAGE, Operation.BROADCAST


def total(session: Session, name: str, array: np.ndarray[Any, Any], operation: Operation = SUM, **more: Any) -> Any:
    spec = TensorSpec(name, DType.from_numpy(array.dtype), array.shape)
    return session.submit(spec, array, None, operation, **more).wait()


def outcome(session: Session, name: str, array: np.ndarray[Any, Any], operation: Operation = SUM, **more: Any) -> str:
    """The error that the operation ends with, as text."""
    with pytest.raises((AgreementError, ParticipantLeft)) as caught:
        total(session, name, array, operation, **more)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 1), (2, 3), (4, 2)])
def test_sums_in_many_rounds_are_exact(workers: int, servers: int) -> None:
    shapes = {f"t{index}": (index * 37 + 1,) for index in range(20)}

    def data(name: str, rank: int, round_: int) -> np.ndarray[Any, Any]:
        seed = [int(name[1:]), rank, round_]
        return np.random.default_rng(seed).standard_normal(shapes[name]).astype(np.float32)

    def train(session: Session) -> list[np.ndarray[Any, Any]]:
        results = []
        for round_ in range(5):
            order = np.random.default_rng([session.rank, round_]).permutation(sorted(shapes))
            pending = {}
            for name in order:
                spec = TensorSpec(str(name), DType.FLOAT32, shapes[name])
                pending[name] = session.submit(spec, data(name, session.rank, round_), None, SUM, step=round_)
            results += [pending[name].wait() for name in sorted(shapes)]
        return results

    with cluster(workers, servers, partition_bytes=256, credit=1) as job:
        per_worker = job.each(train)
    expected = []
    for round_ in range(5):
        for name in sorted(shapes):
            result = data(name, 0, round_)
            for rank in range(1, workers):
                result = result + data(name, rank, round_)
            expected.append(result)
    for results in per_worker:
        for got, want in zip(results, expected, strict=True):
            assert got.tobytes() == want.tobytes()


def test_every_dtype_every_operation() -> None:
    """Three workers: the order of the additions shows in the last bits, and so does each rounding of a third."""

    def values(dtype: DType, rank: int) -> np.ndarray[Any, Any]:
        random = np.random.default_rng([dtype, rank])
        if dtype is DType.BFLOAT16:
            return random.standard_normal(1001).astype(ml_dtypes.bfloat16).view(np.uint16)
        return (random.standard_normal(1001) if dtype.is_floating else random.integers(1, 100, 1001)).astype(
            dtype.storage
        )

    def run(session: Session) -> None:
        for dtype in DType:
            sources = [values(dtype, rank) for rank in range(3)]
            wanted = {SUM: reduce(dtype, sources, 1), AVERAGE: reduce(dtype, sources, 3), BROADCAST: sources[1]}
            for operation, want in wanted.items():
                spec = TensorSpec(f"{dtype.label}.{operation.name}", dtype, (1001,))
                silent = operation is BROADCAST and session.rank != 1
                source = None if silent else sources[session.rank]
                got = session.submit(spec, source, None, operation, root=1).wait()
                assert got.tobytes() == want.tobytes(), (dtype, operation)

    with cluster(3, 2, partition_bytes=512) as job:
        job.each(run)


def test_empty_scalar_and_absent_tensors() -> None:
    def run(session: Session) -> None:
        assert total(session, "empty", np.empty((0, 3), np.float32)).shape == (0, 3)
        assert total(session, "scalar", np.array(2.5)).tolist() == 5.0
        spec = TensorSpec("absent", DType.FLOAT32, (3,))
        pending = session.submit(spec, None, None, AVERAGE)
        assert pending.wait().tolist() == [0, 0, 0]
        assert pending.absent
        mine = None if session.rank == 0 else np.full(3, 4, np.float32)
        pending = session.submit(spec, mine, None, AVERAGE)
        assert pending.wait().tolist() == [2, 2, 2]
        assert not pending.absent

    with cluster(2, 2) as job:
        job.each(run)


def test_the_source_may_change_at_once_and_may_receive_the_result() -> None:
    def run(session: Session) -> None:
        array = np.full(5000, session.rank + 1.0)
        spec = TensorSpec("x", DType.FLOAT64, (5000,))
        first = session.submit(spec, array, None, SUM)
        array.fill(100)
        second = session.submit(spec, array, array, SUM)
        assert first.wait().tolist() == [3.0] * 5000
        assert second.wait() is array
        assert array.tolist() == [200.0] * 5000

    with cluster(2, 1, partition_bytes=1024) as job:
        job.each(run)


@pytest.mark.parametrize("count", [256, 32_768], ids=["light", "heavy"])
def test_opposite_orders_with_the_smallest_window_do_not_deadlock(count: int) -> None:
    def run(session: Session) -> None:
        names = [f"layer{index}" for index in range(50)]
        if session.rank:
            names.reverse()
        pending = [
            session.submit(TensorSpec(name, DType.FLOAT32, (count,)), np.ones(count, np.float32), None, SUM)
            for name in names
        ]
        for each in pending:
            assert (each.wait() == 2.0).all()

    with cluster(2, 1, partition_bytes=4 * count, credit=1) as job:
        job.each(run)


def test_barriers_hold_until_all_are_there() -> None:
    order: list[str] = []

    def run(session: Session) -> None:
        for number in range(3):
            order.append(f"before {number}")
            session.barrier()
            order.append(f"after {number}")
            session.barrier()

    with cluster(3, 1) as job:
        job.each(run)
    assert order == [f"{when} {number}" for number in range(3) for when in ("before", "after") for _ in range(3)]


def test_barriers_of_several_threads_come_one_after_the_other() -> None:
    def run(session: Session) -> None:
        with ThreadPoolExecutor(5) as pool:
            list(pool.map(lambda _: session.barrier(), range(20)))

    started = time.monotonic()
    with cluster(2, 1) as job:
        job.each(run)
    assert time.monotonic() - started < 5  # the repetition of a lost question would take that long


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((np.ones(3, np.float32), SUM, {}), (np.ones(4, np.float32), SUM, {}), ["float32 (3,)", "float32 (4,)"]),
        ((np.ones(3, np.float32), SUM, {}), (np.ones(3, np.float64), SUM, {}), ["float32 (3,)", "float64 (3,)"]),
        ((np.ones(3), SUM, {}), (np.ones(3), AVERAGE, {}), ["SUM", "AVERAGE"]),
        ((np.ones(3), SUM, {"step": 3}), (np.ones(3), SUM, {"step": 4}), ["step 3", "step 4"]),
        ((np.ones(3), BROADCAST, {"root": 0}), (np.ones(3), BROADCAST, {"root": 1}), ["root 0", "root 1"]),
    ],
)
def test_disagreements_name_both_sides_on_every_worker(first: Any, second: Any, words: list[str]) -> None:
    def run(session: Session) -> str:
        array, operation, more = (first, second)[session.rank]
        return outcome(session, "w", array, operation, **more)

    with cluster(2, 1) as job:
        texts = job.each(run)
    for text in texts:
        assert text.startswith("AgreementError")
        for word in ("'w'", "worker 0", "worker 1", *words):
            assert word in text


def test_a_worker_that_leaves_fails_those_who_wait_for_it() -> None:
    def run(session: Session) -> str:
        assert total(session, "w", np.ones(3)).tolist() == [2.0] * 3
        if session.rank == 1:
            session.close()
            return ""
        return outcome(session, "w", np.ones(3))

    with cluster(2, 1) as job:
        texts = job.each(run)
    assert texts[0].startswith("ParticipantLeft")
    assert "worker 1" in texts[0]
    assert "'w'" in texts[0]


def test_an_error_on_one_tensor_leaves_the_others_usable() -> None:
    def run(session: Session) -> None:
        outcome(session, "bad", np.ones(3 + session.rank))
        assert total(session, "good", np.ones(3)).tolist() == [2.0] * 3

    with cluster(2, 2) as job:
        job.each(run)


def test_impossible_arguments_do_no_harm_to_the_job() -> None:
    def run(session: Session) -> None:
        with pytest.raises(UnsupportedError, match="name must have"):
            total(session, "", np.ones(3))
        with pytest.raises(ValueError, match="step"):
            total(session, "x", np.ones(3), step=-1)
        with pytest.raises(ValueError, match="root 2 is not a worker"):
            total(session, "x", np.ones(3), BROADCAST, root=2)
        assert total(session, "x", np.ones(3)).tolist() == [2.0] * 3

    with cluster(2, 1) as job:
        job.each(run)


def _everything_twice(job: Cluster) -> None:
    deliver = job.network.deliver
    job.network.deliver = lambda receiver, message: (deliver(receiver, message), deliver(receiver, message))  # type: ignore[method-assign,assignment,func-returns-value]


def test_repeated_messages_change_nothing() -> None:
    def run(session: Session) -> None:
        for round_ in range(20):
            got = total(session, "x", np.full(1000, session.rank + round_, np.float32))
            assert got.tolist() == [2 * round_ + 1.0] * 1000

    with cluster(2, 1, partition_bytes=512) as job:
        _everything_twice(job)
        job.each(run)


def test_lost_messages_are_asked_for_again() -> None:
    chance = random.Random(1)
    lost: list[object] = []

    def run(session: Session) -> None:
        for round_ in range(3):
            got = total(session, "x", np.full(100, session.rank + round_, np.float32))
            assert got.tolist() == [2 * round_ + 1.0] * 100

    with cluster(2, 1) as job:
        deliver = job.network.deliver

        def lossy(receiver: Any, message: Any) -> None:
            control = bytes(message.frames[0][:4]) == b"BPSc"
            if control or chance.random() < 0.75:
                deliver(receiver, message)
            else:
                lost.append(message)

        job.network.deliver = lossy  # type: ignore[method-assign]
        job.each(run)
        job.network.deliver = deliver  # type: ignore[method-assign]
    assert lost


def test_scheduler_and_servers_end_with_status_zero() -> None:
    with cluster(2, 2) as job:
        job.each(lambda session: session.barrier())
    assert job.statuses == {"scheduler": 0, "server 0": 0, "server 1": 0}
    assert job.aborts == []
