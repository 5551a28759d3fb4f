"""Counts and seconds of the stages, with times that the test gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from byteps_py.telemetry import stages
from byteps_py.telemetry.stages import (
    SERVER_STAGES,
    WORKER_STAGES,
    Held,
    SumTimes,
    WorkerTimes,
    server_stages,
    worker_stages,
)


@dataclass
class Bundle:
    """As a server has it."""

    rank: int
    number: int
    arrived: float
    accepted: bool


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what time it is for those who ask."""
    now = [0.0]
    monkeypatch.setattr(stages, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def turn(seconds: float) -> None:
        now[0] = seconds

    return turn


class TestWorker:
    def test_the_way_of_a_partition(self) -> None:
        times = WorkerTimes()
        times.sent(5, 1, 10.0, 11.0)
        times.accepted(5, 1, 13.0)
        times.received(5, 17.0)
        found = worker_stages(times)
        assert tuple(found) == WORKER_STAGES
        assert (found["queue"], found["push"], found["pull"]) == ((1, 1.0), (1, 2.0), (1, 4.0))
        assert found["answer"] == (0, 0.0)

    def test_a_result_without_an_acceptance_is_all_pull(self) -> None:
        times = WorkerTimes()
        times.sent(5, 1, 10.0, 11.0)
        times.received(5, 17.0)
        times.accepted(5, 1, 18.0)
        found = worker_stages(times)
        assert (found["push"], found["pull"], found["answer"]) == ((0, 0.0), (1, 6.0), (1, 6.0))

    def test_repetitions_and_other_rounds_change_nothing(self) -> None:
        times = WorkerTimes()
        times.sent(5, 2, 10.0, 11.0)
        times.sent(5, 2, 10.0, 12.0)  # the server missed it
        times.accepted(5, 1, 12.5)
        times.accepted(5, 2, 13.0)
        times.accepted(5, 2, 14.0)
        times.received(5, 15.0)
        times.received(5, 16.0)
        found = worker_stages(times)
        assert (found["queue"], found["push"], found["pull"]) == ((1, 1.0), (1, 2.0), (1, 2.0))

    def test_rounds_and_keys_add_up(self) -> None:
        times = WorkerTimes()
        for round in (1, 2):
            for key in (5, 6):
                times.sent(key, round, 0.0, 1.0)
                times.received(key, 1.0 + key)
        assert worker_stages(times)["pull"] == (4, 22.0)

    def test_what_failed_has_no_result(self) -> None:
        times = WorkerTimes()
        times.sent(5, 1, 10.0, 11.0)
        times.dropped(5)
        times.dropped(6)
        times.accepted(5, 1, 12.0)
        times.received(5, 13.0)
        found = worker_stages(times)
        assert (found["queue"], found["push"], found["pull"]) == ((1, 1.0), (0, 0.0), (0, 0.0))

    def test_without_times(self) -> None:
        assert worker_stages(None) == dict.fromkeys(WORKER_STAGES, (0, 0.0))


class TestServer:
    def test_a_round(self, clock: Callable[[float], None]) -> None:
        held = Held(3)
        for rank, now in ((2, 10.0), (0, 11.0), (1, 14.0)):
            assert server_stages(held, [])["wait for others"] == (0, 0.0)
            held.arrived(5, 1, rank, now)
        clock(20.0)
        for rank in range(3):
            held.replied(5, 1, rank)
        found = server_stages(held, [])
        assert tuple(found) == SERVER_STAGES
        assert found["wait for others"] == pytest.approx((3, 4.0 + 3.0))
        assert found["held"] == pytest.approx((3, 10.0 + 9.0 + 6.0))

    def test_what_was_told_before_the_reply_is_not_direct(self, clock: Callable[[float], None]) -> None:
        held = Held(2)
        held.arrived(5, 1, 0, 10.0)
        held.accepted(5, 1, 0, 10.5)
        held.accepted(5, 1, 0, 11.0)
        held.arrived(5, 1, 1, 12.0)
        clock(13.0)
        held.replied(5, 1, 0)
        held.replied(5, 1, 1)
        held.accepted(5, 1, 1, 14.0)
        found = server_stages(held, [])
        assert (found["accept"], found["held"], found["direct"]) == ((1, 0.5), (2, 4.0), (1, 1.0))

    def test_repetitions_and_other_rounds_change_nothing(self, clock: Callable[[float], None]) -> None:
        held = Held(2)
        held.replied(5, 1, 0)
        held.arrived(5, 1, 0, 10.0)
        held.arrived(5, 1, 0, 11.0)
        held.replied(5, 2, 0)
        held.arrived(5, 1, 1, 12.0)
        clock(13.0)
        held.replied(5, 1, 0)
        held.replied(5, 1, 0)
        held.arrived(5, 1, 0, 13.5)  # pushed again, in doubt: it was answered
        held.replied(5, 1, 1)
        held.arrived(5, 2, 0, 14.0)
        held.arrived(5, 1, 1, 15.0)
        held.replied(5, 1, 1)
        assert server_stages(held, [])["wait for others"] == pytest.approx((2, 2.0))
        assert server_stages(held, [])["held"] == pytest.approx((2, 4.0))
        held.arrived(5, 2, 1, 16.0)
        assert server_stages(held, [])["wait for others"] == pytest.approx((4, 4.0))

    def test_a_bundle_counts_as_one(self, clock: Callable[[float], None]) -> None:
        held = Held(2)
        held.bundle_accepted(10.0, 10.5)
        clock(14.0)
        bundles = [Bundle(rank=0, number=1, arrived=10.0, accepted=True), Bundle(1, 1, 12.0, accepted=False)]
        held.bundles_replied(bundles, 13.0, None)
        found = server_stages(held, [])
        assert (found["accept"], found["wait for others"]) == ((1, 0.5), (2, 2.0))
        assert (found["held"], found["direct"]) == ((2, 6.0), (1, 2.0))

    def test_a_round_that_was_given_up_is_forgotten(self) -> None:
        held = Held(2)
        held.arrived(5, 1, 0, 10.0)
        held.arrived(5, 2, 0, 20.0)
        held.arrived(5, 2, 1, 21.0)
        assert server_stages(held, [])["wait for others"] == pytest.approx((2, 1.0))

    def test_the_threads_that_sum_add_up(self, clock: Callable[[float], None]) -> None:
        threads = [SumTimes(), SumTimes()]
        clock(7.0)
        threads[0].add(1.0, 3.0)
        threads[1].add(5.0, 5.0)
        threads[1].add(6.0, 6.5)
        found = server_stages(None, threads)
        assert (found["server queue"], found["sum"]) == ((3, 2.5), (3, 6.5))
        assert (found["held"], found["wait for others"]) == ((0, 0.0), (0, 0.0))
