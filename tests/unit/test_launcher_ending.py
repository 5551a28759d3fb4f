"""Who is signalled when, and which exit status results: every row of the table of phases."""

from __future__ import annotations

import signal

import pytest

from byteps_py.launcher.ending import Action, Ending, EndRest, Hush, Phase, Reach, Report, Say, Signal
from byteps_py.types import Role

SCHEDULER, SERVER, FIRST, SECOND = range(4)
EVERYONE = (SCHEDULER, SERVER, FIRST, SECOND)


@pytest.fixture
def ending() -> Ending:
    roles = (Role.SCHEDULER, Role.SERVER, Role.WORKER, Role.WORKER)
    names = ("scheduler (pid 10)", "server 0 (pid 11)", "worker 0 (pid 12)", "worker 1 (pid 13)")
    return Ending(list(zip(roles, names, strict=True)), grace_period=20.0)


def said(actions: list[Action]) -> str:
    return "\n".join(action.text for action in actions if isinstance(action, Say))


def performed(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Say)]


def term(*processes: int) -> Signal:
    return Signal(processes, signal.SIGTERM, Reach.SESSION)


def kill(*processes: int) -> Signal:
    return Signal(processes, signal.SIGKILL, Reach.SESSION)


def go_on(*processes: int) -> Signal:
    return Signal(processes, signal.SIGCONT, Reach.SESSION)


# A job that ends well.


def test_a_job_that_ends_well(ending: Ending) -> None:
    assert ending.deadline is None
    assert ending.ended(1.0, {FIRST: 0}) == []
    assert ending.ended(2.0, {SECOND: 0}) == [Report(FIRST, 0), Report(SECOND, 0)]
    assert (ending.phase, ending.deadline) == (Phase.CLOSING, 3.0)
    assert ending.ended(2.1, {SCHEDULER: 0, SERVER: 0}) == []
    assert ending.done
    assert ending.status == 0


def test_services_that_stay_are_ended_without_a_word_and_do_not_spoil_the_status(ending: Ending) -> None:
    """The scheduler may say something itself: that no worker has called init()."""
    ending.ended(0.0, {FIRST: 0, SECOND: 0})
    assert ending.tick(0.9) == []
    assert ending.tick(1.0) == [Hush((SERVER,)), term(SCHEDULER, SERVER)]
    assert ending.ended(1.1, {SCHEDULER: -15}) == []
    assert ending.tick(1.9) == []
    assert ending.tick(2.0) == [kill(SERVER)]
    assert ending.ended(2.1, {SERVER: -9}) == []
    assert (ending.done, ending.status) == (True, 0)


