"""The parameters that a server holds, as messages: what is sent, from where, and into which memory sums go."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from byteps_py.errors import RemoteProtocolError
from byteps_py.roles.engine import INLINE_BYTES
from byteps_py.types import Operation, make_key
from byteps_py.wire.header import RANK_ENTRY, Flag, Opcode
from tests.helpers.rounds_stage import Answer, Item, RoundsStage, Stamp, floats

KEY = make_key(3, 0)
SEED, DIFFERENCE = Operation.SEED, Operation.DIFFERENCE


@pytest.fixture(params=["native", "reference"])
def stage(request: pytest.FixtureRequest) -> Iterator[RoundsStage]:
    made = RoundsStage(kernel=request.param)
    yield made
    made.close()


@pytest.fixture
def bounded() -> Iterator[RoundsStage]:
    made = RoundsStage(bound=1)
    yield made
    made.close()


def seed(stage: RoundsStage, elements: npt.NDArray[np.float32]) -> None:
    """Worker 0 is the root; both have the answer."""
    stage.push(0, Item(KEY, elements, operation=SEED))
    stage.push(1, Item(KEY, None, count=len(elements), operation=SEED))
    if elements.nbytes >= INLINE_BYTES:
        stage.advance(summed=True)
    for rank in range(2):
        assert [each.opcode for each in stage.received(rank)] == [Opcode.RESULT] or rank == 0


def differ(stage: RoundsStage, rank: int, round: int, *values: float) -> list[Answer]:
    """What the worker is sent upon a difference."""
    stage.push(rank, Item(KEY, floats(*values), round=round, operation=DIFFERENCE, step=round))
    return stage.received(rank)


def elements(answer: Answer) -> list[float]:
    return np.frombuffer(answer.payload, np.float32).tolist()


def test_a_difference_is_answered_by_the_store_and_its_staleness(stage: RoundsStage) -> None:
    seed(stage, floats(1, 2))
    (first,) = differ(stage, 0, 2, 10, 20)
    assert (first.opcode, elements(first), first.header.detail) == (Opcode.RESULT, [11, 22], 0)
    (second,) = differ(stage, 1, 2, 100, 200)
    assert (elements(second), second.header.detail) == ([111, 222], 1)
    assert (second.header.operation, second.header.round, second.header.step) == (DIFFERENCE, 2, 2)


def test_an_answer_is_not_written_over_as_long_as_its_worker_may_need_it(stage: RoundsStage) -> None:
    seed(stage, floats(0, 0))
    (kept,) = differ(stage, 1, 2, 1, 1)
    for round in range(2, 30):
        (answer,) = differ(stage, 0, round, 1, 1)
        assert elements(answer) == [round, round]
    assert np.frombuffer(kept.frames[1], np.float32).tolist() == [1, 1]
    again = stage.pull(1, KEY, 2)
    assert elements(again) == [1, 1]
    # The seed is nobody's any more: one buffer for worker 1, one for worker 0, and one to write to.
    assert len(stage.endpoint.allocated) == 3
    (after,) = differ(stage, 1, 3, 1, 1)
    assert elements(after) == [30, 30]
    assert after.header.detail == 28
    assert len(stage.endpoint.allocated) == 3


def test_payloads_in_the_memory_of_workers_are_read_once_and_never_answered_with(stage: RoundsStage) -> None:
    size = INLINE_BYTES
    seed(stage, np.zeros(size, np.float32))
    mine, others = np.ones(size, np.float32), np.full(size, 2, np.float32)
    stage.push(0, Item(KEY, mine, round=2, operation=DIFFERENCE), Stamp())
    stage.push(1, Item(KEY, others, round=2, operation=DIFFERENCE), Stamp())
    for _ in range(2):
        stage.advance(summed=True)
    results = [each for rank in range(2) for each in stage.received(rank) if each.opcode is Opcode.RESULT]
    assert sorted(elements(each)[0] for each in results) in ([1, 3], [2, 3], [3, 3])
    assert all(stage.endpoint.lies_in(each.frames[1]) is not None for each in results)


def test_memory_that_changed_while_it_was_read_rejects_the_key(stage: RoundsStage) -> None:
    seed(stage, floats(1, 2))
    stage.push(1, Item(KEY, floats(1, 1), round=2, operation=DIFFERENCE), Stamp(looks=1))
    (answer,) = stage.received(1)
    assert answer.opcode is Opcode.REJECT
    assert b"worker 1 changed its contribution to round 2" in answer.payload


def test_who_is_held_back_hears_for_whom_it_waits(bounded: RoundsStage) -> None:
    seed(bounded, floats(0, 0))
    assert [each.opcode for each in differ(bounded, 0, 2, 1, 1)] == [Opcode.RESULT]
    assert [each.opcode for each in differ(bounded, 0, 3, 1, 1)] == [Opcode.ACCEPT]
    waiting = bounded.pull(0, KEY, 3)
    assert (waiting.opcode, waiting.payload) == (Opcode.WAITING, RANK_ENTRY.pack(1))
    (late,) = differ(bounded, 1, 2, 1, 1)
    assert elements(late) == [3, 3]
    (released,) = bounded.received(0)
    assert (released.header.round, elements(released)) == (3, [2, 2])


def test_a_worker_that_leaves_holds_nobody(bounded: RoundsStage) -> None:
    seed(bounded, floats(0, 0))
    differ(bounded, 0, 2, 1, 1)
    differ(bounded, 0, 3, 1, 1)
    bounded.rounds.left(1)
    (released,) = bounded.received(0)
    assert elements(released) == [2, 2]


def test_a_tensor_without_elements_is_held_too(stage: RoundsStage) -> None:
    seed(stage, floats())
    (answer,) = differ(stage, 1, 2)
    assert (answer.opcode, answer.payload) == (Opcode.RESULT, b"")


def test_what_is_held_is_not_summed_in_a_bundle(stage: RoundsStage) -> None:
    seed(stage, floats(1, 2))
    stage.push_many(0, [Item(KEY, floats(1, 1), round=2), Item(make_key(4, 0), floats(1, 1))])
    stage.push_many(1, [Item(make_key(4, 0), floats(1, 1))])
    answers = stage.received(0)
    assert {Opcode.REJECT, Opcode.RESULT_MANY} == {each.opcode for each in answers if each.opcode is not Opcode.ACCEPT}
    (told,) = (each for each in answers if each.opcode is Opcode.REJECT)
    assert b"worker 0 pushes SUM, but the servers hold this tensor since its SEED" in told.payload


def test_what_was_summed_in_a_bundle_is_not_held(stage: RoundsStage) -> None:
    for rank in range(2):
        stage.push_many(rank, [Item(KEY, floats(1, 1))])
    stage.received(0)
    stage.push(0, Item(KEY, floats(1, 1), round=2, operation=SEED))
    (told,) = stage.received(0)
    assert b"worker 0 pushes SEED, but workers have summed" in told.payload


@pytest.mark.parametrize("operation", [SEED, DIFFERENCE])
def test_it_travels_neither_in_bundles_nor_for_a_node(operation: Operation, stage: RoundsStage) -> None:
    with pytest.raises(RemoteProtocolError, match="must not travel with others"):
        stage.push_many(0, [Item(KEY, floats(1, 1), operation=operation)])
    header = {"flags": Flag.PARTIAL | Flag.WANT_RESULT, "detail": 1}
    with pytest.raises(Exception, match="which each worker pushes by itself"):
        stage.push(0, Item(KEY, floats(1, 1), operation=operation), **header)
