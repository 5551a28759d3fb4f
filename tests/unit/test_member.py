"""A member's view of its scheduler, without a socket or a clock."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from byteps_py.errors import BytePSError, JobAborted, JobRefused, RemoteProtocolError, SettingsError, TransportTimeout
from byteps_py.roles.member import SCHEDULER, SchedulerLink, worker_identity
from byteps_py.roles.process import describe_this_process
from byteps_py.settings import JobSettings
from byteps_py.telemetry.clock import ClockProbe
from byteps_py.transport.loopback import LoopbackEndpoint, LoopbackNetwork
from byteps_py.types import Role
from byteps_py.wire.control import (
    Abort,
    Clock,
    ClockReply,
    ControlMessage,
    Heartbeat,
    HeartbeatReply,
    Notice,
    ProcessInfo,
    Refused,
    Register,
    Waiting,
    Welcome,
    decode_control,
    encode_control,
)

SETTINGS = JobSettings(
    num_worker=1, num_server=1, root_uri="127.0.0.1", root_port=9, start_timeout=60.0, lost_timeout=20.0
)
REGISTER = Register(
    version="1",
    job_id="j",
    role=Role.WORKER,
    process=describe_this_process(),
    incarnation=5,
    num_worker=1,
    num_server=1,
)
WELCOME = Welcome(job=1, epoch=1, rank=0, participants=(), servers=())


class Pair:
    """A link and the endpoint that stands for its scheduler."""

    def __init__(self, launch_id: str = "", probe: ClockProbe | None = None, **changed: float) -> None:
        network = LoopbackNetwork()
        self.scheduler = network.endpoint(b"s")
        self.scheduler.listen("tcp://127.0.0.1:9")
        settings = dataclasses.replace(SETTINGS, **changed)  # type: ignore[arg-type]
        log = logging.getLogger("byteps_py.test")
        register = msgspec.structs.replace(REGISTER, launch_id=launch_id)
        self.link = SchedulerLink(network.endpoint(b"m"), settings, register, log, 100.0, probe)

    def sent(self) -> list[ControlMessage]:
        return [decode_control(each.frames[0]) for each in self.scheduler.receive(0)]

    def answer(self, now: float, message: ControlMessage) -> ControlMessage | None:
        return self.link.receive(now, [memoryview(encode_control(message))])


def test_it_registers_and_sends_heartbeats_at_once_and_then_in_time() -> None:
    pair = Pair()
    assert pair.sent() == [REGISTER, Heartbeat()]
    assert pair.link.tick(100.4) == pytest.approx(0.6)
    assert pair.sent() == []
    pair.link.tick(101.0)
    assert pair.sent() == [Heartbeat()]
    pair.link.tick(105.0)
    assert pair.sent() == [REGISTER, Heartbeat()]
    assert pair.answer(105.1, WELCOME) == WELCOME
    pair.link.tick(110.0)
    assert pair.sent() == [Heartbeat(1)], "the number of the run, from the Welcome"


def test_the_clock_is_asked_for_from_the_welcome_on_and_nobody_waits_for_it() -> None:
    clock = [0]
    pair = Pair(probe=ClockProbe(lambda: clock[0], lambda: 0))
    pair.link.tick(100.5)
    assert pair.sent() == [REGISTER, Heartbeat()]
    pair.answer(100.5, WELCOME)
    assert pair.link.tick(100.6) == pytest.approx(0.4), "the next heartbeat"
    assert pair.sent() == [Clock(1)]
    clock[0] = 2000
    assert pair.answer(100.7, ClockReply(1, 5_000_001_000, 5_000_001_000)) is None
    pair.link.tick(100.7)
    assert pair.sent() == [Clock(2)], "one exchange follows the other at first"
    pair.link.tick(100.8)
    assert pair.sent() == []


def test_an_answer_that_nobody_asked_for_changes_nothing() -> None:
    assert Pair().answer(100, ClockReply(1, 5, 6)) is None


def test_refusal_and_abort_become_exceptions() -> None:
    with pytest.raises(JobRefused, match=r"127\.0\.0\.1:9 refused this process: because"):
        Pair().answer(100, Refused("because"))
    with pytest.raises(JobAborted, match="worker 1 was lost"):
        Pair().answer(100, Abort("worker 1 was lost"))
    with pytest.raises(SettingsError, match=r"127\.0\.0\.1:9 refused this process: A is 1 here and 2 there"):
        Pair().answer(100, Refused("A is 1 here and 2 there", settings=True))
    with pytest.raises(SettingsError, match="A is 1 here and 2 there"):
        Pair().answer(100, Abort("A is 1 here and 2 there", settings=True))


def test_a_waiting_line_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "byteps_py.test"):
        assert Pair().answer(100, Waiting("waiting for worker 1")) is None
    assert caplog.messages == ["waiting for worker 1"]


def test_on_one_machine_the_scheduler_alone_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    here, there = describe_this_process(), ProcessInfo("far", "far:1", 7, 7)
    for scheduler, level in ((there, logging.WARNING), (here, logging.INFO)):
        with caplog.at_level(logging.INFO, "byteps_py.test"):
            pair.answer(100, HeartbeatReply(scheduler))
            pair.answer(100, Waiting("waiting for worker 1"))
        assert caplog.records[-1].levelno == level


def test_bad_frames_are_reported() -> None:
    with pytest.raises(RemoteProtocolError):
        Pair().link.receive(100, [memoryview(b"junk")])
    with pytest.raises(RemoteProtocolError, match="one frame"):
        Pair().link.receive(100, [])


def test_no_scheduler_is_said_every_ten_seconds_and_ends_in_time(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    with caplog.at_level("WARNING", "byteps_py.test"):
        for now in range(101, 160):
            pair.link.tick(now)
    assert caplog.messages == [f"waiting {seconds} s for the scheduler at 127.0.0.1:9" for seconds in range(10, 60, 10)]
    with pytest.raises(TransportTimeout, match=r"127\.0\.0\.1:9 within 61 s \(BYTEPS_START_TIMEOUT\)"):
        pair.link.tick(161)


def test_what_is_known_about_the_silence_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair()
    monkeypatch.setattr(LoopbackEndpoint, "diagnose", lambda self, peer: f"{peer.decode()} is not there")
    pair.link.tick(110)
    assert caplog.messages == ["waiting 10 s for the scheduler at 127.0.0.1:9: scheduler is not there"]
    with pytest.raises(TransportTimeout) as caught:
        pair.link.tick(161)
    assert str(caught.value) == (
        "no scheduler answered at 127.0.0.1:9 within 61 s (BYTEPS_START_TIMEOUT): scheduler is not there: check that "
        "it runs, that DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT are the same everywhere, and the firewall"
    )


def test_a_silent_scheduler_is_lost_after_the_timeout() -> None:
    pair = Pair()
    pair.answer(100, WELCOME)
    for now in range(100, 121):
        pair.link.tick(now)
    with pytest.raises(JobAborted, match=r"no sign of life for 21 s \(BYTEPS_LOST_TIMEOUT\)"):
        pair.link.tick(121)


@pytest.mark.parametrize("end", [Refused("x"), Abort("x"), Refused("x", settings=True), Abort("x", settings=True)])
def test_it_is_over_when_the_scheduler_says_so(end: ControlMessage) -> None:
    pair = Pair()
    pair.answer(100, WELCOME)
    assert not pair.link.is_over
    with pytest.raises(BytePSError):
        pair.answer(101, end)
    assert pair.link.is_over


@pytest.mark.parametrize("has_answered", [False, True])
def test_it_is_over_when_the_scheduler_is_not_there(has_answered: bool) -> None:
    pair = Pair()
    if has_answered:
        pair.answer(100, WELCOME)
    for now in range(100, 121 if has_answered else 161):
        pair.link.tick(now)
    assert not pair.link.is_over
    with pytest.raises((JobAborted, TransportTimeout)):
        pair.link.tick(121 if has_answered else 161)
    assert pair.link.is_over


def test_a_process_that_did_not_listen_blames_nobody() -> None:
    """Another thread held the interpreter's lock for a minute; the scheduler's answers are still in the socket."""
    pair = Pair()
    pair.answer(100, WELCOME)
    pair.link.tick(110)
    pair.link.tick(170)
    for now in range(171, 191):
        pair.link.tick(now)
    with pytest.raises(JobAborted, match="no sign of life for 21 s"):
        pair.link.tick(191)


def test_no_limit_for_the_start() -> None:
    pair = Pair(start_timeout=0)
    for now in range(100, 10_000, 100):
        pair.link.tick(now)


def test_a_second_program_of_a_launch_whose_job_has_ended_does_not_wait_for_ever() -> None:
    pair = Pair(launch_id="x", start_timeout=0)
    pair.link.tick(130.0)
    with pytest.raises(TransportTimeout, match="a launch is one job"):
        pair.link.tick(131.0)


def test_what_the_role_learns_of_a_barrier(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    with caplog.at_level("WARNING", "byteps_py.test"):
        assert pair.answer(100, Waiting("waiting 10 s for 1 of 2 workers")) is None
        assert pair.answer(100, Notice("server 0 was told to end")) is None
        assert pair.answer(100, Waiting("worker 1", 3)) == Waiting("worker 1", 3)
    assert [record.getMessage() for record in caplog.records] == [
        "waiting 10 s for 1 of 2 workers",
        "server 0 was told to end",
    ]


def test_a_scheduler_on_this_host_is_lost_as_soon_as_it_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mine = describe_this_process()
    started = int(Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    pair = Pair()
    pair.answer(100, HeartbeatReply(ProcessInfo(mine.host, mine.host_id, child.pid, started)))
    pair.link.tick(101)
    child.kill()
    child.wait(10)
    assert child.stdin is not None
    child.stdin.close()
    with pytest.raises(JobAborted, match=f"the scheduler at 127.0.0.1:9 was lost: .*{child.pid}"):
        pair.link.tick(102)


def test_names() -> None:
    assert SCHEDULER == b"scheduler"
    assert worker_identity(255) == b"worker-00000000000000ff"
