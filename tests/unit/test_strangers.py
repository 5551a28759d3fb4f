"""Processes that are no members: what is said to them and about them, and how often."""

from __future__ import annotations

from byteps_py.core.actions import Log, Send
from byteps_py.core.strangers import Strangers, shown
from byteps_py.wire.control import Abort, Bye, ChildEnded, Heartbeat, Refused
from tests.helpers.registrations import process, server, worker

NONCE = 77


def strangers() -> Strangers:
    return Strangers("job", NONCE, process(1, "host-s"))


class TestRefused:
    def test_whoever_is_refused_is_not_mentioned_again(self) -> None:
        them = strangers()
        member = worker(3)
        assert them.refuse(member, "no place") == [
            Log("warning", "refused: no place"),
            Send(b"w3", Refused("no place")),
        ]
        assert them.heard(b"w3", Heartbeat()) == []

    def test_it_is_recognised_when_it_ends(self) -> None:
        them = strangers()
        them.refuse(worker(3, launch_id="x", local_rank=1, local_size=2), "no place")
        assert them.was_refused(ChildEnded("job", process(3), 1))
        assert them.was_refused(ChildEnded("job", process(2), 1, "x", None, 1, 2)), "a shell that started it"
        assert not them.was_refused(ChildEnded("job", process(2), 1, "x", None, 0, 2))
        assert not them.was_refused(ChildEnded("job", process(2), 1, "y", None, 1, 2))
        assert not them.was_refused(ChildEnded("job", process(2), 1))

    def test_a_process_without_a_launch_has_no_namesake(self) -> None:
        them = strangers()
        them.refuse(worker(3), "no place")
        assert not them.was_refused(ChildEnded("job", process(2), 1, local_rank=0))


class TestIdentity:
    def test_of_this_job(self) -> None:
        assert strangers().identity_problem(worker(1), None, "") is None
        assert strangers().identity_problem(worker(1), worker(1), "worker 0") is None

    def test_of_another_job(self) -> None:
        problem = strangers().identity_problem(server(1, job_id="other"), None, "")
        assert problem is not None
        assert problem.startswith("server (pid 1 on host-a) belongs to job 'other', this scheduler to job 'job': set")

    def test_the_name_of_somebody_else(self) -> None:
        problem = strangers().identity_problem(worker(2), worker(1), "worker 0 (pid 1 on host-a)")
        assert problem == "worker (pid 2 on host-a) uses the identity of worker 0 (pid 1 on host-a)"


class TestAnotherRun:
    def test_a_member_of_an_earlier_run_is_told_to_end_once(self) -> None:
        them = strangers()
        (log, send) = them.heard(b"old", Heartbeat(78))
        assert log == Log("warning", "old belongs to an earlier run of a job and is told to end")
        assert send == Send(
            b"old",
            Abort(
                "the scheduler at this address (pid 1 on host-s) runs another job by now, or another run of the same "
                "one: this process belongs to an earlier run, whose scheduler is gone"
            ),
        )
        assert them.heard(b"old", Heartbeat(78)) == []

    def test_also_if_it_was_mentioned_before(self) -> None:
        them = strangers()
        them.heard(b"old", Bye())
        assert len(them.heard(b"old", Heartbeat(78))) == 2

    def test_whoever_may_still_register_is_left_alone(self) -> None:
        (log,) = strangers().heard(b"early", Heartbeat())
        assert log == Log("warning", "ignored a Heartbeat of early, which is not registered")

    def test_a_member_of_this_run_is_left_alone(self) -> None:
        (log,) = strangers().heard(b"ours", Heartbeat(NONCE))
        assert isinstance(log, Log)


def test_many_of_them_do_not_fill_the_log() -> None:
    them = strangers()
    assert sum(len(them.heard(b"%d" % each, Bye())) for each in range(5000)) == 1024
    assert sum(len(them.heard(b"old %d" % each, Heartbeat(5))) for each in range(5000)) == 2048


def test_names() -> None:
    assert shown(b"\xffx") == "\\xffx"
