"""Queues with much and little to do keep in step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from byteps_py.core.pace import Pace
from byteps_py.core.pipeline import Pipeline, Start
from byteps_py.core.window import Window
from byteps_py.types import Partition, make_key


def loaded(*work: int) -> Pace:
    pace = Pace(len(work))
    for queue, nbytes in enumerate(work):
        pace.add(queue, nbytes)
    pace.settle()
    return pace


class TestPace:
    def test_equal_work_needs_no_pace(self) -> None:
        assert not loaded(100, 110, 0).matters
        assert loaded(100, 300).matters

    def test_who_is_ahead_waits_for_who_is_behind(self) -> None:
        pace = loaded(100, 300)
        others = [[1], [1]]
        pace.take(0, 20)
        assert not pace.must_wait(0, 10, others)
        pace.take(0, 10)
        assert pace.must_wait(0, 10, others)
        pace.take(1, 30)
        assert not pace.must_wait(0, 10, others)
        assert not pace.must_wait(1, 10, others)

    def test_an_empty_queue_holds_nobody_up(self) -> None:
        pace = loaded(100, 300)
        pace.take(0, 90)
        assert not pace.must_wait(0, 10, [[1], []])

    def test_nothing_is_remembered_when_all_is_done(self) -> None:
        pace = loaded(100, 300)
        pace.take(0, 100)
        pace.take(1, 300)
        assert not pace.matters
        pace.add(0, 100)
        pace.settle()
        assert not pace.matters


def partitions(tensor: int, counts: list[int]) -> tuple[Partition, ...]:
    servers = [server for server, count in enumerate(counts) for _ in range(count)]
    return tuple(Partition(make_key(tensor, index), index, 1, server) for index, server in enumerate(servers))


def pushed(line: Pipeline, starts: list[Start]) -> list[int]:
    """Accept everything, first come, first served; the servers in the order in which they were pushed to."""
    order, queue = [], list(starts)
    while queue:
        start = queue.pop(0)
        order.append(start.server)
        queue += line.accepted(start.key, start.round)
    return order


def test_servers_are_served_in_proportion() -> None:
    line = Pipeline(3, Window(1), 0)
    order = pushed(line, line.submit(1, 1, partitions(1, [30, 30, 10]), 1, 0, absent=False))
    assert len(order) == 70
    for end in range(14, 70, 14):
        assert abs(order[:end].count(2) - end / 7) <= 3


@given(st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3).filter(any), min_size=1, max_size=5), st.data())
def test_everything_is_pushed_whatever_the_work(work: list[list[int]], data: st.DataObject) -> None:
    """However uneven it is, in whichever order servers accept, and if operations fail meanwhile."""
    line = Pipeline(3, Window(data.draw(st.integers(0, 4))), data.draw(st.integers(0, 2)))
    flying: list[Start] = []
    for number, counts in enumerate(work, 1):
        flying += line.submit(number, number, partitions(number, counts), 1, data.draw(st.integers(0, 2)), absent=False)
    failed = data.draw(st.integers(0, len(work)))
    while flying:
        start = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
        if start.operation_id == failed:
            flying += line.fail_operation(failed)
        else:
            flying += line.finished(start.key, start.round)[1]
    assert line.idle
    assert line.in_flight == (0, 0, 0)
