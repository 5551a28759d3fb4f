"""The scheduler role over a loopback network: its endpoint and its processes are real, its members are not."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from byteps_py.core.actions import Stop
from byteps_py.core.membership import Membership
from byteps_py.core.roster import Member
from byteps_py.errors import SettingsError, TransportError
from byteps_py.roles import scheduler as scheduler_module
from byteps_py.roles.member import SCHEDULER
from byteps_py.roles.process import describe_process, describe_this_process
from byteps_py.roles.scheduler import Scheduler, run
from byteps_py.settings import SchedulerSettings
from byteps_py.transport.base import Buffer, Message
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.types import Role
from byteps_py.wire.control import (
    Abort,
    Bye,
    Clock,
    ClockReply,
    ControlMessage,
    Finished,
    Heartbeat,
    HeartbeatReply,
    Inquiry,
    Left,
    Refused,
    Status,
    Welcome,
    decode_control,
    encode_control,
)
from tests.helpers.registrations import server, worker

SETTINGS = SchedulerSettings(
    num_worker=1, num_server=1, root_uri="127.0.0.1", root_port=9000, job_id="job", log_level="info"
)
ADDRESS = "tcp://127.0.0.1:9000"
census = Membership.census
WAIT = 30.0
"""Seconds that a test waits at most for what must happen."""


def alone(member: Member) -> Member:
    return Member(member.peer, msgspec.structs.replace(member.register, num_worker=1, num_server=1))


WORKER = alone(worker(1, worker_id=0))
SERVER = alone(server(9))


class Peer:
    """One end of the scheduler's connections."""

    def __init__(self, network: LoopbackNetwork, member: Member) -> None:
        self._endpoint = network.endpoint(member.peer)
        self._endpoint.connect(SCHEDULER, ADDRESS)
        self._inbox: list[ControlMessage] = []
        self.member = member

    def send(self, message: ControlMessage) -> None:
        self.send_bytes(encode_control(message))

    def send_bytes(self, *frames: bytes) -> None:
        self._endpoint.send(SCHEDULER, frames)

    def close(self) -> None:
        self._endpoint.close()

    def messages(self, timeout: float = 0.0) -> list[ControlMessage]:
        received = self._endpoint.receive(timeout)
        return [decode_control(message.frames[0]) for message in received]

    def expect(self, kind: type[ControlMessage]) -> ControlMessage:
        """Wait for a message of this kind, skipping others."""
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            self._inbox += self.messages(0.1)
            while self._inbox:
                message = self._inbox.pop(0)
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__} came")


class Running:
    """``run`` in a thread."""

    def __init__(self, network: LoopbackNetwork, settings: SchedulerSettings = SETTINGS) -> None:
        self.network = network
        self.status: int | None = None
        self._thread = threading.Thread(target=self._run, args=(settings,), daemon=True)
        self._thread.start()

    def _run(self, settings: SchedulerSettings) -> None:
        self.status = run(settings, self.network.endpoint(SCHEDULER))

    def peer(self, member: Member) -> Peer:
        self.wait_until_listening()
        peer = Peer(self.network, member)
        peer.send(member.register)
        return peer

    def wait_until_listening(self) -> None:
        deadline = time.monotonic() + WAIT
        while ADDRESS not in self.network.listeners and time.monotonic() < deadline:
            time.sleep(0.01)

    def end(self) -> int | None:
        self._thread.join(WAIT)
        return self.status


@pytest.fixture
def network() -> LoopbackNetwork:
    return LoopbackNetwork()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until its standard input is closed."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


