"""Rounds of rows: they are sums of their own kind, agree with absent contributions, and with nothing else."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest

from byteps_py.core.aggregation import Accept, Action, Aggregation, Contribution, Reject, Reply, Sum
from byteps_py.core.node_sums import NodeSums
from byteps_py.types import DType, Operation
from tests.unit.test_aggregation import KEY, contribution, pair, workers

WIDTH = 5


def rows(participant: int, round: int = 1, payload: object | None = "rows", **other: Any) -> Contribution:
    width = other.pop("width", WIDTH)
    return msgspec.structs.replace(contribution(participant, round, payload, **other), width=width if payload else 0)


def kinds(actions: list[Action]) -> list[str]:
    return [type(each).__name__ for each in actions]


def test_the_sum_and_the_replies_say_that_they_are_rows() -> None:
    machine = pair()
    machine.push(rows(0, payload="a"))
    (_, asked) = machine.push(rows(1, payload="b"))
    assert asked == Sum(KEY, 1, DType.FLOAT32, Operation.SUM, 10, ("a", "b"), (1, 1), 1, width=WIDTH)
    answers = machine.summed(KEY, 1, "sum")
    assert [(each.payload, each.width, each.contributors) for each in answers if isinstance(each, Reply)] == [
        ("sum", WIDTH, 2)
    ] * 2
    (again,) = machine.pull(0, KEY, 1)
    assert isinstance(again, Reply)
    assert again.width == WIDTH


def test_absent_contributions_agree_with_rows_in_any_order() -> None:
    for order in permutations(range(3)):
        machine = Aggregation(workers(0, 0, 1))
        found: list[Action] = []
        for rank in order:
            found += machine.push(
                rows(rank, payload=None if rank == 1 else f"rows {rank}", operation=Operation.AVERAGE)
            )
        assert kinds(found) == ["Accept"] * 3 + ["Sum"]
        asked = found[-1]
        assert isinstance(asked, Sum)
        assert (asked.sources, asked.groups, asked.divisor, asked.width) == (("rows 0", "rows 2"), (1, 1), 3, WIDTH)


def test_rows_of_one_alone_are_the_result() -> None:
    machine = pair()
    machine.push(rows(0))
    accept, *answers = machine.push(rows(1, payload=None))
    assert isinstance(accept, Accept)
    assert [(each.payload, each.width) for each in answers if isinstance(each, Reply)] == [("rows", WIDTH)] * 2


def test_a_key_may_be_dense_in_the_next_round() -> None:
    machine = pair()
    for rank in range(2):
        machine.push(rows(rank))
    machine.summed(KEY, 1, "sum")
    machine.push(contribution(0, 2))
    (_, asked) = machine.push(contribution(1, 2))
    assert isinstance(asked, Sum)
    assert asked.width == 0
    assert [each.width for each in machine.summed(KEY, 2, "sum") if isinstance(each, Reply)] == [0, 0]


@pytest.mark.parametrize(
    ("widths", "sides"),
    [
        ((WIDTH, 0), "worker 0 pushes rows of 5 elements, worker 1 pushes all elements, not rows of them"),
        ((0, WIDTH), "worker 0 pushes all elements, not rows of them, worker 1 pushes rows of 5 elements"),
        ((WIDTH, 6), "worker 0 pushes rows of 5 elements, worker 1 pushes rows of 6 elements"),
    ],
)
def test_other_forms_are_rejected_in_the_same_words_whoever_comes_first(widths: tuple[int, int], sides: str) -> None:
    for first, second in ((0, 1), (1, 0)):
        machine = Aggregation(workers(0, 1, 2))
        machine.push(rows(2, payload=None))  # an absent one has no form
        machine.push(rows(first, width=widths[first]))
        actions = machine.push(rows(second, width=widths[second]))
        assert kinds(actions) == ["Reject"] * 3
        assert all(
            isinstance(each, Reject) and f"round 1: {sides}; a tensor is pushed" in each.reason for each in actions
        )


def test_a_node_whose_workers_were_absent_gets_the_rows_of_others() -> None:
    machine = NodeSums(workers(0, 0, 1), 0)
    machine.push(rows(0, payload=None))
    (_, asked) = machine.push(rows(1, payload=None))
    assert isinstance(asked, Sum)
    assert (asked.sources, asked.width) == ((), 0)
    answers = machine.result(KEY, 1, "rows of rank 2", 1, WIDTH)
    assert [(each.payload, each.width) for each in answers if isinstance(each, Reply)] == [
        ("rows of rank 2", WIDTH)
    ] * 2
    machine.push(contribution(0, 2))
    (_, asked) = machine.push(contribution(1, 2))
    assert isinstance(asked, Sum)
    assert asked.width == 0
