"""A worker's partitions: the table in ``core/pipeline.py``, the order of pushes, windows, failures."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from byteps_py.core.pipeline import Completed, Failed, Outstanding, Pipeline, Start
from byteps_py.core.window import Window
from byteps_py.types import Partition, make_key

WINDOW = 400
"""Room for 100 elements of 4 bytes."""


def pipeline(num_servers: int = 1, window_bytes: int = WINDOW, first_server: int = 0) -> Pipeline:
    return Pipeline(num_servers, Window(window_bytes), first_server)


def partitions(tensor_id: int, *counts: int, servers: Sequence[int] = (0,)) -> tuple[Partition, ...]:
    """One partition per count, on the given servers in turn."""
    return tuple(
        Partition(make_key(tensor_id, index), sum(counts[:index]), count, servers[index % len(servers)])
        for index, count in enumerate(counts)
    )


def submit(
    line: Pipeline,
    operation_id: int,
    parts: Sequence[Partition],
    *,
    tensor_id: int | None = None,
    priority: int = 0,
    absent: bool = False,
) -> list[Start]:
    """Submit on the tensor that ``parts`` belong to, with 4 bytes per element."""
    tensor = parts[0].key >> 32 if tensor_id is None else tensor_id
    return line.submit(operation_id, tensor, parts, 4, priority, absent)


def pushed(starts: Sequence[Start]) -> list[tuple[int, int]]:
    """Operation and partition of each Start."""
    return [(start.operation_id, start.partition_index) for start in starts]


class TestOneOperation:
    def test_a_partition_is_started_at_once(self) -> None:
        line = pipeline()
        assert submit(line, 17, partitions(3, 10)) == [Start(17, make_key(3, 0), 1, 0, 0)]

    def test_it_is_complete_when_its_last_partition_is(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(3, 10, 10, 10))
        assert line.finished(make_key(3, 1), 1) == (None, [])
        assert line.finished(make_key(3, 0), 1) == (None, [])
        assert line.finished(make_key(3, 2), 1) == (Completed(1), [])
        assert line.idle

    def test_an_acceptance_is_not_a_result(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(3, 10))
        assert line.accepted(make_key(3, 0), 1) == []
        assert not line.idle
        assert line.finished(make_key(3, 0), 1) == (Completed(1), [])

    def test_a_result_without_an_acceptance_is_enough(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(3, 10))
        assert line.finished(make_key(3, 0), 1) == (Completed(1), [])
        assert line.accepted(make_key(3, 0), 1) == []
        assert line.in_flight == (0,)

    def test_a_tensor_without_elements(self) -> None:
        line = pipeline(window_bytes=0)
        assert pushed(submit(line, 1, partitions(3, 0))) == [(1, 0)]
        assert line.in_flight == (0,)
        assert line.finished(make_key(3, 0), 1) == (Completed(1), [])

    def test_an_id_may_be_used_again_when_its_operation_has_ended(self) -> None:
        line = pipeline()
        for round in (1, 2):
            assert submit(line, 1, partitions(3, 10))[0].round == round
            line.finished(make_key(3, 0), round)


class TestRounds:
    """One operation per tensor at a time."""

    def test_the_next_operation_waits_for_the_one_before(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(3, 10))
        assert submit(line, 2, partitions(3, 10)) == []
        assert submit(line, 3, partitions(3, 10)) == []
        line.accepted(make_key(3, 0), 1)
        assert line.finished(make_key(3, 0), 1) == (Completed(1), [Start(2, make_key(3, 0), 2, 0, 0)])
        assert line.finished(make_key(3, 0), 2) == (Completed(2), [Start(3, make_key(3, 0), 3, 0, 0)])
        assert line.finished(make_key(3, 0), 3) == (Completed(3), [])

    def test_it_waits_for_all_partitions(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(3, 10, 10))
        submit(line, 2, partitions(3, 10, 10))
        assert line.finished(make_key(3, 0), 1) == (None, [])
        completed, starts = line.finished(make_key(3, 1), 1)
        assert completed == Completed(1)
        assert pushed(starts) == [(2, 0), (2, 1)]

    def test_first_come_first_served_whatever_the_priority(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(3, 10))
        submit(line, 2, partitions(3, 10), priority=0)
        submit(line, 3, partitions(3, 10), priority=9)
        _, starts = line.finished(make_key(3, 0), 1)
        assert pushed(starts) == [(2, 0)]

    def test_rounds_are_counted_per_tensor(self) -> None:
        line = pipeline()
        for round in (1, 2, 3):
            assert submit(line, round, partitions(3, 10))[0].round == round
            line.finished(make_key(3, 0), round)
        assert submit(line, 9, partitions(4, 10))[0].round == 1

    def test_what_waited_keeps_its_place_in_the_order_of_submission(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(3, 100))
        line.accepted(make_key(3, 0), 1)
        submit(line, 2, partitions(4, 100))
        submit(line, 3, partitions(3, 100))
        submit(line, 4, partitions(5, 100))
        assert line.finished(make_key(3, 0), 1) == (Completed(1), [])
        assert pushed(line.accepted(make_key(4, 0), 1)) == [(3, 0)]
        assert pushed(line.accepted(make_key(3, 0), 2)) == [(4, 0)]


class TestOrder:
    """Higher priority first, then in the order of submission, then in the order of partitions."""

    def drain(self, line: Pipeline, starts: Sequence[Start]) -> list[tuple[int, int]]:
        """Accept everything as it comes; the order in which it was pushed."""
        order: list[tuple[int, int]] = []
        todo = list(starts)
        while todo:
            start = todo.pop(0)
            order.append((start.operation_id, start.partition_index))
            todo += line.accepted(start.key, start.round)
        return order

    def test_order_of_submission(self) -> None:
        line = pipeline()
        first = submit(line, 1, partitions(1, 100))
        for operation in (5, 2, 9):
            assert submit(line, operation, partitions(operation, 100, 100)) == []
        assert self.drain(line, first) == [(1, 0), (5, 0), (5, 1), (2, 0), (2, 1), (9, 0), (9, 1)]

    def test_priority(self) -> None:
        line = pipeline()
        first = submit(line, 1, partitions(1, 100))
        for operation, priority in ((2, -5), (3, 7), (4, 0), (5, 7)):
            submit(line, operation, partitions(operation, 100), priority=priority)
        assert self.drain(line, first) == [(1, 0), (3, 0), (5, 0), (4, 0), (2, 0)]

    def test_an_urgent_tensor_overtakes_the_rest_of_another(self) -> None:
        line = pipeline()
        first = submit(line, 1, partitions(1, 100, 100, 100))
        submit(line, 2, partitions(2, 100), priority=1)
        assert self.drain(line, first) == [(1, 0), (2, 0), (1, 1), (1, 2)]

    def test_small_ones_do_not_overtake_what_does_not_fit(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 60))
        assert submit(line, 2, partitions(2, 60)) == []
        assert submit(line, 3, partitions(3, 1)) == []
        assert pushed(line.accepted(make_key(1, 0), 1)) == [(2, 0), (3, 0)]

    @pytest.mark.parametrize("first_server", [0, 1, 2])
    def test_servers_in_turn_from_the_first_one(self, first_server: int) -> None:
        line = pipeline(3, first_server=first_server)
        starts = submit(line, 1, partitions(1, *[10] * 6, servers=(0, 1, 2)))
        expected = [(first_server + turn) % 3 for turn in range(6)]
        assert [start.server for start in starts] == expected

    def test_a_full_server_does_not_hold_up_the_others(self) -> None:
        line = pipeline(2)
        submit(line, 1, partitions(1, 100, servers=(0,)))
        starts = submit(line, 2, partitions(2, 50, 50, 50, 50, servers=(0, 1)))
        assert [(start.server, start.partition_index) for start in starts] == [(1, 1), (1, 3)]


class TestWindow:
    """Bytes that are pushed and not accepted."""

    def test_as_much_as_fits(self) -> None:
        line = pipeline()
        assert pushed(submit(line, 1, partitions(1, 50, 50, 1))) == [(1, 0), (1, 1)]
        assert line.in_flight == (400,)
        assert pushed(line.accepted(make_key(1, 0), 1)) == [(1, 2)]
        assert line.in_flight == (204,)

    def test_it_opens_with_the_acceptance_and_no_further_with_the_result(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 100, 100, 100))
        assert pushed(line.accepted(make_key(1, 0), 1)) == [(1, 1)]
        assert line.finished(make_key(1, 0), 1) == (None, [])
        assert line.in_flight == (400,)

    def test_it_opens_with_a_result_that_comes_first(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 100, 100))
        completed, starts = line.finished(make_key(1, 0), 1)
        assert completed is None
        assert pushed(starts) == [(1, 1)]

    def test_one_partition_is_never_too_large(self) -> None:
        line = pipeline()
        assert pushed(submit(line, 1, partitions(1, 1000, 1))) == [(1, 0)]
        assert line.in_flight == (4000,)
        assert pushed(line.accepted(make_key(1, 0), 1)) == [(1, 1)]

    def test_a_partition_that_is_too_large_waits_until_nothing_is_on_the_way(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 1, 1, 1000))
        assert line.accepted(make_key(1, 0), 1) == []
        assert pushed(line.accepted(make_key(1, 1), 1)) == [(1, 2)]

    def test_each_server_has_its_own(self) -> None:
        line = pipeline(2)
        starts = submit(line, 1, partitions(1, 100, 100, 100, 100, servers=(0, 1)))
        assert [start.server for start in starts] == [0, 1]
        assert [start.server for start in line.accepted(make_key(1, 1), 1)] == [1]
        assert line.in_flight == (400, 400)

    def test_the_absent_take_nothing(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 1000))
        assert len(submit(line, 2, partitions(2, 1000, 1000), absent=True)) == 2
        assert line.in_flight == (4000,)

    def test_the_absent_do_not_overtake_either(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 100, 100))
        assert submit(line, 2, partitions(2, 10), absent=True) == []

    def test_absent_partitions_on_the_way_do_not_count_as_something(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 10), absent=True)
        assert pushed(submit(line, 2, partitions(2, 1000))) == [(2, 0)]

    def test_a_window_of_nothing_lets_one_at_a_time_through(self) -> None:
        line = pipeline(window_bytes=0)
        assert pushed(submit(line, 1, partitions(1, 10, 10))) == [(1, 0)]
        assert pushed(line.accepted(make_key(1, 0), 1)) == [(1, 1)]


class TestAgain:
    """Messages that come twice, late, or out of nowhere change nothing."""

    def test_an_acceptance_that_comes_twice(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 100, 100, 100))
        assert len(line.accepted(make_key(1, 0), 1)) == 1
        assert line.accepted(make_key(1, 0), 1) == []
        assert line.in_flight == (400,)

    def test_a_result_that_comes_twice(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 100, 100, 100))
        assert len(line.finished(make_key(1, 0), 1)[1]) == 1
        assert line.finished(make_key(1, 0), 1) == (None, [])
        assert line.in_flight == (400,)

    def test_messages_of_an_older_round(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 10))
        submit(line, 2, partitions(1, 10))
        line.finished(make_key(1, 0), 1)
        assert line.accepted(make_key(1, 0), 1) == []
        assert line.finished(make_key(1, 0), 1) == (None, [])
        assert line.failed(make_key(1, 0), 1) == (None, [])
        assert line.find(make_key(1, 0), 1) is None
        assert line.in_flight == (40,)

    def test_messages_of_a_round_to_come_and_of_nothing(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 100, 100))
        for key, round in ((make_key(1, 0), 2), (make_key(1, 1), 1), (make_key(9, 9), 1)):
            assert line.accepted(key, round) == []
            assert line.finished(key, round) == (None, [])
            assert line.failed(key, round) == (None, [])
            assert line.find(key, round) is None
        assert line.in_flight == (400,)

    def test_what_is_to_be_pushed_again(self) -> None:
        line = pipeline()
        (start,) = submit(line, 1, partitions(1, 10))
        assert line.find(start.key, 1) == start
        line.accepted(start.key, 1)
        assert line.find(start.key, 1) == start
        assert line.in_flight == (0,)
        line.finished(start.key, 1)
        assert line.find(start.key, 1) is None


class TestFailure:
    def test_a_rejected_operation_is_told_once(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 10, 10))
        assert line.failed(make_key(1, 0), 1) == (Failed(1), [])
        assert line.failed(make_key(1, 1), 1) == (None, [])
        assert line.failed(make_key(1, 0), 1) == (None, [])
        assert line.idle

    def test_its_part_of_the_windows_is_free(self) -> None:
        line = pipeline(2)
        submit(line, 1, partitions(1, 50, 100, 50, servers=(0, 1)))
        submit(line, 2, partitions(2, 100, 100, servers=(0, 1)))
        line.accepted(make_key(1, 0), 1)
        assert line.in_flight == (200, 400)
        failed, starts = line.failed(make_key(1, 1), 1)
        assert failed == Failed(1)
        assert pushed(starts) == [(2, 0), (2, 1)]
        assert line.in_flight == (400, 400)

    def test_late_messages_for_it_change_nothing(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 50, 50))
        line.failed(make_key(1, 0), 1)
        submit(line, 2, partitions(2, 50, 50))
        for index in (0, 1):
            assert line.accepted(make_key(1, index), 1) == []
            assert line.finished(make_key(1, index), 1) == (None, [])
        assert line.in_flight == (400,)

    def test_its_unsent_partitions_are_dropped(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 100, 100, 100))
        submit(line, 2, partitions(2, 100, 100))
        failed, starts = line.failed(make_key(1, 0), 1)
        assert failed == Failed(1)
        assert pushed(starts) == [(2, 0)]
        assert pushed(line.accepted(make_key(2, 0), 1)) == [(2, 1)]
        assert line.accepted(make_key(2, 1), 1) == []

    def test_the_order_of_the_others_is_kept(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 100))
        for operation in range(2, 12):
            submit(line, operation, partitions(operation, 100), priority=operation % 3)
        assert line.fail_operation(5) == []
        assert line.fail_operation(2) == []
        order = []
        todo = line.accepted(make_key(1, 0), 1)
        while todo:
            order.append(todo[0].operation_id)
            todo = line.accepted(todo[0].key, todo[0].round)
        assert order == [8, 11, 4, 7, 10, 3, 6, 9]

    def test_the_next_operation_on_the_tensor_is_pushed_in_the_next_round(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 10))
        submit(line, 2, partitions(1, 10))
        assert line.failed(make_key(1, 0), 1) == (Failed(1), [Start(2, make_key(1, 0), 2, 0, 0)])
        assert line.failed(make_key(1, 0), 2) == (Failed(2), [])
        assert submit(line, 3, partitions(1, 10))[0].round == 3

    def test_some_partitions_were_finished(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 50, 50))
        line.finished(make_key(1, 0), 1)
        assert line.failed(make_key(1, 1), 1) == (Failed(1), [])
        assert line.in_flight == (0,)

    def test_an_operation_that_waits_behind_another(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 10))
        submit(line, 2, partitions(1, 10))
        submit(line, 3, partitions(1, 10))
        assert line.fail_operation(2) == []
        assert line.find(make_key(1, 0), 1) is not None
        assert line.finished(make_key(1, 0), 1) == (Completed(1), [Start(3, make_key(1, 0), 2, 0, 0)])

    def test_an_operation_that_is_not_outstanding(self) -> None:
        line = pipeline()
        assert line.fail_operation(1) == []
        submit(line, 1, partitions(1, 10))
        line.finished(make_key(1, 0), 1)
        assert line.fail_operation(1) == []


class TestProgress:
    """What stall messages and shutdown can see."""

    def test_nothing_at_first(self) -> None:
        line = pipeline(3)
        assert line.idle
        assert line.in_flight == (0, 0, 0)
        assert line.unaccepted == 0
        assert line.outstanding() == []

    def test_every_state_is_shown(self) -> None:
        line = pipeline()
        parts = partitions(1, 50, 50, 50, 100)
        submit(line, 1, parts)
        submit(line, 2, parts)
        submit(line, 3, partitions(2, 7))
        line.finished(parts[0].key, 1)
        line.accepted(parts[1].key, 1)
        assert line.outstanding() == [
            Outstanding(1, 1, 1, unsent=1, unaccepted=(parts[2],), accepted=(parts[1],), finished=1),
            Outstanding(2, 1, 0, unsent=4, unaccepted=(), accepted=(), finished=0),
            Outstanding(3, 2, 1, unsent=1, unaccepted=(), accepted=(), finished=0),
        ]
        assert line.unaccepted == 1 + 1 + 4 + 1
        assert not line.idle

    def test_failure_ends_it(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 100, 100))
        line.fail_operation(1)
        assert (line.idle, line.unaccepted, line.outstanding()) == (True, 0, [])


class TestArguments:
    @pytest.mark.parametrize("arguments", [(0, 1, 0), (1, -1, 0), (2, 1, 2), (2, 1, -1)])
    def test_out_of_range(self, arguments: tuple[int, int, int]) -> None:
        with pytest.raises(ValueError, match="a pipeline needs at least one server"):
            pipeline(*arguments)

    def test_an_id_that_is_in_use(self) -> None:
        line = pipeline()
        submit(line, 1, partitions(1, 10))
        with pytest.raises(ValueError, match="operation 1 is already under way"):
            submit(line, 1, partitions(2, 10))

    def test_no_partition(self) -> None:
        with pytest.raises(ValueError, match="tensor 4 has no partition"):
            submit(pipeline(), 1, (), tensor_id=4)

    @pytest.mark.parametrize("server", [1, -1])
    def test_no_such_server(self, server: int) -> None:
        line = pipeline()
        with pytest.raises(ValueError, match="names a server"):
            submit(line, 1, partitions(1, 10, servers=(server,)))
        assert line.idle


@pytest.mark.parametrize("seed", range(20))
def test_nothing_piles_up(seed: int) -> None:
    """After many operations that complete or fail in any order, all books are empty."""
    chance = random.Random(seed)
    line = pipeline(3)
    sent: list[Start] = []
    for operation in range(300):
        tensor = chance.randrange(5)
        counts = [20 + 10 * tensor] * (tensor + 1)
        parts = partitions(tensor, *counts, servers=(0, 1, 2))
        sent += submit(line, operation, parts, priority=chance.randrange(3), absent=chance.random() < 0.1)
        for _ in range(chance.randrange(8)):
            sent += act(line, chance, sent)
    for start in sent:  # grows on the way
        sent += line.finished(start.key, start.round)[1]
    assert line.idle
    assert line.in_flight == (0, 0, 0)
    assert line.unaccepted == 0
    assert not line._requests
    assert not any(line._queues)


def act(line: Pipeline, chance: random.Random, sent: list[Start]) -> list[Start]:
    """One message of a server about something that was pushed at some time."""
    start = chance.choice(sent[-30:])
    if chance.random() < 0.4:
        return line.accepted(start.key, start.round)
    if chance.random() < 0.9:
        return line.finished(start.key, start.round)[1]
    return line.failed(start.key, start.round)[1]


def test_the_partitions_of_an_operation_without_a_result() -> None:
    made = pipeline(window_bytes=8)
    first, second = partitions(1, 2, 2, 2), partitions(2, 2)
    made.submit(1, 1, first, 4, 0, False)
    made.submit(2, 1, first, 4, 0, False)
    made.submit(3, 2, second, 4, 0, False)
    assert made.unfinished(1) == list(first)
    assert made.unfinished(2) == list(first)
    made.finished(first[0].key, 1)
    assert made.unfinished(1) == list(first[1:])
    made.finished(first[1].key, 1)
    assert made.unfinished(1) == [first[2]]
    assert made.unfinished(3) == list(second)
