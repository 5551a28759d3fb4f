"""What launchers tell: who lives and has not joined, and who has ended."""

from __future__ import annotations

from typing import Any

import pytest

from byteps_py.core.job import Job
from byteps_py.core.launches import HOLD_SECONDS, Launches, Verdict
from byteps_py.core.roster import Member, Roster
from byteps_py.core.strangers import Strangers
from byteps_py.wire.control import Child, ChildEnded, ProcessInfo, Vouch, Vouched
from tests.helpers.registrations import process, server, worker

SHELL = process(50)


class Desk:
    """Launches with their roster."""

    def __init__(self, *members: Member, num_worker: int = 2) -> None:
        self.roster = Roster(num_worker, 1)
        for member in members:
            self.join(member)
        self.strangers = Strangers("job", 77, process(1, "host-s"))
        self.launches = Launches(self.roster, self.strangers, lost_timeout=30.0)

    def join(self, member: Member) -> None:
        assert self.roster.add(member) is None

    def vouch(self, now: float, peer: bytes, message: Vouch) -> Vouched:
        return self.launches.vouch(now, peer, message, is_waiting=True)

    def ended(self, now: float, info: ProcessInfo, status: int, job: Job | None = None, **place: Any) -> Verdict:
        return self.launches.ended(now, ChildEnded("job", info, status, **place), job)

    def job(self) -> Job:
        assert self.roster.is_complete
        return Job(self.roster.seating(), 4096000, 77)


def vouch(*pids: int, launch_id: str = "x", worker_id: int | None = 1, size: int | None = None) -> Vouch:
    children = tuple(Child(rank, process(pid, "host-b")) for rank, pid in enumerate(pids))
    return Vouch("job", launch_id, worker_id, size or len(pids), children)


@pytest.mark.parametrize("status", [0, 1, -9])
def test_the_end_of_a_launch_of_an_earlier_run_means_nothing(status: int) -> None:
    desk = Desk(worker(99, "host-b", worker_id=0))
    place = {"launch_id": "old", "worker_id": 1, "local_rank": 0}
    verdict = desk.ended(0.0, process(7, "host-b"), status, **place, joined=True)
    assert "belongs to an earlier run" in verdict.warning
    assert not verdict.reason
    assert desk.launches.failure(1e6) is None


class TestVouching:
    def test_who_has_not_joined(self) -> None:
        desk = Desk()
        assert desk.vouch(0.0, b"l", vouch(7, 8)) == Vouched((0, 1))
        desk.join(worker(99, "host-b", worker_id=1, local_rank=0, local_size=2))  # started by a shell with pid 7
        assert desk.vouch(1.0, b"l", vouch(7, 8)) == Vouched((1,), (0,))
        (place,) = desk.launches.unjoined(1.0)
        assert place.describe(2) == "worker DMLC_WORKER_ID=1 BYTEPS_LOCAL_RANK=1 (pid 8 on host-b)"

    def test_all_have_joined_only_if_they_are_of_this_launch(self) -> None:
        desk = Desk(worker(99, "host-b", worker_id=1, local_rank=0, local_size=2, launch_id="x"))
        assert desk.launches.have_joined(vouch(7))
        assert not desk.launches.have_joined(vouch(7, 8))
        assert not desk.launches.have_joined(vouch(7, launch_id="y"))  # started a second time

    def test_it_holds_for_the_lost_timeout(self) -> None:
        desk = Desk()
        desk.vouch(0.0, b"l", vouch(7))
        assert len(desk.launches.unjoined(29.0)) == 1
        assert desk.launches.unjoined(30.0) == []
        assert desk.launches.peers() == []

    def test_in_the_order_of_machines(self) -> None:
        desk = Desk()
        desk.vouch(0.0, b"b", vouch(9, worker_id=10))
        desk.vouch(0.0, b"a", vouch(7, 8, worker_id=2))
        assert [place.process.pid for place in desk.launches.unjoined(0.0)] == [7, 8, 9]

    def test_a_process_that_ended_does_not_live(self) -> None:
        desk = Desk()
        desk.vouch(0.0, b"l", vouch(7, 8))
        desk.ended(0.0, process(7, "host-c"), 0)
        assert len(desk.launches.unjoined(0.0)) == 2
        desk.ended(0.0, process(7, "host-b"), 0, worker_id=1, launch_id="x", local_rank=0, local_size=2)
        assert [place.process.pid for place in desk.launches.unjoined(0.0)] == [8]

    def test_nobody_fills_the_memory(self) -> None:
        desk = Desk()
        for number in range(200):
            desk.vouch(0.0, b"%d" % number, vouch(*range(1000), worker_id=number))
        assert len(desk.launches.peers()) == 65

    def test_nor_by_vouching_for_nobody(self) -> None:
        desk = Desk()
        desk.vouch(0.0, b"first", vouch(size=1))
        (launch,) = desk.launches._launches.values()
        for number in range(65_535):
            desk.launches._launches[b"%d" % number] = launch
        desk.vouch(0.0, b"one more", vouch(size=1))
        assert b"one more" not in desk.launches.peers()


