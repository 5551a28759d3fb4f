"""Generations of a job, driven without a socket or a clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
import pytest

from byteps_py.core.actions import Action, Log, Send, Stop
from byteps_py.core.generations import Generations
from byteps_py.core.launches import HOLD_SECONDS
from byteps_py.core.membership import State
from byteps_py.core.roster import Member
from byteps_py.wire.control import (
    Abort,
    Barrier,
    Bye,
    Child,
    ChildEnded,
    ControlMessage,
    Finished,
    Heartbeat,
    HeartbeatReply,
    Left,
    ProcessInfo,
    Refused,
    Suspended,
    Vouch,
    Vouched,
    Waiting,
    Welcome,
)
from tests.helpers.registrations import process, server, worker

HERE = ProcessInfo("host-s", "boot-of-host-s", 1, 1)
SUSPEND = Bye(suspends=True)


def counted(member: Member, workers: int, servers: int, **fields: Any) -> Member:
    register = msgspec.structs.replace(member.register, num_worker=workers, num_server=servers, **fields)
    return Member(member.peer, register)


def again(member: Member, turn: int, workers: int, servers: int, **fields: Any) -> Member:
    """The same worker process as it registers for the generation after ``turn`` ones: over another connection."""
    more = {"incarnation": 1000 * turn + member.register.incarnation, "resumes": True, **fields}
    return Member(member.peer + b"-%d" % turn, counted(member, workers, servers, **more).register)


WORKERS = [counted(worker(pid, worker_id=pid - 1, launch_id=f"launch-{pid}"), 3, 2) for pid in (1, 2, 3)]
SERVERS = [counted(server(pid, "host-c"), 3, 2) for pid in (8, 9)]


def make(**fields: Any) -> Generations:
    numbers = count(71)
    defaults = {"draw": lambda: next(numbers), "scheduler": HERE, "start_timeout": 120.0, "lost_timeout": 30.0}
    return Generations("job", 3, 2, **{**defaults, **fields})


def register(job: Generations, member: Member, now: float = 0.0) -> list[Action]:
    return job.receive(now, member.peer, member.register)


def running(**fields: Any) -> Generations:
    job = make(**fields)
    for each in (*WORKERS, *SERVERS):
        register(job, each)
    assert job.state is State.RUNNING
    return job


def suspended(**fields: Any) -> Generations:
    """After a first generation; its servers have registered again."""
    job = running(**fields)
    for each in WORKERS:
        job.receive(1.0, each.peer, SUSPEND)
    assert job.state is State.SUSPENDED
    for each in SERVERS:
        register(job, each, 1.0)
    return job


def sent(actions: Sequence[Action], kind: type) -> dict[bytes, ControlMessage]:
    return {each.peer: each.message for each in actions if isinstance(each, Send) and isinstance(each.message, kind)}


def logged(actions: Sequence[Action]) -> str:
    return "\n".join(each.text for each in actions if isinstance(each, Log))


def stop(actions: Sequence[Action]) -> Stop:
    (found,) = (each for each in actions if isinstance(each, Stop))
    return found


def ended(member: Member, status: int) -> ChildEnded:
    register = member.register
    place = (register.launch_id, register.worker_id, register.local_rank, register.local_size)
    return ChildEnded("job", member.process, status, *place)


class TestSuspending:
    def test_the_answer_comes_when_all_have(self) -> None:
        job = running()
        assert sent(job.receive(1.0, b"w1", SUSPEND), Left) == {}
        assert sent(job.receive(1.0, b"w1", SUSPEND), Left) == {}  # repeating it is harmless
        assert sent(job.receive(1.1, b"w2", SUSPEND), Left) == {}
        actions = job.receive(1.2, b"w3", SUSPEND)
        assert sent(actions, Left) == {b"w1": Left(0), b"w2": Left(1), b"w3": Left(2)}
        assert set(sent(actions, Suspended)) == {b"s8", b"s9"}
        assert "waiting for resume(), within BYTEPS_START_TIMEOUT=120 s" in logged(actions)
        assert sent(job.receive(1.3, b"w2", SUSPEND), Left) == {b"w2": Left(1)}  # the answer was lost

    def test_the_others_hear_of_who_suspends_as_of_who_leaves(self) -> None:
        job = running()
        job.receive(1.0, b"w1", SUSPEND)
        assert set(sent(job.tick(2.5), Left)) == {b"w2", b"w3", b"s8", b"s9"}

    def test_who_leaves_for_good_is_not_waited_for(self) -> None:
        job = running()
        job.receive(1.0, b"w1", SUSPEND)
        job.receive(1.0, b"w2", SUSPEND)
        actions = job.receive(1.0, b"w3", Bye())
        assert set(sent(actions, Suspended)) == {b"s8", b"s9"}
        assert job.state is State.SUSPENDED

    def test_a_loss_ends_it_for_those_who_wait_too(self) -> None:
        job = running()
        job.receive(1.0, b"w1", SUSPEND)
        actions = job.proven_lost(2.0, b"w2", "its process 2 on host-a is gone")
        assert stop(actions).status == 1
        assert set(sent(actions, Abort)) == {b"w1", b"w2", b"w3", b"s8", b"s9"}

    def test_who_gives_up_waiting_ends_it(self) -> None:
        job = running()
        job.receive(1.0, b"w1", SUSPEND)
        job.receive(2.0, b"w1", Bye("gave up: waited"))
        assert "worker 0 (pid 1 on host-a) gave up: waited" in stop(job.tick(3.5)).reason

    def test_who_is_missing_is_told(self) -> None:
        job = running()
        job.receive(1.0, b"w1", SUSPEND)
        told = sent(job.tick(12.0), Waiting)
        assert set(told) == {b"w1"}
        assert "in suspend() for worker 1 (pid 2 on host-a), worker 2" in str(told[b"w1"])

    def test_a_barrier_that_lacks_one_who_suspends_cannot_complete(self) -> None:
        job = running()
        job.receive(1.0, b"w1", SUSPEND)
        job.receive(1.0, b"w2", Barrier(1))
        assert "worker 0 (pid 1 on host-a) has called suspend() and worker 1" in stop(job.tick(3.0)).reason

    def test_a_newcomer_that_is_early_waits(self) -> None:
        job = running()
        new = counted(worker(4, worker_id=0), 1, 1)
        assert set(sent(register(job, new), Refused)) == {b"w4"}  # nobody has suspended: it is too late
        job.receive(1.0, b"w1", SUSPEND)
        new = counted(worker(5, worker_id=0), 1, 1)
        assert set(sent(register(job, new), Waiting)) == {b"w5"}
        assert set(sent(job.receive(1.0, b"w5", Heartbeat()), HeartbeatReply)) == {b"w5"}
        job.receive(1.0, b"w2", SUSPEND)
        job.receive(1.0, b"w3", SUSPEND)
        assert job.state is State.GATHERING
        assert set(sent(register(job, SERVERS[0], 1.1), Welcome)) == {b"w5", b"s8"}


class TestTheNextGeneration:
    def test_fewer_and_then_more(self) -> None:
        job = suspended()
        two = [again(each, 1, 2, 1) for each in WORKERS[:2]]
        register(job, two[1], 2.0)
        actions = register(job, two[0], 2.0)
        welcomes = sent(actions, Welcome)
        assert set(welcomes) == {b"w1-1", b"w2-1", b"s8"}
        for each in welcomes.values():
            assert isinstance(each, Welcome)
            assert (each.job, each.epoch, len(each.participants), len(each.servers)) == (72, 2, 2, 1)
        assert [job.knows(peer) for peer in (b"s8", b"s9")] == [True, True]  # one in reserve

        for member in two:
            job.receive(3.0, member.peer, SUSPEND)
        register(job, SERVERS[0], 3.0)
        four = [again(each, 2, 4, 3) for each in WORKERS[:2]]
        four += [counted(worker(pid, worker_id=pid, launch_id=f"launch-{pid}"), 4, 3) for pid in (4, 5)]
        for member in four:
            assert sent(register(job, member, 4.0), Welcome) == {}
        told = sent(job.tick(15.0), Waiting)
        assert "1 of 3 servers; workers 4/4" in str(told[b"w1-2"])
        actions = register(job, counted(server(10, "host-c"), 4, 3), 16.0)
        welcomes = sent(actions, Welcome)
        assert set(welcomes) == {b"w1-2", b"w2-2", b"w4", b"w5", b"s8", b"s9", b"s10"}
        assert {each.epoch for each in welcomes.values() if isinstance(each, Welcome)} == {3}

    def test_a_server_is_used_only_when_it_has_forgotten_the_last_one(self) -> None:
        job = running()
        for each in WORKERS:
            job.receive(1.0, each.peer, SUSPEND)
        register(job, SERVERS[1], 1.0)
        assert set(sent(job.receive(1.5, b"s8", Heartbeat(71)), Suspended)) == {b"s8"}
        register(job, again(WORKERS[0], 1, 1, 2), 2.0)
        assert job.state is State.GATHERING
        actions = register(job, SERVERS[0], 2.5)
        assert set(sent(actions, Welcome)) == {b"w1-1", b"s8", b"s9"}

    def test_who_was_there_comes_first(self) -> None:
        job = suspended()
        register(job, counted(worker(7, "host-0", worker_id=0), 2, 1), 2.0)
        actions = register(job, again(WORKERS[2], 1, 2, 1), 2.0)
        ranks = {peer: each.rank for peer, each in sent(actions, Welcome).items() if isinstance(each, Welcome)}
        assert (ranks[b"w3-1"], ranks[b"w7"]) == (0, 1)

    def test_wishes_for_ranks(self) -> None:
        job = suspended()
        register(job, again(WORKERS[0], 1, 3, 1, global_rank=2), 2.0)
        register(job, again(WORKERS[1], 1, 3, 1), 2.0)
        actions = register(job, again(WORKERS[2], 1, 3, 1, global_rank=0), 2.0)
        welcome = sent(actions, Welcome)[b"s8"]
        assert isinstance(welcome, Welcome)
        assert [each.pid for each in welcome.participants] == [3, 2, 1]

    @pytest.mark.parametrize(("wish", "words"), [(2, "is wished for by both"), (3, "is no rank of this job")])
    def test_wishes_that_cannot_be_met(self, wish: int, words: str) -> None:
        job = suspended()
        register(job, again(WORKERS[0], 1, 3, 1, global_rank=2), 2.0)
        actions = register(job, again(WORKERS[1], 1, 3, 1, global_rank=wish), 2.0)
        actions += register(job, again(WORKERS[2], 1, 3, 1), 2.0) if wish == 3 else []
        end = stop(actions)
        assert end.status == 2
        assert words in end.reason
        assert {b"s8", b"s9", b"w1-1"} <= set(sent(actions, Abort))  # the one in reserve too

    def test_numbers_that_do_not_agree(self) -> None:
        job = suspended()
        register(job, again(WORKERS[0], 1, 2, 1), 2.0)
        end = stop(register(job, again(WORKERS[1], 1, 3, 1), 2.0))
        assert end.status == 2
        assert "DMLC_NUM_WORKER is 2 on worker DMLC_WORKER_ID=0 (pid 1 on host-a) and 3 on worker" in end.reason

    def test_numbers_that_never_come(self) -> None:
        job = suspended(lost_timeout=1000.0)
        register(job, again(WORKERS[0], 1, 2, 3), 2.0)
        actions = job.tick(123.0)
        assert "waiting 121 s for 1 of 2 workers; servers 2/3" in stop(actions).reason

    def test_who_gives_resume_up_leaves_the_numbers_to_the_next(self) -> None:
        job = suspended()
        first = again(WORKERS[0], 1, 5, 2)
        register(job, first, 2.0)
        assert job.state is State.GATHERING
        actions = job.receive(3.0, first.peer, Bye("gave init() up"))
        assert set(sent(actions, Refused)) == {first.peer}
        assert "the job is suspended as before" in logged(actions)
        assert (job.state, job.census(3.0).servers) == (State.SUSPENDED, 2)
        for now in range(4, 30):  # it has not ended, and may call resume() once more
            for each in SERVERS:
                job.receive(float(now), each.peer, Heartbeat())
            assert not [each for each in job.tick(float(now)) if isinstance(each, Stop)]
        actions = [*register(job, again(WORKERS[0], 2, 2, 1), 30.0), *register(job, again(WORKERS[1], 1, 2, 1), 31.0)]
        welcomes = sent(actions, Welcome)
        assert set(welcomes) == {b"w1-2", b"w2-1", b"s8"}
        assert {(each.epoch, each.job) for each in welcomes.values() if isinstance(each, Welcome)} == {(2, 73)}

    def test_who_is_still_there_keeps_the_numbers(self) -> None:
        job = suspended()
        for each in WORKERS[:2]:
            register(job, again(each, 1, 3, 2), 2.0)
        job.receive(3.0, b"w1-1", Bye())
        assert job.state is State.GATHERING
        assert "DMLC_NUM_WORKER is 3" in stop(register(job, again(WORKERS[0], 2, 2, 1), 4.0)).reason

    def test_one_that_cannot_be_a_member_begins_nothing(self) -> None:
        job = suspended()
        nowhere = counted(server(10, "host-c"), 7, 7, address="")
        assert set(sent(register(job, nowhere, 2.0), Refused)) == {nowhere.peer}
        assert job.state is State.SUSPENDED

    def test_a_process_of_another_job_begins_nothing(self) -> None:
        job = suspended()
        assert set(sent(register(job, again(WORKERS[0], 1, 1, 1, job_id="other")), Refused)) == {b"w1-1"}
        assert job.state is State.SUSPENDED

    def test_local_ranks_have_no_gaps(self) -> None:
        members = [counted(worker(pid, worker_id=0, local_rank=pid - 1, local_size=3), 1, 1) for pid in (1, 2, 3)]
        job = Generations("job", 1, 1, draw=lambda: 5, scheduler=HERE, start_timeout=0.0, lost_timeout=30.0)
        one = counted(server(9), 1, 1)
        for each in (*members, one):
            register(job, each)
        for each in members:
            job.receive(1.0, each.peer, SUSPEND)
        register(job, one, 1.0)
        register(job, again(members[2], 1, 1, 1, local_size=2), 2.0)
        actions = register(job, again(members[0], 1, 1, 1, local_size=2), 2.0)
        welcome = sent(actions, Welcome)[b"s9"]
        assert isinstance(welcome, Welcome)
        assert [(each.pid, each.local_rank, each.local_size) for each in welcome.participants] == [(1, 0, 2), (3, 1, 2)]

    def test_what_comes_late_from_the_last_one_changes_nothing(self) -> None:
        job = suspended()
        register(job, again(WORKERS[0], 1, 1, 1), 2.0)
        assert job.state is State.RUNNING
        assert job.receive(2.0, b"w1", Heartbeat(71)) == []
        assert job.receive(2.0, b"w1", SUSPEND) == [Send(b"w1", Left(0))]
        assert job.state is State.RUNNING


class TestTheEnd:
    def test_all_workers_have_ended(self) -> None:
        job = suspended()
        for each in WORKERS:
            job.receive(2.0, b"launcher", ended(each, 0))
        assert not any(isinstance(each, Stop) for each in job.tick(2.0 + HOLD_SECONDS - 0.1))
        actions = job.tick(2.0 + HOLD_SECONDS)
        assert stop(actions).status == 0
        assert {b"s8", b"s9"} <= set(sent(actions, Finished))

    def test_they_are_seen_to_have_ended(self) -> None:
        job = suspended()
        for peer, _, _ in job.members():
            if peer.startswith(b"w"):
                job.proven_lost(2.0, peer, "it is gone")
        assert stop(job.tick(2.0 + HOLD_SECONDS)).reason.startswith("every worker has ended after suspend()")

    def test_nobody_comes_in_time(self) -> None:
        job = suspended()
        assert not any(isinstance(each, Stop) for each in job.tick(120.0))
        end = stop(job.tick(121.0))
        assert (end.status, "BYTEPS_START_TIMEOUT=120 seconds" in end.reason) == (0, True)

    def test_a_launcher_whose_workers_take_long_holds_it_off(self) -> None:
        job = suspended(lost_timeout=60.0)
        vouch = Vouch("job", "launch-7", 2, 1, (Child(0, process(7)),))
        assert job.receive(110.0, b"launcher", vouch) == [Send(b"launcher", Vouched((0,)))]
        assert not any(isinstance(each, Stop) for each in job.tick(121.0))
        assert stop(job.tick(171.0)).status == 0

    def test_a_worker_that_fails_after_it_has_suspended(self) -> None:
        job = suspended()
        actions = job.receive(2.0, b"launcher", ended(WORKERS[1], 3))
        end = stop(actions)
        assert (end.status, end.reason) == (
            1,
            "worker 1 (pid 2 on host-a) failed after suspend(): its process ended with status 3",
        )
        assert {b"s8", b"s9"} <= set(sent(actions, Abort))

    @pytest.mark.parametrize("status", [0, 3])
    def test_the_end_of_one_that_did_not_resume_is_no_news_of_the_next_generation(self, status: int) -> None:
        job = suspended()
        register(job, again(WORKERS[0], 1, 2, 1), 2.0)
        actions = job.receive(2.0, b"launcher", ended(WORKERS[2], status))
        assert not any(isinstance(each, Stop) for each in actions)
        register(job, again(WORKERS[1], 1, 2, 1), 2.0)
        assert job.state is State.RUNNING
        actions = job.receive(3.0, b"launcher", ended(WORKERS[1], 0))  # it is in this one
        assert "is lost" in stop(actions).reason

    def test_the_scheduler_is_told_to_end(self) -> None:
        job = suspended()
        actions = job.told_to_end(2.0, "the scheduler was told to end", 20.0)
        assert stop(actions) == Stop(0, "the scheduler was told to end while the job was suspended")
        assert {b"s8", b"s9"} <= set(sent(actions, Finished))

    def test_it_was_told_so_before(self) -> None:
        job = running()
        job.told_to_end(0.5, "the scheduler was told to end", 20.0)
        job.receive(1.0, b"w1", SUSPEND)
        job.receive(1.0, b"w2", SUSPEND)
        assert stop(job.receive(1.0, b"w3", SUSPEND)).status == 0

    def test_a_server_in_reserve_is_lost(self) -> None:
        job = suspended()
        actions = job.proven_lost(2.0, b"s8", "its process 8 on host-c is gone")
        assert "it was in reserve, and another server may take its place" in logged(actions)
        register(job, again(WORKERS[0], 1, 1, 2), 3.0)
        assert job.state is State.GATHERING
        assert set(sent(register(job, counted(server(10, "host-c"), 1, 2), 4.0), Welcome)) == {b"w1-1", b"s9", b"s10"}

    def test_a_silent_one_too(self) -> None:
        job = suspended()
        for now in range(2, 31):
            job.receive(float(now), b"s9", Heartbeat())
            job.tick(float(now))
        actions = job.tick(31.0)
        assert "server (pid 8 on host-c) is lost: it has not been heard from for 30 s" in logged(actions)

    def test_servers_in_reserve_hear_of_the_end(self) -> None:
        job = suspended()
        register(job, again(WORKERS[0], 1, 1, 1), 2.0)
        actions = job.receive(3.0, b"w1-1", Bye())
        assert set(sent(actions, Finished)) >= {b"s8", b"s9"}
        assert set(sent(job.say_end_again(), Finished)) >= {b"s8", b"s9"}
        assert set(sent(job.receive(3.5, b"s9", Heartbeat()), Finished)) == {b"s9"}

    def test_who_has_not_resumed_yet_learns_why_he_cannot(self) -> None:
        job = suspended()
        register(job, again(WORKERS[0], 1, 2, 1), 2.0)
        register(job, again(WORKERS[1], 1, 3, 1), 2.0)
        assert job.state is State.ENDING
        assert b"w3" in {peer for peer, _, _ in job.members()}
        refused = sent(register(job, again(WORKERS[2], 1, 2, 1), 2.5), Refused)[b"w3-1"]
        assert "DMLC_NUM_WORKER is 2" in str(refused)
        assert b"w3" not in {peer for peer, _, _ in job.members()}


@pytest.mark.parametrize("seed", range(30))
def test_any_sequence_of_generations(seed: int) -> None:
    """Whoever comes and goes between generations, in any order: each has the right members, ranks and epoch."""
    chance = random.Random(seed)
    job = running()
    workers, servers = list(WORKERS), list(SERVERS)
    pids = count(100)
    for turn in range(1, 6):
        for each in chance.sample(workers, len(workers)):
            ways = (SUSPEND,) if each is workers[0] else (SUSPEND, SUSPEND, Bye())
            job.receive(float(turn), each.peer, chance.choice(ways))
        assert job.state is State.SUSPENDED
        counts = chance.randint(1, 5), chance.randint(1, 4)
        stay = [workers[0], *chance.sample(workers[1:], chance.randint(0, len(workers) - 1))][: counts[0]]
        workers = [again(each, turn, *counts) for each in stay]
        ids = iter(set(range(1000)) - {each.register.worker_id for each in workers})
        while len(workers) < counts[0]:
            workers.append(counted(worker(next(pids), worker_id=next(ids)), *counts))
        new = [counted(server(next(pids), "host-c"), *counts) for _ in range(counts[1] - len(servers))]
        coming = [*workers, *servers, *new]
        chance.shuffle(coming)
        if new and coming[0] in servers:
            coming.insert(0, coming.pop(coming.index(workers[0])))
        actions = [action for each in coming for action in register(job, each, float(turn))]
        servers += new
        assert job.state is State.RUNNING
        welcomes = sent(actions, Welcome)
        assert {peer for peer in welcomes if peer.startswith(b"w")} == {each.peer for each in workers}
        for each in welcomes.values():
            assert isinstance(each, Welcome)
            assert (each.epoch, len(each.participants), len(each.servers)) == (turn + 1, *counts)
        was_there = [each.register.incarnation for each in workers if each.register.resumes]
        (welcome, *_) = welcomes.values()
        assert isinstance(welcome, Welcome)
        assert {each.incarnation for each in welcome.participants[: len(was_there)]} == set(was_there)
