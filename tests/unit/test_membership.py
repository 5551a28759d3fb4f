"""The scheduler's state machine, driven without a socket or a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_py.core.membership import Action, Log, Membership, Send, State, Stop
from byteps_py.core.roster import Member
from byteps_py.types import DType, TensorSpec
from byteps_py.wire.control import (
    Abort,
    Barrier,
    BarrierDone,
    Bye,
    Child,
    ChildEnded,
    Conflict,
    ControlMessage,
    Declare,
    Declared,
    Finished,
    Heartbeat,
    HeartbeatReply,
    Left,
    Notice,
    ProcessInfo,
    Refused,
    Vouch,
    Vouched,
    Waiting,
    Welcome,
    decode_control,
    encode_control,
)
from tests.helpers.messages import CONTROL
from tests.helpers.registrations import process, server, worker

HERE = ProcessInfo("host-s", "boot-of-host-s", 1, 1)
W = TensorSpec("w", DType.FLOAT32, (3,))
WORKERS = (worker(1, "host-a", worker_id=0), worker(2, "host-b", worker_id=1))
SERVER = server(9, "host-c")
NAMES = {b"w1": "worker 0 (pid 1 on host-a)", b"w2": "worker 1 (pid 2 on host-b)", b"s9": "server 0 (pid 9 on host-c)"}


def membership(**fields: Any) -> Membership:
    defaults = {"job_nonce": 77, "scheduler": HERE, "start_timeout": 120.0, "lost_timeout": 30.0}
    return Membership("job", 2, 1, **{**defaults, **fields})


def register(scheduler: Membership, member: Member, now: float = 0.0) -> list[Action]:
    return scheduler.receive(now, member.peer, member.register)


def running(now: float = 0.0, **fields: Any) -> Membership:
    """The job of w1, w2 and s9, complete."""
    scheduler = membership(**fields)
    for member in (*WORKERS, SERVER):
        register(scheduler, member, now)
    assert scheduler.state is State.RUNNING
    return scheduler


def sent(actions: Sequence[Action]) -> list[tuple[bytes, ControlMessage]]:
    return [(each.peer, each.message) for each in actions if isinstance(each, Send)]


def told(actions: Sequence[Action], kind: type) -> list[bytes]:
    """Who gets a message of this kind."""
    return [peer for peer, message in sent(actions) if isinstance(message, kind)]


def logged(actions: Sequence[Action]) -> list[str]:
    return [each.text for each in actions if isinstance(each, Log)]


def stops(actions: Sequence[Action]) -> list[Stop]:
    return [each for each in actions if isinstance(each, Stop)]


def ended(member_process: ProcessInfo, status: int, job_id: str = "job") -> ChildEnded:
    return ChildEnded(job_id, member_process, status)


def assert_aborted(actions: Sequence[Action], peers: Sequence[bytes], *words: str, status: int = 1) -> None:
    """Exactly ``peers`` are told, and everywhere the same."""
    (stop,) = stops(actions)
    assert stop.status == status
    assert all(word in stop.reason for word in words), stop.reason
    assert sorted(told(actions, Abort)) == sorted(peers)
    assert all(message.reason == stop.reason for _, message in sent(actions) if isinstance(message, Abort))


class TestRegistration:
    def test_the_last_one_completes_the_job(self) -> None:
        scheduler = membership()
        assert sent(register(scheduler, WORKERS[1])) == []
        assert sent(register(scheduler, SERVER)) == []
        actions = register(scheduler, WORKERS[0])
        assert sorted(told(actions, Welcome)) == [b"s9", b"w1", b"w2"]
        welcomes = {peer: message for peer, message in sent(actions) if isinstance(message, Welcome)}
        assert [welcomes[peer].rank for peer in (b"w1", b"w2", b"s9")] == [0, 1, 0]
        assert {(each.job, each.epoch) for each in welcomes.values()} == {(77, 1)}
        assert [each.pid for each in welcomes[b"s9"].participants] == [1, 2]
        assert [each.address for each in welcomes[b"w1"].servers] == ["tcp://host-c:9"]
        assert scheduler.state is State.RUNNING

    def test_repeating_before_the_start_changes_nothing(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        assert register(scheduler, WORKERS[0], 5.0) == []
        assert scheduler.state is State.GATHERING

    def test_repeating_after_the_start_gives_the_welcome_again(self) -> None:
        scheduler = running()
        ((peer, message),) = sent(register(scheduler, WORKERS[1], 1.0))
        assert peer == b"w2"
        assert isinstance(message, Welcome)
        assert message.rank == 1

    def test_another_job(self) -> None:
        scheduler = membership()
        actions = register(scheduler, worker(1, worker_id=0, job_id="other"))
        ((peer, message),) = sent(actions)
        assert peer == b"w1"
        assert isinstance(message, Refused)
        assert "belongs to job 'other', this scheduler to job 'job'" in message.reason
        assert "BYTEPS_JOB_ID" in message.reason
        assert scheduler.members() == []

    def test_another_job_while_this_one_runs(self) -> None:
        ((_, message),) = sent(register(running(), worker(5, job_id="other")))
        assert isinstance(message, Refused)
        assert "'other'" in message.reason

    def test_a_place_that_is_taken(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        ((peer, message),) = sent(register(scheduler, worker(3, "host-b", worker_id=0)))
        assert peer == b"w3"
        assert isinstance(message, Refused)
        assert "(pid 3 on host-b)" in message.reason
        assert "(pid 1 on host-a)" in message.reason

    def test_a_place_whose_holder_is_gone(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        scheduler.proven_lost(1.0, b"w1", "its process 1 on host-a is gone")
        assert sent(register(scheduler, worker(3, "host-b", worker_id=0))) == []
        register(scheduler, WORKERS[1])
        assert told(register(scheduler, SERVER), Welcome) == [b"w3", b"w2", b"s9"]

    @pytest.mark.parametrize("in_state", [State.GATHERING, State.RUNNING])
    def test_two_processes_with_one_identity(self, in_state: State) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        if in_state is State.RUNNING:
            scheduler = running()
        again = msgspec.structs.replace(WORKERS[0].register, incarnation=999)
        ((peer, message),) = sent(scheduler.receive(0.0, b"w1", again))
        assert peer == b"w1"
        assert isinstance(message, Refused)
        assert "uses the identity of worker" in message.reason

    def test_too_late(self) -> None:
        scheduler = running()
        ((_, message),) = sent(register(scheduler, worker(3, worker_id=0)))
        assert isinstance(message, Refused)
        assert "the job is complete" in message.reason
        assert scheduler.state is State.RUNNING

    def test_a_contradiction_is_told_to_everyone(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        register(scheduler, SERVER)
        actions = register(scheduler, worker(2, "host-b", worker_id=1, partition_bytes=1024000))
        words = "BYTEPS_PARTITION_BYTES is 4096000 on worker", "and 1024000 on worker"
        assert_aborted(actions, [b"w1", b"s9"], *words, status=2)
        assert told(actions, Refused) == [b"w2"]
        late = register(scheduler, worker(3, "host-c", worker_id=1))
        messages = [message for _, message in sent(actions + late)]
        assert len(messages) == 4
        assert all(each.settings for each in messages if isinstance(each, Abort | Refused))

    def test_another_number_of_workers(self) -> None:
        scheduler = membership()
        register(scheduler, SERVER)
        actions = register(scheduler, worker(2, num_worker=3))
        assert_aborted(actions, [b"s9"], "DMLC_NUM_WORKER is 2 at the scheduler and 3 on worker", status=2)

    def test_a_contradiction_that_comes_too_late_harms_nobody(self) -> None:
        scheduler = running()
        assert told(register(scheduler, worker(5, num_worker=3)), Abort) == []

    @pytest.mark.parametrize(("num_worker", "num_server"), [(0, 1), (1, 0)])
    def test_impossible_jobs(self, num_worker: int, num_server: int) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            Membership("job", num_worker, num_server, job_nonce=1, scheduler=HERE, start_timeout=1.0, lost_timeout=30.0)


def shares_told(members: Sequence[Member], num_worker: int, num_server: int, *, by_machine: bool = True) -> list[str]:
    """What is logged of shares when the last of the members has come."""
    fields: dict[str, Any] = {"job_nonce": 77, "scheduler": HERE, "start_timeout": 120.0, "lost_timeout": 30.0}
    scheduler = Membership("job", num_worker, num_server, by_machine=by_machine, **fields)
    for member in members:
        counted = msgspec.structs.replace(member.register, num_worker=num_worker, num_server=num_server)
        last = scheduler.receive(0, member.peer, counted)
    assert scheduler.state is State.RUNNING
    return [each.text for each in last if isinstance(each, Log) and each.level == "info" and "shares" in each.text]


class TestShares:
    WORKERS = tuple(worker(index, f"host-{index}", worker_id=index) for index in (0, 1, 2))
    SERVERS = (server(7, "host-0"), server(8, "host-1"), server(9, "host-s"))

    def test_the_line_of_unequal_ones(self) -> None:
        assert shares_told([*self.WORKERS, *self.SERVERS], 3, 3) == [
            "shares of the bytes, by where servers and workers are: 28.6 % each: server 0 on host-0, server 1 on "
            "host-1; 42.9 %: server 2 on host-s (BYTEPS_ENABLE_MIXED_MODE=0: equal ones)"
        ]

    def test_many_servers_are_not_all_named(self) -> None:
        apart = [server(20 + index, f"host-s{index:02}") for index in range(12)]
        (line,) = shares_told([*self.WORKERS, server(7, "host-0"), *apart], 3, 13)
        assert line.count("server ") == 9
        assert "host-s07 and 4 more" in line

    def test_no_line_where_they_are_equal(self) -> None:
        beside = [server(10 + index, f"host-{index}") for index in (0, 1, 2)]
        assert shares_told([*self.WORKERS, *beside], 3, 3) == []
        assert shares_told([*self.WORKERS, server(7, "host-s"), server(8, "host-s")], 3, 2) == []
        assert shares_told([*self.WORKERS, *self.SERVERS], 3, 3, by_machine=False) == []


class TestGathering:
    def test_waiting_is_spoken_of_and_ends(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0], 100.0)
        register(scheduler, SERVER, 100.0)
        found: dict[int, list[Action]] = {}
        for now in range(100, 221):
            for peer in (b"w1", b"s9"):
                scheduler.receive(now, peer, Heartbeat())
            found[now] = scheduler.tick(float(now))
        assert [now for now, actions in found.items() if told(actions, Waiting)] == list(range(110, 220, 10))
        text = "waiting 10 s for 1 of 2 workers: missing DMLC_WORKER_ID=1; servers 1/1"
        assert found[110] == [Log("warning", text), Send(b"w1", Waiting(text)), Send(b"s9", Waiting(text))]
        assert_aborted(found[220], [b"w1", b"s9"], "waiting 120 s for 1 of 2 workers: missing DMLC_WORKER_ID=1")

    def test_a_scheduler_alone_waits_for_ever(self) -> None:
        scheduler = membership(start_timeout=1.0)
        texts = [text for now in range(200) for text in logged(scheduler.tick(float(now)))]
        assert texts[0] == "waiting 10 s for 2 of 2 workers; servers 0/1"
        assert len(texts) == 8
        assert scheduler.state is State.GATHERING

    def test_a_process_that_is_gone_is_missing_again(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        actions = scheduler.proven_lost(1.0, b"w1", "its process 1 on host-a is gone")
        assert told(actions, Refused) == [b"w1"]
        assert (
            "worker DMLC_WORKER_ID=0 (pid 1 on host-a) is lost: its process 1 on host-a is gone" in logged(actions)[0]
        )
        assert scheduler.members() == []
        assert stops(actions) == []

    def test_a_silent_process_is_named_and_then_missing_again(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        texts = {now: logged(scheduler.tick(float(now))) for now in range(31)}
        assert "has not been heard from for 5 s" in texts[5][0]
        assert "it has not been heard from for 30 s (BYTEPS_LOST_TIMEOUT=30)" in texts[30][0]
        assert scheduler.members() == []

    def test_leaving_before_the_start(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        actions = scheduler.receive(1.0, b"w1", Bye())
        assert told(actions, Refused) == [b"w1"]
        assert scheduler.members() == []
        assert scheduler.state is State.GATHERING

    def test_what_a_forgotten_process_still_sends_is_not_mentioned(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        scheduler.proven_lost(1.0, b"w1", "gone")
        assert scheduler.receive(2.0, b"w1", Heartbeat()) == []

    def test_heartbeats_are_answered(self) -> None:
        scheduler = membership()
        register(scheduler, SERVER)
        assert scheduler.receive(1.0, b"s9", Heartbeat()) == [Send(b"s9", HeartbeatReply(HERE))]


class TestDeclare:
    def test_a_placement(self) -> None:
        ((peer, message),) = sent(running().receive(1.0, b"w2", Declare(4, (W,))))
        assert peer == b"w2"
        assert isinstance(message, Declared)
        assert (message.request, message.placements[0].name) == (4, "w")

    def test_the_partition_size_is_the_workers(self) -> None:
        scheduler = membership()
        for member in (*(worker(pid, worker_id=pid - 1, partition_bytes=128) for pid in (1, 2)), SERVER):
            register(scheduler, member)
        ((_, message),) = sent(scheduler.receive(1.0, b"w1", Declare(1, (TensorSpec("v", DType.FLOAT64, (40,)),))))
        assert isinstance(message, Declared)
        assert [each.count for each in message.placements[0].partitions] == [16, 16, 8]

    def test_a_conflict_reaches_every_worker(self) -> None:
        scheduler = running()
        scheduler.receive(1.0, b"w1", Declare(1, (W,)))
        actions = scheduler.receive(1.0, b"w2", Declare(1, (TensorSpec("w", DType.INT8, (3,)),)))
        assert told(actions, Conflict) == [b"w1", b"w2"]
        assert scheduler.state is State.RUNNING


class TestBarrier:
    def test_all_pass_together(self) -> None:
        scheduler = running()
        assert scheduler.receive(1.0, b"w1", Barrier(1)) == []
        assert told(scheduler.receive(2.0, b"w2", Barrier(1)), BarrierDone) == [b"w1", b"w2"]
        assert sent(scheduler.receive(3.0, b"w1", Barrier(1))) == [(b"w1", BarrierDone(1))]

    def test_a_long_wait_is_mentioned(self) -> None:
        scheduler = running()
        scheduler.receive(0.0, b"w1", Barrier(1))
        texts = []
        for now in range(11):
            for peer in NAMES:
                scheduler.receive(now, peer, Heartbeat())
            texts += logged(scheduler.tick(float(now)))
        assert texts == ["waiting 10 s at barrier 1 for worker 1 (pid 2 on host-b)"]

    def test_a_worker_leaves_while_another_waits(self) -> None:
        scheduler = running()
        scheduler.receive(1.0, b"w1", Barrier(1))
        assert sent(scheduler.receive(2.0, b"w2", Bye())) == [(b"w2", Left(1))]
        actions = [each for each in scheduler.tick(3.0) if not isinstance(getattr(each, "message", None), Left)]
        assert_aborted(actions, [b"w1", b"s9"], "barrier 1", f"{NAMES[b'w2']} has left", NAMES[b"w1"])

    def test_a_worker_waits_for_one_that_has_left(self) -> None:
        scheduler = running()
        scheduler.receive(1.0, b"w2", Bye())
        scheduler.tick(2.0)
        assert_aborted(scheduler.receive(3.0, b"w1", Barrier(1)), [b"w1", b"s9"], f"{NAMES[b'w2']} has left")

    def test_only_finished_barriers_may_be_left_behind(self) -> None:
        scheduler = running()
        for peer in (b"w1", b"w2"):
            scheduler.receive(1.0, peer, Barrier(1))
        assert stops(scheduler.receive(2.0, b"w2", Bye())) == []
        assert sent(scheduler.receive(3.0, b"w1", Barrier(1))) == [(b"w1", BarrierDone(1))]


class TestLeaving:
    def test_everybody_learns_of_it(self) -> None:
        scheduler = running()
        assert sent(scheduler.receive(1.0, b"w1", Bye())) == [(b"w1", Left(0))]
        assert sent(scheduler.tick(1.9)) == []
        assert sorted(sent(scheduler.tick(2.0))) == [(peer, Left(0)) for peer in (b"s9", b"w2")]
        assert sent(scheduler.tick(3.0)) == []

    def test_repeating_is_answered_to_the_sender(self) -> None:
        scheduler = running()
        scheduler.receive(1.0, b"w1", Bye())
        assert scheduler.receive(2.0, b"w1", Bye()) == [Send(b"w1", Left(0))]

    def test_a_worker_that_dies_of_an_error_ends_the_job(self) -> None:
        scheduler = running()
        assert stops(scheduler.receive(1.0, b"w1", Bye("failed: ValueError: x"))) == []
        (stop,) = stops(scheduler.tick(2.0))
        assert stop.status == 1
        assert "worker 0" in stop.reason
        assert "failed: ValueError: x" in stop.reason

    def test_the_last_one_ends_the_job(self) -> None:
        scheduler = running()
        scheduler.receive(1.0, b"w1", Bye())
        actions = scheduler.receive(2.0, b"w2", Bye())
        assert sent(actions) == [(b"w2", Left(1)), (b"s9", Finished())]
        assert [stop.status for stop in stops(actions)] == [0]
        assert scheduler.state is State.ENDING

    def test_whoever_has_left_is_of_no_concern(self) -> None:
        scheduler = running()
        scheduler.receive(1.0, b"w1", Bye())
        assert scheduler.proven_lost(2.0, b"w1", "its process is gone") == []
        assert [peer for peer, _, _ in scheduler.members()] == [b"w2", b"s9"]
        scheduler.tick(2.0)
        for now in range(3, 100):
            for peer in (b"w2", b"s9"):
                scheduler.receive(now, peer, Heartbeat())
            assert scheduler.tick(float(now)) == []

    def test_whoever_has_left_can_do_no_more(self) -> None:
        scheduler = running()
        scheduler.receive(1.0, b"w1", Bye())
        for message in (Barrier(1), Declare(1, (W,))):
            (log,) = scheduler.receive(2.0, b"w1", message)
            assert isinstance(log, Log)
            assert log.text == f"ignored a {type(message).__name__} of {NAMES[b'w1']}: it has left"

    def test_a_heartbeat_on_the_way_is_answered(self) -> None:
        scheduler = running()
        scheduler.receive(1.0, b"w1", Bye())
        assert scheduler.receive(1.0, b"w1", Heartbeat()) == [Send(b"w1", HeartbeatReply(HERE))]


class TestLoss:
    @pytest.mark.parametrize("peer", list(NAMES))
    def test_proof_ends_the_job(self, peer: bytes) -> None:
        scheduler = running()
        actions = scheduler.proven_lost(1.0, peer, "its process is gone")
        assert_aborted(actions, list(NAMES), f"{NAMES[peer]} is lost: its process is gone")

    def test_only_the_first_loss_is_the_reason(self) -> None:
        scheduler = running()
        scheduler.proven_lost(1.0, b"w1", "gone")
        assert scheduler.proven_lost(1.0, b"w2", "gone") == []
        assert scheduler.abort("another reason") == []

    def test_unknown_peers_cannot_be_lost(self) -> None:
        assert running().proven_lost(1.0, b"nobody", "gone") == []

    def test_silence_is_named_first(self) -> None:
        scheduler = running()
        found = self._silence_of(scheduler, b"w2", 30)
        assert list(found) == [5, 30]
        assert found[5] == [Log("warning", f"{NAMES[b'w2']} has not been heard from for 5 s; the job goes on")]
        assert_aborted(found[30], list(NAMES), f"{NAMES[b'w2']} is lost: it has not been heard from for 30 s")

    def test_a_process_that_is_seen_to_run_is_not_lost(self) -> None:
        scheduler = running()
        found = {}
        for now in range(100):
            for peer in (b"w1", b"s9"):
                scheduler.receive(now, peer, Heartbeat())
            silent = scheduler.silent(float(now))
            assert silent == ([(b"w2", WORKERS[1].process)] if now >= 5 else [])
            found[now] = scheduler.tick(float(now), {peer for peer, _ in silent})
        spoken = {now: logged(actions) for now, actions in found.items() if actions}
        assert list(spoken) == [5, 30, 90]
        assert spoken[30] == [
            f"{NAMES[b'w2']} has not been heard from for 30 s, but its process runs (is it in a long call that holds "
            "the GIL?); the job goes on"
        ]
        assert scheduler.state is State.RUNNING

    def test_a_silence_that_ends(self) -> None:
        scheduler = running()
        self._silence_of(scheduler, b"w2", 20)
        assert logged(scheduler.receive(20.5, b"w2", Heartbeat())) == [f"{NAMES[b'w2']} is back after 20 s"]
        assert scheduler.tick(21.0) == []

    def test_any_message_is_a_sign_of_life(self) -> None:
        scheduler = running()
        for now in range(60):
            scheduler.receive(now, b"w1", Declare(now, (W,)))
            scheduler.receive(now, b"w2", Barrier(7))
            register(scheduler, SERVER, now)
            assert scheduler.tick(float(now)) == []

    def test_a_scheduler_that_was_stopped_blames_nobody(self) -> None:
        scheduler = running()
        scheduler.tick(1.0)
        assert scheduler.tick(1000.0) == []
        assert scheduler.state is State.RUNNING

    def test_a_reason_of_the_runner(self) -> None:
        assert_aborted(running().abort("the scheduler was interrupted"), list(NAMES), "the scheduler was interrupted")

    @staticmethod
    def _silence_of(scheduler: Membership, silent: bytes, until: int) -> dict[int, list[Action]]:
        found = {}
        for now in range(until + 1):
            for peer in NAMES:
                if peer != silent:
                    scheduler.receive(now, peer, Heartbeat())
            found[now] = scheduler.tick(float(now))
        return {now: actions for now, actions in found.items() if actions}


class TestChildEnded:
    """What a launcher reports; it is no member itself."""

    def test_before_it_joined_with_an_error(self) -> None:
        scheduler = membership()
        register(scheduler, SERVER)
        actions = scheduler.receive(1.0, b"launcher", ended(process(3), 3))
        assert_aborted(actions, [b"s9"], "process 3 on host-a ended with status 3 before it joined the job")

    def test_before_anyone_joined(self) -> None:
        actions = membership().receive(1.0, b"launcher", ended(process(3), -9))
        assert_aborted(actions, [], "process 3 on host-a was killed by signal 9 before it joined the job")

    def test_before_it_joined_without_an_error(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        actions = scheduler.receive(1.0, b"launcher", ended(process(3), 0))
        text = "process 3 on host-a ended with status 0 before it joined the job"
        assert logged(actions) == [text]
        assert scheduler.state is State.GATHERING
        assert_aborted(scheduler.tick(1.0), [b"w1"], text)

    def test_all_workers_without_an_error_and_without_joining(self) -> None:
        scheduler = membership()
        register(scheduler, SERVER)
        children = [ChildEnded("job", process(pid), 0, "x", pid, 0) for pid in (0, 1)]
        assert stops(scheduler.receive(1.0, b"launcher", children[0])) == []
        actions = scheduler.receive(2.0, b"launcher", children[1])
        text = "every worker has ended with status 0 and none of them ever called init(): there is nothing to do"
        assert logged(actions) == [text]
        assert told(actions, Finished) == [b"s9"]
        assert stops(actions) == [Stop(0, text)]
        # One that comes late is not needed either, and nothing is said about it; a worker is.
        assert scheduler.receive(3.0, b"s8", SERVER.register) == [Send(b"s8", Finished())]
        ((peer, refused),) = sent(register(scheduler, worker(7)))
        assert (peer, refused) == (b"w7", Refused("the job has ended: its work is done"))

    def test_a_shell_that_ends_before_the_worker_that_it_started(self) -> None:
        scheduler = membership()
        register(scheduler, worker(1, "host-a", worker_id=0, launch_id="x"))
        for member in (WORKERS[1], SERVER):
            register(scheduler, member)
        actions = scheduler.receive(1.0, b"launcher", ChildEnded("job", process(50), 0, "x", 0, 0))
        assert stops(actions) == []
        for now in range(1, 6):
            for peer in (b"w2", b"s9"):
                scheduler.receive(now, peer, Heartbeat())
            actions = scheduler.tick(float(now))
        how = "the command that started it, process 50 on host-a, ended with status 0"
        assert_aborted(actions, list(NAMES), f"{NAMES[b'w1']} is lost: it has not been heard from for 5 s ({how})")

    def test_registered_and_not_complete(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        actions = scheduler.receive(1.0, b"launcher", ended(WORKERS[0].process, 1))
        assert_aborted(actions, [b"w1"], "worker DMLC_WORKER_ID=0 (pid 1 on host-a) is lost", "ended with status 1")

    @pytest.mark.parametrize(("status", "words"), [(3, "ended with status 3"), (-11, "was killed by signal 11")])
    def test_while_the_job_runs(self, status: int, words: str) -> None:
        actions = running().receive(1.0, b"launcher", ended(WORKERS[1].process, status))
        assert_aborted(actions, list(NAMES), f"{NAMES[b'w2']} is lost: its process 2 on host-b {words}")

    def test_a_good_status_without_a_goodbye(self) -> None:
        actions = running().receive(1.0, b"launcher", ended(SERVER.process, 0))
        assert_aborted(actions, list(NAMES), "ended with status 0 without saying goodbye")

    def test_a_report_that_does_not_know_the_start(self) -> None:
        unknown = msgspec.structs.replace(WORKERS[1].process, started=0)
        assert_aborted(running().receive(1.0, b"launcher", ended(unknown, 1)), list(NAMES), NAMES[b"w2"])

    def test_after_its_goodbye(self) -> None:
        scheduler = running()
        scheduler.receive(1.0, b"w1", Bye())
        assert told(scheduler.receive(2.0, b"launcher", ended(WORKERS[0].process, 0)), Abort) == []
        assert scheduler.state is State.RUNNING

    @pytest.mark.parametrize(("reason", "word"), [("", "failed: its process"), ("was terminated", "was terminated")])
    def test_a_bad_end_after_a_goodbye_is_a_failure(self, reason: str, word: str) -> None:
        scheduler = running()
        scheduler.receive(1.0, b"w1", Bye(reason))
        actions = scheduler.receive(1.1, b"launcher", ended(WORKERS[0].process, 5))
        assert told(actions, Abort) == [b"w2", b"s9"]
        (stop,) = stops(actions)
        assert NAMES[b"w1"] in stop.reason
        assert word in stop.reason

    def test_a_process_that_was_refused(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        refused = worker(4, worker_id=0)
        assert told(register(scheduler, refused), Refused) == [b"w4"]
        actions = scheduler.receive(1.0, b"launcher", ended(refused.process, 1))
        assert logged(actions) == ["process 4 on host-a ended with status 1; it was no member of the job"]
        assert scheduler.state is State.GATHERING

    def test_a_stranger_while_the_job_runs(self) -> None:
        scheduler = running()
        assert told(scheduler.receive(1.0, b"launcher", ended(process(55), 1)), Abort) == []
        assert scheduler.state is State.RUNNING

    def test_of_another_job(self) -> None:
        scheduler = running()
        actions = scheduler.receive(1.0, b"launcher", ended(WORKERS[0].process, 1, job_id="other"))
        assert logged(actions) == ["ignored the end of a process of job 'other'"]
        again = scheduler.receive(1.0, b"launcher", ended(WORKERS[1].process, 1, job_id="another"))
        assert logged(again) == [], "no line for each message of a flood"
        assert told(again, HeartbeatReply) == [b"launcher"]
        assert scheduler.state is State.RUNNING

    def test_after_the_end(self) -> None:
        scheduler = running()
        scheduler.abort("reason")
        answer = Send(b"launcher", HeartbeatReply(HERE))
        assert scheduler.receive(1.0, b"launcher", ended(WORKERS[0].process, 1)) == [answer]

    @pytest.mark.parametrize("message", [ended(process(1), 3), ended(process(1), 0), ended(process(1), 3, "other")])
    def test_a_report_is_answered(self, message: ChildEnded) -> None:
        for scheduler in (membership(), running()):
            assert scheduler.receive(1.0, b"launcher", message)[0] == Send(b"launcher", HeartbeatReply(HERE))


class TestVouching:
    """A launcher says which of its workers live; it is no member itself."""

    VOUCH = Vouch("job", "x", 1, 1, (Child(0, process(2, "host-b")),))

    def test_until_they_have_joined(self) -> None:
        scheduler = membership()
        assert scheduler.receive(0.0, b"launcher", self.VOUCH) == [Send(b"launcher", Vouched((0,)))]
        register(scheduler, WORKERS[1])
        assert scheduler.receive(1.0, b"launcher", self.VOUCH) == [Send(b"launcher", Vouched((), (0,)))]

    def test_a_worker_that_takes_long_is_waited_for(self) -> None:
        scheduler = membership(start_timeout=20.0)
        register(scheduler, WORKERS[0])
        register(scheduler, SERVER)
        texts = []
        for now in range(200):
            for peer in (b"w1", b"s9"):
                scheduler.receive(now, peer, Heartbeat())
            scheduler.receive(now, b"launcher", self.VOUCH)
            texts += logged(scheduler.tick(float(now)))
        assert len(texts) == 19
        assert texts[-1].endswith("; worker DMLC_WORKER_ID=1 runs on host-b (pid 2) but has not called init() yet")
        assert told(register(scheduler, WORKERS[1], 200.0), Welcome) == [b"w1", b"s9", b"w2"]

    def test_a_complete_job_waits_for_nobody(self) -> None:
        assert running().receive(0.0, b"launcher", self.VOUCH) == [Send(b"launcher", Vouched((), (0,)))]

    def test_the_launcher_hears_the_end(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        scheduler.receive(0.0, b"launcher", self.VOUCH)
        assert told(scheduler.abort("reason"), Abort) == [b"w1", b"launcher"]
        assert scheduler.receive(1.0, b"launcher", self.VOUCH) == [Send(b"launcher", Abort("reason"))]

    def test_not_if_the_job_was_complete(self) -> None:
        scheduler = membership()
        scheduler.receive(0.0, b"launcher", self.VOUCH)
        for member in (*WORKERS, SERVER):
            register(scheduler, member)
        assert sorted(told(scheduler.abort("reason"), Abort)) == sorted(NAMES)

    def test_the_launcher_of_members_that_come_late_is_not_told_the_end(self) -> None:
        """A short job may be over before its launcher has said a word; the workers are about to end well."""
        scheduler = membership()
        for member in (worker(1, worker_id=0), worker(2, "host-b", worker_id=1, launch_id="x"), SERVER):
            register(scheduler, member)
        scheduler.receive(1.0, b"w1", Bye(""))
        (stop,) = stops(scheduler.receive(1.0, b"w2", Bye("")))
        assert stop.status == 0
        assert scheduler.receive(1.0, b"launcher", self.VOUCH) == [Send(b"launcher", Vouched((), (0,)))]
        stranger = msgspec.structs.replace(self.VOUCH, launch_id="y")
        assert scheduler.receive(1.0, b"other", stranger) == [Send(b"other", Finished())]

    def test_of_another_job(self) -> None:
        vouch = msgspec.structs.replace(self.VOUCH, job_id="other")
        ((_, message),) = sent(membership().receive(0.0, b"launcher", vouch))
        assert isinstance(message, Refused)
        assert message.reason.startswith("this launch of workers belongs to job 'other', this scheduler to job 'job'")


class TestToldToEnd:
    """SIGTERM to the scheduler, or to a server."""

    REASON = "the scheduler (pid 1 on host-s) was told to end (SIGTERM)"

    def test_the_workers_have_time_to_leave(self) -> None:
        scheduler = running()
        text = f"{self.REASON}: the job goes on until its workers have left, for 20 s at most (BYTEPS_GRACE_PERIOD)"
        assert scheduler.told_to_end(1.0, self.REASON, 20.0) == [
            Log("warning", text),
            Send(b"w1", Notice(text)),
            Send(b"w2", Notice(text)),
        ]
        for peer in (b"w1", b"w2"):
            actions = scheduler.receive(2.0, peer, Bye())
        assert [stop.status for stop in stops(actions)] == [0]
        assert scheduler.tick(21.0) == []

    def test_but_no_more_than_the_grace_period(self) -> None:
        scheduler = running()
        scheduler.told_to_end(1.0, self.REASON, 3.0)
        assert scheduler.tick(3.9) == []
        assert_aborted(scheduler.tick(4.0), list(NAMES), self.REASON)

    def test_without_a_grace_period(self) -> None:
        assert_aborted(running().told_to_end(1.0, self.REASON, 0.0), list(NAMES), self.REASON)

    def test_before_the_job_is_complete(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        assert_aborted(scheduler.told_to_end(1.0, self.REASON, 20.0), [b"w1"], self.REASON)

    def test_before_any_worker_came_it_is_no_failure(self) -> None:
        scheduler = membership()
        register(scheduler, SERVER)
        actions = scheduler.told_to_end(1.0, self.REASON, 20.0)
        assert logged(actions) == ["no worker called init(): nothing was exchanged"]
        assert sent(actions) == [(b"s9", Finished())]
        assert [stop.status for stop in stops(actions)] == [0]

    def test_a_worker_that_came_and_went_had_called_init(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        scheduler.receive(1.0, b"w1", Bye("gave init() up"))
        actions = scheduler.told_to_end(1.0, self.REASON, 20.0)
        assert [stop.status for stop in stops(actions)] == [0]
        assert logged(actions) == []

    def test_the_end_can_be_repeated(self) -> None:
        scheduler = running()
        assert scheduler.say_end_again() == []
        scheduler.receive(1.0, b"w1", Bye())
        scheduler.abort("reason")
        assert sent(scheduler.say_end_again()) == [(b"w2", Abort("reason")), (b"s9", Abort("reason"))]

    def test_after_the_end(self) -> None:
        scheduler = running()
        scheduler.abort("reason")
        assert scheduler.told_to_end(1.0, self.REASON, 20.0) == []

    def test_a_server_is_told_to_end(self) -> None:
        scheduler = running()
        text = f"{NAMES[b's9']} was told to end (SIGTERM)"
        actions = scheduler.receive(1.0, b"s9", Notice("was told to end (SIGTERM)"))
        assert actions == [Log("warning", text), Send(b"w1", Notice(text)), Send(b"w2", Notice(text))]
        assert_aborted(scheduler.receive(9.0, b"s9", Bye("was told to end (SIGTERM)")), list(NAMES), text)

    def test_a_worker_has_nothing_to_announce(self) -> None:
        scheduler = running()
        actions = scheduler.receive(1.0, b"w1", Notice("was told to end (SIGTERM)"))
        assert sent(actions) == []
        assert logged(actions) == [f"ignored a Notice of {NAMES[b'w1']}: the job is RUNNING"]

    def test_a_server_that_leaves_before_the_start_leaves_its_place(self) -> None:
        scheduler = membership()
        register(scheduler, SERVER)
        actions = scheduler.receive(1.0, b"s9", Bye("was told to end (SIGTERM)"))
        assert told(actions, Refused) == [b"s9"]
        text = "server (pid 9 on host-c) was told to end (SIGTERM); the job was not"
        assert logged(actions)[0].startswith(text)
        assert [each.level for each in actions if isinstance(each, Log)] == ["info"], "no worker waits"
        register(scheduler, WORKERS[0])
        register(scheduler, SERVER)
        actions = scheduler.receive(1.0, b"s9", Bye("was told to end (SIGTERM)"))
        assert [each.level for each in actions if isinstance(each, Log)] == ["warning"]


class TestEnding:
    def test_the_abort_is_repeated_to_whoever_did_not_hear_it(self) -> None:
        scheduler = running()
        scheduler.proven_lost(1.0, b"w1", "gone")
        reason = f"{NAMES[b'w1']} is lost: gone"
        for message in (Heartbeat(), Declare(1, (W,)), Barrier(1), Bye(), WORKERS[1].register):
            assert scheduler.receive(2.0, b"w2", message) == [Send(b"w2", Abort(reason))]

    def test_the_good_end_is_repeated(self) -> None:
        scheduler = running()
        for peer in (b"w1", b"w2"):
            scheduler.receive(1.0, peer, Bye())
        assert scheduler.receive(2.0, b"s9", Heartbeat()) == [Send(b"s9", Finished())]
        assert scheduler.receive(2.0, b"w1", Bye()) == [Send(b"w1", Left(0))]
        assert [peer for peer, _, _ in scheduler.members()] == [b"s9"]

    def test_a_server_may_go(self) -> None:
        scheduler = running()
        for peer in (b"w1", b"w2"):
            scheduler.receive(1.0, peer, Bye())
        assert scheduler.proven_lost(2.0, b"s9", "gone") == []

    @pytest.mark.parametrize(("good", "words"), [(True, "its work is done"), (False, "the reason")])
    def test_new_processes_are_refused(self, good: bool, words: str) -> None:
        scheduler = running()
        for peer in (b"w1", b"w2"):
            if good:
                scheduler.receive(1.0, peer, Bye())
        scheduler.abort("the reason")
        ((peer, message),) = sent(register(scheduler, worker(7)))
        assert peer == b"w7"
        assert message == Refused(f"the job has ended: {words}")

    def test_time_does_nothing_more(self) -> None:
        scheduler = membership(start_timeout=5.0)
        register(scheduler, WORKERS[0])
        assert [len(stops(scheduler.tick(float(now)))) for now in range(5, 60)] == [1] + [0] * 54

    def test_an_abort_before_the_start_is_repeated_too(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        scheduler.abort("the reason")
        assert scheduler.receive(1.0, b"w1", Heartbeat()) == [Send(b"w1", Abort("the reason"))]
        assert register(scheduler, WORKERS[0]) == [Send(b"w1", Abort("the reason"))]


class TestOutOfPlace:
    def test_strangers_are_mentioned_once(self) -> None:
        scheduler = running()
        (log,) = scheduler.receive(1.0, b"\xffx", Heartbeat())
        assert log == Log("warning", "ignored a Heartbeat of \\xffx, which is not registered")
        assert scheduler.receive(2.0, b"\xffx", Bye()) == []

    def test_many_strangers_do_not_fill_the_log(self) -> None:
        scheduler = running()
        logs = [log for number in range(5000) for log in scheduler.receive(1.0, b"%d" % number, Heartbeat())]
        assert len(logs) == 1024

    @pytest.mark.parametrize("message", [Declare(1, (W,)), Barrier(1)])
    def test_what_only_workers_may_send(self, message: ControlMessage) -> None:
        scheduler = running()
        (log,) = scheduler.receive(1.0, b"s9", message)
        assert log == Log("warning", f"ignored a {type(message).__name__} of {NAMES[b's9']}: the job is RUNNING")

    @pytest.mark.parametrize("message", [Declare(1, (W,)), Barrier(1)])
    def test_what_comes_before_the_start(self, message: ControlMessage) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[0])
        (log,) = scheduler.receive(1.0, b"w1", message)
        assert isinstance(log, Log)
        assert log.text.endswith(": the job is GATHERING")

    @pytest.mark.parametrize("state", list(State))
    @pytest.mark.parametrize("peer", [b"w1", b"s9", b"stranger"])
    @pytest.mark.parametrize("tag", list(CONTROL))
    def test_no_message_is_too_much_in_any_state(self, state: State, peer: bytes, tag: str) -> None:
        scheduler = membership() if state is State.GATHERING else running()
        if state is State.GATHERING:
            register(scheduler, WORKERS[0])
            register(scheduler, SERVER)
        elif state is State.ENDING:
            scheduler.abort("reason")
        for action in scheduler.receive(1.0, peer, CONTROL[tag]):
            assert isinstance(action, Send | Log | Stop)

    def test_knowing(self) -> None:
        scheduler = running()
        scheduler.receive(1.0, b"w1", Bye())
        assert scheduler.knows(b"w1")
        assert scheduler.knows(b"s9")
        assert not scheduler.knows(b"stranger")


class TestMembers:
    def test_before_and_after_the_start(self) -> None:
        scheduler = membership()
        register(scheduler, WORKERS[1])
        description = "worker DMLC_WORKER_ID=1 (pid 2 on host-b)"
        assert scheduler.members() == [(b"w2", process(2, "host-b"), description)]
        register(scheduler, WORKERS[0])
        register(scheduler, SERVER)
        assert [(peer, text) for peer, _, text in scheduler.members()] == [
            (peer, NAMES[peer]) for peer in (b"w2", b"w1", b"s9")
        ]


MESSAGES = st.one_of(
    st.sampled_from([WORKERS[0].register, WORKERS[1].register, SERVER.register]),
    st.sampled_from(list(CONTROL.values())),
    st.builds(Barrier, st.integers(1, 3)),
    st.builds(lambda shape: Declare(1, (TensorSpec("w", DType.FLOAT32, (shape,)),)), st.integers(0, 3)),
    st.sampled_from([Bye(), Heartbeat()]),
    st.builds(ended, st.sampled_from([process(1), process(2, "host-b"), process(50)]), st.integers(-9, 3)),
    st.builds(ChildEnded, st.just("job"), st.just(process(50)), st.integers(-1, 1), st.just("x"), st.just(0)),
    st.builds(Vouch, st.just("job"), st.just("x"), st.integers(0, 2), st.just(1), st.just((Child(0, process(50)),))),
)
EVENTS = st.one_of(
    st.tuples(st.sampled_from([b"w1", b"w2", b"s9", b"x"]), MESSAGES),
    st.tuples(st.sampled_from([b"w1", b"s9"]), st.just("lost")),
    st.just((b"", "tick")),
    st.just((b"", "term")),
)


@given(st.booleans(), st.lists(EVENTS, max_size=40))
def test_whatever_happens(started: bool, events: list[tuple[bytes, ControlMessage | str]]) -> None:
    """No event is refused by an exception, states never go back, one Stop is given out, all messages can be sent."""
    scheduler = running() if started else membership()
    order = list(State)
    seen = [scheduler.state]
    given_out: list[Action] = []
    for now, (peer, event) in enumerate(events):
        if event == "tick":
            actions = scheduler.tick(float(now))
        elif event == "term":
            actions = scheduler.told_to_end(float(now), "told to end", 3.0)
        elif event == "lost":
            actions = scheduler.proven_lost(float(now), peer, "gone")
        else:
            assert not isinstance(event, str)
            actions = scheduler.receive(float(now), peer, event)
        given_out += actions
        seen.append(scheduler.state)
        for _, message in sent(actions):
            assert decode_control(encode_control(message)) == message
    assert [order.index(state) for state in seen] == sorted(order.index(state) for state in seen)
    assert len(stops(given_out)) == (State.ENDING in seen)


def test_every_message_that_a_member_sends_is_understood_in_some_state() -> None:
    """The table has a row for each; the others are the scheduler's own, or need no membership (clock)."""
    own = {"refused", "waiting", "welcome", "declared", "conflict", "barrier-done", "heartbeat-reply", "left"}
    own |= {"suspended", "vouched", "abort", "finished", "group", "group-formed", "status"}
    own |= {"inquiry", "clock", "clock-reply"}  # which the runner answers: it changes nothing
    understood = {kind for row in Membership._HANDLERS.values() for kind in row}
    assert understood == {type(message) for tag, message in CONTROL.items() if tag not in own}
