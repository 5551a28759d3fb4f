"""The parameters that a server holds: every row of the tables in ``core/parameters.py``, and what must not change."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_py.core.contributions import Accept, Action, Contribution, Missing, Reject, Reply, Sum
from byteps_py.core.members import MemberTable, members_of
from byteps_py.core.parameters import Parameters
from byteps_py.errors import LocalProtocolError
from byteps_py.types import DType, Operation, Participant, make_key, make_tensor_id

KEY = 7
SEED, DIFFERENCE = Operation.SEED, Operation.DIFFERENCE


def table(size: int) -> MemberTable:
    participants = [Participant(rank, rank, 0, 1, "host", 100 + rank, rank) for rank in range(size)]
    return MemberTable(participants, members_of(participants, range(size)))


def contribution(
    participant: int,
    round: int,
    payload: object | None,
    *,
    operation: Operation | None = None,
    key: int = KEY,
    root: int = 0,
    count: int = 10,
    dtype: DType = DType.FLOAT32,
    want_result: bool = True,
) -> Contribution:
    kind = operation or (SEED if round == 1 else DIFFERENCE)
    step = 0 if kind is SEED else round
    return Contribution(participant, key, round, dtype, kind, root, step, 0, count, payload, want_result)


def seeded(size: int = 2, bound: int | None = None) -> Parameters:
    """The store is ``"seed"``, and everybody has it."""
    parameters = Parameters(table(size), bound)
    for rank in range(size):
        parameters.push(contribution(rank, 1, "weights" if rank == 0 else None))
    parameters.summed(KEY, 1, "seed")
    return parameters


def sums(actions: Sequence[Action]) -> list[Sum]:
    return [each for each in actions if isinstance(each, Sum)]


def replies(actions: Sequence[Action]) -> list[tuple[int, int, object, int]]:
    """Rank, round, payload and staleness."""
    return [
        (each.participant, each.round, each.payload, each.contributors) for each in actions if isinstance(each, Reply)
    ]


def rejects(actions: Sequence[Action]) -> list[int]:
    return [each.participant for each in actions if isinstance(each, Reject)]


def reason(actions: Sequence[Action]) -> str:
    return next(each.reason for each in actions if isinstance(each, Reject))


class TestSeed:
    """What comes first."""

    def test_it_waits_for_all_and_takes_the_payload_of_the_root(self) -> None:
        parameters = Parameters(table(3))
        assert parameters.push(contribution(2, 1, "ignored")) == [Accept(2, KEY, 1)]
        assert parameters.push(contribution(0, 1, "weights")) == [Accept(0, KEY, 1)]
        assert parameters.missing(KEY, 0) == (1,)
        accept, action = parameters.push(contribution(1, 1, None))
        assert accept == Accept(1, KEY, 1)
        assert action == Sum(KEY, 1, DType.FLOAT32, SEED, 10, ("weights",), (1,), 1)
        assert replies(parameters.summed(KEY, 1, "seed")) == [(rank, 1, "seed", 0) for rank in range(3)]

    def test_who_leaves_before_is_not_waited_for(self) -> None:
        parameters = Parameters(table(3))
        parameters.push(contribution(0, 1, "weights"))
        parameters.push(contribution(1, 1, None))
        assert sums(parameters.left(2))[0].sources == ("weights",)
        assert [rank for rank, *_ in replies(parameters.summed(KEY, 1, "seed"))] == [0, 1]

    def test_a_root_that_leaves_before_it_has_pushed_ends_it(self) -> None:
        parameters = Parameters(table(2))
        parameters.push(contribution(1, 1, None))
        (told,) = parameters.left(0)
        assert isinstance(told, Reject)
        assert (told.participant, told.departed) == (1, 0)
        assert parameters.pull(1, KEY, 1) == [told]

    def test_a_root_that_left_before_anybody_pushed_ends_it_too(self) -> None:
        parameters = Parameters(table(2))
        assert parameters.left(0) == []
        (told,) = parameters.push(contribution(1, 1, None))
        assert isinstance(told, Reject)
        assert told.departed == 0

    def test_another_root_is_a_disagreement_that_both_are_told(self) -> None:
        parameters = Parameters(table(2))
        parameters.push(contribution(0, 1, "weights"))
        actions = parameters.push(contribution(1, 1, "weights", root=1))
        assert rejects(actions) == [0, 1]
        assert "worker 0 pushes SEED of 10 float32 elements at step 0 from root 0" in reason(actions)
        assert "from root 1" in reason(actions)

    def test_a_root_without_a_payload_is_refused(self) -> None:
        assert "must give its own" in reason(Parameters(table(2)).push(contribution(0, 1, None)))

    def test_a_root_that_is_no_member_is_refused(self) -> None:
        assert "from root 5" in reason(Parameters(table(2)).push(contribution(0, 1, "weights", root=5)))

    def test_a_second_one_is_refused(self) -> None:
        actions = seeded().push(contribution(0, 2, "weights", operation=SEED))
        assert rejects(actions) == [0]
        assert "since its SEED" in reason(actions)


class TestDifferences:
    """What follows."""

    def test_it_is_added_and_answered_without_the_others(self) -> None:
        parameters = seeded()
        accept, action = parameters.push(contribution(1, 2, "d1"))
        assert accept == Accept(1, KEY, 2)
        assert action == Sum(KEY, 2, DType.FLOAT32, DIFFERENCE, 10, ("seed", "d1"), (2,), 1)
        assert replies(parameters.summed(KEY, 2, "store 1")) == [(1, 2, "store 1", 0)]

    def test_those_that_arrive_during_a_sum_share_the_next(self) -> None:
        parameters = seeded(3)
        parameters.push(contribution(2, 2, "c"))
        assert parameters.push(contribution(0, 2, "a")) == [Accept(0, KEY, 2)]
        assert parameters.push(contribution(1, 2, "b")) == [Accept(1, KEY, 2)]
        actions = parameters.summed(KEY, 2, "store 1")
        assert replies(actions) == [(2, 2, "store 1", 0)]
        assert sums(actions)[0].sources == ("store 1", "a", "b")
        assert replies(parameters.summed(KEY, 3, "store 2")) == [(0, 2, "store 2", 1), (1, 2, "store 2", 2)]

    def test_staleness_counts_the_differences_of_others_since_the_last_answer(self) -> None:
        parameters = seeded()
        number = 1
        for round in range(2, 6):
            parameters.push(contribution(0, round, "d"))
            number += 1
            ((_, _, _, staleness),) = replies(parameters.summed(KEY, number, f"store {number}"))
            assert staleness == 0
        parameters.push(contribution(1, 2, "late"))
        assert replies(parameters.summed(KEY, number + 1, "store")) == [(1, 2, "store", 4)]
        parameters.push(contribution(0, 6, "d"))
        assert replies(parameters.summed(KEY, number + 2, "last")) == [(0, 6, "last", 1)]

    def test_without_a_payload_it_takes_the_store_and_is_in_no_sum(self) -> None:
        parameters = seeded()
        actions = parameters.push(contribution(1, 2, None))
        assert actions[0] == Accept(1, KEY, 2)
        assert replies(actions) == [(1, 2, "seed", 0)]
        assert not sums(actions)

    def test_without_a_payload_it_does_not_wait_for_a_sum(self) -> None:
        parameters = seeded()
        parameters.push(contribution(0, 2, "d"))
        assert replies(parameters.push(contribution(1, 2, None))) == [(1, 2, "seed", 0)]

    def test_before_a_seed_it_is_refused_and_the_others_are_told(self) -> None:
        parameters = Parameters(table(2))
        actions = parameters.push(contribution(1, 1, "d", operation=DIFFERENCE))
        assert rejects(actions) == [1]
        assert "the first operation on them is a SEED" in reason(actions)
        assert rejects(parameters.push(contribution(0, 1, "weights"))) == [0]

    @pytest.mark.parametrize("operation", [Operation.SUM, Operation.AVERAGE, Operation.BROADCAST])
    def test_another_operation_is_refused_and_says_what_to_do(self, operation: Operation) -> None:
        actions = seeded().push(contribution(0, 2, "d", operation=operation))
        assert rejects(actions) == [0]
        assert f"worker 0 pushes {operation.name}" in reason(actions)
        assert "another name" in reason(actions)

    def test_another_shape_is_refused(self) -> None:
        actions = seeded().push(contribution(0, 2, "d", count=9))
        assert "9 float32 elements at offset 0, and the parameters are 10" in reason(actions)

    def test_a_rejected_key_stays_so_and_who_waits_is_told(self) -> None:
        parameters = seeded(3)
        parameters.push(contribution(1, 2, "d"))
        assert rejects(parameters.push(contribution(0, 2, "d", count=9))) == [0, 1]
        assert rejects(parameters.push(contribution(2, 2, "d"))) == [2]
        assert rejects(parameters.pull(2, KEY, 2)) == [2]
        assert parameters.summed(KEY, 2, "worthless") == []

    def test_memory_that_changed_rejects_the_key(self) -> None:
        parameters = seeded()
        parameters.push(contribution(1, 2, "d"))
        actions = parameters.changed(KEY, 2, 1)
        assert rejects(actions) == [1]
        assert "worker 1 changed its contribution to round 2" in reason(actions)


class TestRepetitions:
    """Whatever arrives again counts once."""

    def test_a_push_counts_once_before_and_after_its_sum(self) -> None:
        parameters = seeded()
        parameters.push(contribution(1, 2, "d"))
        assert parameters.push(contribution(1, 2, "d")) == [Accept(1, KEY, 2)]
        parameters.summed(KEY, 2, "store 1")
        again = parameters.push(contribution(1, 2, "d"))
        assert again[0] == Accept(1, KEY, 2)
        assert replies(again) == [(1, 2, "store 1", 0)]
        assert not sums(again)

    def test_an_older_push_is_not_answered(self) -> None:
        parameters = seeded()
        parameters.push(contribution(1, 2, "d"))
        parameters.summed(KEY, 2, "store 1")
        assert parameters.push(contribution(1, 1, None)) == [Accept(1, KEY, 1)]

    def test_a_pull_gives_the_same_answer_again_though_the_store_has_changed(self) -> None:
        parameters = seeded()
        parameters.push(contribution(1, 2, "d"))
        parameters.summed(KEY, 2, "store 1")
        parameters.push(contribution(0, 2, "d"))
        parameters.summed(KEY, 3, "store 2")
        assert replies(parameters.pull(1, KEY, 2)) == [(1, 2, "store 1", 0)]

    def test_a_pull_of_what_was_not_counted_is_missing(self) -> None:
        assert Parameters(table(2)).pull(0, KEY, 1) == [Missing(0, KEY, 1)]
        assert seeded().pull(0, KEY, 2) == [Missing(0, KEY, 2)]

    def test_a_pull_during_the_sum_is_answered_when_it_is_done(self) -> None:
        parameters = seeded()
        parameters.push(contribution(1, 2, "d", want_result=False))
        assert parameters.pull(1, KEY, 2) == [Accept(1, KEY, 2)]
        assert parameters.missing(KEY, 1) == ()
        assert replies(parameters.summed(KEY, 2, "store 1")) == [(1, 2, "store 1", 0)]

    def test_who_does_not_want_the_answer_gets_it_when_it_asks(self) -> None:
        parameters = seeded()
        parameters.push(contribution(1, 2, "d", want_result=False))
        assert parameters.summed(KEY, 2, "store 1") == []
        assert replies(parameters.pull(1, KEY, 2)) == [(1, 2, "store 1", 0)]

    def test_a_pull_of_an_older_round_is_refused(self) -> None:
        parameters = seeded()
        parameters.push(contribution(1, 2, "d"))
        assert "has pushed round 2" in reason(parameters.pull(1, KEY, 1))

    def test_a_push_beyond_the_next_round_is_refused(self) -> None:
        assert "round 3 while round 2 is open" in reason(seeded().push(contribution(1, 3, "d")))
        assert "counted from 1" in reason(seeded().push(contribution(1, 0, "d")))

    def test_a_push_before_the_answer_to_the_last_one_is_refused(self) -> None:
        parameters = Parameters(table(2), bound=1)
        parameters.push(contribution(1, 1, None))
        assert "round 2 while round 1 is open" in reason(parameters.push(contribution(1, 2, "too early")))
        (_, action) = parameters.push(contribution(0, 1, "weights"))
        assert isinstance(action, Sum)
        assert action.sources == ("weights",)
        parameters.summed(KEY, 1, "seed")
        for round in (2, 3):
            parameters.push(contribution(0, round, "d"))
            parameters.summed(KEY, round, f"store {round}")
        assert "round 4 while round 3 is open" in reason(parameters.push(contribution(0, 4, "d")))
        assert parameters.missing(KEY, 0) == (1,)

    def test_a_sum_that_nobody_asked_for_is_an_error(self) -> None:
        parameters = seeded()
        with pytest.raises(LocalProtocolError, match="sum 1 of key 7"):
            parameters.summed(KEY, 1, "again")
        with pytest.raises(LocalProtocolError, match="sum 1 of key 8"):
            parameters.changed(8, 1, 0)

    def test_strangers_and_outsiders_are_refused(self) -> None:
        assert "is not in this job" in reason(seeded().push(contribution(9, 2, "d")))
        assert "is not in this job" in reason(seeded().pull(9, KEY, 2))
        members = table(3)
        members.form(4, (0, 2))
        key = make_key(make_tensor_id(4, 0), 0)
        parameters = Parameters(members)
        assert "not one of those who contribute" in reason(parameters.push(contribution(1, 1, None, key=key)))
        parameters.push(contribution(0, 1, "weights", key=key))
        assert sums(parameters.push(contribution(2, 1, None, key=key)))


class TestBound:
    """Stale synchronous parallel."""

    def test_the_answer_is_held_until_the_slowest_is_near_enough(self) -> None:
        parameters = seeded(2, bound=2)
        for round in (2, 3):
            parameters.push(contribution(0, round, "d"))
            assert replies(parameters.summed(KEY, round, f"store {round}"))
        parameters.push(contribution(0, 4, "d"))
        assert parameters.summed(KEY, 4, "store 4") == []
        assert parameters.pull(0, KEY, 4) == [Accept(0, KEY, 4)]
        assert parameters.missing(KEY, 0) == (1,)
        actions = parameters.push(contribution(1, 2, "e"))
        assert replies(actions) == [(0, 4, "store 4", 0)]
        assert sums(actions)[0].sources == ("store 4", "e")
        assert parameters.missing(KEY, 0) == ()

    def test_a_held_answer_is_the_store_as_it_is_when_it_goes(self) -> None:
        parameters = seeded(3, bound=1)
        parameters.push(contribution(0, 2, "a"))
        parameters.summed(KEY, 2, "store 2")
        parameters.push(contribution(0, 3, "a"))
        parameters.summed(KEY, 3, "store 3")
        assert parameters.missing(KEY, 0) == (1, 2)
        parameters.push(contribution(1, 2, "b"))
        assert replies(parameters.summed(KEY, 4, "store 4")) == [(1, 2, "store 4", 2)]
        assert parameters.missing(KEY, 0) == (2,)
        assert replies(parameters.push(contribution(2, 2, None))) == [(0, 3, "store 4", 0), (2, 2, "store 4", 0)]

    def test_who_leaves_is_not_waited_for(self) -> None:
        parameters = seeded(2, bound=1)
        parameters.push(contribution(0, 2, "a"))
        parameters.summed(KEY, 2, "store 2")
        parameters.push(contribution(0, 3, "a"))
        parameters.summed(KEY, 3, "store 3")
        assert replies(parameters.left(1)) == [(0, 3, "store 3", 0)]
        assert parameters.left(1) == []

    def test_without_a_payload_it_counts_as_a_step(self) -> None:
        parameters = seeded(2, bound=1)
        for round in (2, 3):
            held = parameters.push(contribution(0, round, None))
        assert replies(held) == []
        assert replies(parameters.push(contribution(1, 2, None))) == [(0, 3, "seed", 0), (1, 2, "seed", 0)]

    def test_it_is_at_least_one(self) -> None:
        with pytest.raises(ValueError, match="bound of 0"):
            Parameters(table(2), 0)


class TestBuffers:
    """What must not change."""

    def test_the_store_and_all_answers_are_held_until_their_workers_push_again(self) -> None:
        parameters = seeded()
        assert set(parameters.held(KEY)) == {"seed"}
        parameters.push(contribution(0, 2, "d"))
        parameters.summed(KEY, 2, "store 1")
        assert set(parameters.held(KEY)) == {"seed", "store 1"}  # worker 1 has the seed, or not even that
        parameters.push(contribution(1, 2, "d"))
        assert set(parameters.held(KEY)) == {"store 1"}

    def test_a_worker_that_left_holds_nothing(self) -> None:
        parameters = seeded()
        parameters.push(contribution(0, 2, "d"))
        parameters.summed(KEY, 2, "store 1")
        parameters.left(1)
        assert set(parameters.held(KEY)) == {"store 1"}

    def test_a_departed_worker_is_not_answered(self) -> None:
        parameters = seeded()
        parameters.push(contribution(1, 2, "d"))
        parameters.left(1)
        assert parameters.summed(KEY, 2, "store 1") == []


class _Network:
    """Workers that push until all of their rounds are answered, over a network that delays, repeats and loses."""

    def __init__(self, size: int, rounds: int, bound: int | None, seed: int) -> None:
        self.random = random.Random(seed)
        self.parameters = Parameters(table(size), bound)
        self.rounds = rounds
        self.round = [0] * size
        self.seen: list[list[int]] = [[] for _ in range(size)]
        self.pushes: list[Contribution] = []
        self.answers: list[tuple[int, int, int]] = []
        self.running: list[Sum] = []
        self.differences = [
            [0 if self.random.random() < 0.2 else self.random.randrange(1, 1 << 20) for _ in range(rounds)]
            for _ in range(size)
        ]
        for rank in range(size):
            self.next(rank)

    def contribution(self, rank: int) -> Contribution:
        round = self.round[rank]
        if round == 1:
            return contribution(rank, 1, 1000 if rank == 0 else None)
        return contribution(rank, round, self.differences[rank][round - 2] or None)

    def next(self, rank: int) -> None:
        self.round[rank] += 1
        if self.round[rank] <= self.rounds + 1:
            self.pushes.append(self.contribution(rank))

    def perform(self, actions: Sequence[Action]) -> None:
        for each in actions:
            assert not isinstance(each, Reject), each.reason
            if isinstance(each, Sum):
                self.running.append(each)
            elif isinstance(each, Reply):
                payload: Any = each.payload
                self.answers.append((each.participant, each.round, payload))
            elif isinstance(each, Missing):
                self.pushes.append(self.contribution(each.participant))

    def turn(self) -> None:
        kind = self.random.randrange(4)
        if kind == 0 and self.pushes:
            push = self.pushes.pop(self.random.randrange(len(self.pushes)))
            if self.random.random() < 0.2:
                self.pushes.append(push)  # it comes once more, maybe much later
            if self.random.random() > 0.1:
                self.perform(self.parameters.push(push))
        elif kind == 1 and self.running:
            done = self.running.pop()
            sources: Any = done.sources
            self.perform(self.parameters.summed(KEY, done.round, sum(sources)))
        elif kind == 2 and self.answers:
            rank, round, store = self.answers.pop(self.random.randrange(len(self.answers)))
            if self.random.random() > 0.1 and round == self.round[rank]:
                self.seen[rank].append(store)
                self.next(rank)
        elif kind == 3:
            rank = self.random.randrange(len(self.round))
            if self.round[rank] <= self.rounds + 1:
                self.perform(self.parameters.pull(rank, KEY, self.round[rank]))

    def run(self) -> None:
        for _ in range(200_000):
            if all(each > self.rounds + 1 for each in self.round):
                return
            self.turn()
            assert len(self.running) <= 1
        raise AssertionError(f"workers are at rounds {self.round}")


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 5),
    rounds=st.integers(0, 8),
    bound=st.sampled_from([None, 1, 2, 5]),
    seed=st.integers(0, 2**32),
)
def test_whatever_is_delayed_repeated_or_lost_each_difference_counts_once(
    size: int, rounds: int, bound: int | None, seed: int
) -> None:
    network = _Network(size, rounds, bound, seed)
    network.run()
    total = 1000 + sum(map(sum, network.differences))
    assert network.parameters.held(KEY)[0] == total
    for rank, seen in enumerate(network.seen):
        own = 1000
        assert seen[0] == own
        for difference, store in zip(network.differences[rank], seen[1:], strict=True):
            own += difference
            assert own <= store <= total  # all of one's own, and what others had added
