"""The worker role over the loopback, with a scheduler and a server played by the test."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from byteps_py import kernels
from byteps_py.errors import (
    AgreementError,
    BytePSError,
    JobAborted,
    JobRefused,
    MembershipError,
    NotInitializedError,
    SettingsError,
    TransportError,
    TransportTimeout,
)
from byteps_py.roles.envelope import Envelope, open_bundle, open_frames
from byteps_py.roles.pending import Pending
from byteps_py.roles.worker import Worker
from byteps_py.settings import WorkerSettings
from byteps_py.transport.available import OutOfMemory
from byteps_py.transport.base import LaneError, Message
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.types import DType, Operation, Participant, Partition, ServerInfo, TensorSpec, make_key
from byteps_py.wire.bundle import ENTRY
from byteps_py.wire.control import (
    Abort,
    Barrier,
    BarrierDone,
    Bye,
    Conflict,
    ControlMessage,
    Declare,
    Declared,
    FormGroup,
    GroupFormed,
    Left,
    Placement,
    Refused,
    Register,
    Waiting,
    Welcome,
    decode_control,
    encode_control,
)
from byteps_py.wire.header import ACCEPT_ENTRY, RANK_ENTRY, Flag, Header, Opcode, encode

JOB = 77
SPEC = TensorSpec("w", DType.FLOAT32, (3,))
SETTINGS = WorkerSettings(
    num_worker=1, num_server=1, root_uri="127.0.0.1", root_port=9, force_distributed=True, partition_bytes=4 << 20
)
SERVER = Envelope(0, JOB, 600, 1)


class Stage:
    """A worker on its thread; the test answers for everybody else."""

    def __init__(self, **changed: float) -> None:
        network = LoopbackNetwork()
        self.scheduler = network.endpoint(b"scheduler")
        self.scheduler.listen("tcp://127.0.0.1:9")
        self.server = network.endpoint(b"server")
        self.address = self.server.listen("tcp://127.0.0.1:0")
        self.aborts: list[BaseException] = []
        chosen = kernels.select("reference")
        settings = dataclasses.replace(SETTINGS, **changed)  # type: ignore[arg-type]
        self.worker = Worker(settings, network.endpoint(b"me"), 500, chosen, self.aborts.append)
        self._messages: list[Message] = []
        self._data: list[Message] = []

    def control(self, kind: type) -> ControlMessage:
        """The next control message of ``kind``; others are passed over."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            self._messages += self.scheduler.receive(0.1)
            while self._messages:
                message = decode_control(self._messages.pop(0).frames[0])
                if isinstance(message, kind):
                    return message  # type: ignore[no-any-return]
        raise AssertionError(f"no {kind.__name__} came")

    def tell(self, message: ControlMessage) -> None:
        self.scheduler.send(b"me", [encode_control(message)])

    def join(self) -> None:
        servers = (ServerInfo(0, self.address, "host", 1, 600),)
        me = (Participant(0, 0, 0, 1, "host", 1, 500),)
        joining = threading.Thread(target=self.worker.start)
        joining.start()
        self.control(Register)
        self.tell(Welcome(job=JOB, epoch=1, rank=0, participants=me, servers=servers))
        joining.join(10)
        assert not joining.is_alive()

    def place(self, *starts: int) -> None:
        """Answer the next Declare; the partitions begin at ``starts``."""
        declare = self.control(Declare)
        assert isinstance(declare, Declare)
        bounds = [*(starts or (0,)), SPEC.count]
        pieces = tuple(
            Partition(make_key(4, index), first, last - first, 0)
            for index, (first, last) in enumerate(itertools.pairwise(bounds))
        )
        self.tell(Declared(declare.request, (Placement("w", 4, pieces),)))

    def data(self) -> tuple[Header, bytes]:
        if not self._data:
            self._data = self.server.receive(10)
        header, payload = open_frames(self._data.pop(0).frames)
        return header, bytes(payload or b"")

    def answer(self, opcode: Opcode, pushed: Header, payload: bytes = b"", **fields: object) -> None:
        header = SERVER.header(opcode, pushed.key, pushed.round, length=len(payload), **fields)
        self.server.send(b"me", [encode(header), *([payload] if payload else [])])

    def result(self, pushed: Header, *values: float) -> None:
        payload = np.array(values, np.float32).tobytes()
        self.answer(Opcode.RESULT, pushed, payload, count=pushed.count, offset=pushed.offset, detail=1)

    def submit(self, *values: float, operation: Operation = Operation.SUM) -> Pending:
        source = np.array(values, np.float32) if values else None
        return self.worker.submit(SPEC, source, None, operation, step=9, priority=2)

    def end(self) -> None:
        def close() -> None:
            with contextlib.suppress(BytePSError):  # it may be about to end because of what the test has told it
                self.worker.close()

        if self.worker._thread.is_alive():
            closing = threading.Thread(target=close)
            closing.start()
            if self.worker._welcome is not None:
                self.control(Bye)
                self.tell(Left(0))
            closing.join(10)
            assert not closing.is_alive()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.end()


