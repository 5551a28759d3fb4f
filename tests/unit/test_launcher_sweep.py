"""Who belongs to a launch, and how it is ended in rounds; real processes are killed in tests/fault."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Collection

import pytest

from byteps_py.launcher import sweep
from byteps_py.launcher.sweep import Family, Process, Sweep


class Table:
    """A table of processes in place of the one in ``/proc``."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._entries: dict[int, sweep._Entry] = {}
        self.marked: set[int] = set()
        patch.setattr(sweep, "_look", lambda since: [each for each in self._entries.values() if each.started >= since])
        patch.setattr(Family, "_is_marked", lambda _, pid: pid in self.marked)

    def add(self, pid: int, parent: int, session: int, *, started: int = 500, state: str = "S") -> None:
        self._entries[pid] = sweep._Entry(pid, state, parent, session, started)

    def remove(self, pid: int) -> None:
        del self._entries[pid]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """A launcher (10) with its guard (11) and a worker (12) that leads a session."""
    made = Table(monkeypatch)
    made.add(1, 0, 1, started=1)
    made.add(10, 5, 5, started=400)
    made.add(11, 10, 11)
    made.add(12, 10, 12)
    return made


@pytest.fixture
def family() -> Family:
    made = Family("m", 400)
    made.enrol(12, 500)
    return made


def pids(found: Collection[Process]) -> list[int]:
    return sorted(each.pid for each in found)


def test_the_session_of_a_worker(table: Table, family: Family) -> None:
    table.add(20, 12, 12)
    table.add(21, 1, 12)
    assert pids(family.find()) == [12, 20, 21]
    assert pids(family.sessions([12])) == [12, 20, 21]


def test_who_has_left_the_session(table: Table, family: Family) -> None:
    table.add(20, 1, 20)
    table.marked = {20}
    table.add(21, 20, 21)
    table.add(22, 1, 20)
    assert pids(family.find()) == [12, 20, 21, 22]
    assert pids(family.sessions([12])) == [12]


def test_a_session_is_remembered_when_who_led_it_has_gone(table: Table, family: Family) -> None:
    table.add(20, 12, 20)
    table.add(21, 20, 20)
    assert pids(family.find()) == [12, 20, 21]
    table.remove(20)
    table.add(21, 1, 20)
    assert pids(family.find()) == [12, 21]


def test_who_was_found_stays_known(table: Table, family: Family) -> None:
    """Although nothing tells any more that it belongs to the launch; but another process of that id does not."""
    table.add(20, 12, 12)
    assert family.find() == {Process(12, 500): 10, Process(20, 500): 12}
    table.remove(12)
    table.add(20, 1, 20)
    assert pids(family.find()) == [20]
    table.add(20, 1, 20, started=700)
    assert pids(family.find()) == []


def test_who_has_ended_does_not_count(table: Table, family: Family) -> None:
    table.add(12, 10, 12, state="Z")
    table.add(20, 1, 12)
    table.add(21, 1, 12, state="X")
    assert pids(family.find()) == [20]
    assert pids(family.sessions([12])) == [20]


def test_strangers(table: Table, family: Family) -> None:
    """The shell and what else runs, what is older than the launcher, and who got the id of one that ended."""
    table.add(5, 1, 5)
    table.add(6, 5, 5)
    table.add(7, 1, 12, started=100)
    assert pids(family.find()) == [12]
    table.add(12, 1, 12, started=600)
    table.add(20, 12, 12, started=601)
    assert pids(family.find()) == []


def test_without_some_sessions(table: Table, family: Family) -> None:
    table.add(13, 10, 13)
    family.enrol(13, 500)
    assert pids(family.find()) == [12, 13]
    assert pids(family.find(without=[13])) == [12]


def test_never_the_process_itself(table: Table, family: Family) -> None:
    table.add(os.getpid(), 12, 12)
    assert pids(family.find()) == [12]


def test_the_table_of_the_system() -> None:
    """This very process, whose name in the table may hold anything."""
    own = sweep._read(os.getpid())
    assert own is not None
    assert (own.pid, own.parent, own.session) == (os.getpid(), os.getppid(), os.getsid(0))
    assert own in {each._replace(state=own.state) for each in sweep._look(own.started)}
    assert sweep.read_started(os.getpid()) == own.started
    assert sweep.read_started(1 << 30) == 0


