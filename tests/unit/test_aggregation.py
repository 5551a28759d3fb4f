"""One server's rounds: every row of the table in ``core/aggregation.py``, the order of sums, and what is remembered."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from byteps_py.core.aggregation import (
    Accept,
    Action,
    Aggregation,
    Contribution,
    Missing,
    OpenRound,
    Reject,
    Reply,
    Result,
    Sum,
)
from byteps_py.errors import LocalProtocolError
from byteps_py.types import DType, Operation, Participant

KEY = 7
SUM, AVERAGE, BROADCAST = Operation.SUM, Operation.AVERAGE, Operation.BROADCAST


class Payload:
    """Opaque, compared by identity, and seen to be forgotten."""


def workers(*nodes: int) -> list[Participant]:
    """One participant per argument, on that node."""
    return [Participant(rank, node, 0, 1, f"host-{node}", 100 + rank, rank) for rank, node in enumerate(nodes)]


def pair() -> Aggregation:
    return Aggregation(workers(0, 1))


def contribution(
    participant: int,
    round: int = 1,
    payload: object | None = "payload",
    *,
    key: int = KEY,
    dtype: DType = DType.FLOAT32,
    operation: Operation = SUM,
    root: int = 0,
    step: int = 3,
    offset: int = 0,
    count: int = 10,
    want_result: bool = True,
    borrowed: bool = False,
) -> Contribution:
    terms = (dtype, operation, root, step, offset, count)
    return Contribution(participant, key, round, *terms, payload, want_result, borrowed)


def reply(
    participant: int,
    round: int = 1,
    payload: object | None = "result",
    contributors: int = 2,
    operation: Operation = SUM,
    root: int = 0,
) -> Reply:
    return Reply(participant, KEY, round, DType.FLOAT32, operation, root, 3, 0, 10, payload, contributors)


def finish_round(aggregation: Aggregation, round: int = 1, size: int = 2) -> None:
    """All push and want the result, which is ``"result"``."""
    for rank in range(size):
        aggregation.push(contribution(rank, round))
    aggregation.summed(KEY, round, "result")


def only_reject(actions: Sequence[Action]) -> Reject:
    (action,) = actions
    assert isinstance(action, Reject)
    return action


def the_sum(actions: Sequence[Action]) -> Sum:
    (found,) = [action for action in actions if isinstance(action, Sum)]
    return found


class TestOneRound:
    """From the first contribution to the results."""

    def test_first_contribution_is_accepted(self) -> None:
        assert pair().push(contribution(0)) == [Accept(0, KEY, 1)]

    def test_last_contribution_asks_for_the_sum(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, payload="a"))
        assert aggregation.push(contribution(1, payload="b")) == [
            Accept(1, KEY, 1),
            Sum(KEY, 1, DType.FLOAT32, SUM, 10, ("a", "b"), (1, 1), 1),
        ]

    def test_the_sum_is_sent_to_all_who_want_it(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(1))
        aggregation.push(contribution(0))
        assert aggregation.summed(KEY, 1, "result") == [reply(0), reply(1)]

    def test_who_does_not_want_the_result_can_ask_for_it(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, want_result=False))
        aggregation.push(contribution(1))
        assert aggregation.summed(KEY, 1, "result") == [reply(1)]
        assert aggregation.pull(0, KEY, 1) == [reply(0)]

    def test_a_pull_before_the_sum_is_remembered(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, want_result=False))
        assert aggregation.pull(0, KEY, 1) == [Accept(0, KEY, 1)]
        aggregation.push(contribution(1, want_result=False))
        assert aggregation.pull(1, KEY, 1) == [Accept(1, KEY, 1)]
        assert aggregation.summed(KEY, 1, "result") == [reply(0), reply(1)]

    def test_a_result_is_sent_once_however_often_it_was_asked_for(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        for _ in range(3):
            aggregation.pull(0, KEY, 1)
        aggregation.push(contribution(1))
        assert aggregation.summed(KEY, 1, "result") == [reply(0), reply(1)]

    def test_a_reply_repeats_what_was_agreed(self) -> None:
        aggregation = Aggregation(workers(0))
        sent = contribution(0, dtype=DType.INT8, operation=BROADCAST, step=9, offset=40, count=20)
        assert aggregation.push(sent)[1] == Reply(0, KEY, 1, DType.INT8, BROADCAST, 0, 9, 40, 20, "payload", 1)

    def test_rounds_follow_one_another(self) -> None:
        aggregation = pair()
        for round in range(1, 6):
            assert aggregation.push(contribution(0, round)) == [Accept(0, KEY, round)]
            assert the_sum(aggregation.push(contribution(1, round))).round == round
            assert aggregation.summed(KEY, round, "result") == [reply(0, round), reply(1, round)]

    def test_the_terms_may_change_from_round_to_round(self) -> None:
        aggregation = pair()
        finish_round(aggregation)
        aggregation.push(contribution(0, 2, operation=AVERAGE, dtype=DType.INT64, step=8, count=3))
        last = aggregation.push(contribution(1, 2, operation=AVERAGE, dtype=DType.INT64, step=8, count=3))
        assert the_sum(last) == Sum(KEY, 2, DType.INT64, AVERAGE, 3, ("payload", "payload"), (1, 1), 2)

    def test_keys_do_not_touch_one_another(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, key=1, step=1))
        aggregation.push(contribution(0, key=2, step=2))
        assert the_sum(aggregation.push(contribution(1, key=2, step=2))).key == 2
        assert len(aggregation.push(contribution(1, key=1, step=7))) == 2
        only_reject(aggregation.pull(0, 1, 1))
        assert len(aggregation.summed(2, 1, "result")) == 2

    def test_no_elements_are_a_contribution_like_any_other(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, payload=b"", count=0))
        assert the_sum(aggregation.push(contribution(1, payload=b"", count=0))).count == 0


class TestOrder:
    """The sum has one order, whatever the order of arrival."""

    @pytest.mark.parametrize("arrival", list(itertools.permutations(range(4))))
    def test_ranks_within_nodes_whatever_arrives_first(self, arrival: tuple[int, ...]) -> None:
        aggregation = Aggregation(workers(0, 0, 1, 1))
        actions = [action for rank in arrival for action in aggregation.push(contribution(rank, payload=f"p{rank}"))]
        summed = the_sum(actions)
        assert summed.sources == ("p0", "p1", "p2", "p3")
        assert summed.groups == (2, 2)

    def test_nodes_in_their_order_even_where_ranks_are_not_listed_by_node(self) -> None:
        aggregation = Aggregation(workers(1, 0, 1, 0))
        actions = [action for rank in range(4) for action in aggregation.push(contribution(rank, payload=f"p{rank}"))]
        assert the_sum(actions).sources == ("p1", "p3", "p0", "p2")

    def test_nodes_of_different_sizes(self) -> None:
        aggregation = Aggregation(workers(0, 1, 1, 1, 5))
        actions = [action for rank in range(5) for action in aggregation.push(contribution(rank))]
        assert the_sum(actions).groups == (1, 3, 1)

    def test_the_absent_are_left_out_and_so_are_nodes_without_anybody(self) -> None:
        aggregation = Aggregation(workers(0, 0, 1, 2, 2))
        payloads = ["p0", None, None, "p3", "p4"]
        actions = [
            action for rank in range(5) for action in aggregation.push(contribution(rank, payload=payloads[rank]))
        ]
        summed = the_sum(actions)
        assert summed.sources == ("p0", "p3", "p4")
        assert summed.groups == (1, 2)
        assert summed.divisor == 1
        assert aggregation.summed(KEY, 1, "result")[0] == reply(0, contributors=3)

    def test_average_divides_by_all_participants_absent_or_not(self) -> None:
        aggregation = Aggregation(workers(0, 0, 1))
        payloads = ["p0", "p1", None]
        actions = [
            action
            for rank in range(3)
            for action in aggregation.push(contribution(rank, payload=payloads[rank], operation=AVERAGE))
        ]
        assert the_sum(actions).divisor == 3


class TestWithoutSum:
    """Results that need no arithmetic are sent at once."""

    def test_a_single_payload_is_the_sum(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, payload=None))
        assert aggregation.push(contribution(1, payload="alone")) == [
            Accept(1, KEY, 1),
            reply(0, payload="alone", contributors=1),
            reply(1, payload="alone", contributors=1),
        ]

    def test_a_single_payload_must_still_be_divided(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, payload=None, operation=AVERAGE))
        actions = aggregation.push(contribution(1, payload="alone", operation=AVERAGE))
        assert the_sum(actions) == Sum(KEY, 1, DType.FLOAT32, AVERAGE, 10, ("alone",), (1,), 2)

    @pytest.mark.parametrize("operation", [SUM, AVERAGE])
    def test_the_only_worker_gets_its_own_back(self, operation: Operation) -> None:
        aggregation = Aggregation(workers(0))
        assert aggregation.push(contribution(0, payload="own", operation=operation)) == [
            Accept(0, KEY, 1),
            reply(0, payload="own", contributors=1, operation=operation),
        ]

    @pytest.mark.parametrize("operation", [each for each in Operation if not each.is_asynchronous])
    def test_all_absent(self, operation: Operation) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, payload=None, operation=operation))
        assert aggregation.push(contribution(1, payload=None, operation=operation)) == [
            Accept(1, KEY, 1),
            reply(0, payload=None, contributors=0, operation=operation),
            reply(1, payload=None, contributors=0, operation=operation),
        ]

    @pytest.mark.parametrize("operation", [each for each in Operation if each.is_asynchronous])
    def test_what_servers_hold_is_not_summed(self, operation: Operation) -> None:
        aggregation = pair()
        finish_round(aggregation)
        told = only_reject(aggregation.push(contribution(0, 2, operation=operation)))
        assert f"worker 0 pushes {operation.name}, but workers have summed" in told.reason
        assert "a name of their own" in told.reason

    @pytest.mark.parametrize("arrival", list(itertools.permutations(range(3))))
    def test_broadcast_is_the_payload_of_its_root(self, arrival: tuple[int, ...]) -> None:
        aggregation = Aggregation(workers(0, 0, 1))
        actions: list[Action] = []
        for rank in arrival:
            payload = "weights" if rank == 1 else None
            actions = aggregation.push(contribution(rank, payload=payload, operation=BROADCAST, root=1))
        assert actions == [
            Accept(arrival[-1], KEY, 1),
            *(reply(rank, payload="weights", contributors=1, operation=BROADCAST, root=1) for rank in range(3)),
        ]

    def test_broadcast_does_not_look_at_what_others_bring(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, payload="mine", operation=BROADCAST, root=1))
        actions = aggregation.push(contribution(1, payload="weights", operation=BROADCAST, root=1))
        assert actions[1:] == [
            reply(rank, payload="weights", contributors=1, operation=BROADCAST, root=1) for rank in range(2)
        ]

    def test_the_next_round_is_open_at_once(self) -> None:
        aggregation = Aggregation(workers(0))
        for round in range(1, 4):
            assert aggregation.push(contribution(0, round))[1] == reply(0, round, "payload", 1)


class TestBorrowed:
    """What lies in a worker's memory never becomes a result: it is copied."""

    @pytest.mark.parametrize("borrowed", [True, False])
    def test_a_single_payload(self, borrowed: bool) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, payload=None, borrowed=not borrowed))
        actions = aggregation.push(contribution(1, payload="alone", borrowed=borrowed))
        if borrowed:
            assert the_sum(actions) == Sum(KEY, 1, DType.FLOAT32, SUM, 10, ("alone",), (1,), 1)
            assert aggregation.summed(KEY, 1, "copy") == [
                reply(rank, payload="copy", contributors=1) for rank in (0, 1)
            ]
        else:
            assert actions[1] == reply(0, payload="alone", contributors=1)

    @pytest.mark.parametrize("operation", [SUM, AVERAGE])
    def test_of_the_only_worker(self, operation: Operation) -> None:
        aggregation = Aggregation(workers(0))
        actions = aggregation.push(contribution(0, payload="own", operation=operation, borrowed=True))
        assert the_sum(actions) == Sum(KEY, 1, DType.FLOAT32, operation, 10, ("own",), (1,), 1)

    @pytest.mark.parametrize("borrowed", [(True, False), (False, True)])
    def test_a_broadcast(self, borrowed: tuple[bool, bool]) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, payload="same", operation=BROADCAST, root=1, borrowed=borrowed[0]))
        actions = aggregation.push(contribution(1, payload="same", operation=BROADCAST, root=1, borrowed=borrowed[1]))
        if borrowed[1]:
            assert the_sum(actions) == Sum(KEY, 1, DType.FLOAT32, BROADCAST, 10, ("same",), (1,), 1)
            assert aggregation.summed(KEY, 1, "copy") == [
                reply(rank, payload="copy", contributors=1, operation=BROADCAST, root=1) for rank in (0, 1)
            ]
        else:
            assert actions[1] == reply(0, payload="same", contributors=1, operation=BROADCAST, root=1)

    def test_mixed_with_others_it_is_a_source_like_any_other(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, payload="lent", borrowed=True))
        assert the_sum(aggregation.push(contribution(1, payload="own"))).sources == ("lent", "own")

    def test_the_next_round_borrows_anew(self) -> None:
        aggregation = Aggregation(workers(0))
        aggregation.push(contribution(0, borrowed=True))
        aggregation.summed(KEY, 1, "copy")
        assert aggregation.push(contribution(0, 2, "own"))[1] == reply(0, 2, "own", 1)

    def test_a_source_that_changed_meanwhile_ends_the_key(self) -> None:
        aggregation = pair()
        finish_round(aggregation)
        aggregation.push(contribution(0, 2, borrowed=True))
        aggregation.push(contribution(1, 2, borrowed=True))
        reason = (
            "worker 1 changed its contribution to round 2 while it was being summed; look for the first error that it "
            "reported"
        )
        assert aggregation.changed(KEY, 2, 1) == [Reject(0, KEY, 2, reason), Reject(1, KEY, 2, reason)]
        assert aggregation.push(contribution(0, 3)) == [Reject(0, KEY, 3, reason)]

    def test_so_does_one_of_a_key_that_was_summed_elsewhere(self) -> None:
        aggregation = pair()
        told = aggregation.changed(KEY, 2, 1)
        assert [(each.participant, each.key, each.round) for each in told] == [(0, KEY, 2), (1, KEY, 2)]
        assert "worker 1 changed its contribution to round 2" in only_reject(aggregation.pull(0, KEY, 3)).reason

    def test_only_what_is_being_summed_can_change(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, borrowed=True))
        with pytest.raises(LocalProtocolError, match="key 7, round 1"):
            aggregation.changed(KEY, 1, 0)