def fails(wait: Callable[[], object], kind: type[BytePSError], words: str) -> None:
    with pytest.raises(kind, match=words):
        wait()


@contextlib.contextmanager
def leaving(stage: Stage, words: str) -> Iterator[None]:
    """Confirm the goodbye that comes meanwhile, which must give a reason with these words."""
    said: list[ControlMessage] = []

    def confirm() -> None:
        said.append(stage.control(Bye))
        stage.tell(Left(0))

    answering = threading.Thread(target=confirm)
    answering.start()
    yield
    answering.join(10)
    (bye,) = said
    assert isinstance(bye, Bye)
    assert re.search(words, bye.reason), bye


def test_a_tensor_is_declared_pushed_and_pulled(stage: Stage) -> None:
    stage.join()
    pending = stage.submit(1, 2, 3)
    stage.place()
    header, payload = stage.data()
    assert (header.opcode, header.key, header.round, header.step) == (Opcode.PUSH, make_key(4, 0), 1, 9)
    assert (header.sender, header.job, header.incarnation, header.epoch) == (0, JOB, 500, 1)
    assert header.flags == Flag.WANT_RESULT
    assert np.frombuffer(payload, np.float32).tolist() == [1, 2, 3]
    assert not pending.done()
    stage.result(header, 5, 6, 7)
    assert pending.wait().tolist() == [5, 6, 7]
    again = stage.submit(1, 1, 1)
    (message,) = stage.server.receive(10)
    _, table, payload = open_bundle(message.frames)  # now its placement is known, it may travel with others
    assert np.frombuffer(table, ENTRY)[["key", "round"]].tolist() == [(make_key(4, 0), 2)]
    assert np.frombuffer(payload, np.float32, 3).tolist() == [1, 1, 1]
    stage.result(msgspec.structs.replace(header, round=2), 0, 0, 0)
    again.wait()


def test_the_stages_of_an_operation_are_counted(stage: Stage) -> None:
    stage.join()
    first = stage.submit(1, 2, 3)
    stage.place(0, 2)
    head, tail = stage.data()[0], stage.data()[0]
    stage.answer(Opcode.ACCEPT, head, ACCEPT_ENTRY.pack(head.key, 1), detail=1)
    stage.answer(Opcode.MISSING, tail)
    assert stage.data()[0] == tail
    stage.result(head, 1, 2)
    stage.result(tail, 3)
    first.wait()
    absent = stage.submit()
    for _ in range(2):
        header, _ = stage.data()
        stage.answer(Opcode.RESULT, header, flags=Flag.ABSENT, offset=header.offset, count=header.count)
    absent.wait()
    found = stage.worker.stages()
    assert {name: count for name, (count, _) in found.items()} == {
        "queue": 4,
        "copy in": 1,
        "push": 1,
        "pull": 4,
        "answer": 3,
        "copy out": 2,
    }
    assert all(seconds > 0 for _, seconds in found.values())