class Rounds:
    """A sweep over processes that are given, look by look, with what it sends; the last ones stay."""

    def __init__(self, patch: pytest.MonkeyPatch, *looks: dict[Process, int], told: set[Process] | None = None) -> None:
        self.sent: list[tuple[set[Process], int]] = []
        self._looks = list(looks)
        patch.setattr(sweep, "send", lambda processes, number: self.sent.append((set(processes), number)))
        self.sweep = Sweep(self._look, 10.0, set() if told is None else told)

    def _look(self) -> dict[Process, int]:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

    def told(self) -> list[set[Process]]:
        return [who for who, number in self.sent if number == signal.SIGTERM]


A, B, C = Process(20, 500), Process(21, 501), Process(22, 502)
STRANGER = 1
LOOKS = 4
"""In a round that tells somebody; one less in a round that kills."""


def test_who_is_told_is_stopped_before_and_goes_on_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, {A: STRANGER})
    assert not rounds.sweep.round(1.0)
    numbers = [signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT]
    assert rounds.sent == [({A}, number) for number in numbers]


def test_everyone_is_stopped_until_a_look_shows_nobody_new(monkeypatch: pytest.MonkeyPatch) -> None:
    first = {A: STRANGER}
    rounds = Rounds(monkeypatch, first, first, first | {B: A.pid}, first | {B: A.pid, C: B.pid})
    rounds.sweep.round(1.0)
    assert [who for who, number in rounds.sent if number == signal.SIGSTOP] == [{A}, {B}, {C}]
    assert rounds.told() == [{A, B, C}]


def test_everyone_is_told_once_and_killed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {A: STRANGER, B: STRANGER}
    rounds = Rounds(monkeypatch, *[{A: STRANGER}] * LOOKS, *[both] * LOOKS, *[both] * (LOOKS - 1), {})
    assert not rounds.sweep.round(1.0)
    assert not rounds.sweep.round(2.0)
    assert rounds.told() == [{A}, {B}]
    assert not rounds.sweep.round(10.0)
    assert rounds.sent[-2:] == [({A, B}, signal.SIGSTOP), ({A, B}, signal.SIGKILL)]
    assert rounds.sweep.round(10.1)
    assert rounds.sweep.left == set()


def test_helpers_that_are_started_to_save_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also theirs, and after their parent has ended; but not what appears beside them."""
    first = {A: STRANGER}
    rounds = Rounds(monkeypatch, *[first] * LOOKS, first | {B: A.pid, C: B.pid}, {C: STRANGER})
    for now in (1.0, 2.0, 3.0):
        assert not rounds.sweep.round(now)
    assert rounds.told() == [{A}]
    assert not rounds.sweep.round(10.0)
    assert rounds.sent[-1] == ({C}, signal.SIGKILL)


def test_who_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {A.pid: "T", B.pid: "S"}
    monkeypatch.setattr(
        sweep, "_read", lambda pid: sweep._Entry(pid, states[pid], 1, 1, 500) if pid in states else None
    )
    assert sweep.are_stopped([A, C])
    assert not sweep.are_stopped([A, B])
    states[B.pid] = "Z"
    assert sweep.are_stopped([A, B])


def test_one_look_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, {}, {A: STRANGER})
    assert not rounds.sweep.round(1.0)
    assert rounds.told() == [{A}]


def test_who_was_told_before_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, {A: STRANGER, B: STRANGER}, told={A})
    rounds.sweep.round(1.0)
    assert rounds.told() == [{B}]
    assert {A} not in [who for who, _ in rounds.sent]


def test_what_cannot_be_killed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, {A: STRANGER})
    assert not rounds.sweep.round(14.9)
    assert rounds.sweep.round(15.0)
    assert rounds.sweep.left == {A}


def test_signals_go_to_the_process_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(sweep.os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(sweep, "read_started", {20: 500, 21: 999}.get)
    sweep.send([A, B], signal.SIGTERM)
    assert sent == [(20, signal.SIGTERM)]


def test_stopping_has_an_end_where_somebody_always_starts_something_new(monkeypatch: pytest.MonkeyPatch) -> None:
    pids = itertools.count(1)
    monkeypatch.setattr(sweep, "send", lambda processes, number: None)
    monkeypatch.setattr(sweep, "STOP_SECONDS", 0.05)
    assert sweep.stop(lambda: {Process(next(pids), 1): 0})