@pytest.mark.parametrize("status", [1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_an_aborted_job_is_no_success_although_its_workers_hide_it(ending: Ending, late: bool, status: int) -> None:
    """A shell whose last command is `echo done` ends with 0, whatever became of the program that it ran."""
    ending.ended(0.0, {FIRST: 0, SECOND: 0})
    if late:
        ending.tick(1.0)
    actions = ending.ended(1.1, {SCHEDULER: status})
    text = "the job was aborted, although its workers have ended with status 0"
    assert said(actions) == f"scheduler (pid 10) exited with status {status}: {text}"
    ending.ended(1.2, {SERVER: status})
    assert (ending.done, ending.status) == (True, status)


def test_a_server_that_fails_after_the_workers_is_a_warning(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 0, SECOND: 0})
    actions = ending.ended(0.1, {SERVER: 1, SCHEDULER: 0})
    assert actions == [Say("warning: server 0 (pid 11) exited with status 1 after all workers had ended well")]
    assert (ending.done, ending.status) == (True, 0)


def test_services_may_end_well_before_the_workers(ending: Ending) -> None:
    assert ending.ended(0.0, {SCHEDULER: 0, SERVER: 0}) == []
    assert ending.phase is Phase.RUNNING
    ending.ended(9.0, {FIRST: 0, SECOND: 0})
    assert (ending.done, ending.status) == (True, 0)


def test_a_worker_that_ends_well_while_others_run_is_told_later(ending: Ending) -> None:
    ending.ended(5.0, {FIRST: 0})
    assert ending.deadline == 7.0
    assert ending.tick(6.9) == []
    assert ending.tick(7.0) == [Report(FIRST, 0)]
    assert ending.deadline is None
    assert ending.phase is Phase.RUNNING


def test_it_is_not_told_if_the_job_ends_meanwhile(ending: Ending) -> None:
    ending.ended(5.0, {FIRST: 0})
    ending.ended(5.1, {SECOND: 3})
    assert Report(FIRST, 0) not in ending.tick(7.0)


# A failure.


@pytest.mark.parametrize(
    ("process", "status", "text", "exit_status"),
    [
        (SECOND, 3, "worker 1 (pid 13) exited with status 3: ending the job", 3),
        (SECOND, -9, "worker 1 (pid 13) was killed by signal 9 (SIGKILL): ending the job", 137),
        (SECOND, 137, "worker 1 (pid 13) exited with status 137 (as by SIGKILL): ending the job", 137),
        (SERVER, -11, "server 0 (pid 11) was killed by signal 11 (SIGSEGV): ending the job", 139),
        (SCHEDULER, 143, "scheduler (pid 10) exited with status 143 (as by SIGTERM): ending the job", 143),
        (SCHEDULER, -2, "scheduler (pid 10) was killed by signal 2 (SIGINT): ending the job", 130),
    ],
)
def test_the_first_failure_is_named_reported_and_decides(
    ending: Ending, process: int, status: int, text: str, exit_status: int
) -> None:
    actions = ending.ended(1.0, {process: status})
    others = [each for each in EVERYONE if each != process]
    assert actions == [Report(process, status), go_on(*others), Say(text)]
    assert (ending.phase, ending.deadline) == (Phase.STOPPING, 4.0)
    assert said(ending.ended(1.5, {others[0]: 1})) == ""
    assert ending.status == exit_status
    assert not ending.done


@pytest.mark.parametrize(
    ("process", "status", "text"),
    [
        (SERVER, 1, "the scheduler or a server gave up, for the reason above"),
        (SCHEDULER, 1, "the scheduler or a server gave up, for the reason above"),
        (SERVER, 2, "server 0 (pid 11) exited with status 2"),
        (SECOND, 1, "worker 1 (pid 13) exited with status 1"),
    ],
)
def test_a_doubtful_cause_is_named_after_a_moment(ending: Ending, process: int, status: int, text: str) -> None:
    """If it is one that has told of the fault of another, as after --start-timeout, it is not named."""
    assert said(ending.ended(1.0, {process: status})) == ""
    assert ending.deadline == 2.0
    assert ending.tick(2.0) == [Say(f"{text}: ending the job")]
    assert (ending.deadline, ending.status) == (4.0, status)


def test_a_server_that_ends_because_of_a_worker_is_not_named(ending: Ending) -> None:
    assert performed(ending.ended(1.0, {SERVER: 1})) == [Report(SERVER, 1), go_on(SCHEDULER, FIRST, SECOND)]
    assert ending.ended(1.2, {SECOND: 3}) == [
        Report(SECOND, 3),
        Say("worker 1 (pid 13) exited with status 3: ending the job"),
    ]
    assert ending.status == 3


def test_a_worker_that_ends_because_the_scheduler_was_told_to_is_not_named(ending: Ending) -> None:
    ending.ended(1.0, {SECOND: 1})
    actions = ending.ended(1.2, {SCHEDULER: 130})
    assert said(actions) == "scheduler (pid 10) exited with status 130 (as by SIGINT): ending the job"
    assert ending.status == 130


def test_all_end_before_it_is_clear(ending: Ending) -> None:
    actions = ending.ended(1.0, {FIRST: 1, SECOND: 1, SERVER: 1, SCHEDULER: 1})
    assert said(actions) == "worker 0 (pid 12) exited with status 1"
    assert (ending.done, ending.status) == (True, 1)


def test_the_others_have_time_to_end_by_themselves_and_are_ended_then(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 3})
    assert ending.tick(2.9) == []
    actions = ending.tick(3.0)
    assert performed(actions) == [term(SCHEDULER, SERVER, SECOND)]
    text = "still running, and sent SIGTERM now: scheduler (pid 10), server 0 (pid 11), worker 1 (pid 13)"
    assert said(actions) == text
    assert ending.tick(3.9) == []
    actions = ending.tick(4.0)
    assert performed(actions) == [kill(SCHEDULER, SERVER, SECOND)]
    assert said(actions).startswith("still running, and killed now: scheduler (pid 10), server 0")
    ending.ended(4.1, {SCHEDULER: -9, SERVER: -9, SECOND: -9})
    assert (ending.done, ending.status) == (True, 3)


