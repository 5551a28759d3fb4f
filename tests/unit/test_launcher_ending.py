"""Who is signalled when, and which exit status results: every row of the table of phases."""

from __future__ import annotations

import signal

import pytest

from byteps_py.launcher.ending import Action, Ending, Phase, Report, Say, Signal
from byteps_py.types import Role

SCHEDULER, SERVER, FIRST, SECOND = range(4)
EVERYONE = (SCHEDULER, SERVER, FIRST, SECOND)


@pytest.fixture
def ending() -> Ending:
    roles = (Role.SCHEDULER, Role.SERVER, Role.WORKER, Role.WORKER)
    names = ("scheduler (pid 10)", "server 0 (pid 11)", "worker 0 (pid 12)", "worker 1 (pid 13)")
    return Ending(list(zip(roles, names, strict=True)))


def said(actions: list[Action]) -> str:
    return "\n".join(action.text for action in actions if isinstance(action, Say))


def performed(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Say)]


def term(*processes: int) -> Signal:
    return Signal(processes, signal.SIGTERM, group=True)


def kill(*processes: int) -> Signal:
    return Signal(processes, signal.SIGKILL, group=True)


def test_a_job_that_ends_well(ending: Ending) -> None:
    assert ending.deadline is None
    assert ending.ended(1.0, {FIRST: 0}) == []
    assert ending.ended(2.0, {SECOND: 0}) == []
    assert (ending.phase, ending.deadline) == (Phase.CLOSING, 7.0)
    assert ending.ended(2.1, {SCHEDULER: 0, SERVER: 0}) == []
    assert ending.done
    assert ending.status == 0


def test_services_that_stay_are_ended_but_do_not_spoil_the_status(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 0, SECOND: 0})
    assert ending.tick(4.9) == []
    actions = ending.tick(5.0)
    assert performed(actions) == [term(SCHEDULER, SERVER)]
    assert said(actions) == "still running, and sent SIGTERM now: scheduler (pid 10), server 0 (pid 11)"
    assert ending.ended(5.1, {SCHEDULER: -15}) == []
    actions = ending.tick(8.0)
    assert performed(actions) == [kill(SERVER)]
    assert ending.ended(8.1, {SERVER: -9}) == []
    assert (ending.done, ending.status) == (True, 0)


def test_a_server_that_fails_after_the_workers_is_a_warning(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 0, SECOND: 0})
    actions = ending.ended(0.1, {SERVER: 1, SCHEDULER: 0})
    assert said(actions).startswith("warning: server 0 (pid 11) exited with status 1")
    assert performed(actions) == []
    assert (ending.done, ending.status) == (True, 0)


def test_services_may_end_well_before_the_workers(ending: Ending) -> None:
    assert ending.ended(0.0, {SCHEDULER: 0, SERVER: 0}) == []
    assert ending.phase is Phase.RUNNING
    ending.ended(9.0, {FIRST: 0, SECOND: 0})
    assert (ending.done, ending.status) == (True, 0)


@pytest.mark.parametrize(
    ("process", "status", "text", "exit_status"),
    [
        (SECOND, 3, "worker 1 (pid 13) exited with status 3: ending the job", 3),
        (SECOND, -9, "worker 1 (pid 13) was killed by signal 9 (SIGKILL): ending the job", 137),
        (SERVER, -11, "server 0 (pid 11) was killed by signal 11 (SIGSEGV): ending the job", 139),
        (SCHEDULER, 1, "scheduler (pid 10) exited with status 1: ending the job", 1),
    ],
)
def test_the_first_failure_is_named_reported_and_decides(
    ending: Ending, process: int, status: int, text: str, exit_status: int
) -> None:
    actions = ending.ended(1.0, {process: status})
    assert actions == [Say(text), Report(process, status)]
    assert (ending.phase, ending.deadline) == (Phase.STOPPING, 6.0)
    others = [each for each in EVERYONE if each != process]
    assert ending.ended(1.5, {others[0]: 1}) == []
    assert ending.status == exit_status
    assert not ending.done


def test_the_others_have_time_to_end_by_themselves_and_are_ended_then(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 3})
    assert ending.tick(4.9) == []
    assert performed(ending.tick(5.0)) == [term(SCHEDULER, SERVER, SECOND)]
    assert ending.tick(7.9) == []
    assert performed(ending.tick(8.0)) == [kill(SCHEDULER, SERVER, SECOND)]
    ending.ended(8.1, {SCHEDULER: -9, SERVER: -9, SECOND: -9})
    assert (ending.done, ending.status) == (True, 3)


