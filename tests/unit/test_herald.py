"""What the launcher's herald says, to a scheduler that the test plays, and over a real connection."""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from byteps_py.launcher import herald as handle
from byteps_py.roles.herald import JOB_ENDED, SETTINGS_DIFFER, Herald, main, run
from byteps_py.roles.process import describe_this_process
from byteps_py.settings import WorkerSettings
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.transport.zmq import ZmqEndpoint
from byteps_py.wire.control import (
    Abort,
    Child,
    ChildEnded,
    ControlMessage,
    Finished,
    HeartbeatReply,
    ProcessInfo,
    Refused,
    Vouch,
    Vouched,
    decode_control,
    encode_control,
)

pytestmark = pytest.mark.timeout(60)

ME = os.getpid()
REPLY = HeartbeatReply(ProcessInfo("host-s", "boot", 1, 1))
SETTINGS = WorkerSettings(
    num_worker=2,
    num_server=1,
    root_uri="127.0.0.1",
    root_port=9,
    job_id="3f",
    worker_id=1,
    launch_id="x",
    local_rank=0,
    local_size=2,
)


class Pair:
    """A herald, and the endpoint that stands for its scheduler."""

    def __init__(self) -> None:
        network = LoopbackNetwork()
        self.scheduler = network.endpoint(b"s")
        self.scheduler.listen("tcp://127.0.0.1:9")
        self.herald = Herald(SETTINGS, network.endpoint(b"l"))

    def sent(self, now: float) -> list[ControlMessage]:
        self.herald.speak(now)
        return [decode_control(each.frames[0]) for each in self.scheduler.receive(0)]


@pytest.fixture
def pair() -> Pair:
    return Pair()


def vouch(*ranks: int) -> Vouch:
    return Vouch("3f", "x", 1, 2, tuple(Child(rank, describe_this_process()) for rank in ranks))


def ended(status: int, local_rank: int | None = 0) -> ChildEnded:
    return ChildEnded("3f", describe_this_process(), status, "x", 1, local_rank, 2)


class TestVouching:
    def test_every_second_until_all_have_joined(self, pair: Pair) -> None:
        assert pair.sent(0.0) == []
        pair.herald.hear(0.0, f"vouch 0 {ME}\n")
        pair.herald.hear(0.0, f"vouch 1 {ME}\n")
        assert pair.sent(0.0) == [vouch(0, 1)]
        assert pair.sent(0.5) == []
        pair.herald.answered(Vouched((1,), (0,)))
        assert pair.sent(1.0) == [vouch(0, 1)]
        pair.herald.answered(Vouched((), (0, 1)))
        assert pair.sent(2.0) == []

    def test_also_without_an_answer(self, pair: Pair) -> None:
        pair.herald.hear(0.0, f"vouch 0 {ME}")
        assert [len(pair.sent(float(now))) for now in range(5)] == [1] * 5

    def test_not_for_those_that_have_ended(self, pair: Pair) -> None:
        pair.herald.hear(0.0, f"vouch 0 {ME}")
        pair.herald.hear(0.0, f"vouch 1 {ME}")
        pair.herald.hear(0.0, f"ended {ME} 1 0")
        assert pair.sent(0.0) == [ended(0, 1), vouch(0)]
        pair.herald.answered(REPLY)
        pair.herald.hear(0.0, f"ended {ME} 0 0")
        assert pair.sent(0.0) == [ended(0, 0)]
        pair.herald.answered(REPLY)
        assert pair.sent(9.0) == []

    def test_an_end_after_all_had_joined_is_told_as_such(self, pair: Pair) -> None:
        pair.herald.hear(0.0, f"vouch 0 {ME}")
        pair.sent(0.0)
        pair.herald.answered(Vouched((), (0,)))
        pair.herald.hear(1.0, f"ended {ME} 0 1")
        (report,) = pair.sent(1.0)
        assert isinstance(report, ChildEnded)
        assert report.joined

    @pytest.mark.parametrize(("local_rank", "joined"), [(0, False), (1, True), (None, False)])
    def test_who_has_not_joined_is_not_one_of_those_who_have(
        self, pair: Pair, local_rank: int | None, joined: bool
    ) -> None:
        """One had ended before anything was said, so that all those the launcher still vouched for had joined."""
        pair.herald.hear(0.0, f"vouch 1 {ME}")
        pair.sent(0.0)
        pair.herald.answered(Vouched((), (1,)))
        pair.herald.hear(1.0, f"ended {ME} {'-' if local_rank is None else local_rank} 0")
        (report,) = pair.sent(1.0)
        assert isinstance(report, ChildEnded)
        assert report.joined is joined

    @pytest.mark.parametrize("message", [Abort("worker 0 was lost"), Refused("worker 0 was lost"), Finished()])
    def test_the_job_has_ended_without_them(self, pair: Pair, message: ControlMessage) -> None:
        pair.herald.hear(0.0, f"vouch 0 {ME}")
        pair.herald.answered(message)
        assert pair.herald.verdict == ("its work is done" if isinstance(message, Finished) else "worker 0 was lost")
        assert pair.sent(0.0) == []
        assert pair.herald.status == JOB_ENDED

    @pytest.mark.parametrize("message", [Abort("A is 1 and 2", settings=True), Refused("A is 1 and 2", settings=True)])
    def test_settings_that_do_not_agree(self, pair: Pair, message: ControlMessage) -> None:
        pair.herald.hear(0.0, f"vouch 0 {ME}")
        pair.herald.answered(message)
        assert (pair.herald.verdict, pair.herald.status) == ("A is 1 and 2", SETTINGS_DIFFER)

    def test_the_end_of_a_job_that_all_have_joined_is_theirs_to_tell(self, pair: Pair) -> None:
        pair.herald.hear(0.0, f"vouch 0 {ME}")
        pair.herald.answered(Vouched((), (0,)))
        pair.herald.answered(Abort("worker 0 was lost"))
        assert pair.herald.verdict is None

    def test_the_end_that_it_has_reported_itself_is_no_news(self, pair: Pair) -> None:
        pair.herald.hear(0.0, f"vouch 0 {ME}")
        pair.herald.hear(0.0, f"ended {ME} 1 3")
        pair.herald.answered(Abort("worker 1 was lost"))
        assert pair.herald.verdict is None
        assert pair.herald.is_answered