def test_less_time_once_no_worker_is_left(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 3})
    ending.ended(0.5, {SECOND: 1})
    assert ending.deadline == 1.5
    ending.ended(1.0, {SERVER: 1})
    assert ending.deadline == 1.5
    assert ending.tick(1.5) == [Hush((SCHEDULER,)), term(SCHEDULER)]


def test_a_lone_failure_ends_nothing() -> None:
    alone = Ending([(Role.WORKER, "worker 0 (pid 12)")])
    assert alone.ended(0.0, {0: 1}) == [Report(0, 1), Say("worker 0 (pid 12) exited with status 1")]
    assert (alone.done, alone.status) == (True, 1)


# Ctrl-C.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_a_signal_of_the_terminal_goes_on_to_the_workers(ending: Ending, number: signal.Signals) -> None:
    actions = ending.interrupted(0.0, number)
    assert actions == [Say(f"{number.name}: ending the job"), Signal((FIRST, SECOND), number, Reach.GROUP)]
    assert ending.ended(0.5, {FIRST: -number}) == [Report(FIRST, -number)]
    # The last worker takes the services with it.
    assert performed(ending.ended(0.6, {SECOND: 0})) == [Hush((SCHEDULER, SERVER)), term(SCHEDULER, SERVER)]
    ending.ended(0.7, {SCHEDULER: -15, SERVER: -15})
    assert (ending.done, ending.status) == (True, 128 + number)


def test_workers_that_take_no_notice_of_a_signal(ending: Ending) -> None:
    ending.interrupted(0.0, signal.SIGINT)
    assert performed(ending.tick(3.0)) == [term(*EVERYONE)]
    assert performed(ending.tick(4.0)) == [kill(*EVERYONE)]


def test_a_second_signal_kills_but_an_echo_of_the_first_does_not(ending: Ending) -> None:
    ending.interrupted(0.0, signal.SIGTERM)
    assert ending.interrupted(0.01, signal.SIGTERM) == []
    assert ending.interrupted(0.9, signal.SIGINT) == []
    actions = ending.interrupted(1.0, signal.SIGINT)
    assert actions == [Say("interrupted again: killing what is left"), kill(*EVERYONE)]
    assert performed(ending.interrupted(3.0, signal.SIGINT)) == []
    assert ending.status == 143


def test_a_signal_after_a_failure_hurries(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 3})
    actions = ending.interrupted(0.5, signal.SIGINT)
    assert actions == [Say("SIGINT: ending what is left"), term(SCHEDULER, SERVER, SECOND)]
    assert performed(ending.interrupted(2.0, signal.SIGINT)) == [kill(SCHEDULER, SERVER, SECOND)]
    assert ending.status == 3


def test_a_signal_in_doubt_settles_it(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 1})
    assert said(ending.interrupted(0.5, signal.SIGINT)) == (
        "worker 0 (pid 12) exited with status 1: ending the job\nSIGINT: ending what is left"
    )


def test_a_signal_after_the_last_worker(ending: Ending) -> None:
    ending.ended(0.0, {FIRST: 0, SECOND: 0})
    assert performed(ending.interrupted(0.5, signal.SIGINT)) == [Hush((SCHEDULER, SERVER)), term(SCHEDULER, SERVER)]
    assert ending.status == 130


# SIGTERM and the grace period.


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_workers_have_time_to_save(ending: Ending, number: signal.Signals, status: int) -> None:
    text = f"{number.name}: ending the job; its workers have 20 s to save (BYTEPS_GRACE_PERIOD)"
    told = Signal((FIRST, SECOND), signal.SIGTERM, Reach.PROCESS)
    assert ending.interrupted(10.0, number) == [Say(text), told]
    assert (ending.phase, ending.deadline) == (Phase.SAVING, 30.0)
    # What a shell leaves behind hears of it when the shell has ended.
    assert ending.ended(11.0, {FIRST: -15}) == [Report(FIRST, -15), term(FIRST)]
    assert ending.ended(28.0, {SECOND: 0}) == [Report(SECOND, 0), term(SECOND), EndRest(30.0)]
    assert (ending.phase, ending.deadline) == (Phase.LEAVING, None)
    assert ending.rest_ended(29.0) == [Hush((SCHEDULER, SERVER)), term(SCHEDULER, SERVER)]
    ending.ended(29.1, {SCHEDULER: 143, SERVER: 143})
    assert (ending.done, ending.status) == (True, status)