def test_less_time_once_no_worker_is_left(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 3})
    ending.ended(1.0, {SECOND: 1})
    assert ending.deadline == 3.0
    ending.ended(2.0, {SERVER: 1})
    assert ending.deadline == 3.0
    assert performed(ending.tick(3.0)) == [term(SCHEDULER)]


def test_workers_come_first_among_those_found_together(ending: Ending) -> None:
    actions = ending.ended(0.0, {SERVER: 1, SECOND: -9})
    assert performed(actions) == [Report(SECOND, -9)]
    assert ending.status == 137


def test_a_lone_failure_ends_nothing(ending: Ending) -> None:
    alone = Ending([(Role.WORKER, "worker 0 (pid 12)")])
    assert alone.ended(0.0, {0: 3}) == [Say("worker 0 (pid 12) exited with status 3"), Report(0, 3)]
    assert (alone.done, alone.status) == (True, 3)


@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, True)])
def test_a_signal_goes_on_to_the_workers(ending: Ending, number: signal.Signals, group: bool) -> None:
    actions = ending.interrupted(0.0, number)
    assert performed(actions) == [Signal((FIRST, SECOND), number, group=group)]
    assert number.name in said(actions)
    assert ending.ended(0.5, {FIRST: -number}) == []
    # The last worker takes the services with it.
    assert performed(ending.ended(0.6, {SECOND: 0})) == [term(SCHEDULER, SERVER)]
    ending.ended(0.7, {SCHEDULER: -15, SERVER: -15})
    assert (ending.done, ending.status) == (True, 128 + number)


def test_workers_that_take_no_notice_of_a_signal(ending: Ending) -> None:
    ending.interrupted(0.0, signal.SIGINT)
    assert performed(ending.tick(5.0)) == [term(*EVERYONE)]
    assert performed(ending.tick(8.0)) == [kill(*EVERYONE)]


def test_a_second_signal_kills_but_an_echo_of_the_first_does_not(ending: Ending) -> None:
    ending.interrupted(0.0, signal.SIGTERM)
    assert ending.interrupted(0.01, signal.SIGTERM) == []
    assert ending.interrupted(0.9, signal.SIGINT) == []
    assert performed(ending.interrupted(1.0, signal.SIGINT)) == [kill(*EVERYONE)]
    assert performed(ending.interrupted(3.0, signal.SIGINT)) == []
    assert ending.status == 143


def test_a_signal_after_a_failure_hurries(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 3})
    assert performed(ending.interrupted(0.5, signal.SIGINT)) == [term(SCHEDULER, SERVER, SECOND)]
    assert performed(ending.interrupted(2.0, signal.SIGINT)) == [kill(SCHEDULER, SERVER, SECOND)]
    assert ending.status == 3


def test_a_signal_after_the_last_worker(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 0, SECOND: 0})
    assert performed(ending.interrupted(0.5, signal.SIGINT)) == [term(SCHEDULER, SERVER)]
    assert ending.status == 130


def test_a_launch_that_fails_itself(ending: Ending) -> None:
    actions = ending.failed(0.0, 126, "cannot be started")
    assert actions == [Say("cannot be started"), term(*EVERYONE)]
    assert ending.status == 126
    assert performed(ending.tick(3.0)) == [kill(*EVERYONE)]


def test_a_launch_that_fails_while_it_ends_keeps_its_status(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 3})
    assert performed(ending.failed(0.1, 137, "the guard is gone")) == [term(SCHEDULER, SERVER, SECOND)]
    assert performed(ending.failed(0.2, 137, "again")) == []
    assert ending.status == 3


def test_nothing_was_started() -> None:
    nothing = Ending([])
    assert nothing.failed(0.0, 127, "cannot be started") == [Say("cannot be started")]
    assert (nothing.done, nothing.status) == (True, 127)


def test_what_cannot_be_killed_is_given_up(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 0, SECOND: 0, SCHEDULER: 0})
    for now in (5.0, 8.0):
        ending.tick(now)
    assert not ending.done
    assert said(ending.tick(13.0)) == "could not be killed: server 0 (pid 11)"
    assert (ending.done, ending.status) == (True, 1)
    assert ending.tick(99.0) == []