class TestAMemberEnded:
    def test_by_its_process(self) -> None:
        desk = Desk(worker(1, worker_id=0))
        how = "worker DMLC_WORKER_ID=0 (pid 1 on host-a) is lost: its process 1 on host-a was killed by signal 9"
        assert desk.ended(0.0, process(1), -9) == Verdict(reason=how, is_failure=True)

    def test_without_a_goodbye(self) -> None:
        verdict = Desk(worker(1, worker_id=0)).ended(0.0, process(1), 0)
        assert verdict.is_failure
        assert "ended with status 0 without saying goodbye (is shutdown() called?)" in verdict.reason

    def test_its_shell_with_an_error(self) -> None:
        desk = Desk(worker(1, worker_id=0, launch_id="x"), worker(2, worker_id=1), server(9))
        verdict = desk.ended(0.0, SHELL, 3, desk.job(), launch_id="x", worker_id=0, local_rank=0)
        reason = (
            "worker 0 (pid 1 on host-a) is lost: the command that started it, process 50 on host-a, ended with status 3"
        )
        assert verdict == Verdict(reason=reason, is_failure=True)

    @pytest.mark.parametrize(("status", "words"), [(0, "ended with status 0"), (-15, "was killed by signal 15")])
    def test_its_shell_without_an_error_of_its_own(self, status: int, words: str) -> None:
        desk = Desk(worker(1, worker_id=0, launch_id="x"), worker(2, worker_id=1), server(9))
        verdict = desk.ended(0.0, SHELL, status, desk.job(), launch_id="x", worker_id=0, local_rank=0)
        how = f"the command that started it, process 50 on host-a, {words}"
        assert verdict == Verdict(f"{how} before worker 0 (pid 1 on host-a) left the job, which goes on", doubted=b"w1")
        assert desk.launches.doubt(b"w1") == how
        assert desk.launches.doubt(b"w2") == ""

    @pytest.mark.parametrize("info", [process(1), SHELL])
    def test_after_its_goodbye(self, info: ProcessInfo) -> None:
        desk = Desk(worker(1, worker_id=0, launch_id="x"), worker(2, worker_id=1), server(9))
        job = desk.job()
        job.leave(0.0, b"w1", "")
        place = {"launch_id": "x", "worker_id": 0, "local_rank": 0}
        assert desk.ended(0.0, info, 0, job, **place) == Verdict()
        verdict = desk.ended(0.0, info, 3, job, **place)
        assert verdict.is_failure
        assert verdict.reason.startswith("worker 0 (pid 1 on host-a) failed: ")

    def test_a_server_has_no_place(self) -> None:
        desk = Desk(worker(1, worker_id=0, launch_id="x"))
        assert "process 50 on host-a" in desk.ended(0.0, SHELL, 1, launch_id="x").reason


