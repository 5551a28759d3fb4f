"""Queues with much and little to do keep in step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from byteps_py.core.pace import Step, steps
from byteps_py.core.pipeline import Pipeline, Start
from byteps_py.core.window import Window
from byteps_py.types import Partition, make_key


def partitions(tensor: int, counts: list[int]) -> tuple[Partition, ...]:
    servers = [server for server, count in enumerate(counts) for _ in range(count)]
    return tuple(Partition(make_key(tensor, index), index, 1, server) for index, server in enumerate(servers))


class TestSteps:
    def test_where_servers_have_as_much_as_each_other(self) -> None:
        assert steps(partitions(1, [4, 5, 0])) is None
        assert steps(partitions(1, [3])) is None

    def test_where_they_do_not(self) -> None:
        assert steps(partitions(1, [1, 4])) == [
            Step(0.0, -2.0),
            Step(0.0, -0.5),
            Step(0.25, -0.25),
            Step(0.5, 0.0),
            Step(0.75, 0.25),
        ]


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


def test_an_operation_waits_for_no_other() -> None:
    """Nor does a higher priority: a server that is idle gets what is for it."""
    line = Pipeline(2, Window(1), 0)
    starts = line.submit(1, 1, partitions(1, [1, 9]), 1, 0, absent=False)
    assert [each.server for each in starts] == [0, 1]
    line.accepted(starts[0].key, 1)
    (urgent,) = line.submit(2, 2, partitions(2, [1]), 1, 5, absent=False)
    assert (urgent.operation_id, urgent.server) == (2, 0)


def test_what_has_no_bytes_never_waits() -> None:
    line = Pipeline(2, Window(1), 0)
    line.submit(1, 1, partitions(1, [1, 4]), 1, 0, absent=False)
    assert {each.operation_id for each in line.submit(2, 2, partitions(2, [3, 1]), 1, 9, absent=True)} == {2}


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 12), min_size=3, max_size=3).filter(any), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_acceptances_alone_push_everything(work: list[tuple[list[int], bool]], data: st.DataObject) -> None:
    """No server waits for a round to complete, or two workers with opposite orders would wait for each other."""
    line = Pipeline(3, Window(data.draw(st.integers(0, 4))), 0)
    flying: list[Start] = []
    for number, (counts, absent) in enumerate(work, 1):
        flying += line.submit(
            number, number, partitions(number, counts), 1, data.draw(st.integers(0, 2)), absent=absent
        )
    while flying:
        start = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
        flying += line.accepted(start.key, start.round)
    assert line.unaccepted == 0