def test_without_stage_times_nothing_is_counted() -> None:
    stage = Stage(stage_times=False)
    stage.join()
    pending = stage.submit(1, 2, 3)
    stage.place()
    header, _ = stage.data()
    stage.result(header, 1, 2, 3)
    pending.wait()
    assert set(stage.worker.stages().values()) == {(0, 0.0)}
    stage.end()


def test_partitions_and_a_second_round_that_waits_for_the_first(stage: Stage) -> None:
    stage.join()
    first, second = stage.submit(1, 2, 3), stage.submit(4, 5, 6)
    stage.place(0, 2)
    head, tail = stage.data(), stage.data()
    assert [(each[0].offset, each[0].count, len(each[1])) for each in (head, tail)] == [(0, 2, 8), (2, 1, 4)]
    stage.result(tail[0], 30)
    stage.result(head[0], 10, 20)
    assert first.wait().tolist() == [10, 20, 30]
    for _ in range(2):
        header, payload = stage.data()
        assert header.round == 2
        stage.result(header, *np.frombuffer(payload, np.float32))
    assert second.wait().tolist() == [4, 5, 6]


def test_an_absent_contribution_carries_nothing(stage: Stage) -> None:
    stage.join()
    pending = stage.submit()
    stage.place()
    header, payload = stage.data()
    assert header.flags == Flag.ABSENT | Flag.WANT_RESULT
    assert payload == b""
    stage.answer(Opcode.RESULT, header, flags=Flag.ABSENT, count=3)
    assert pending.wait().tolist() == [0, 0, 0]
    assert pending.absent


def test_what_the_server_misses_is_pushed_again(stage: Stage) -> None:
    stage.join()
    pending = stage.submit(1, 2, 3)
    stage.place()
    first = stage.data()
    stage.answer(Opcode.MISSING, first[0])
    assert stage.data() == first
    stage.result(first[0], 1, 2, 3)
    stage.result(first[0], 9, 9, 9)
    assert pending.wait().tolist() == [1, 2, 3]


def test_without_a_word_the_worker_asks(stage: Stage) -> None:
    stage.join()
    pending = stage.submit(1, 2, 3)
    stage.place()
    pushed, _ = stage.data()
    header, _ = stage.data()
    assert (header.opcode, header.key, header.round) == (Opcode.PULL, pushed.key, 1)
    stage.answer(Opcode.ACCEPT, pushed, ACCEPT_ENTRY.pack(pushed.key, 1), detail=1)
    stage.result(pushed, 1, 2, 3)
    pending.wait()