class TestAnOutsiderEnded:
    def test_with_an_error(self) -> None:
        verdict = Desk().ended(0.0, SHELL, 3, launch_id="x", worker_id=1, local_rank=0)
        reason = "worker DMLC_WORKER_ID=1 (pid 50 on host-a) ended with status 3 before it joined the job"
        assert verdict == Verdict(reason=reason, is_failure=True)

    def test_of_a_complete_job(self) -> None:
        desk = Desk(worker(1), worker(2), server(9))
        assert desk.ended(0.0, SHELL, 3, desk.job()) == Verdict(
            "process 50 on host-a ended with status 3; it was no member of the job"
        )

    def test_no_line_is_repeated(self) -> None:
        desk = Desk(worker(1), worker(2), server(9))
        assert [desk.ended(0.0, SHELL, 3, desk.job()).warning != "" for _ in range(3)] == [True, False, False]

    def test_nor_are_there_lines_without_end(self) -> None:
        desk = Desk(worker(1), worker(2), server(9))
        job = desk.job()
        assert sum(desk.ended(0.0, process(pid), 3, job).warning != "" for pid in range(100, 2000)) == 1024

    def test_that_was_refused(self) -> None:
        desk = Desk()
        desk.strangers.refuse(worker(50), "no place")
        assert not desk.ended(0.0, SHELL, 3).is_failure

    def test_without_an_error_while_somebody_waits(self) -> None:
        desk = Desk(worker(1, worker_id=0))
        verdict = desk.ended(0.0, SHELL, 0, launch_id="x", worker_id=1, local_rank=0)
        text = "worker DMLC_WORKER_ID=1 (pid 50 on host-a) ended with status 0 before it joined the job"
        assert verdict == Verdict(text)
        assert desk.launches.failure(0.0) == f"{text}: does the script call init()?"

    def test_whose_place_is_taken_after_all(self) -> None:
        """The command was a shell that had put the worker into the background."""
        desk = Desk()
        for local_rank in (0, 1):
            place = {"worker_id": 1, "local_rank": local_rank, "local_size": 2}
            desk.ended(0.0, process(50 + local_rank), 0, launch_id="x", **place)
        desk.join(worker(70, worker_id=1, local_rank=0, local_size=2, launch_id="x"))
        text = desk.launches.failure(0.0)
        assert text is not None
        assert "(pid 51 on host-a) ended with status 0" in text
        desk.join(worker(71, worker_id=1, local_rank=1, local_size=2, launch_id="x"))
        assert desk.launches.failure(HOLD_SECONDS) is None
        desk.roster.remove(worker(70, worker_id=1, local_rank=0, local_size=2, launch_id="x").peer)
        assert "(pid 50 on host-a)" in (desk.launches.failure(HOLD_SECONDS) or "")

    def test_without_an_error_while_nobody_waits(self) -> None:
        desk = Desk(server(9))
        desk.ended(10.0, SHELL, 0, launch_id="x", worker_id=1, local_rank=0)
        assert desk.launches.failure(10.0 + HOLD_SECONDS - 1) is None
        assert desk.launches.failure(10.0 + HOLD_SECONDS) is not None

    def test_all_of_them_without_an_error(self) -> None:
        desk = Desk(server(9))
        for worker_id, local_rank, local_size in ((0, 0, 2), (0, 1, 2), (0, 1, 2)):
            place = {"worker_id": worker_id, "local_rank": local_rank, "local_size": local_size}
            assert desk.ended(0.0, SHELL, 0, launch_id="x", **place).reason == ""
        verdict = desk.ended(0.0, SHELL, 0, launch_id="y", worker_id=1, local_rank=0)
        text = "every worker has ended with status 0 and none of them ever called init(): there is nothing to do"
        assert verdict == Verdict(text, reason=text)

    def test_a_server_without_an_error(self) -> None:
        desk = Desk(worker(1, worker_id=0))
        desk.ended(0.0, SHELL, 0)
        assert desk.launches.failure(0.0) == "process 50 on host-a ended with status 0 before it joined the job"
