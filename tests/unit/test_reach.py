"""When a silent server is tried, and when it is given up: without a clock."""

from __future__ import annotations

import pytest

from byteps_py.roles.reach import Obstacle, Reach


class Endpoint:
    """Says what is in the way, and counts how often it was asked."""

    def __init__(self) -> None:
        self.obstacles: dict[bytes, str] = {}
        self.tried: list[bytes] = []

    def obstacle(self, peer: bytes) -> str:
        self.tried.append(peer)
        return self.obstacles.get(peer, "")


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def reach(endpoint: Endpoint) -> Reach:
    """Two servers; silence counts after 30 s, and 5 s more for the scheduler."""
    return Reach(endpoint, [b"server-0", b"server-1"], 30.0)  # type: ignore[arg-type]


def test_nobody_is_tried_who_was_not_asked_or_has_answered(reach: Reach, endpoint: Endpoint) -> None:
    assert reach.check(1000.0) is None
    reach.asked(0, 1000.0)
    reach.heard(0)
    assert reach.check(2000.0) is None
    assert endpoint.tried == []


def test_the_scheduler_has_the_first_word(reach: Reach, endpoint: Endpoint) -> None:
    endpoint.obstacles = {b"server-1": "refused"}
    reach.asked(1, 100.0)
    assert reach.check(134.9) is None
    assert endpoint.tried == []
    assert reach.check(135.0) == Obstacle(1, 35.0, "refused")


def test_the_first_question_counts_and_not_the_last(reach: Reach, endpoint: Endpoint) -> None:
    endpoint.obstacles = {b"server-0": "silence"}
    for now in range(100, 135):
        reach.asked(0, float(now))
        assert reach.check(float(now)) is None
    assert reach.check(135.0) == Obstacle(0, 35.0, "silence")


def test_a_server_that_can_be_reached_is_looked_at_again(reach: Reach, endpoint: Endpoint) -> None:
    reach.asked(0, 0.0)
    for now in range(35, 60):
        assert reach.check(float(now)) is None
    assert endpoint.tried == [b"server-0"] * 3
    endpoint.obstacles = {b"server-0": "silence"}
    assert reach.check(64.0) is None
    assert reach.check(65.0) == Obstacle(0, 65.0, "silence")


def test_after_an_answer_the_time_begins_anew(reach: Reach, endpoint: Endpoint) -> None:
    endpoint.obstacles = {b"server-0": "silence"}
    reach.asked(0, 0.0)
    reach.heard(0)
    reach.asked(0, 20.0)
    assert reach.check(54.9) is None
    assert reach.check(55.0) == Obstacle(0, 35.0, "silence")


def test_one_try_at_a_time(reach: Reach, endpoint: Endpoint) -> None:
    """Each may take two seconds, and the worker's heartbeats must go on in between."""
    reach.asked(0, 0.0)
    reach.asked(1, 0.0)
    assert reach.check(40.0) is None
    assert endpoint.tried == [b"server-0"]
    assert reach.check(41.0) is None
    assert endpoint.tried == [b"server-0", b"server-1"]
