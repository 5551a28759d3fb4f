"""What differs from a server where one process sums for its node."""

from __future__ import annotations

import pytest

from byteps_py.core.aggregation import Accept, Action, Contribution, Reject, Reply, Sum
from byteps_py.core.node_sums import NodeSums
from byteps_py.errors import LocalProtocolError
from byteps_py.types import DType, Operation, Participant

KEY = 7
SUM, AVERAGE, BROADCAST = Operation.SUM, Operation.AVERAGE, Operation.BROADCAST
WORKERS = [Participant(rank, node, 0, 1, "host", rank, rank) for rank, node in enumerate((0, 1, 1, 1, 2))]


def contribution(
    participant: int, payload: object | None = "payload", round: int = 1, operation: Operation = SUM, root: int = 0
) -> Contribution:
    return Contribution(participant, KEY, round, DType.FLOAT32, operation, root, 3, 0, 10, payload, True)


def complete(operation: Operation = SUM, root: int = 0, absent: tuple[int, ...] = ()) -> tuple[NodeSums, Sum]:
    """All of node 1, which are the workers 1, 2 and 3, have contributed their rank."""
    sums = NodeSums(WORKERS, 1)
    actions: list[Action] = []
    for rank in (3, 1, 2):
        payload = None if rank in absent else rank
        actions = sums.push(contribution(rank, payload, operation=operation, root=root))
    accepted, action = actions
    assert accepted == Accept(2, KEY, 1)
    assert isinstance(action, Sum)
    return sums, action


@pytest.mark.parametrize(
    ("operation", "root", "absent", "sources"),
    [
        (SUM, 0, (), (1, 2, 3)),
        (AVERAGE, 0, (), (1, 2, 3)),
        (SUM, 0, (2,), (1, 3)),
        (SUM, 0, (1, 3), (2,)),
        (SUM, 0, (1, 2, 3), ()),
        (BROADCAST, 2, (1, 3), (2,)),
        (BROADCAST, 2, (), (2,)),
        (BROADCAST, 4, (), ()),
    ],
)
def test_the_sum_of_a_node(operation: Operation, root: int, absent: tuple[int, ...], sources: tuple[int, ...]) -> None:
    _, action = complete(operation, root, absent)
    groups = (len(sources),) if sources else ()
    assert action == Sum(KEY, 1, DType.FLOAT32, operation, 10, sources, groups, 1, partial=True)


def test_others_are_not_waited_for() -> None:
    sums = NodeSums(WORKERS, 1)
    sums.push(contribution(3))
    assert sums.missing(KEY) == (1, 2)
    assert sums.left(0) == []
    assert sums.left(4) == []


def test_the_result_of_the_server_is_answered_with_its_contributors() -> None:
    sums, _ = complete()
    assert sums.terms(KEY) == (DType.FLOAT32, SUM, 0, 3, 0, 10)
    replies = [Reply(rank, KEY, 1, DType.FLOAT32, SUM, 0, 3, 0, 10, "all", 5) for rank in (1, 2, 3)]
    assert sums.result(KEY, 1, "all", 5) == replies
    assert sums.pull(2, KEY, 1) == [replies[1]]
    with pytest.raises(LocalProtocolError):
        sums.result(KEY, 1, "all", 5)
    assert sums.push(contribution(1, round=2)) == [Accept(1, KEY, 2)]


def test_a_rejection_by_the_server_is_passed_on() -> None:
    sums, _ = complete()
    assert sums.refused(KEY, 1, "because", -1) == [Reject(rank, KEY, 1, "because", -1) for rank in (1, 2, 3)]
    assert sums.push(contribution(1, round=2)) == [Reject(1, KEY, 2, "because", -1)]


def test_a_worker_of_the_node_that_leaves_too_early() -> None:
    sums = NodeSums(WORKERS, 1)
    sums.push(contribution(3))
    (told,) = sums.left(1)
    assert isinstance(told, Reject)
    assert (told.participant, told.departed) == (3, 1)


def test_what_is_open_with_a_contribution_of_one() -> None:
    sums = NodeSums(WORKERS, 1)
    assert not sums.has_open(3)
    sums.push(contribution(3))
    assert sums.has_open(3)
    assert not sums.has_open(1)
    sums.left(1)
    assert not sums.has_open(3)
    sums, _ = complete()
    assert sums.has_open(1)
    sums.result(KEY, 1, None, 0)
    assert not sums.has_open(1)
