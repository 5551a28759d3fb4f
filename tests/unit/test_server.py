"""The server role over the loopback, step by step, with a scheduler and workers played by the test."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from byteps_py.errors import BytePSError, JobAborted, KernelError, SettingsError, TransportError
from byteps_py.roles.envelope import Envelope, open_bundle, open_frames
from byteps_py.roles.member import worker_identity
from byteps_py.roles.server import Server
from byteps_py.settings import ServerSettings
from byteps_py.telemetry.recorder import prepare
from byteps_py.transport.available import OutOfMemory
from byteps_py.transport.base import Buffer, Message
from byteps_py.transport.loopback import LoopbackEndpoint, LoopbackNetwork
from byteps_py.types import DType, Participant, Role, ServerInfo, make_key, make_tensor_id
from byteps_py.wire.bundle import ENTRY
from byteps_py.wire.control import (
    Abort,
    Bye,
    ControlMessage,
    Finished,
    Group,
    GroupKnown,
    Heartbeat,
    Left,
    Notice,
    Refused,
    Register,
    Suspended,
    Welcome,
    decode_control,
    encode_control,
)
from byteps_py.wire.header import ACCEPT_ENTRY, RANK_ENTRY, Flag, Header, Opcode, encode
from tests.helpers.messages import BUNDLES

JOB = 77
PARTICIPANTS = tuple(Participant(rank, rank, 0, 1, "host", 100 + rank, 500 + rank) for rank in range(2))
SETTINGS = ServerSettings(num_worker=2, num_server=1, root_uri="127.0.0.1", root_port=9, node_host="127.0.0.1")


class Stage:
    """A server and everybody around it."""

    def __init__(self, **changed: object) -> None:
        network = LoopbackNetwork()
        self.scheduler = network.endpoint(b"scheduler")
        self.scheduler.listen("tcp://127.0.0.1:9")
        settings = dataclasses.replace(SETTINGS, **changed)  # type: ignore[arg-type]
        self.server = Server(settings, network.endpoint(b"the-server"), 600, 0.0)
        self.registered = decode_control(self.scheduler.receive(0)[0].frames[0])
        assert isinstance(self.registered, Register)
        self.workers: list[LoopbackEndpoint] = []
        for each in PARTICIPANTS:
            self.workers.append(network.endpoint(worker_identity(each.incarnation)))
            self.workers[-1].connect(b"server", self.registered.address)

    def control(self, message: ControlMessage) -> None:
        self.scheduler.send(b"the-server", [encode_control(message)])
        self.server.run_once(0.0, 0)

    def welcome(self) -> None:
        servers = (ServerInfo(0, "tcp://127.0.0.1:1", "host", 1, 600),)
        self.control(Welcome(job=JOB, epoch=1, rank=0, participants=PARTICIPANTS, servers=servers))

    def send(self, rank: int, opcode: Opcode, payload: bytes = b"", **fields: object) -> None:
        """A message of worker ``rank``; fields of the envelope may be falsified."""
        own = {"sender": rank, "job": JOB, "incarnation": 500 + rank, "epoch": 1}
        envelope = Envelope(**{name: fields.pop(name, value) for name, value in own.items()})  # type: ignore[arg-type]
        key = fields.pop("key", 5)
        header = envelope.header(opcode, key, fields.pop("round", 1), length=len(payload), **fields)  # type: ignore[arg-type]
        self.workers[rank].send(b"server", [encode(header), *([payload] if payload else [])])

    def push(self, rank: int, *values: float, **fields: object) -> None:
        payload = np.array(values, np.float32).tobytes()
        self.send(rank, Opcode.PUSH, payload, count=len(values), flags=Flag.WANT_RESULT, **fields)

    def step(self) -> None:
        self.server.run_once(0.0, 0)

    def received(self, rank: int) -> list[tuple[Header, bytes]]:
        opened = [open_frames(each.frames) for each in self.workers[rank].receive(0)]
        return [(header, bytes(payload or b"")) for header, payload in opened]


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.server.close()


def test_it_registers_with_the_address_it_listens_at(stage: Stage) -> None:
    register = stage.registered
    assert isinstance(register, Register)
    assert register.role is Role.SERVER
    assert register.address.startswith("tcp://127.0.0.1:")
    assert not register.address.endswith(":0")
    assert (register.num_worker, register.num_server) == (2, 1)


def test_a_round_is_accepted_summed_and_answered(stage: Stage) -> None:
    stage.welcome()
    stage.push(0, 1, 2)
    stage.step()
    ((header, payload),) = stage.received(0)
    assert header.opcode is Opcode.ACCEPT
    assert list(ACCEPT_ENTRY.iter_unpack(payload)) == [(5, 1)]
    stage.push(1, 10, 20)
    stage.step()
    for rank in range(2):
        ((header, payload),) = stage.received(rank)
        assert (header.opcode, header.detail, header.sender, header.incarnation) == (Opcode.RESULT, 2, 0, 600)
        assert np.frombuffer(payload, np.float32).tolist() == [11, 22]


def test_it_forgets_a_generation_and_serves_the_next(stage: Stage) -> None:
    stage.welcome()
    stage.push(0, 1, 2)
    stage.step()
    assert [header.opcode for header, _ in stage.received(0)] == [Opcode.ACCEPT]
    stage.scheduler.receive(0)
    stage.control(Suspended())
    stage.server._link.tick(1.0)
    said = [decode_control(each.frames[0]) for each in stage.scheduler.receive(0)]
    assert stage.registered in said  # the same process at the same address
    assert Heartbeat() in said  # of no generation
    stage.push(1, 10, 20)  # late, of the first one
    stage.step()
    servers = (ServerInfo(0, "tcp://127.0.0.1:1", "host", 1, 600),)
    stage.control(Welcome(job=JOB + 1, epoch=2, rank=0, participants=PARTICIPANTS, servers=servers))
    assert stage.server._early_bytes == 0  # there is room for what comes before the next one
    stage.push(1, 10, 20)  # later still
    stage.step()
    assert stage.received(0) == stage.received(1) == []
    for rank in range(2):
        stage.push(rank, 100, 200, job=JOB + 1, epoch=2)
    stage.step()
    for rank in range(2):
        header, payload = stage.received(rank)[-1]
        assert (header.opcode, header.detail, header.job, header.epoch) == (Opcode.RESULT, 2, JOB + 1, 2)
        assert np.frombuffer(payload, np.float32).tolist() == [200, 400]


def stages(stage: Stage) -> dict[str, tuple[int, float]]:
    assert stage.server._rounds is not None
    return stage.server._rounds.stages()


def test_the_stages_of_a_round_are_counted(stage: Stage) -> None:
    stage.welcome()
    stage.push(0, 1, 2)
    stage.step()
    stage.push(0, 1, 2)  # again
    stage.step()
    assert {name: count for name, (count, _) in stages(stage).items()} == {
        "accept": 1,
        "wait for others": 0,
        "server queue": 0,
        "sum": 0,
        "held": 0,
        "direct": 0,
    }
    stage.push(1, 10, 20)
    stage.step()
    found = stages(stage)
    assert {name: count for name, (count, _) in found.items()} == {
        "accept": 1,  # of the last one, the result is all that is sent
        "wait for others": 2,
        "server queue": 1,
        "sum": 1,
        "held": 2,
        "direct": 1,
    }
    assert all(seconds >= 0 for _, seconds in found.values())
    assert found["held"][1] >= found["wait for others"][1] + 2 * found["sum"][1]
    stage.push(1, 10, 20)  # in doubt
    stage.step()
    assert stages(stage)["held"] == found["held"]


def test_a_rejected_round_counts_nothing(stage: Stage) -> None:
    stage.welcome()
    stage.push(0, 1)
    stage.push(1, 1, 2)
    stage.step()
    assert {count for count, _ in stages(stage).values()} == {0}


def test_without_stage_times_nothing_is_counted() -> None:
    stage = Stage(stage_times=False)
    stage.welcome()
    stage.push(0, 1, 2)
    stage.push(1, 1, 2)
    stage.step()
    assert set(stages(stage).values()) == {(0, 0.0)}
    assert stage.server._engine is not None
    assert stage.server._engine.times == ()
    stage.server.close()


def test_its_record_begins_with_the_job_and_ends_with_it(tmp_path: Path) -> None:
    stage = Stage(record=str(tmp_path), engine_threads=2, omp_num_threads=1)
    prepare(stage.server._settings)
    assert list(tmp_path.glob("*/*")) == []
    stage.welcome()
    stage.push(0, 1, 2)
    stage.push(1, 1, 2)
    stage.step()
    stage.server.close()
    (path,) = tmp_path.glob("cell/*/*")
    assert path.relative_to(tmp_path) == Path(f"cell/{JOB:016x}/server-0.jsonl")
    start, *samples = (json.loads(each) for each in path.read_text().splitlines())
    assert (start["team"], start["engines"], start["num_worker"], start["num_server"]) == (1, 2, 2, 1)
    assert samples[0]["stages"]["held"][0] == 0
    assert samples[-1]["stages"]["held"][0] == 2


def test_the_share_of_the_cores_is_known_with_the_welcome(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    stage = Stage(engine_threads=2)
    servers = tuple(ServerInfo(rank, "tcp://127.0.0.1:1", "host", 1, 600 + rank) for rank in range(2))
    assert stage.server._engine is None
    stage.control(Welcome(job=JOB, epoch=1, rank=1, participants=PARTICIPANTS, servers=servers))
    assert stage.server._engine is not None
    assert stage.server._engine.team == 2
    stage.server.close()
    assert "threads that sum" not in caplog.text


def test_bundles_come_to_the_rounds(stage: Stage) -> None:
    stage.welcome()
    header, table, payload = BUNDLES["push-many"]
    for rank in (0, 1):
        own = msgspec.structs.replace(header, sender=rank, job=JOB, incarnation=500 + rank, epoch=1)
        entries = np.frombuffer(table, ENTRY).copy()
        entries["round"] = 1
        stage.workers[rank].send(b"server", [encode(own), entries.tobytes(), payload])
        stage.workers[rank].send(b"server", [encode(own), entries.tobytes()[1:], payload])
    stage.step()
    for rank in (0, 1):
        (message,) = stage.workers[rank].receive(0)
        answer, found, elements = open_bundle(message.frames)
        assert (answer.opcode, answer.detail, answer.sender) == (Opcode.RESULT_MANY, 2, 0)
        assert np.frombuffer(found, ENTRY)["root"].tolist() == [2, 0]
        assert np.frombuffer(elements, np.float32).tolist() == [1.0, -2.5]


def test_a_bundle_that_comes_before_the_welcome_is_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byteps_py.roles.server._ACCEPT_SECONDS", 0.0)
    header, table, payload = BUNDLES["push-many"]
    own = msgspec.structs.replace(header, sender=0, job=JOB, incarnation=500, epoch=1)
    entries = np.frombuffer(table, ENTRY).copy()
    entries["round"] = 1
    stage.workers[0].send(b"server", [encode(own), entries.tobytes(), payload])
    stage.step()
    stage.welcome()
    ((answer, accepts),) = stage.received(0)
    assert answer.opcode is Opcode.ACCEPT
    assert list(ACCEPT_ENTRY.iter_unpack(accepts)) == [(2**64 - 1, 17)]


def test_many_acceptances_travel_in_one_message(stage: Stage) -> None:
    stage.welcome()
    for key in range(20):
        envelope = Envelope(0, JOB, 500, 1)
        header = envelope.header(Opcode.PUSH, key, 1, count=1, length=4, dtype=DType.FLOAT32)
        stage.workers[0].send(b"server", [encode(header), b"abcd"])
    stage.step()
    ((header, payload),) = stage.received(0)
    assert header.detail == 20
    assert [key for key, _ in ACCEPT_ENTRY.iter_unpack(payload)] == list(range(20))


def test_contributions_that_come_before_the_welcome_are_kept(stage: Stage) -> None:
    stage.push(0, 1)
    stage.step()
    assert stage.received(0) == []
    stage.welcome()
    assert [header.opcode for header, _ in stage.received(0)] == [Opcode.ACCEPT]


def test_a_pull_says_who_is_missing(stage: Stage) -> None:
    stage.welcome()
    stage.push(1, 1)
    stage.step()
    stage.received(1)
    stage.send(1, Opcode.PULL)
    stage.send(0, Opcode.PULL)
    stage.step()
    ((header, payload),) = stage.received(1)
    assert (header.opcode, list(RANK_ENTRY.iter_unpack(payload))) == (Opcode.WAITING, [(0,)])
    assert [header.opcode for header, _ in stage.received(0)] == [Opcode.MISSING]


def test_disagreement_is_told_to_both(stage: Stage) -> None:
    stage.welcome()
    stage.push(0, 1)
    stage.push(1, 1, 2)
    stage.step()
    texts = [stage.received(rank)[-1] for rank in range(2)]
    for header, payload in texts:
        assert (header.opcode, header.detail) == (Opcode.REJECT, 0)
        assert b"worker 0 pushes SUM of 1 float32" in payload
        assert b"worker 1 pushes SUM of 2 float32" in payload


def test_a_worker_that_left_is_named(stage: Stage) -> None:
    stage.welcome()
    stage.push(0, 1)
    stage.control(Left(1))
    header, payload = stage.received(0)[-1]
    assert (header.opcode, header.detail) == (Opcode.REJECT, 1)
    assert b"worker 1 left" in payload


@pytest.mark.parametrize(
    "falsified",
    [{"job": 78}, {"epoch": 2}, {"sender": 1}, {"sender": 9}, {"incarnation": 501}],
    ids=lambda each: next(iter(each)),
)
def test_strangers_are_ignored_and_named_once(
    falsified: dict[str, int], stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.welcome()
    for _ in range(3):
        stage.push(0, 1, **falsified)
    stage.workers[0].send(b"server", [b"junk"])
    stage.workers[0].send(b"server", [])
    stage.step()
    assert stage.received(0) == []
    assert len([each for each in caplog.messages if "ignored from worker-" in each]) == 1


def test_what_only_servers_send_is_refused(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.welcome()
    stage.send(0, Opcode.MISSING)
    stage.step()
    assert "a worker must not send MISSING" in caplog.text


def test_it_ends_when_the_scheduler_says_so() -> None:
    stage = Stage()
    stage.control(Finished())
    stage.server.serve()
    stage.server.close()
    stage = Stage()
    with pytest.raises(JobAborted, match="worker 1 was lost"):
        stage.control(Abort("worker 1 was lost"))
    stage.server.close()


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (TransportError("a segment cannot be mapped"), "failed: a segment cannot be mapped"),
        (OutOfMemory("4096 bytes are not there"), "failed: 4096 bytes are not there"),
        (KernelError("no such dtype"), "failed: no such dtype"),
        (ZeroDivisionError("x"), "failed: ZeroDivisionError('x')"),
    ],
)
def test_whatever_ends_it_the_scheduler_is_told(
    stage: Stage, failure: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.welcome()
    stage.scheduler.receive(0)
    receive, send = stage.server._endpoint.receive, stage.server._endpoint.send

    def fail(timeout: float | None) -> list[Message]:
        monkeypatch.setattr(stage.server._endpoint, "receive", receive)
        raise failure

    def answer(peer: bytes, frames: Sequence[Buffer]) -> bool:
        sent = send(peer, frames)
        if isinstance(decode_control(frames[0]), Bye):
            stage.scheduler.send(b"the-server", [encode_control(Abort("a server failed"))])
        return sent

    monkeypatch.setattr(stage.server._endpoint, "receive", fail)
    monkeypatch.setattr(stage.server._endpoint, "send", answer)
    with pytest.raises(type(failure), match=re.escape(str(failure))):
        stage.server.serve()
    sent = [decode_control(each.frames[0]) for each in stage.scheduler.receive(0)]
    assert [each for each in sent if isinstance(each, Bye)] == [Bye(reason)]
    assert stage.server._link.is_over


@pytest.mark.parametrize("end", [Abort("x"), Abort("x", settings=True), Refused("x"), Refused("x", settings=True)])
def test_the_scheduler_is_not_told_what_it_has_said(stage: Stage, end: ControlMessage) -> None:
    stage.welcome()
    stage.scheduler.send(b"the-server", [encode_control(end)])
    with pytest.raises(BytePSError, match="x"):
        stage.server.serve()
    assert not any(isinstance(decode_control(each.frames[0]), Bye) for each in stage.scheduler.receive(0))


def test_told_to_end_it_leaves_a_moment_to_the_word_of_the_complete_job(stage: Stage) -> None:
    """Workers may have it, and need this server, although it does not know yet."""
    assert not stage.server._must_end(10.0, urgent=False)
    stage.welcome()
    assert not stage.server._must_end(10.4, urgent=False)
    sent = [decode_control(each.frames[0]) for each in stage.scheduler.receive(0)]
    assert [each.text for each in sent if isinstance(each, Notice)] == [
        "was told to end (SIGTERM): it serves until the workers have left, for 20 s at most (BYTEPS_GRACE_PERIOD)"
    ]
    assert not stage.server._must_end(30.3, urgent=False)
    assert stage.server._must_end(30.4, urgent=False)
    assert stage.server._must_end(10.5, urgent=True)
    assert not any(isinstance(decode_control(each.frames[0]), Notice) for each in stage.scheduler.receive(0))


def test_told_to_end_before_the_start_it_does_not_wait_long(stage: Stage) -> None:
    assert not stage.server._must_end(10.0, urgent=False)
    assert stage.server._must_end(10.5, urgent=False)


@pytest.mark.parametrize("welcomed", [False, True])
def test_a_process_that_takes_it_for_the_scheduler_is_told(stage: Stage, welcomed: bool) -> None:
    if welcomed:
        stage.welcome()
    assert isinstance(stage.registered, Register)
    for message in (stage.registered, Heartbeat()):
        stage.workers[0].send(b"server", [encode_control(message)])
    stage.step()
    (answer,) = stage.workers[0].receive(0)
    assert decode_control(answer.frames[0]) == Refused(
        "a server of a job listens there, whose scheduler is at 127.0.0.1:9: check DMLC_PS_ROOT_URI and "
        "DMLC_PS_ROOT_PORT"
    )


@pytest.mark.parametrize("changed", [{"port": 9}, {"port_range": (9, 9)}])
def test_the_port_of_the_scheduler_is_not_listened_at(
    changed: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = LoopbackNetwork().endpoint(b"me")
    monkeypatch.setattr(endpoint, "listen", lambda address, ports: "tcp://127.0.0.1:9")
    with pytest.raises(SettingsError, match="is the scheduler's port"):
        Server(dataclasses.replace(SETTINGS, **changed), endpoint, 600, 0.0)  # type: ignore[arg-type]


class TestGroups:
    """Keys of a group: of worker 1 alone."""

    KEY = make_key(make_tensor_id(7, 0), 0)

    @staticmethod
    def confirmed(stage: Stage) -> list[int]:
        sent = [decode_control(each.frames[0]) for each in stage.scheduler.receive(0)]
        return [each.group for each in sent if isinstance(each, GroupKnown)]

    def test_a_group_is_confirmed_as_often_as_it_is_told(self, stage: Stage) -> None:
        stage.control(Group(7, (1,)))  # before the server knows who is in the job
        assert self.confirmed(stage) == []
        stage.welcome()
        stage.control(Group(7, (1,)))
        stage.control(Group(7, (1,)))
        assert self.confirmed(stage) == [7, 7]

    def test_a_group_that_cannot_be_is_not(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        stage.welcome()
        stage.control(Group(7, (1, 2)))
        assert self.confirmed(stage) == []
        assert "group 7 cannot have the ranks (1, 2): workers are 0 to 1" in caplog.text

    def test_a_member_is_answered_and_another_worker_is_refused(self, stage: Stage) -> None:
        stage.welcome()
        stage.push(1, 1, 2, key=self.KEY)
        stage.step()
        ((header, payload),) = stage.received(1)
        assert header.opcode is Opcode.REJECT
        assert b"group 7, which is not known here" in payload
        stage.control(Group(7, (1,)))
        for rank in range(2):
            stage.push(rank, 1, 2, key=self.KEY)
        stage.step()
        ((header, payload),) = stage.received(0)
        assert header.opcode is Opcode.REJECT
        assert b"worker 0 is not one of those who contribute, worker 1:" in payload
        ((header, payload),) = stage.received(1)
        assert (header.opcode, header.detail, header.key) == (Opcode.RESULT, 1, self.KEY)
        assert np.frombuffer(payload, np.float32).tolist() == [1, 2]
        counts = {name: count for name, (count, _) in stages(stage).items()}
        assert (counts["wait for others"], counts["held"]) == (1, 1)

    def test_the_sum_of_a_node_is_none_of_its_messages(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        stage.welcome()
        stage.control(Group(7, (1,)))
        flags = Flag.WANT_RESULT | Flag.PARTIAL
        stage.send(1, Opcode.PUSH, bytes(8), key=self.KEY, count=2, flags=flags, detail=1)
        stage.step()
        assert stage.received(1) == []
        assert "the sum of a node for a tensor of a group" in caplog.text
