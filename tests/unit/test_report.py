"""The launcher's report over a real connection: it arrives, and it never takes long."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from byteps_py.errors import TransportError
from byteps_py.roles import report
from byteps_py.roles.process import describe_this_process
from byteps_py.roles.report import report_child_ended
from byteps_py.settings import JobSettings
from byteps_py.transport.zmq import ZmqEndpoint
from byteps_py.wire.control import ChildEnded, ControlMessage, Finished, ProcessInfo, decode_control, encode_control

pytestmark = pytest.mark.timeout(60)


class SchedulerDouble:
    """Listens; answers the first message if it is told to."""

    def __init__(self, *, answers: bool) -> None:
        self.received: list[ControlMessage] = []
        self._answers = answers
        self._endpoint = ZmqEndpoint(b"scheduler")
        self.port = int(self._endpoint.listen("tcp://127.0.0.1:0").rpartition(":")[2])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            for message in self._endpoint.receive(None):
                self.received.append(decode_control(message.frames[0]))
                if self._answers:
                    self._endpoint.send(message.peer, [encode_control(Finished())])
        self._endpoint.close()

    def close(self) -> None:
        self._stop.set()
        self._endpoint.wake()
        self._thread.join()


@pytest.fixture(params=[True, False], ids=["answers", "silent"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[SchedulerDouble]:
    double = SchedulerDouble(answers=request.param)
    yield double
    double.close()


def settings(port: int, host: str = "127.0.0.1") -> JobSettings:
    return JobSettings(num_worker=2, num_server=1, root_uri=host, root_port=port, job_id="3f")


def test_the_report_arrives(scheduler: SchedulerDouble, request: pytest.FixtureRequest) -> None:
    process = describe_this_process()
    answers = request.node.callspec.id == "answers"
    timeout = 30.0 if answers else 1.0
    assert report_child_ended(settings(scheduler.port), process, -9, timeout) is answers
    scheduler.close()
    assert scheduler.received == [ChildEnded("3f", process, -9)]


def test_nobody_listens() -> None:
    started = time.monotonic()
    assert not report_child_ended(settings(1), describe_this_process(), 3, 0.2)
    assert time.monotonic() - started < 10


def test_no_such_host() -> None:
    with pytest.raises(TransportError, match="cannot be resolved"):
        report_child_ended(settings(1, "no-such-host.invalid"), describe_this_process(), 3, 0.2)


def test_the_program_takes_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[JobSettings, int, int]] = []

    def note(job: JobSettings, process: ProcessInfo, status: int) -> bool:
        seen.append((job, process.pid, status))
        return True

    monkeypatch.setattr(report, "report_child_ended", note)
    for name, value in {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": "9000",
        "BYTEPS_JOB_ID": "3f",
    }.items():
        monkeypatch.setenv(name, value)
    assert report.main([str(os.getpid()), "-15"]) == 0
    assert seen == [(settings(9000), os.getpid(), -15)]
    monkeypatch.delenv("DMLC_NUM_WORKER")
    assert report.main([str(os.getpid()), "1"]) == 1
