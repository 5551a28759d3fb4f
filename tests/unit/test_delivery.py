"""Outstanding requests: when they are asked about again."""

from __future__ import annotations

import random

import pytest

from byteps_py.core.delivery import Delivery, Question


def delivery() -> Delivery:
    return Delivery(retry_after=0.5, result_after=1.0, longest=30.0)


def questions(requests: Delivery, until: float) -> list[float]:
    """The times until then at which something is asked, always called at the deadline itself."""
    times: list[float] = []
    while (deadline := requests.next_deadline()) is not None and deadline <= until:
        times += [deadline] * len(requests.due(deadline))
    return times


class TestUnaccepted:
    def test_it_is_asked_about_after_retry_after(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=10.0)
        assert requests.next_deadline() == 10.5
        assert requests.due(10.4) == []
        assert requests.due(10.5) == [Question(7, 1, 3)]

    def test_it_is_asked_once_per_deadline(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=10.0)
        assert len(requests.due(10.5)) == 1
        assert requests.due(10.5) == []

    def test_waits_double_up_to_the_longest(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=0.0)
        times = questions(requests, 130.0)
        waits = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
        assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]

    def test_the_wait_counts_from_the_question_even_if_that_was_late(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=0.0)
        assert len(requests.due(100.0)) == 1
        assert requests.next_deadline() == 101.0

    def test_a_repeated_push_begins_anew(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=0.0)
        questions(requests, 10.0)
        requests.sent(7, 1, 3, now=10.0)
        assert len(requests) == 1
        assert requests.next_deadline() == 10.5
        assert questions(requests, 14.0) == [10.5, 11.5, 13.5]


class TestAccepted:
    def test_it_has_more_time(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=10.0)
        requests.accepted(7, 1, now=10.25)
        assert requests.next_deadline() == 11.25
        assert requests.due(11.0) == []
        assert requests.due(11.25) == [Question(7, 1, 3)]

    def test_waits_double_up_to_the_longest(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=0.0)
        requests.accepted(7, 1, now=0.0)
        assert questions(requests, 130.0) == [1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0, 121.0]

    def test_the_answers_to_questions_do_not_shorten_the_waits(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=0.0)
        requests.accepted(7, 1, now=0.0)
        times = []
        while (deadline := requests.next_deadline()) is not None and deadline < 32.0:
            times.append(deadline)
            requests.due(deadline)
            requests.accepted(7, 1, now=deadline)
        assert times == [1.0, 3.0, 7.0, 15.0, 31.0]

    def test_an_acceptance_after_long_waits_is_followed_by_a_short_one(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=0.0)
        questions(requests, 100.0)
        assert requests.next_deadline() == 121.5
        requests.accepted(7, 1, now=100.0)
        assert questions(requests, 110.0) == [101.0, 103.0, 107.0]

    def test_after_a_repeated_push_the_acceptance_is_waited_for_again(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=0.0)
        requests.accepted(7, 1, now=0.0)
        requests.sent(7, 1, 3, now=0.25)
        assert requests.next_deadline() == 0.75
        requests.accepted(7, 1, now=0.5)
        assert requests.next_deadline() == 1.5


class TestEnd:
    def test_a_result_ends_the_questions(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=0.0)
        requests.finished(7, 1)
        assert requests.next_deadline() is None
        assert requests.due(1000.0) == []
        assert len(requests) == 0

    def test_so_does_dropping(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=0.0)
        requests.accepted(7, 1, now=0.0)
        requests.dropped(7)
        assert requests.next_deadline() is None
        assert requests.due(1000.0) == []

    def test_messages_of_other_rounds_and_keys_change_nothing(self) -> None:
        requests = delivery()
        requests.sent(7, 2, 3, now=0.0)
        for key, round in ((7, 1), (7, 3), (8, 2)):
            requests.accepted(key, round, now=0.25)
            requests.finished(key, round)
        requests.dropped(8)
        assert requests.next_deadline() == 0.5
        assert requests.due(0.5) == [Question(7, 2, 3)]

    def test_the_next_round_takes_the_place_of_the_one_before(self) -> None:
        requests = delivery()
        requests.sent(7, 1, 3, now=0.0)
        requests.finished(7, 1)
        requests.sent(7, 2, 3, now=0.25)
        requests.finished(7, 1)
        assert len(requests) == 1
        assert requests.due(10.0) == [Question(7, 2, 3)]


class TestMany:
    def test_each_has_its_own_deadline(self) -> None:
        requests = delivery()
        for key in range(5):
            requests.sent(key, 1, key, now=float(key))
        requests.accepted(1, 1, now=1.0)
        requests.finished(2, 1)
        assert requests.due(3.5) == [Question(0, 1, 0), Question(1, 1, 1), Question(3, 1, 3)]

    def test_equal_deadlines_come_in_the_order_of_sending(self) -> None:
        requests = delivery()
        for key in (5, 3, 9, 1):
            requests.sent(key, 1, 0, now=0.0)
        assert [question.key for question in requests.due(0.5)] == [5, 3, 9, 1]

    def test_nothing_piles_up_behind_some_that_never_end(self) -> None:
        requests = delivery()
        for key in range(5):
            requests.sent(key, 1, 0, now=0.0)
        for step in range(1, 5000):
            requests.sent(9, step, 0, now=0.0)
            requests.accepted(9, step, now=0.0)
            requests.finished(9, step)
        assert len(requests._heap) < 200
        assert [question.key for question in requests.due(0.5)] == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("seed", range(20))
    def test_against_a_plain_list_of_deadlines(self, seed: int) -> None:
        """Any sequence of calls gives what a search through all requests would give."""
        chance = random.Random(seed)
        requests = delivery()
        plain: dict[int, list[float]] = {}  # key: deadline, wait, 1.0 if it is accepted
        now = 0.0
        for _ in range(2000):
            now += chance.choice((0.0, 0.0, 0.0625, 0.5, 8.0))
            key = chance.randrange(100)
            event = chance.choice(("sent", "accepted", "finished", "due"))
            if event == "sent":
                requests.sent(key, 1, 0, now)
                plain[key] = [now + 0.5, 0.5, 0.0]
            elif event == "accepted":
                requests.accepted(key, 1, now)
                if key in plain and not plain[key][2]:
                    plain[key] = [now + 1.0, 1.0, 1.0]
            elif event == "finished":
                requests.finished(key, 1)
                plain.pop(key, None)
            else:
                expected = {each for each, (deadline, _, _) in plain.items() if deadline <= now}
                asked = [question.key for question in requests.due(now)]
                assert len(asked) == len(expected)
                assert set(asked) == expected
                for each in expected:
                    wait = min(2 * plain[each][1], 30.0)
                    plain[each][:2] = [now + wait, wait]
            assert requests.next_deadline() == min((each[0] for each in plain.values()), default=None)
            assert len(requests) == len(plain)


@pytest.mark.parametrize("waits", [(0.0, 1.0, 30.0), (1.0, 0.0, 30.0), (31.0, 1.0, 30.0), (1.0, 31.0, 30.0)])
def test_waits_that_make_no_sense(waits: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="waits must be positive"):
        Delivery(*waits)