class TestReports:
    def test_repeated_until_answered(self, pair: Pair) -> None:
        pair.herald.hear(0.0, f"ended {ME} 0 -9")
        assert pair.sent(0.0) == [ended(-9)]
        assert pair.sent(0.5) == []
        assert pair.sent(1.0) == [ended(-9)]
        assert not pair.herald.is_answered
        pair.herald.answered(REPLY)
        assert pair.herald.is_answered
        assert pair.sent(2.0) == []

    def test_the_answer_to_a_repetition_is_no_answer_to_the_next(self, pair: Pair) -> None:
        pair.herald.hear(0.0, f"ended {ME} 0 0")
        assert pair.sent(0.0) == [ended(0)]
        pair.herald.hear(0.1, f"ended {ME} 1 3")
        assert pair.sent(0.1) == [ended(0), ended(3, 1)]
        pair.herald.answered(REPLY)
        pair.herald.answered(REPLY)
        assert not pair.herald.is_answered
        assert pair.sent(2.0) == [ended(3, 1)]
        pair.herald.answered(REPLY)
        assert pair.herald.is_answered

    def test_it_sleeps_while_there_is_nothing_to_say(self, pair: Pair) -> None:
        assert pair.herald.speak(0.0) is None
        pair.herald.hear(0.0, f"vouch 0 {ME}")
        assert pair.herald.speak(0.0) == 1.0
        pair.herald.answered(Vouched((), (0,)))
        assert pair.herald.speak(1.0) is None
        pair.herald.hear(1.0, f"ended {ME} 0 1")
        assert pair.herald.speak(1.0) == 1.0

    def test_one_that_is_no_worker(self, pair: Pair) -> None:
        pair.herald.hear(0.0, f"ended {ME} - 3")
        assert pair.sent(0.0) == [ended(3, None)]

    def test_what_it_learnt_while_the_process_lived(self, pair: Pair) -> None:
        """The launcher may have reaped it by now, and its id may be another process's."""
        pair.herald._children[0] = known = ProcessInfo("host", "boot", 2**31 - 1, 77)
        pair.herald.hear(0.0, f"ended {2**31 - 1} 0 1")
        (report,) = pair.sent(0.0)
        assert isinstance(report, ChildEnded)
        assert report.process == known

    @pytest.mark.parametrize("line", ["", "hello", "vouch", "vouch x y", "ended 1 2", "ended a - 3", "vouch 1 2 3"])
    def test_lines_that_make_no_sense(self, pair: Pair, line: str) -> None:
        pair.herald.hear(0.0, line)
        assert pair.sent(0.0) == []