def test_false_results_are_ignored(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.join()
    pending = stage.submit(1, 2, 3)
    stage.place()
    pushed, _ = stage.data()
    for other in (Envelope(0, JOB + 1, 600, 1), Envelope(0, JOB, 601, 1)):
        header = other.header(Opcode.RESULT, pushed.key, 1, flags=Flag.ABSENT, count=3)
        stage.server.send(b"me", [encode(header)])
    stage.answer(Opcode.RESULT, pushed, flags=Flag.ABSENT, count=2)
    stage.server.send(b"me", [b"junk"])
    stage.result(pushed, 1, 2, 3)
    assert pending.wait().tolist() == [1, 2, 3]
    assert len([each for each in caplog.messages if "ignored from server-0" in each]) == 1


def test_a_rejection_fails_the_operation_with_its_reason(stage: Stage) -> None:
    stage.join()
    pending = stage.submit(1, 2, 3)
    stage.place()
    pushed, _ = stage.data()
    stage.answer(Opcode.REJECT, pushed, b"worker 0 says A, worker 1 says B")
    fails(pending.wait, AgreementError, "tensor 'w': worker 0 says A, worker 1 says B")


def test_a_conflict_fails_what_waits_and_what_comes(stage: Stage) -> None:
    stage.join()
    pending = stage.submit(1, 2, 3)
    declare = stage.control(Declare)
    stage.tell(Conflict("w", "tensor 'w' is this and that"))
    fails(pending.wait, AgreementError, "this and that")
    assert isinstance(declare, Declare)
    stage.tell(Declared(declare.request, ()))
    fails(stage.submit(1, 2, 3).wait, AgreementError, "this and that")
    fails(lambda: stage.worker.declare([SPEC]), AgreementError, "this and that")
    other = TensorSpec("w", DType.FLOAT32, (4,))
    fails(lambda: stage.worker.submit(other, None, None, Operation.SUM), AgreementError, r"\(3,\) .* \(4,\)")


def test_a_question_without_an_answer_is_repeated(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byteps_py.roles.requests.REPEAT_SECONDS", 0.1)
    stage.join()
    waiting = threading.Thread(target=stage.worker.barrier)
    waiting.start()
    assert [stage.control(Barrier) for _ in range(2)] == [Barrier(1)] * 2
    stage.tell(BarrierDone(1))
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_group_is_asked_for_until_it_is_formed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byteps_py.roles.requests.REPEAT_SECONDS", 0.1)
    stage.join()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(stage.worker.form_group, (0, 2))
        assert [stage.control(FormGroup) for _ in range(2)] == [FormGroup(1, (0, 2))] * 2
        stage.tell(GroupFormed(1, 7))
        assert first.result(10) == 7
        stage.tell(GroupFormed(1, 7))
        second = pool.submit(stage.worker.form_group, (0, 1))
        while (asked := stage.control(FormGroup)) != FormGroup(2, (0, 1)):
            assert asked == FormGroup(1, (0, 2))
        stage.tell(GroupFormed(2, 0, "there are too many"))
        fails(lambda: second.result(10), MembershipError, "there are too many")
        third = pool.submit(stage.worker.form_group, (0, 3))
        while stage.control(FormGroup) != FormGroup(3, (0, 3)):
            pass
        stage.tell(Abort("it is over"))
        fails(lambda: third.result(10), JobAborted, "it is over")
    fails(lambda: stage.worker.form_group((0, 3)), JobAborted, "it is over")


def test_a_group_that_servers_do_not_confirm_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byteps_py.roles.requests.REPEAT_SECONDS", 0.1)
    stage = Stage(stall_timeout=0.3)
    stage.join()
    words = r"waiting . s until all servers know the group of workers 0, 1, 2, 3, 4, 5, 6, 7 \.\.\.; giving up"
    with leaving(stage, f"gave up: {words}"):
        fails(lambda: stage.worker.form_group(tuple(range(9))), TransportTimeout, words)


def test_a_barrier_that_nobody_else_reaches_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byteps_py.roles.requests.REPEAT_SECONDS", 0.1)
    stage = Stage(stall_timeout=0.3)
    stage.join()
    with leaving(stage, r"gave up: waiting . s at barrier 1; giving up \(BYTEPS_STALL_TIMEOUT=0.3\)"):
        fails(stage.worker.barrier, TransportTimeout, r"at barrier 1; giving up \(BYTEPS_STALL_TIMEOUT=0\.3\)")
    assert len(stage.aborts) == 1


def test_the_scheduler_names_who_is_missing_at_a_barrier(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("byteps_py.roles.requests.FIRST_REPORT_SECONDS", 0.0)
    stage = Stage(stall_timeout=3.0)
    stage.join()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fails, stage.worker.barrier, TransportTimeout, "at barrier 1 for worker 5; giving up")
        assert [stage.control(Barrier) for _ in range(2)] == [Barrier(1)] * 2, "it asks, however short the limit is"
        stage.tell(Waiting("worker 5", 1))
        stage.tell(Waiting("worker 6", 9))
        with leaving(stage, "at barrier 1 for worker 5; giving up"):
            waiting.result(10)
    assert [each for each in caplog.messages if each.startswith("waiting ")] == ["waiting 0 s at barrier 1"]


def test_a_result_that_never_comes_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byteps_py.roles.stall._FIRST_REPORT_SECONDS", 0.1)
    stage = Stage(stall_timeout=0.3)
    stage.join()
    pending = stage.submit(1, 2, 3)
    stage.place()
    pushed, _ = stage.data()
    stage.answer(Opcode.WAITING, pushed, RANK_ENTRY.pack(0), detail=1)
    with leaving(stage, "gave up: waiting . s for the result of 'w': missing worker 0"):
        fails(pending.wait, TransportTimeout, r"for the result of 'w': missing worker 0 \(pid 1 on host\); giving up")


def test_an_abort_fails_everything_now_and_later(stage: Stage) -> None:
    stage.join()
    pending = stage.submit(1, 2, 3)
    stage.control(Declare)
    stage.tell(Abort("worker 5 was lost"))
    fails(pending.wait, JobAborted, "worker 5 was lost")
    again = (stage.worker.barrier, stage.worker.barrier)  # the second must not wait for the first
    for call in (*again, lambda: stage.submit(1, 2, 3), lambda: stage.worker.declare([SPEC])):
        fails(call, JobAborted, "worker 5 was lost")
    stage.worker._thread.join(10)
    assert [str(each) for each in stage.aborts] == ["worker 5 was lost"]


@pytest.mark.parametrize(
    "failure", [TransportError("a segment cannot be mapped"), OutOfMemory("4096 bytes are not there")]
)
def test_a_failure_on_the_worker_s_own_thread_is_told(
    stage: Stage, failure: BytePSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.join()
    pending = stage.submit(1, 2, 3)
    stage.control(Declare)

    def fail() -> list[Message]:
        raise failure

    with leaving(stage, f"^failed: {failure}$"):
        monkeypatch.setattr(stage.worker._endpoint, "receive_lanes", fail)
        stage.worker._endpoint.wake()
        fails(pending.wait, type(failure), str(failure))
    stage.worker._thread.join(10)
    assert stage.aborts == [failure]


@pytest.mark.parametrize("settings", [False, True])
def test_the_scheduler_is_not_told_what_it_has_said(stage: Stage, settings: bool) -> None:
    stage.join()
    stage.tell(Abort("worker 5 was lost", settings))
    stage.worker._thread.join(10)
    assert not stage.worker._thread.is_alive()
    sent = [decode_control(each.frames[0]) for each in stage.scheduler.receive(0)]
    assert not any(isinstance(each, Bye) for each in sent)


def test_closing_fails_what_is_on_its_way() -> None:
    stage = Stage()
    stage.join()
    pending = stage.submit(1, 2, 3)
    stage.place()
    pushed, _ = stage.data()
    stage.answer(Opcode.ACCEPT, pushed, ACCEPT_ENTRY.pack(pushed.key, 1), detail=1)
    stage.end()
    fails(pending.wait, NotInitializedError, "shutdown")
    assert stage.aborts == []
    stage.worker.close()


def test_closing_after_an_abort_says_so_again(stage: Stage) -> None:
    stage.join()
    stage.tell(Abort("worker 5 was lost"))
    fails(stage.worker.close, JobAborted, "worker 5 was lost")


def test_a_failing_worker_tells_what_it_dies_of(stage: Stage) -> None:
    stage.join()
    closing = threading.Thread(target=stage.worker.close, args=("ValueError: x",))
    closing.start()
    assert stage.control(Bye) == Bye("ValueError: x")
    stage.tell(Abort("worker 0 failed"))
    closing.join(10)
    assert not closing.is_alive()


def test_a_process_that_dies_of_a_signal_wakes_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    dies, woken = threading.Event(), threading.Event()
    stage = Stage()
    stage.join()
    pending = stage.submit(1, 2, 3)
    stage.control(Declare)

    def sleep(seconds: float) -> None:
        dies.set()
        woken.wait(10)

    clock = SimpleNamespace(monotonic=time.monotonic, time=time.time, sleep=sleep)
    monkeypatch.setattr("byteps_py.roles.worker.time", clock)
    saying = threading.Thread(target=stage.worker.say_goodbye, args=("was terminated by SIGTERM",))
    saying.start()
    assert stage.control(Bye) == Bye("was terminated by SIGTERM")
    stage.tell(Left(0))
    saying.join(10)
    assert not saying.is_alive()
    assert dies.wait(10)
    assert not pending.done()
    later = stage.submit(1, 2, 3)
    assert not later.done()
    woken.set()  # it lives on all the same
    for each in (pending, later):
        fails(each.wait, JobAborted, re.escape("this process was told to end (SIGTERM)"))
    assert stage.aborts == []
    stage.worker._thread.join(10)
    stage.worker.say_goodbye("again")


def test_a_goodbye_without_an_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byteps_py.roles.goodbye.LEAVE_SECONDS", 0.2)
    stage = Stage()
    stage.join()
    fails(stage.worker.close, TransportTimeout, "left the job after 0.2 s although nobody answered")


def test_what_is_not_placed_yet_is_owed_before_the_goodbye() -> None:
    stage = Stage()
    stage.join()
    stage.submit(1, 2, 3)
    closing = threading.Thread(target=stage.worker.close)
    closing.start()
    stage.place()
    pushed, _ = stage.data()
    assert not [each for each in stage._messages if decode_control(each.frames[0]) == Bye()]
    stage.answer(Opcode.ACCEPT, pushed, ACCEPT_ENTRY.pack(pushed.key, 1), detail=1)
    stage.control(Bye)
    stage.tell(Left(0))
    closing.join(10)
    assert not closing.is_alive()


def test_a_lost_conflict_is_asked_for_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byteps_py.roles.requests.REPEAT_SECONDS", 0.1)
    stage.join()
    pending = stage.submit(1, 2, 3)
    declare = stage.control(Declare)
    assert isinstance(declare, Declare)
    stage.tell(Declared(declare.request, ()))
    assert stage.control(Declare) == declare
    stage.tell(Conflict("w", "this and that"))
    stage.tell(Declared(declare.request, ()))
    fails(pending.wait, AgreementError, "this and that")


def test_a_worker_that_gives_up_waiting_for_the_job_returns_its_place() -> None:
    stage = Stage()
    starting = threading.Thread(target=lambda: fails(stage.worker.start, JobRefused, "has left"))
    starting.start()
    stage.control(Register)
    closing = threading.Thread(target=lambda: fails(stage.worker.close, JobRefused, "has left"))
    closing.start()
    assert stage.control(Bye) == Bye("gave init() up")
    stage.tell(Refused("worker 0 has left"))
    for each in (starting, closing):
        each.join(10)
        assert not each.is_alive()


def test_a_worker_without_the_shared_memory_that_it_must_have_says_so_to_all(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = stage.worker._endpoint
    connect = endpoint.connect

    def refuse(peer: bytes, address: str, identity: bytes = b"", connections: int = 1) -> None:
        if identity:
            raise LaneError("nobody there")
        connect(peer, address)

    monkeypatch.setattr(endpoint, "connect", refuse)
    text = rf"BYTEPS_TRANSPORT=shm, .* server 0 \(pid 1 on host\) at {stage.address}: nobody there; is that"
    joining = threading.Thread(target=lambda: fails(stage.worker.start, SettingsError, text))
    joining.start()
    stage.control(Register)
    me = (Participant(0, 0, 0, 1, "host", 1, 500),)
    welcome = Welcome(
        job=JOB, epoch=1, rank=0, participants=me, servers=(ServerInfo(0, stage.address, "host", 1, 600),)
    )
    stage.tell(welcome)
    bye = stage.control(Bye)
    assert isinstance(bye, Bye)
    assert re.match(f"failed: {text}", bye.reason)
    stage.tell(welcome)  # as it may be repeated
    stage.tell(Left(0))
    joining.join(10)
    assert not joining.is_alive()


def test_it_counts_how_servers_are_reached(stage: Stage) -> None:
    assert stage.worker.ways() == {"shm": 0, "tcp": 0}
    stage.join()
    assert stage.worker.ways() == {"shm": 0, "tcp": 1}


def test_a_refused_worker_raises_in_start(stage: Stage) -> None:
    answering = threading.Timer(0.1, lambda: (stage.control(Register), stage.tell(Refused("you are not wanted"))))
    answering.start()
    fails(stage.worker.start, JobRefused, "you are not wanted")
    answering.join(10)
    assert stage.aborts == []
