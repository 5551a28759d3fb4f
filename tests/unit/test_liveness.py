"""Signs of life, and the rhythm of reminders."""

from __future__ import annotations

import pytest

from byteps_py.core.liveness import SUSPECT_AFTER, Liveness, Reminder, Silence


def checks(liveness: Liveness, start: int, end: int) -> dict[int, list[Silence]]:
    """One check a second; what each one found, without those that found nothing."""
    found = {now: liveness.check(float(now)) for now in range(start, end + 1)}
    return {now: result for now, result in found.items() if result}


class TestLiveness:
    def test_a_silent_process_is_suspected_once_and_then_lost(self) -> None:
        liveness = Liveness(lost_timeout=30)
        liveness.seen(b"a", 0.0)
        assert checks(liveness, 0, 30) == {5: [Silence(b"a", 5.0, lost=False)], 30: [Silence(b"a", 30.0, lost=True)]}

    def test_a_sign_of_life_ends_the_suspicion(self) -> None:
        liveness = Liveness(lost_timeout=30)
        liveness.seen(b"a", 0.0)
        assert checks(liveness, 0, 7) == {5: [Silence(b"a", 5.0, lost=False)]}
        assert liveness.seen(b"a", 7.0) == 7.0
        assert liveness.seen(b"a", 8.0) is None
        assert checks(liveness, 8, 13) == {13: [Silence(b"a", 5.0, lost=False)]}

    def test_a_first_sign_of_life_is_no_return(self) -> None:
        assert Liveness(30).seen(b"a", 50.0) is None

    def test_others_do_not_matter(self) -> None:
        liveness = Liveness(lost_timeout=30)
        liveness.seen(b"a", 0.0)
        liveness.seen(b"b", 2.0)
        assert [each.peer for each in liveness.check(5.0)] == [b"a"]

    def test_a_forgotten_process_is_not_watched(self) -> None:
        liveness = Liveness(lost_timeout=30)
        liveness.seen(b"a", 0.0)
        checks(liveness, 0, 6)
        liveness.forget(b"a")
        liveness.forget(b"never seen")
        assert checks(liveness, 7, 40) == {}

    def test_a_short_timeout_comes_before_the_suspicion(self) -> None:
        liveness = Liveness(lost_timeout=2)
        liveness.seen(b"a", 0.0)
        assert checks(liveness, 0, 2) == {2: [Silence(b"a", 2.0, lost=True)]}

    def test_a_process_that_stays_lost_is_reported_again(self) -> None:
        liveness = Liveness(lost_timeout=3)
        liveness.seen(b"a", 0.0)
        assert list(checks(liveness, 0, 5)) == [3, 4, 5]

    def test_time_in_which_nobody_listened_does_not_count(self) -> None:
        liveness = Liveness(lost_timeout=30)
        liveness.seen(b"a", 0.0)
        assert checks(liveness, 0, 3) == {}
        # Stopped for 100 s: the silence so far was 3 s, and is so still.
        assert liveness.check(103.0) == []
        assert checks(liveness, 104, 130) == {
            105: [Silence(b"a", 5.0, lost=False)],
            130: [Silence(b"a", 30.0, lost=True)],
        }

    def test_whoever_spoke_right_after_the_pause_was_not_silent_in_the_future(self) -> None:
        liveness = Liveness(lost_timeout=30)
        liveness.seen(b"a", 0.0)
        liveness.check(0.0)
        liveness.seen(b"a", 99.0)
        assert liveness.check(100.0) == []
        assert liveness.check(105.0) == [Silence(b"a", 5.0, lost=False)]

    def test_a_process_that_runs_is_not_lost_but_named_every_minute(self) -> None:
        liveness = Liveness(lost_timeout=30)
        liveness.seen(b"a", 0.0)
        found = {now: liveness.check(float(now), {b"a"}) for now in range(200)}
        spoken = {now: result for now, result in found.items() if result}
        assert list(spoken) == [5, 30, 90, 150]
        assert spoken[30] == [Silence(b"a", 30.0, runs=True)]
        assert liveness.check(200.0) == [Silence(b"a", 200.0, lost=True)]

    def test_who_is_silent(self) -> None:
        liveness = Liveness(lost_timeout=30)
        liveness.seen(b"a", 0.0)
        liveness.seen(b"b", 2.0)
        assert liveness.silent(4.0) == set()
        assert liveness.silent(5.0) == {b"a"}
        short = Liveness(lost_timeout=2)
        short.seen(b"a", 0.0)
        assert short.silent(2.0) == {b"a"}
        assert short.check(2.0, {b"a"}) == []

    def test_a_doubt_shortens_the_wait(self) -> None:
        liveness = Liveness(lost_timeout=30)
        liveness.seen(b"a", 0.0)
        liveness.doubt(b"a")
        assert liveness.check(4.0) == []
        assert liveness.check(5.0) == [Silence(b"a", 5.0, lost=True)]

    def test_a_process_is_named_within_five_seconds(self) -> None:
        assert SUSPECT_AFTER <= 5.0


class TestReminder:
    def test_every_ten_seconds_then_every_minute(self) -> None:
        reminder = Reminder(100.0)
        due = [now for now in range(100, 400) if reminder.due(float(now)) is not None]
        assert due == [110, 120, 130, 140, 150, 160, 220, 280, 340]

    def test_every_ten_seconds_for_ever(self) -> None:
        reminder = Reminder(0.0, calm_after=None)
        assert [now for now in range(200) if reminder.due(float(now)) is not None] == list(range(10, 200, 10))

    def test_it_tells_how_long(self) -> None:
        reminder = Reminder(100.0)
        assert reminder.due(112.5) == pytest.approx(12.5)

    def test_what_was_missed_is_not_made_up_for(self) -> None:
        reminder = Reminder(0.0)
        assert reminder.due(47.0) == 47.0
        assert reminder.due(48.0) is None
        assert reminder.due(50.0) == 50.0