class SchedulerDouble:
    """Listens over TCP; gives the same answer to every message."""

    def __init__(self, answer: ControlMessage | None) -> None:
        self.received: list[ControlMessage] = []
        self._answer = answer
        self._endpoint = ZmqEndpoint(b"scheduler")
        self.port = int(self._endpoint.listen("tcp://127.0.0.1:0").rpartition(":")[2])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            for message in self._endpoint.receive(None):
                self.received.append(decode_control(message.frames[0]))
                if self._answer is not None:
                    self._endpoint.send(message.peer, [encode_control(self._answer)])
        self._endpoint.close()

    def close(self) -> None:
        self._stop.set()
        self._endpoint.wake()
        self._thread.join()


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """The program silences the log of its process, which is this one here."""
    level = logging.getLogger("byteps_py").level
    yield
    logging.getLogger("byteps_py").setLevel(level)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A scheduler with this answer, and the environment that leads to it."""
    doubles = []

    def begin(answer: ControlMessage | None) -> SchedulerDouble:
        doubles.append(SchedulerDouble(answer))
        for name, value in {
            "DMLC_NUM_WORKER": "2",
            "DMLC_NUM_SERVER": "1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(doubles[0].port),
            "DMLC_WORKER_ID": "1",
            "BYTEPS_JOB_ID": "3f",
            "BYTEPS_LAUNCH_ID": "x",
            "BYTEPS_LOCAL_SIZE": "2",
        }.items():
            monkeypatch.setenv(name, value)
        return doubles[0]

    yield begin
    for each in doubles:
        each.close()


class TestProgram:
    def test_a_report_arrives(self, start: type[SchedulerDouble], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"ended {ME} 0 -9\n"))
        double = start(REPLY)
        assert main() == 0
        assert double.received == [ended(-9)]

    def test_a_scheduler_that_does_not_answer_is_not_waited_for(self, start: type[SchedulerDouble]) -> None:
        double = start(None)
        endpoint = ZmqEndpoint(b"launcher")
        settings = WorkerSettings(num_worker=2, num_server=1, root_uri="127.0.0.1", root_port=double.port)
        assert run(Herald(settings, endpoint), endpoint, [f"ended {ME} 0 1\n"], timeout=0.3) == 0
        endpoint.close()

    def test_the_end_of_the_job_is_told(
        self,
        start: type[SchedulerDouble],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        reading, writing = os.pipe()
        with os.fdopen(reading) as lines, os.fdopen(writing, "w") as launcher:
            monkeypatch.setattr("sys.stdin", lines)
            double = start(Abort("worker 0 is lost"))
            launcher.write(f"vouch 1 {ME}\n")
            launcher.flush()
            assert main() == JOB_ENDED
        assert capsys.readouterr().err == (
            f"bpslaunch: the scheduler at 127.0.0.1:{double.port} says: worker 0 is lost\n"
        )

    def test_nothing_to_say(self) -> None:
        endpoint = LoopbackNetwork().endpoint(b"l")
        assert run(Herald(SETTINGS, endpoint), endpoint, []) == 0

    def test_wrong_settings(self, start: type[SchedulerDouble], monkeypatch: pytest.MonkeyPatch) -> None:
        start(REPLY)
        monkeypatch.setattr("sys.stdin", io.StringIO(f"ended {ME} 0 1\n"))
        monkeypatch.setenv("DMLC_PS_ROOT_PORT", "x")
        assert main() == 1

    def test_no_such_host(self) -> None:
        endpoint = ZmqEndpoint(b"launcher")
        settings = WorkerSettings(num_worker=2, num_server=1, root_uri="no-such-host.invalid", root_port=9)
        assert run(Herald(settings, endpoint), endpoint, [f"ended {ME} 0 1\n"], timeout=0.1) == 0
        endpoint.close()


def test_both_ends_know_the_same_status() -> None:
    assert (handle.JOB_ENDED, handle.SETTINGS_DIFFER) == (JOB_ENDED, SETTINGS_DIFFER)