class TestRun:
    def test_a_job_from_beginning_to_end(self, network: LoopbackNetwork) -> None:
        job = Running(network)
        one, two = job.peer(WORKER), job.peer(SERVER)
        welcomes = [peer.expect(Welcome) for peer in (one, two)]
        assert isinstance(welcomes[0], Welcome)
        assert welcomes[0] == welcomes[1]
        assert welcomes[0].job != 0
        two.send(Heartbeat())
        reply = two.expect(HeartbeatReply)
        assert isinstance(reply, HeartbeatReply)
        assert reply.scheduler == describe_this_process()
        one.send(Bye())
        assert one.expect(Left) == Left(0)
        assert two.expect(Finished) == Finished()
        assert job.end() == 0
        assert network.listeners == {}

    def test_its_record_begins_with_the_complete_job(self, network: LoopbackNetwork, tmp_path: Path) -> None:
        job = Running(network, dataclasses.replace(SETTINGS, record=str(tmp_path)))
        one = job.peer(WORKER)
        assert list(tmp_path.glob("*/*")) == []
        two = job.peer(SERVER)
        welcome = one.expect(Welcome)
        assert isinstance(welcome, Welcome)
        one.send(Bye())
        two.expect(Finished)
        assert job.end() == 0
        (path,) = tmp_path.glob("cell/*/*")
        assert path.relative_to(tmp_path) == Path(f"cell/{welcome.job:016x}/scheduler-0.jsonl")
        start, *samples = (json.loads(each) for each in path.read_text().splitlines())
        assert (start["team"], start["num_worker"], start["num_server"]) == (0, 1, 1)
        assert len(samples) >= 2
        assert {json.dumps(each["stages"]) for each in samples} == {"{}"}

    def test_members_may_be_there_before_the_scheduler(self, network: LoopbackNetwork) -> None:
        peers = [Peer(network, member) for member in (SERVER, WORKER)]
        for peer in peers:
            peer.send(peer.member.register)
        job = Running(network)
        job.wait_until_listening()
        for peer in peers:
            peer.send(Heartbeat())  # a loopback endpoint delivers what waits when it is used
        for peer in peers:
            peer.expect(Welcome)
        peers[1].send(Bye())
        peers[0].expect(Finished)
        assert job.end() == 0

    def test_whoever_inquires_leaves_no_trace(self, network: LoopbackNetwork, caplog: pytest.LogCaptureFixture) -> None:
        job = Running(network)
        one = job.peer(alone(worker(1, worker_id=0, software="Python 3.11.7")))
        with caplog.at_level(logging.DEBUG, "byteps_py.scheduler"):
            asker = Peer(network, worker(77))
            for number in (1, 1, 5):
                asker.send(Inquiry(number))
            first, _, last = (asker.expect(Status) for _ in range(3))
            one.send(Inquiry(6))  # a member may ask, too
            assert isinstance(one.expect(Status), Status)
        assert isinstance(first, Status)
        assert isinstance(last, Status)
        assert (first.number, last.number, last.job_id, last.state) == (1, 5, "job", "gathering")
        assert (last.num_worker, last.num_server, last.machines, last.workers, last.servers) == (1, 1, 1, 1, 0)
        assert last.missing == "1 of 1 server; workers 1/1"
        assert [(each.role, each.others, each.count) for each in last.software[1:]] == [
            (Role.WORKER, "Python 3.11.7", 1)
        ]
        assert last.software[0].others.startswith(f"Python {platform.python_version()}, numpy ")
        assert last.uptime >= first.uptime
        assert abs(last.clock - time.time_ns()) < WAIT * 1e9
        assert not [record for record in caplog.records if "w77" in record.message or "Inquiry" in record.message]
        two = job.peer(SERVER)
        two.expect(Welcome)
        asker.send(Inquiry(7))
        status = asker.expect(Status)
        assert isinstance(status, Status)
        assert (status.state, status.servers, status.missing) == ("running", 1, "")
        one.send(Bye())
        assert job.end() == 0

    def test_many_inquiries_cost_one_count(self, network: LoopbackNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scheduler_module, "_TICK", 10 * WAIT)  # the age of a count is no reason here
        counted = []
        monkeypatch.setattr(Membership, "census", lambda self, now: counted.append(now) or census(self, now))
        job = Running(network)
        one = job.peer(WORKER)
        asker = Peer(network, worker(77))

        def ask(number: int) -> Status:
            asker.send(Inquiry(number))
            status = asker.expect(Status)
            assert isinstance(status, Status)
            return status

        first = ask(1)
        one.send(Heartbeat())
        one.expect(HeartbeatReply)
        asker.send(alone(worker(77, job_id="else")).register)
        asker.expect(Refused)
        last = [ask(number) for number in range(2, 20)][-1]
        assert len(counted) == 1
        assert (last.number, last.workers, last.servers) == (19, 1, 0)
        assert last.uptime > first.uptime > 0
        assert last.clock >= first.clock > 0
        two = job.peer(SERVER)
        two.expect(Welcome)
        assert (ask(20).state, len(counted)) == ("running", 2), "who comes is seen at once"
        one.send(Bye())
        assert job.end() == 0

    def test_a_count_grows_old(self, network: LoopbackNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
        counted: list[float] = []
        monkeypatch.setattr(Membership, "census", lambda self, now: counted.append(now) or census(self, now))
        endpoint = network.endpoint(SCHEDULER)
        scheduler = Scheduler(SETTINGS, endpoint)
        for now in (100.0, 100.9, 101.0, 101.5, 102.1):
            scheduler._describe(1, now)
        assert counted == [100.0, 101.0, 102.1]
        endpoint.close()

    def test_every_run_has_a_number_of_its_own(self) -> None:
        jobs = set()
        for _ in range(3):
            job = Running(LoopbackNetwork())
            one, _two = job.peer(WORKER), job.peer(SERVER)
            welcome = one.expect(Welcome)
            assert isinstance(welcome, Welcome)
            jobs.add(welcome.job)
            one.send(Bye())
            assert job.end() == 0
        assert len(jobs) == 3

    def test_a_contradiction(self, network: LoopbackNetwork, caplog: pytest.LogCaptureFixture) -> None:
        job = Running(network)
        one = job.peer(SERVER)
        two = job.peer(worker(1, num_worker=3))
        abort, refused = one.expect(Abort), two.expect(Refused)
        assert isinstance(abort, Abort)
        assert isinstance(refused, Refused)
        assert abort.reason == refused.reason
        assert "DMLC_NUM_WORKER is 1 at the scheduler and 3 on worker" in abort.reason
        assert job.end() == 2
        assert ("byteps_py.scheduler", logging.ERROR, f"the job was aborted: {abort.reason}") in caplog.record_tuples

    def test_nobody_else_comes(self, network: LoopbackNetwork) -> None:
        job = Running(network, dataclasses.replace(SETTINGS, start_timeout=1.0))
        abort = job.peer(SERVER).expect(Abort)
        assert isinstance(abort, Abort)
        assert "for the first worker: none has called init() yet; servers 1/1" in abort.reason
        assert "BYTEPS_START_TIMEOUT=1 " in abort.reason
        assert job.end() == 1

    def test_the_end_is_repeated_for_a_moment(self, network: LoopbackNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scheduler_module, "_LINGER", WAIT)
        job = Running(network)
        one = job.peer(alone(_real(SERVER, os.getpid())))
        job.peer(worker(1, num_worker=3))
        one.expect(Abort)
        one.send(Heartbeat())
        one.expect(Abort)
        assert job.status is None
        monkeypatch.setattr(scheduler_module, "_LINGER", 0.0)
        assert job.end() == 2

    def test_no_server(self) -> None:
        with pytest.raises(SettingsError, match="DMLC_NUM_SERVER=0"):
            run(dataclasses.replace(SETTINGS, num_server=0))

    def test_the_port_is_in_use(self, caplog: pytest.LogCaptureFixture) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            assert run(dataclasses.replace(SETTINGS, root_port=port)) == 1
        (text,) = [text for _, level, text in caplog.record_tuples if level == logging.ERROR]
        assert str(port) in text
        assert "in use" in text


class TestLoss:
    @pytest.mark.parametrize("role", [WORKER, SERVER])
    def test_a_killed_member_ends_the_job(
        self, role: Member, network: LoopbackNetwork, child: subprocess.Popen[bytes]
    ) -> None:
        other = SERVER if role is WORKER else WORKER
        job = Running(network)
        peers = [job.peer(_real(role, child.pid)), job.peer(_real(other, os.getpid()))]
        for peer in peers:
            peer.expect(Welcome)
        child.kill()
        abort = peers[1].expect(Abort)
        assert isinstance(abort, Abort)
        expected = f"{role.register.role.value} 0 (pid {child.pid} on {socket.gethostname()}) is lost: its process"
        assert abort.reason.startswith(expected)
        assert job.end() == 1

    def test_a_place_is_free_at_once_when_its_holder_is_gone(
        self, network: LoopbackNetwork, child: subprocess.Popen[bytes]
    ) -> None:
        endpoint = network.endpoint(SCHEDULER)
        role = Scheduler(SETTINGS, endpoint)
        first = Peer(network, _real(WORKER, child.pid))
        first.send(first.member.register)
        role.run_once()
        role.run_once()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        successor = Member(b"w2", msgspec.structs.replace(WORKER.register, incarnation=2))
        second, third = Peer(network, successor), Peer(network, SERVER)
        second.send(successor.register)
        third.send(SERVER.register)
        role.run_once()
        assert [type(message) for message in second.messages()] == [Welcome]
        assert [type(message) for message in first.messages()] == [Refused]


class TestMessages:
    def test_bad_bytes_are_answered_and_do_no_harm(
        self, network: LoopbackNetwork, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = Running(network)
        stranger = Peer(network, alone(worker(66)))
        other_version = b"BPSc\x63" + encode_control(Heartbeat())[5:]
        for frames in ([b"GET / HTTP/1.1"], [other_version], [other_version, b""], []):
            stranger.send_bytes(*frames)
        refused = stranger.expect(Refused)
        assert isinstance(refused, Refused)
        assert "not a byteps_py control message" in refused.reason
        refused = stranger.expect(Refused)
        assert isinstance(refused, Refused)
        assert "protocol version 99, this process 1" in refused.reason
        one, two = job.peer(WORKER), job.peer(SERVER)
        one.expect(Welcome)
        one.send(Bye())
        two.expect(Finished)
        assert job.end() == 0
        assert len([text for _, _, text in caplog.record_tuples if text.startswith("ignored from w66")]) == 1

    def test_anybody_may_ask_for_the_clock(self, network: LoopbackNetwork) -> None:
        job = Running(network)
        job.wait_until_listening()
        stranger = Peer(network, alone(worker(66)))
        one, two = job.peer(WORKER), job.peer(SERVER)
        one.expect(Welcome)
        for peer in (stranger, one):
            peer.send(Clock(41))
            peer.send(Clock(42))
            first, second = peer.expect(ClockReply), peer.expect(ClockReply)
            assert isinstance(first, ClockReply)
            assert isinstance(second, ClockReply)
            assert (first.number, second.number) == (41, 42)
            assert first.received <= first.replied <= second.received <= second.replied
            assert abs(first.received - time.time_ns()) < 60e9
        one.send(Bye())
        two.expect(Finished)
        assert stranger.messages() == []
        assert job.end() == 0

    def test_bad_bytes_of_a_member_do_not_throw_it_out(self, network: LoopbackNetwork) -> None:
        job = Running(network)
        one, two = job.peer(WORKER), job.peer(SERVER)
        one.expect(Welcome)
        one.send_bytes(b"nonsense")
        one.send(Bye())
        assert [type(one.expect(kind)) for kind in (Left,)] == [Left]
        two.expect(Finished)
        assert one.messages() == []
        assert job.end() == 0

    def test_levels(self, network: LoopbackNetwork, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        job = Running(network)
        one, _two = job.peer(WORKER), job.peer(SERVER)
        one.expect(Welcome)
        Peer(network, alone(worker(66))).send(Bye())
        one.send(Bye())
        assert job.end() == 0
        levels = {text.split()[0]: level for name, level, text in caplog.record_tuples if name == "byteps_py.scheduler"}
        assert levels["listening"] == levels["the"] == logging.INFO
        assert levels["ignored"] == logging.WARNING


class FakeEndpoint:
    """Says what it is asked, and behaves as it is told."""

    def __init__(self) -> None:
        self.timeouts: list[float | None] = []
        self.sent: list[tuple[bytes, ControlMessage]] = []
        self.closed = False
        self.on_receive: Callable[[], list[Message]] = list
        self.on_wait: Callable[[], None] = lambda: None
        self.on_send: Callable[[], bool] = lambda: True

    def listen(self, address: str) -> str:
        return address

    def connect(self, peer: bytes, address: str) -> None:
        raise AssertionError("a scheduler connects to nobody")

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        self.sent.append((peer, decode_control(frames[0])))
        return self.on_send()

    def receive(self, timeout: float | None) -> list[Message]:
        self.timeouts.append(timeout)
        self.on_wait()
        return self.on_receive()

    def wake(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def arrival(member: Member) -> Message:
    return Message(member.peer, [memoryview(encode_control(member.register))])


def said(member: Member, message: ControlMessage) -> Message:
    return Message(member.peer, [memoryview(encode_control(message))])


def script(*steps: list[Message] | BaseException) -> Callable[[], list[Message]]:
    """Give out one step after the other, then nothing."""
    left = list(steps)

    def receive() -> list[Message]:
        step = left.pop(0) if left else []
        if isinstance(step, BaseException):
            raise step
        return step

    return receive


class TestTrouble:
    @pytest.mark.parametrize(
        ("error", "words"),
        [(KeyboardInterrupt(), "was interrupted"), (ZeroDivisionError("x"), "failed: ZeroDivisionError('x')")],
    )
    def test_whatever_ends_the_scheduler_is_told_to_everyone(self, error: BaseException, words: str) -> None:
        endpoint = FakeEndpoint()
        endpoint.on_receive = script([arrival(SERVER)], error)
        with pytest.raises(type(error)):
            run(SETTINGS, endpoint)
        ((peer, message),) = set(endpoint.sent)
        assert peer == b"s9"
        assert isinstance(message, Abort)
        assert message.reason == f"the scheduler (pid {os.getpid()} on {socket.gethostname()}) {words}"
        assert endpoint.closed

    def test_it_ends_when_all_who_were_told_have_hung_up(
        self, network: LoopbackNetwork, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing proves that they are gone: they are on other hosts."""
        monkeypatch.setattr(scheduler_module, "_LINGER", 600.0)
        job = Running(network)
        one, two = job.peer(WORKER), job.peer(SERVER)
        one.expect(Welcome)
        two.expect(Welcome)
        two.send(Bye("was interrupted"))
        for peer in (one, two):
            peer.expect(Abort)
            peer.close()
        assert job.end() == 1

    def test_it_waits_for_one_who_has_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = [100.0]
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        endpoint = FakeEndpoint()
        endpoint.on_receive = script([arrival(WORKER), arrival(SERVER)], [said(SERVER, Bye("was interrupted"))])
        endpoint.on_wait = lambda: clock.__setitem__(0, clock[0] + 0.05)
        assert run(SETTINGS, endpoint) == 1
        assert clock[0] == pytest.approx(103.0, abs=0.2)
        assert 10 < [message for peer, message in endpoint.sent if peer == b"w1"].count(endpoint.sent[-1][1]) < 20

    @pytest.mark.parametrize("complete", [True, False])
    def test_told_to_end_it_waits_for_nobody_then(self, monkeypatch: pytest.MonkeyPatch, complete: bool) -> None:
        monkeypatch.setattr(scheduler_module, "_LINGER", 600.0)
        endpoint = FakeEndpoint()
        members = [arrival(WORKER), arrival(SERVER)] if complete else []
        steps = script(members, [said(SERVER, Bye("was interrupted"))] if complete else [])

        def receive() -> list[Message]:
            if len(endpoint.timeouts) == 3:
                signal.raise_signal(signal.SIGTERM)
            return steps()

        endpoint.on_receive = receive
        assert run(SETTINGS, endpoint) == (1 if complete else 143)

    def test_a_worker_that_is_gone_is_the_reason_and_not_the_signal(
        self, monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[bytes]
    ) -> None:
        monkeypatch.setattr(scheduler_module, "_LINGER", 0.0)
        endpoint = FakeEndpoint()
        steps = script([arrival(_real(WORKER, child.pid)), arrival(SERVER)])

        def receive() -> list[Message]:
            if len(endpoint.timeouts) == 2:
                child.kill()
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
                signal.raise_signal(signal.SIGTERM)
            return steps()

        endpoint.on_receive = receive
        assert run(SETTINGS, endpoint) == 143
        (reason,) = {message.reason for _, message in endpoint.sent if isinstance(message, Abort)}
        assert f"(pid {child.pid} on " in reason
        assert "is lost: its process" in reason

    def test_a_broken_transport(self, caplog: pytest.LogCaptureFixture) -> None:
        endpoint = FakeEndpoint()
        endpoint.on_receive = script(TransportError("too many open files"))
        assert run(SETTINGS, endpoint) == 1
        assert "the scheduler cannot run: too many open files" in caplog.text
        assert endpoint.closed

    @pytest.mark.parametrize("error", [None, TransportError("no route")])
    def test_whoever_cannot_be_reached_does_not_keep_it_from_the_others(self, error: TransportError | None) -> None:
        endpoint = FakeEndpoint()

        def send() -> bool:
            if error is not None:
                raise error
            return False

        endpoint.on_send = send
        endpoint.on_receive = script([arrival(WORKER), arrival(SERVER)])
        role = Scheduler(SETTINGS, endpoint)
        role.run_once()
        assert [peer for peer, _ in endpoint.sent] == [b"w1", b"s9"]
        assert role.stop is None

    def test_the_same_message_is_encoded_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        encoded: list[ControlMessage] = []

        def encode(message: ControlMessage) -> bytes:
            encoded.append(message)
            return encode_control(message)

        monkeypatch.setattr(scheduler_module, "encode_control", encode)
        endpoint = FakeEndpoint()
        endpoint.on_receive = script(
            [arrival(SERVER), arrival(alone(worker(2, local_size=2))), arrival(worker(1, num_worker=3))]
        )
        role = Scheduler(SETTINGS, endpoint)
        role.run_once()
        assert isinstance(role.stop, Stop)
        assert [type(message) for message in encoded] == [Refused, Abort]
        assert [peer for peer, message in endpoint.sent if isinstance(message, Abort)] == [b"s9", b"w2"]


class TestRhythm:
    def test_nothing_is_polled(self) -> None:
        """Without messages, every wait but the first lasts until the next second."""
        endpoint = FakeEndpoint()
        role = Scheduler(SETTINGS, endpoint)
        role.run_once()
        role.run_once()
        assert endpoint.timeouts[1] == pytest.approx(1.0, abs=0.9)

    def test_messages_do_not_keep_time_from_passing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = [100.0]
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        endpoint = FakeEndpoint()
        endpoint.on_receive = script(*([arrival(SERVER)] for _ in range(100)))
        role = Scheduler(dataclasses.replace(SETTINGS, start_timeout=8.0), endpoint)
        while role.stop is None and clock[0] < 200:
            clock[0] += 0.25
            role.run_once()
        assert role.stop is not None
        assert "BYTEPS_START_TIMEOUT=8 " in role.stop.reason
        assert clock[0] == pytest.approx(108.5, abs=1.0)


def _real(member: Member, pid: int) -> Member:
    """``member`` as the process ``pid`` of this machine."""
    return Member(member.peer, msgspec.structs.replace(member.register, process=describe_process(pid)))
