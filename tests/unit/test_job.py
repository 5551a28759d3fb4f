"""A complete job while it runs."""

from __future__ import annotations

from byteps_py.core.actions import Action, Log, Send
from byteps_py.core.job import EPOCH, Job
from byteps_py.core.roster import Roster
from byteps_py.types import DType, TensorSpec
from byteps_py.wire.control import (
    BarrierDone,
    Conflict,
    Declare,
    Declared,
    FormGroup,
    Group,
    GroupFormed,
    GroupKnown,
    Notice,
    Waiting,
    Welcome,
)
from tests.helpers.registrations import server, worker

NONCE = 2**64 - 5


def job(num_worker: int = 2) -> Job:
    """Workers w1, w2 ... with ranks 0, 1 ... and the servers s100 and s101."""
    roster = Roster(num_worker, 2)
    for rank in range(num_worker):
        assert roster.add(worker(rank + 1, worker_id=rank, num_worker=num_worker, num_server=2)) is None
    for pid in (100, 101):
        assert roster.add(server(pid, num_worker=num_worker, num_server=2)) is None
    return Job(roster.seating(), partition_bytes=64, nonce=NONCE)


def declare(*specs: TensorSpec, request: int = 1) -> Declare:
    return Declare(request, specs)


W = TensorSpec("w", DType.FLOAT32, (3,))
OTHER_W = TensorSpec("w", DType.FLOAT32, (4,))


class TestWelcome:
    def test_everybody_learns_who_everybody_is(self) -> None:
        running = job()
        for peer, rank in ((b"w1", 0), (b"w2", 1), (b"s100", 0), (b"s101", 1)):
            sent = running.welcome(peer)
            expected = Welcome(NONCE, EPOCH, rank, running.seating.participants, running.seating.servers)
            assert sent == Send(peer, expected)

    def test_names(self) -> None:
        assert job().names == {
            b"w1": "worker 0 (pid 1 on host-a)",
            b"w2": "worker 1 (pid 2 on host-a)",
            b"s100": "server 0 (pid 100 on host-a)",
            b"s101": "server 1 (pid 101 on host-a)",
        }


class TestDeclare:
    def test_the_answer_names_the_request(self) -> None:
        (sent,) = job().declare(b"w2", declare(W, request=17))
        assert isinstance(sent, Send)
        assert sent.peer == b"w2"
        assert isinstance(sent.message, Declared)
        assert sent.message.request == 17
        assert [each.name for each in sent.message.placements] == ["w"]

    def test_all_workers_get_the_same_placements(self) -> None:
        running = job()
        answers = [running.declare(peer, declare(W)) for peer in (b"w1", b"w2", b"w1")]
        messages = [answer[0].message for answer in answers if isinstance(answer[0], Send)]
        assert messages[0] == messages[1] == messages[2]

    def test_a_new_conflict_is_told_to_every_worker_before_the_answer(self) -> None:
        running = job(3)
        running.declare(b"w1", declare(W))
        actions = running.declare(b"w2", declare(OTHER_W, TensorSpec("b", DType.INT8, ())))
        log, *sent = actions
        assert isinstance(log, Log)
        assert log.level == "error"
        assert "float32 (3,) on worker 0 but float32 (4,) on worker 1" in log.text
        assert [(each.peer, type(each.message)) for each in sent if isinstance(each, Send)] == [
            (b"w1", Conflict),
            (b"w2", Conflict),
            (b"w3", Conflict),
            (b"w2", Declared),
        ]
        last = actions[-1]
        assert isinstance(last, Send)
        assert isinstance(last.message, Declared)
        assert [each.name for each in last.message.placements] == ["b"]

    def test_a_known_conflict_is_told_to_whoever_declares_the_name(self) -> None:
        running = job(3)
        running.declare(b"w1", declare(W))
        running.declare(b"w2", declare(OTHER_W))
        assert _kinds(running.declare(b"w3", declare(W))) == [(b"w3", Conflict), (b"w3", Declared)]
        assert _kinds(running.declare(b"w2", declare(OTHER_W))) == [(b"w2", Conflict), (b"w2", Declared)]

    def test_workers_that_have_left_are_not_told(self) -> None:
        running = job(3)
        running.declare(b"w1", declare(W))
        running.left.add(b"w1")
        told = [peer for peer, kind in _kinds(running.declare(b"w2", declare(OTHER_W))) if kind is Conflict]
        assert told == [b"w2", b"w3"]