def test_the_launch_goes_on_until_the_rest_of_its_only_worker_has_ended() -> None:
    alone = Ending([(Role.WORKER, "worker 0 (pid 12)")], grace_period=5.0)
    alone.interrupted(0.0, signal.SIGTERM)
    alone.ended(0.1, {0: -15})
    assert not alone.done
    assert alone.rest_ended(1.0) == []
    assert alone.done


def test_after_the_grace_period_workers_are_killed(ending: Ending) -> None:
    ending.interrupted(0.0, signal.SIGTERM)
    ending.ended(1.0, {FIRST: 0})
    assert ending.tick(19.9) == []
    actions = ending.tick(20.0)
    assert actions == [Say("still running after 20 s, and killed now: worker 1 (pid 13)"), kill(SECOND)]
    assert performed(ending.ended(20.1, {SECOND: -9}))[-1] == EndRest(20.0)
    assert performed(ending.rest_ended(20.2)) == [Hush((SCHEDULER, SERVER)), term(SCHEDULER, SERVER)]
    assert ending.status == 143


def test_workers_that_cannot_be_killed_are_given_up(ending: Ending) -> None:
    ending.interrupted(0.0, signal.SIGTERM)
    ending.tick(20.0)
    assert ending.deadline == 25.0
    assert said(ending.tick(25.0)).startswith("could not be killed: ")
    assert ending.done


def test_a_second_signal_while_the_rest_saves(ending: Ending) -> None:
    ending.interrupted(0.0, signal.SIGTERM)
    ending.ended(1.0, {FIRST: 0, SECOND: 0})
    assert performed(ending.interrupted(2.0, signal.SIGTERM)) == [kill(SCHEDULER, SERVER)]
    assert ending.rest_ended(2.1) == []
    ending.ended(2.2, {SCHEDULER: -9, SERVER: -9})
    assert ending.done


def test_no_grace_period() -> None:
    hasty = Ending([(Role.WORKER, "worker 0 (pid 12)")], grace_period=0.0)
    hasty.interrupted(1.0, signal.SIGTERM)
    assert performed(hasty.tick(1.0)) == [kill(0)]


def test_a_launch_without_workers_passes_signals_on_to_what_there_is() -> None:
    """A scheduler waits for workers elsewhere as long as the grace period, and must then have the time to end."""
    service = Ending([(Role.SCHEDULER, "scheduler (pid 10)")], grace_period=20.0)
    text = "SIGTERM: ending scheduler (pid 10), which serves until the workers have left, at most 20 s "
    text += "(BYTEPS_GRACE_PERIOD)"
    told = Signal((0,), signal.SIGTERM, Reach.PROCESS)
    assert service.interrupted(0.0, signal.SIGTERM) == [Say(text), told]
    assert service.deadline == 23.0
    service.ended(20.5, {0: 143})
    service.rest_ended(20.6)
    assert (service.done, service.status) == (True, 143)


def test_a_scheduler_that_stays_is_killed() -> None:
    service = Ending([(Role.SCHEDULER, "scheduler (pid 10)")], grace_period=20.0)
    service.interrupted(0.0, signal.SIGTERM)
    assert service.tick(23.0) == [Say("still running after 23 s, and killed now: scheduler (pid 10)"), kill(0)]


# The launch itself.


def test_a_launch_that_fails_itself(ending: Ending) -> None:
    actions = ending.failed(0.0, 126, "cannot be started")
    assert actions == [Say("cannot be started"), term(*EVERYONE)]
    assert ending.status == 126
    assert performed(ending.tick(1.0)) == [kill(*EVERYONE)]


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
    for now in (1.0, 2.0):
        ending.tick(now)
    assert not ending.done
    assert said(ending.tick(7.0)) == "could not be killed: server 0 (pid 11)"
    assert (ending.done, ending.status) == (True, 1)
    assert ending.tick(99.0) == []
