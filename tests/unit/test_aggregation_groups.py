"""Rounds of keys that only some of the workers contribute to."""

from __future__ import annotations

import pytest

from byteps_py.core.aggregation import Accept, Aggregation, Contribution, OpenRound, Reject, Reply, Sum
from byteps_py.types import DType, Operation, Participant, group_of, make_key, make_tensor_id

SUM, AVERAGE, BROADCAST = Operation.SUM, Operation.AVERAGE, Operation.BROADCAST
GROUPS = {1: (0, 2, 3), 2: (1, 2), 3: (3,), 8191: (0, 1, 2)}
ALL = make_key(7, 0)
KEYS = {group: make_key(make_tensor_id(group, 5), 1) for group in GROUPS}


def aggregation() -> Aggregation:
    """Workers 0 and 1 on a node, 2 and 3 on another, and all groups."""
    made = Aggregation([Participant(rank, rank // 2, 0, 1, "host", 100 + rank, rank) for rank in range(4)])
    for group, ranks in GROUPS.items():
        made.members.form(group, ranks)
    return made


def contribution(
    rank: int,
    key: int,
    round: int = 1,
    *,
    operation: Operation = SUM,
    root: int = 0,
    step: int = 3,
    absent: bool = False,
    borrowed: bool = False,
) -> Contribution:
    terms = (DType.FLOAT32, operation, root, step, 0, 10)
    return Contribution(rank, key, round, *terms, None if absent else f"payload {rank}", True, borrowed)


def reject(made: Aggregation, rank: int, key: int, round: int = 1) -> Reject:
    (action,) = made.push(contribution(rank, key, round))
    assert isinstance(action, Reject)
    return action


def test_a_key_names_its_group() -> None:
    assert {group: group_of(key) for group, key in KEYS.items()} == {group: group for group in GROUPS}
    assert [group_of(make_key(tensor, 2**20)) for tensor in (0, 2**20, 2**31 - 1)] == [0, 0, 0]
    assert make_tensor_id(8191, 2**18 - 1) == 2**32 - 1


def test_the_members_alone_are_waited_for_summed_by_node_and_answered() -> None:
    made = aggregation()
    key = KEYS[1]
    assert made.push(contribution(3, key, operation=AVERAGE)) == [Accept(3, key, 1)]
    assert made.missing(key) == (0, 2)
    assert made.waiting() == [OpenRound(key, 1, (3,), (0, 2))]
    made.push(contribution(0, key, operation=AVERAGE))
    accepted, action = made.push(contribution(2, key, operation=AVERAGE))
    sources = ("payload 0", "payload 2", "payload 3")
    assert (accepted, action) == (
        Accept(2, key, 1),
        Sum(key, 1, DType.FLOAT32, AVERAGE, 10, sources, (1, 2), 3),
    )
    replies = made.summed(key, 1, "result")
    assert [(each.participant, each.contributors) for each in replies if isinstance(each, Reply)] == [
        (0, 3),
        (2, 3),
        (3, 3),
    ]
    assert made.pull(0, key, 1) == replies[:1]
    for rank in (3, 0, 2):
        made.push(contribution(rank, key, 2))
    assert isinstance(made.pull(0, key, 1)[0], Reject)  # all have contributed to the next round


def test_overlapping_groups_and_all_workers_do_not_get_into_each_other_s_way() -> None:
    made = aggregation()
    keys = {0: ALL, **KEYS}
    members = {0: (0, 1, 2, 3), **GROUPS}
    for round_ in (1, 2, 3):
        for rank in (2, 0, 3, 1):
            for group, ranks in members.items():
                if rank in ranks:
                    actions = made.push(contribution(rank, keys[group], round_, borrowed=True))
                    assert actions[0] == Accept(rank, keys[group], round_)
                    is_last = rank == [each for each in (2, 0, 3, 1) if each in ranks][-1]
                    assert (len(actions) == 2) == is_last
                    if is_last:
                        assert isinstance(actions[1], Sum)
                        assert len(actions[1].sources) == len(ranks)
        for group, ranks in members.items():
            replies = made.summed(keys[group], round_, "result")
            assert [each.participant for each in replies] == list(ranks)


def test_absent_contributions_and_broadcasts() -> None:
    made = aggregation()
    key = KEYS[2]
    made.push(contribution(1, key, absent=True))
    *_, own, other = made.push(contribution(2, key))
    assert isinstance(own, Reply)
    assert isinstance(other, Reply)
    assert (own.payload, own.contributors, other.payload) == ("payload 2", 1, "payload 2")
    made.push(contribution(1, key, 2, absent=True))
    *_, reply = made.push(contribution(2, key, 2, absent=True))
    assert isinstance(reply, Reply)
    assert reply.payload is None
    made.push(contribution(2, key, 3, operation=BROADCAST, root=1, absent=True))
    *_, reply = made.push(contribution(1, key, 3, operation=BROADCAST, root=1))
    assert isinstance(reply, Reply)
    assert (reply.participant, reply.payload) == (2, "payload 1")


def test_a_group_of_one_is_answered_at_once() -> None:
    made = aggregation()
    accepted, reply = made.push(contribution(3, KEYS[3], operation=AVERAGE))
    assert isinstance(reply, Reply)
    assert (accepted, reply.payload) == (Accept(3, KEYS[3], 1), "payload 3")


def test_a_root_must_be_a_member() -> None:
    (rejected,) = aggregation().push(contribution(1, KEYS[2], operation=BROADCAST, root=3))
    assert isinstance(rejected, Reject)
    assert "from root 3, but contributions come from workers 1 to 2" in rejected.reason


@pytest.mark.parametrize("begun", [False, True])
def test_who_is_no_member_is_refused_and_changes_nothing(begun: bool) -> None:
    made = aggregation()
    key = KEYS[1]
    if begun:
        made.push(contribution(0, key))
    told = reject(made, 1, key)
    assert "worker 1 is not one of those who contribute, workers 0, 2, 3: a tensor of a group" in told.reason
    assert made.pull(1, key, 1) == [told]
    assert made.missing(key) == ((2, 3) if begun else ())
    for rank in (0, 2, 3):
        actions = made.push(contribution(rank, key))
    assert isinstance(actions[-1], Sum)
    assert "worker 4 is not in this job" in reject(made, 4, key).reason
    assert "worker -1 is not in this job" in reject(made, -1, key).reason


def test_a_group_that_nobody_has_formed_is_refused_until_it_is() -> None:
    made = aggregation()
    key = make_key(make_tensor_id(4, 0), 0)
    told = reject(made, 1, key)
    assert "worker 1 pushes a tensor of group 4, which is not known here" in told.reason
    assert made.pull(1, key, 1) == [told]
    assert not made.knows(key)
    made.members.form(4, (1,))
    assert made.push(contribution(1, key))[0] == Accept(1, key, 1)


def test_who_leaves_concerns_the_groups_that_it_is_in() -> None:
    made = aggregation()
    made.push(contribution(2, KEYS[1]))
    made.push(contribution(2, KEYS[2]))
    (told,) = made.left(1)
    assert isinstance(told, Reject)
    assert (told.participant, told.key, told.departed) == (2, KEYS[2], 1)
    assert reject(made, 2, KEYS[2]).departed == 1
    assert reject(made, 0, ALL).departed == 1
    assert reject(made, 0, KEYS[8191]).departed == 1
    for rank in (0, 3):
        actions = made.push(contribution(rank, KEYS[1]))
    assert isinstance(actions[-1], Sum)
    made.summed(KEYS[1], 1, "result")
    assert made.push(contribution(0, KEYS[1], 2)) == [Accept(0, KEYS[1], 2)]


def test_a_rejected_round_of_a_group_is_over_when_its_members_know() -> None:
    made = aggregation()
    key = KEYS[2]
    for rank in (1, 2):
        made.push(contribution(rank, key))
    made.summed(key, 1, "result")
    made.push(contribution(1, key, 2))
    told = made.push(contribution(2, key, 2, step=4))
    assert {each.participant for each in told} == {1, 2}
    (gone,) = made.pull(1, key, 1)
    assert isinstance(gone, Reject)
    assert "no longer kept" in gone.reason


def test_a_group_keeps_its_members() -> None:
    members = aggregation().members
    members.form(1, (3, 2, 0))
    with pytest.raises(ValueError, match=r"group 1 has the ranks \(0, 2, 3\), not \(0, 2\)"):
        members.form(1, (0, 2))
    with pytest.raises(ValueError, match=r"group 5 cannot have the ranks \(0, 4\): workers are 0 to 3"):
        members.form(5, (0, 4))
    assert members.of(make_key(make_tensor_id(5, 0), 0)) is None