class TestGroup:
    def test_it_is_told_to_all_servers_and_then_to_who_has_asked(self) -> None:
        running = job(3)
        group = Group(1, (0, 2))
        assert running.group(b"w3", FormGroup(4, (0, 2))) == [Send(peer, group) for peer in (b"s100", b"s101")]
        assert running.group(b"s101", GroupKnown(1)) == []
        assert running.group(b"s100", GroupKnown(1)) == [Send(b"w3", GroupFormed(4, 1))]

    def test_who_is_not_in_it_does_not_get_it(self) -> None:
        assert _kinds(job(3).group(b"w2", FormGroup(4, (0, 2)))) == [(b"w2", GroupFormed)]


class TestBarrier:
    def test_the_last_one_releases_all(self) -> None:
        running = job()
        assert running.barrier(0.0, b"w2", 1) == []
        done = [Send(peer, BarrierDone(1)) for peer in (b"w1", b"w2")]
        assert running.barrier(0.0, b"w1", 1) == done

    def test_repeating(self) -> None:
        running = job()
        running.barrier(0.0, b"w1", 1)
        assert _kinds(running.barrier(1.0, b"w1", 1)) == [(b"w1", Waiting)]
        running.barrier(2.0, b"w2", 1)
        assert running.barrier(3.0, b"w1", 1) == [Send(b"w1", BarrierDone(1))]

    def test_a_number_from_the_future(self) -> None:
        text = "worker 0 (pid 1 on host-a) is at barrier 2 before barrier 1 is complete"
        assert job().barrier(0.0, b"w1", 2) == [Log("warning", text)]

    def test_whoever_left_after_arriving_counts(self) -> None:
        running = job()
        running.barrier(0.0, b"w1", 1)
        running.left.add(b"w1")
        assert running.impossible_barrier() is None
        assert running.barrier(0.0, b"w2", 1) == [Send(b"w2", BarrierDone(1))]

    def test_whoever_left_before_arriving_makes_it_impossible(self) -> None:
        running = job(3)
        running.left.add(b"w2")
        assert running.impossible_barrier() is None
        running.barrier(0.0, b"w3", 1)
        assert running.impossible_barrier() == (
            "barrier 1 cannot complete: worker 1 (pid 2 on host-a) has left the job and worker 2 (pid 3 on host-a) "
            "waits for it; every worker must call barrier() equally often"
        )

    def test_a_long_wait_is_mentioned_with_who_is_missing(self) -> None:
        running = job(3)
        assert running.remind(100.0) == []
        running.barrier(100.0, b"w2", 1)
        assert running.remind(109.0) == []
        text = "waiting 10 s at barrier 1 for worker 0 (pid 1 on host-a), worker 2 (pid 3 on host-a)"
        assert running.remind(110.0) == [Log("warning", text)]
        running.barrier(112.0, b"w1", 1)
        text = "waiting 20 s at barrier 1 for worker 2 (pid 3 on host-a)"
        assert running.remind(120.0) == [Log("warning", text)]
        running.barrier(121.0, b"w3", 1)
        assert running.remind(200.0) == []

    def test_whoever_asks_again_is_told_who_is_missing(self) -> None:
        running = job(3)
        assert running.barrier(100.0, b"w2", 1) == []
        names = "worker 0 (pid 1 on host-a), worker 2 (pid 3 on host-a)"
        assert running.barrier(101.0, b"w2", 1) == [Send(b"w2", Waiting(names, 1))]

    def test_a_long_list_of_missing_workers_is_cut(self) -> None:
        running = job(20)
        running.barrier(0.0, b"w1", 1)
        (log,) = running.remind(10.0)
        assert isinstance(log, Log)
        assert log.text.count("worker") == 8
        assert log.text.endswith(" and 11 more")


def test_an_announcement_reaches_the_workers_that_are_there() -> None:
    running = job()
    running.left.add(b"w1")
    assert running.announce("server 0 was told to end") == [
        Log("warning", "server 0 was told to end"),
        Send(b"w2", Notice("server 0 was told to end")),
    ]


def test_done_when_every_worker_has_left() -> None:
    running = job()
    assert not running.is_done
    running.left.add(b"w1")
    assert not running.is_done
    running.left.add(b"w2")
    assert running.is_done


def _kinds(actions: list[Action]) -> list[tuple[bytes, type]]:
    return [(each.peer, type(each.message)) for each in actions if isinstance(each, Send)]