class TestAdoption:
    """A key that was looked after elsewhere, and may be again."""

    LAST = Result(4, (DType.FLOAT32, SUM, 0, 3, 0, 10), "result", 2)

    def test_what_has_arrived_elsewhere_counts(self) -> None:
        aggregation = pair()
        aggregation.adopt(KEY, 5, [contribution(1, 5, "b", borrowed=True)], None)
        assert aggregation.knows(KEY)
        assert aggregation.missing(KEY) == (0,)
        assert aggregation.push(contribution(1, 5, "again")) == [Accept(1, KEY, 5)]
        assert the_sum(aggregation.push(contribution(0, 5, "a"))).sources == ("a", "b")
        assert aggregation.summed(KEY, 5, "result") == [reply(0, 5), reply(1, 5)]

    def test_its_terms_are_held_against_the_others(self) -> None:
        aggregation = Aggregation(workers(0, 0, 0))
        aggregation.adopt(KEY, 1, [contribution(2, step=8), contribution(0, step=8)], None)
        told, *_ = aggregation.push(contribution(1, step=9))
        assert isinstance(told, Reject)
        assert "worker 1 pushes SUM of 10 float32 elements at step 9, worker 2 pushes" in told.reason

    def test_what_is_borrowed_stays_so(self) -> None:
        aggregation = pair()
        aggregation.adopt(KEY, 1, [contribution(0, payload="lent", borrowed=True)], None)
        assert the_sum(aggregation.push(contribution(1, payload=None))).sources == ("lent",)

    def test_the_last_result_comes_along(self) -> None:
        aggregation = pair()
        aggregation.adopt(KEY, 5, [], self.LAST)
        assert aggregation.pull(1, KEY, 4) == [reply(1, 4)]

    def test_a_worker_that_leaves_afterwards(self) -> None:
        aggregation = pair()
        aggregation.adopt(KEY, 5, [contribution(0, 5)], None)
        assert only_reject(aggregation.left(1)).departed == 1

    def test_it_is_adopted_once(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        with pytest.raises(LocalProtocolError, match="key 7 cannot be adopted: its round 1 is open here"):
            aggregation.adopt(KEY, 5, [], None)

    def test_it_may_go_between_two_rounds(self) -> None:
        aggregation = pair()
        assert aggregation.release(KEY) is None
        aggregation.push(contribution(0))
        assert aggregation.release(KEY) is None
        aggregation.push(contribution(1))
        assert aggregation.release(KEY) is None
        aggregation.summed(KEY, 1, "result")
        terms = (DType.FLOAT32, SUM, 0, 3, 0, 10)
        assert aggregation.release(KEY) == (2, Result(1, terms, "result", 2))
        assert not aggregation.knows(KEY)
        assert aggregation.release(KEY) is None

    def test_a_rejected_key_stays(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        aggregation.push(contribution(1, step=4))
        assert aggregation.release(KEY) is None
        assert aggregation.knows(KEY)

    def test_after_a_worker_has_left_every_key_stays(self) -> None:
        aggregation = pair()
        finish_round(aggregation)
        aggregation.left(1)
        assert aggregation.release(KEY) is None


class TestAgain:
    """Everything may arrive twice or late; nothing is counted twice, everything is answered."""

    def test_a_push_that_is_repeated_while_others_are_missing(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, payload="first"))
        assert aggregation.push(contribution(0, payload="again")) == [Accept(0, KEY, 1)]
        assert the_sum(aggregation.push(contribution(1, payload="b"))).sources == ("first", "b")

    def test_a_repeated_push_may_want_the_result_that_the_first_did_not(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, want_result=False))
        aggregation.push(contribution(0, want_result=True))
        aggregation.push(contribution(1, want_result=True))
        assert aggregation.summed(KEY, 1, "result") == [reply(0), reply(1)]

    def test_a_push_that_is_repeated_while_the_sum_is_computed(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        aggregation.push(contribution(1, want_result=False))
        assert aggregation.push(contribution(1)) == [Accept(1, KEY, 1)]
        assert aggregation.summed(KEY, 1, "result") == [reply(0), reply(1)]

    def test_a_push_of_the_last_finished_round_is_answered_with_its_result(self) -> None:
        aggregation = pair()
        finish_round(aggregation)
        assert aggregation.push(contribution(0)) == [Accept(0, KEY, 1), reply(0)]
        assert aggregation.push(contribution(0, want_result=False)) == [Accept(0, KEY, 1)]

    def test_a_push_of_a_finished_round_is_not_counted_in_the_open_one(self) -> None:
        aggregation = pair()
        finish_round(aggregation)
        aggregation.push(contribution(0, 2))
        aggregation.push(contribution(1, 1, step=99))
        assert aggregation.missing(KEY) == (1,)
        assert the_sum(aggregation.push(contribution(1, 2))).round == 2

    def test_a_push_of_a_long_finished_round_is_accepted_and_ignored(self) -> None:
        aggregation = pair()
        for round in range(1, 4):
            finish_round(aggregation, round)
        assert aggregation.push(contribution(0, 1)) == [Accept(0, KEY, 1)]
        assert aggregation.push(contribution(0, 2)) == [Accept(0, KEY, 2)]
        assert aggregation.waiting() == []

    def test_a_result_can_be_pulled_again_until_all_contributed_to_the_next_round(self) -> None:
        aggregation = pair()
        finish_round(aggregation)
        aggregation.push(contribution(0, 2))
        assert aggregation.pull(1, KEY, 1) == [reply(1)]
        assert aggregation.pull(1, KEY, 1) == [reply(1)]
        aggregation.push(contribution(1, 2))
        rejected = only_reject(aggregation.pull(1, KEY, 1))
        assert (rejected.participant, rejected.round, rejected.departed) == (1, 1, None)
        assert "result of round 1" in rejected.reason
        assert "worker 1" in rejected.reason

    def test_a_pull_for_a_long_finished_round_does_not_ask_for_a_push_that_would_be_ignored(self) -> None:
        aggregation = pair()
        finish_round(aggregation, 1)
        finish_round(aggregation, 2)
        assert only_reject(aggregation.pull(0, KEY, 1)).round == 1

    @pytest.mark.parametrize("round", [0, 1, 5])
    def test_a_pull_of_an_unknown_key_lacks_the_contribution(self, round: int) -> None:
        assert pair().pull(0, KEY, round) == [Missing(0, KEY, round)]

    def test_a_pull_without_contribution(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        assert aggregation.pull(1, KEY, 1) == [Missing(1, KEY, 1)]
        assert aggregation.pull(0, KEY, 2) == [Missing(0, KEY, 2)]

    def test_a_missing_contribution_is_not_wanted_before_it_is_there(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        aggregation.pull(1, KEY, 1)
        aggregation.push(contribution(1, want_result=False))
        assert aggregation.summed(KEY, 1, "result") == [reply(0)]


class TestRefused:
    """Single messages that cannot be right."""

    @pytest.mark.parametrize("rank", [2, -1, 2**32 - 1])
    def test_a_stranger(self, rank: int) -> None:
        aggregation = pair()
        for actions in (aggregation.push(contribution(rank)), aggregation.pull(rank, KEY, 1)):
            rejected = only_reject(actions)
            assert rejected.participant == rank
            assert f"worker {rank} is not in this job" in rejected.reason
        assert aggregation.waiting() == []

    def test_a_round_beyond_the_open_one(self) -> None:
        aggregation = pair()
        rejected = only_reject(aggregation.push(contribution(0, 2)))
        assert rejected.round == 2
        assert "worker 0 pushes round 2 while round 1 is open" in rejected.reason

    def test_a_round_beyond_the_open_one_does_no_harm_to_it(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        only_reject(aggregation.push(contribution(0, 2)))
        only_reject(aggregation.push(contribution(1, 9)))
        assert the_sum(aggregation.push(contribution(1))).round == 1
        only_reject(aggregation.push(contribution(1, 2)))
        assert len(aggregation.summed(KEY, 1, "result")) == 2

    @pytest.mark.parametrize("round", [0, -1])
    def test_a_round_below_one(self, round: int) -> None:
        assert "counted from 1" in only_reject(pair().push(contribution(0, round))).reason

    def test_a_sum_that_nobody_asked_for(self) -> None:
        aggregation = pair()
        with pytest.raises(LocalProtocolError, match="key 7, round 1"):
            aggregation.summed(KEY, 1, "result")
        aggregation.push(contribution(0))
        with pytest.raises(LocalProtocolError):
            aggregation.summed(KEY, 1, "result")
        aggregation.push(contribution(1))
        with pytest.raises(LocalProtocolError):
            aggregation.summed(KEY, 2, "result")
        aggregation.summed(KEY, 1, "result")
        with pytest.raises(LocalProtocolError):
            aggregation.summed(KEY, 1, "result")

    @pytest.mark.parametrize("ranks", [(), (1,), (0, 2), (1, 0), (0, 0)])
    def test_participants_that_are_no_list_of_ranks(self, ranks: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="listed by rank"):
            Aggregation([Participant(rank, 0, 0, 1, "host", 1, 1) for rank in ranks])


class TestDisagreement:
    """Contributions that contradict one another end the key, and everybody is told both sides."""

    def test_both_sides_are_named_with_their_values(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, operation=AVERAGE))
        actions = aggregation.push(contribution(1, operation=SUM, count=12, step=4, dtype=DType.INT32))
        reason = (
            "workers disagree in round 1: worker 0 pushes AVERAGE of 10 float32 elements at step 3, "
            "worker 1 pushes SUM of 12 int32 elements at step 4; "
            "all workers must make the same calls on a tensor in the same order"
        )
        assert actions == [Reject(0, KEY, 1, reason), Reject(1, KEY, 1, reason)]

    def test_the_lower_rank_is_named_first(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(1, step=4))
        (told, _) = aggregation.push(contribution(0, step=3))
        assert isinstance(told, Reject)
        assert told.reason.index("worker 0 pushes") < told.reason.index("worker 1 pushes")
        assert "worker 0 pushes SUM of 10 float32 elements at step 3, worker 1" in told.reason

    @pytest.mark.parametrize(
        ("change", "shown"),
        [
            ({"dtype": DType.BFLOAT16}, "10 bfloat16 elements"),
            ({"operation": AVERAGE}, "AVERAGE of 10"),
            ({"root": 1}, "at step 3 from root 1"),
            ({"step": 4}, "at step 4"),
            ({"offset": 1000}, "at offset 1000"),
            ({"count": 11}, "of 11 float32"),
        ],
    )
    def test_everything_must_agree(self, change: dict[str, int], shown: str) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        actions = aggregation.push(contribution(1, **change))  # type: ignore[arg-type]
        assert [action.participant for action in actions if isinstance(action, Reject)] == [0, 1]
        for action in actions:
            assert isinstance(action, Reject)
            mine, theirs = action.reason.split("worker 1 pushes")
            assert shown in theirs
            assert shown not in mine
            assert action.departed is None

    def test_broadcasts_from_different_roots(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, operation=BROADCAST, root=0))
        (told, _) = aggregation.push(contribution(1, operation=BROADCAST, root=1))
        assert isinstance(told, Reject)
        assert "worker 0 pushes BROADCAST of 10 float32 elements at step 3 from root 0, worker 1" in told.reason

    def test_who_comes_later_is_told_the_same(self) -> None:
        aggregation = Aggregation(workers(0, 0, 1, 1))
        aggregation.push(contribution(2))
        told, also_told = aggregation.push(contribution(0, step=4))
        assert isinstance(told, Reject)
        assert also_told == Reject(2, KEY, 1, told.reason)
        for rank in (1, 3):
            assert aggregation.push(contribution(rank)) == [Reject(rank, KEY, 1, told.reason)]

    def test_who_asks_again_is_told_again(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        told = aggregation.push(contribution(1, step=4))
        assert aggregation.push(contribution(0)) == [told[0]]
        assert aggregation.pull(0, KEY, 1) == [told[0]]
        assert aggregation.pull(1, KEY, 1) == [told[1]]

    def test_a_pull_is_rejected_even_without_a_contribution(self) -> None:
        aggregation = Aggregation(workers(0, 0, 0))
        aggregation.push(contribution(0))
        aggregation.push(contribution(1, step=4))
        assert only_reject(aggregation.pull(2, KEY, 1)).participant == 2

    def test_the_key_stays_rejected_in_later_rounds(self) -> None:
        aggregation = pair()
        finish_round(aggregation)
        aggregation.push(contribution(0, 2))
        (told, _) = aggregation.push(contribution(1, 2, step=4))
        assert isinstance(told, Reject)
        for round in (2, 3, 4):
            for rank in (0, 1):
                again = Reject(rank, KEY, round, told.reason)
                assert aggregation.push(contribution(rank, round)) == [again]
                assert aggregation.pull(rank, KEY, round) == [again]
        with pytest.raises(LocalProtocolError):
            aggregation.summed(KEY, 2, "result")

    def test_other_keys_go_on(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        aggregation.push(contribution(1, step=4))
        aggregation.push(contribution(0, key=8))
        assert the_sum(aggregation.push(contribution(1, key=8))).key == 8

    def test_the_result_before_can_still_be_had_by_who_has_not_come_yet(self) -> None:
        aggregation = Aggregation(workers(0, 0, 0))
        finish_round(aggregation, size=3)
        aggregation.push(contribution(0, 2))
        aggregation.push(contribution(1, 2, step=4))
        assert aggregation.pull(2, KEY, 1) == [reply(2, contributors=3)]
        assert aggregation.push(contribution(2, 1)) == [Accept(2, KEY, 1), reply(2, contributors=3)]
        only_reject(aggregation.push(contribution(2, 2)))
        assert "no longer kept" in only_reject(aggregation.pull(2, KEY, 1)).reason

    def test_a_broadcast_from_nobody(self) -> None:
        aggregation = pair()
        rejected = only_reject(aggregation.push(contribution(1, payload=None, operation=BROADCAST, root=2)))
        assert rejected.reason == (
            "worker 1 pushes BROADCAST of 10 float32 elements at step 3 from root 2, "
            "but contributions come from workers 0 to 1"
        )
        assert only_reject(aggregation.push(contribution(0, operation=BROADCAST, root=2))).reason == rejected.reason

    def test_the_root_of_a_sum_means_nothing(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0, root=200))
        assert the_sum(aggregation.push(contribution(1, root=200))).round == 1

    def test_a_repeated_push_cannot_contradict_its_first(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        assert aggregation.push(contribution(0, step=4)) == [Accept(0, KEY, 1)]
        assert the_sum(aggregation.push(contribution(1))).round == 1


class TestLeaving:
    """A worker that left in order holds up nobody in silence."""

    REASON = (
        "worker 1 left the job before it contributed to round 1, which therefore cannot complete; "
        "all workers must make the same calls on a tensor in the same order before they shut down"
    )

    def test_a_round_that_lacks_the_leaver_is_rejected(self) -> None:
        aggregation = Aggregation(workers(0, 0, 0))
        aggregation.push(contribution(2))
        aggregation.push(contribution(0))
        assert aggregation.left(1) == [Reject(0, KEY, 1, self.REASON, 1), Reject(2, KEY, 1, self.REASON, 1)]

    def test_later_pushes_too(self) -> None:
        aggregation = Aggregation(workers(0, 0, 0))
        aggregation.push(contribution(0))
        aggregation.left(1)
        assert aggregation.push(contribution(2)) == [Reject(2, KEY, 1, self.REASON, 1)]
        assert aggregation.pull(0, KEY, 1) == [Reject(0, KEY, 1, self.REASON, 1)]
        assert aggregation.push(contribution(0, 2)) == [Reject(0, KEY, 2, self.REASON, 1)]

    def test_a_round_that_begins_after_the_leave(self) -> None:
        aggregation = pair()
        assert aggregation.left(1) == []
        assert aggregation.push(contribution(0)) == [Reject(0, KEY, 1, self.REASON, 1)]
        assert aggregation.push(contribution(0, key=8)) == [Reject(0, 8, 1, self.REASON, 1)]

    def test_a_next_round_that_begins_after_the_leave(self) -> None:
        aggregation = pair()
        finish_round(aggregation)
        assert aggregation.left(0) == []
        rejected = only_reject(aggregation.push(contribution(1, 2)))
        assert rejected.departed == 0
        assert "worker 0 left the job before it contributed to round 2" in rejected.reason

    def test_rounds_that_have_the_contribution_of_the_leaver_go_on(self) -> None:
        aggregation = Aggregation(workers(0, 0, 0))
        aggregation.push(contribution(1))
        aggregation.push(contribution(0))
        assert aggregation.left(1) == []
        assert the_sum(aggregation.push(contribution(2))).sources == ("payload",) * 3
        assert aggregation.summed(KEY, 1, "result") == [reply(0, contributors=3), reply(2, contributors=3)]

    def test_a_sum_under_way_goes_on(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        aggregation.push(contribution(1))
        assert aggregation.left(1) == []
        assert aggregation.summed(KEY, 1, "result") == [reply(0)]
        only_reject(aggregation.push(contribution(0, 2)))

    def test_the_last_result_can_still_be_had(self) -> None:
        aggregation = pair()
        finish_round(aggregation)
        aggregation.left(1)
        assert aggregation.pull(0, KEY, 1) == [reply(0)]

    def test_leaving_twice_is_told_once(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        assert len(aggregation.left(1)) == 1
        assert aggregation.left(1) == []

    def test_several_leave(self) -> None:
        aggregation = Aggregation(workers(0, 0, 0, 0))
        aggregation.push(contribution(0))
        aggregation.push(contribution(3))
        assert aggregation.left(3) == []
        assert [action.participant for action in aggregation.left(2) if isinstance(action, Reject)] == [0, 3]
        assert aggregation.left(1) == []

    def test_a_disagreement_stays_one(self) -> None:
        aggregation = Aggregation(workers(0, 0, 0))
        aggregation.push(contribution(0))
        aggregation.push(contribution(1, step=4))
        assert aggregation.left(2) == []
        assert "disagree" in only_reject(aggregation.push(contribution(0))).reason

    def test_a_late_push_of_the_leaver_is_answered(self) -> None:
        aggregation = pair()
        aggregation.left(1)
        assert only_reject(aggregation.push(contribution(1))).departed == 1

    @pytest.mark.parametrize("rank", [-1, 2])
    def test_nobody_cannot_leave(self, rank: int) -> None:
        with pytest.raises(ValueError, match=f"worker {rank} cannot leave"):
            pair().left(rank)


class TestWaiting:
    """What a stall message can say."""

    def test_nothing_waits_at_first(self) -> None:
        assert pair().waiting() == []
        assert pair().missing(KEY) == ()

    def test_who_is_here_and_who_is_missing(self) -> None:
        aggregation = Aggregation(workers(0, 0, 1, 1))
        aggregation.push(contribution(2))
        aggregation.push(contribution(0))
        aggregation.push(contribution(1, key=8))
        assert aggregation.waiting() == [OpenRound(KEY, 1, (0, 2), (1, 3)), OpenRound(8, 1, (1,), (0, 2, 3))]
        assert aggregation.missing(KEY) == (1, 3)

    def test_a_round_that_is_summed_finished_or_rejected_waits_for_nobody(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        aggregation.push(contribution(1))
        assert aggregation.waiting() == []
        assert aggregation.missing(KEY) == ()
        aggregation.summed(KEY, 1, "result")
        assert aggregation.waiting() == []
        aggregation.push(contribution(0, 2))
        assert aggregation.waiting() == [OpenRound(KEY, 2, (0,), (1,))]
        aggregation.push(contribution(1, 2, step=4))
        assert aggregation.waiting() == []
        assert aggregation.missing(KEY) == ()


class TestMemory:
    """What is no longer needed is let go of."""

    def test_payloads_are_forgotten_when_the_sum_is_handed_out(self) -> None:
        aggregation = pair()
        payload = Payload()
        seen = weakref.ref(payload)
        aggregation.push(contribution(0, payload=payload))
        actions = aggregation.push(contribution(1))
        del payload
        assert seen() is not None
        del actions
        gc.collect()
        assert seen() is None

    def test_a_repeated_payload_is_not_kept(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        payload = Payload()
        seen = weakref.ref(payload)
        aggregation.push(contribution(0, payload=payload))
        del payload
        gc.collect()
        assert seen() is None

    def test_payloads_of_a_rejected_round_are_forgotten(self) -> None:
        aggregation = Aggregation(workers(0, 0, 0))
        payloads = [Payload(), Payload(), Payload()]
        seen = [weakref.ref(payload) for payload in payloads]
        for rank, payload in enumerate(payloads):
            aggregation.push(contribution(rank, payload=payload, step=rank))
        del payloads, payload
        gc.collect()
        assert [each() for each in seen] == [None] * 3

    def test_a_result_is_kept_until_all_have_contributed_to_the_next_round(self) -> None:
        aggregation = pair()
        aggregation.push(contribution(0))
        aggregation.push(contribution(1))
        result = Payload()
        seen = weakref.ref(result)
        aggregation.summed(KEY, 1, result)
        del result
        aggregation.push(contribution(0, 2))
        gc.collect()
        assert seen() is not None
        aggregation.push(contribution(1, 2))
        gc.collect()
        assert seen() is None

    def test_a_result_is_kept_in_a_rejected_key_until_all_present_were_told(self) -> None:
        aggregation = Aggregation(workers(0, 0, 0, 0))
        for rank in range(4):
            aggregation.push(contribution(rank))
        result = Payload()
        seen = weakref.ref(result)
        aggregation.summed(KEY, 1, result)
        del result
        aggregation.push(contribution(0, 2))
        aggregation.left(3)
        aggregation.push(contribution(1, 2))
        gc.collect()
        assert seen() is not None
        aggregation.push(contribution(2, 2))
        gc.collect()
        assert seen() is None

    def test_messages_that_name_strange_keys_and_rounds_leave_nothing(self) -> None:
        aggregation = pair()
        for key in range(100):
            aggregation.push(contribution(0, 2, key=key))
            aggregation.push(contribution(0, 0, key=key))
            aggregation.push(contribution(5, 1, key=key))
            aggregation.pull(1, key, 1)
        assert len(aggregation._keys) == 0

    def test_a_thousand_rounds_take_no_more_than_one(self) -> None:
        aggregation = pair()
        for round in range(1, 1001):
            finish_round(aggregation, round)
        assert len(aggregation._keys) == 1


class TestPartials:
    """Contributions that stand for a whole node: ranks 0 and 1 are on node 0, 2 and 3 on node 1, 4 alone on node 2."""

    @staticmethod
    def three_nodes() -> Aggregation:
        return Aggregation(workers(0, 0, 1, 1, 2))

    @staticmethod
    def partial(participant: int, contributors: int, payload: object | None = "sum", **fields: Any) -> Contribution:
        return msgspec.structs.replace(contribution(participant, payload=payload, **fields), partial=1 + contributors)

    def test_it_counts_for_all_of_the_node_and_its_sender_alone_is_answered(self) -> None:
        aggregation = self.three_nodes()
        assert aggregation.push(self.partial(1, 2, "a")) == [Accept(1, KEY, 1)]
        assert aggregation.missing(KEY) == (2, 3, 4)
        aggregation.push(contribution(4, payload="e"))
        aggregation.push(contribution(2, payload="c"))
        actions = aggregation.push(contribution(3, payload="d"))
        assert actions[1:] == [Sum(KEY, 1, DType.FLOAT32, SUM, 10, ("a", "c", "d", "e"), (1, 2, 1), 1)]
        replies = [reply(rank, contributors=5) for rank in (1, 2, 3, 4)]
        assert aggregation.summed(KEY, 1, "result") == replies

    def test_an_average_is_divided_by_the_number_of_workers(self) -> None:
        aggregation = self.three_nodes()
        for rank in (0, 2, 4):
            actions = aggregation.push(self.partial(rank, 1, operation=AVERAGE))
        assert the_sum(actions).divisor == 5

    def test_sums_of_several_16_bit_floats_are_wide(self) -> None:
        aggregation = self.three_nodes()
        aggregation.push(self.partial(0, 2, "a", dtype=DType.FLOAT16))
        aggregation.push(self.partial(2, 1, "c", dtype=DType.FLOAT16))
        actions = aggregation.push(contribution(4, payload="e", dtype=DType.FLOAT16))
        assert the_sum(actions).wide == (0,)

    def test_a_wide_sum_that_is_alone_must_be_rounded(self) -> None:
        aggregation = self.three_nodes()
        aggregation.push(self.partial(0, 2, "a", dtype=DType.BFLOAT16))
        aggregation.push(self.partial(3, 0, None, dtype=DType.BFLOAT16))
        actions = aggregation.push(contribution(4, payload=None, dtype=DType.BFLOAT16))
        found = the_sum(actions)
        assert (found.sources, found.groups, found.divisor, found.wide) == (("a",), (1,), 1, (0,))

    def test_a_broadcast_takes_the_partial_of_the_roots_node(self) -> None:
        aggregation = self.three_nodes()
        aggregation.push(self.partial(0, 0, None, operation=BROADCAST, root=3))
        aggregation.push(self.partial(2, 1, "root's", operation=BROADCAST, root=3))
        actions = aggregation.push(contribution(4, payload=None, operation=BROADCAST, root=3))
        replies = [reply(rank, payload="root's", contributors=1, operation=BROADCAST, root=3) for rank in (0, 2, 4)]
        assert actions == [Accept(4, KEY, 1), *replies]

    def test_all_are_absent(self) -> None:
        aggregation = self.three_nodes()
        aggregation.push(self.partial(0, 0, None))
        aggregation.push(self.partial(2, 0, None))
        actions = aggregation.push(contribution(4, payload=None))
        assert actions[1:] == [reply(rank, payload=None, contributors=0) for rank in (0, 2, 4)]

    def test_it_counts_once(self) -> None:
        aggregation = self.three_nodes()
        for _ in range(2):
            assert aggregation.push(self.partial(0, 2)) == [Accept(0, KEY, 1)]
        assert aggregation.pull(0, KEY, 1) == [Accept(0, KEY, 1)]
        assert aggregation.missing(KEY) == (2, 3, 4)

    @pytest.mark.parametrize("first_alone", [True, False])
    def test_a_worker_that_pushes_by_itself_too_is_a_disagreement(self, first_alone: bool) -> None:
        aggregation = self.three_nodes()
        aggregation.push(contribution(4))
        contributions = [contribution(1), self.partial(0, 2)]
        if not first_alone:
            contributions.reverse()
        aggregation.push(contributions[0])
        rejects = aggregation.push(contributions[1])
        assert [each.participant for each in rejects if isinstance(each, Reject)] == [0, 1, 4]
        assert "BYTEPS_LOCAL_REDUCE and BYTEPS_TRANSPORT must be equal in all processes of a machine" in str(rejects)

    def test_two_of_a_node_that_both_push_its_sum_disagree(self) -> None:
        aggregation = self.three_nodes()
        aggregation.push(self.partial(0, 2))
        rejects = aggregation.push(self.partial(1, 2))
        assert [each.participant for each in rejects if isinstance(each, Reject)] == [0, 1]
        assert "worker 0 has pushed the sum of all workers of its machine, of whom worker 1 pushes" in str(rejects)

    def test_it_must_agree_as_any_other(self) -> None:
        aggregation = self.three_nodes()
        aggregation.push(self.partial(0, 2))
        rejects = aggregation.push(contribution(2, step=4))
        assert [each.participant for each in rejects if isinstance(each, Reject)] == [0, 2]

    def test_one_of_the_node_may_leave_when_it_is_here(self) -> None:
        aggregation = self.three_nodes()
        aggregation.push(self.partial(0, 2))
        assert aggregation.left(1) == []
        (told,) = aggregation.left(3)
        assert isinstance(told, Reject)
        assert (told.participant, told.departed) == (0, 3)

    def test_the_next_round_may_come_in_another_way(self) -> None:
        aggregation = self.three_nodes()
        for rank in (0, 2, 4):
            aggregation.push(self.partial(rank, 1))
        aggregation.summed(KEY, 1, "result")
        for rank in range(5):
            actions = aggregation.push(contribution(rank, 2))
        assert the_sum(actions).groups == (2, 2, 1)
