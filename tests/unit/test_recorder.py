"""The record of a process: which samples it has, and what becomes of it when the disk or the process fails."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from byteps_py.errors import SettingsError
from byteps_py.settings import RecordSettings
from byteps_py.telemetry import recorder as module
from byteps_py.telemetry.recorder import INTERVAL_SECONDS, Member, Recorder, prepare

WORKER = Member("worker", 3, 0xC0FFEE, num_worker=4, num_server=2, team=1)
STAGES = {"push": (7, 0.5)}


def settings(folder: Path, **changed: Any) -> RecordSettings:
    made = RecordSettings(record=str(folder), **changed)
    prepare(made)
    return made


def make(folder: Path, member: Member = WORKER, **changed: Any) -> Recorder:
    return Recorder(settings(folder, **changed), member, lambda: dict(STAGES))


def lines(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("*/*/*.jsonl")
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(each) for each in text.splitlines()]


def steps(folder: Path) -> list[int]:
    return [each["steps"] for each in lines(folder)[1:]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass for the recorder."""
    now = [1000.0]
    monkeypatch.setattr(
        module,
        "time",
        SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0] + 1e9, process_time=lambda: now[0] / 2),
    )

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def test_the_first_line_and_a_sample(
    tmp_path: Path, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", " ACTIVE ")
    record = make(tmp_path / "new" / "folder", cell="+ both, 2 servers", block=4, warmup_steps=5, measured_steps=20)
    clock(1.0)
    record.step(5, 80)
    record.close()
    (path,) = (tmp_path / "new" / "folder").glob("*/*/*")
    assert path.relative_to(tmp_path) == Path("new/folder/+-both,-2-servers/0000000000c0ffee/worker-3.jsonl")
    start, sample, last = lines(tmp_path / "new" / "folder")
    assert start == {
        "kind": "start",
        "version": 1,
        "role": "worker",
        "rank": 3,
        "job": "0000000000c0ffee",
        "cell": "+ both, 2 servers",
        "block": 4,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "cores": len(os.sched_getaffinity(0)),
        "team": 1,
        "policy": "active",
        "engines": 0,
        "num_worker": 4,
        "num_server": 2,
        "warmup": 5,
        "steps": 20,
        "wall": 1e9 + 1000.0,
        "monotonic": 1000.0,
    }
    assert (
        sample
        == last
        == {
            "kind": "sample",
            "wall": 1e9 + 1001.0,
            "monotonic": 1001.0,
            "cpu": 500.5,
            "steps": 5,
            "samples": 80,
            "stepped": 1001.0,
            "stages": {"push": [7, 0.5]},
        }
    )


@pytest.mark.parametrize(
    ("cell", "folder"), [("a b", "a-b"), ("..", "cell"), (".hidden", "hidden"), ("n=2.5,x_y+z", "n=2.5,x_y+z")]
)
def test_the_folder_of_a_cell_lies_in_that_of_the_records(cell: str, folder: str, tmp_path: Path) -> None:
    make(tmp_path / "records", cell=cell).close()
    assert [each.name for each in (tmp_path / "records").iterdir()] == [folder]
    assert lines(tmp_path / "records")[0]["cell"] == cell


def test_the_measured_steps_begin_and_end_exactly(tmp_path: Path, clock: Callable[[float], None]) -> None:
    record = make(tmp_path, warmup_steps=3, measured_steps=4)
    for step in range(10):
        record.step(step, 0)
        clock(0.001)
    record.close()
    assert steps(tmp_path) == [3, 7, 9]


def test_without_a_warm_up_they_begin_with_the_session(tmp_path: Path, clock: Callable[[float], None]) -> None:
    record = make(tmp_path, warmup_steps=0)
    for step in range(4):
        record.step(step, 0)
    record.close()
    assert steps(tmp_path) == [0, 3]


def test_slow_steps_have_samples_of_their_own(tmp_path: Path, clock: Callable[[float], None]) -> None:
    record = make(tmp_path, warmup_steps=100)
    for step in range(7):
        record.step(step, 0)
        clock(INTERVAL_SECONDS * 0.4)
    record.close()
    assert steps(tmp_path) == [3, 6, 6]


def test_a_thread_takes_samples_until_the_end(tmp_path: Path) -> None:
    record = make(tmp_path, Member("server", 1, 5, 2, 1, team=2, engines=1))
    record.watch()
    deadline = time.monotonic() + 30
    while len(lines(tmp_path)) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    record.close()
    assert "byteps-record" not in [each.name for each in threading.enumerate()]
    count = len(lines(tmp_path))
    record.sample()
    record.close()
    assert len(lines(tmp_path)) == count
    times = [each["monotonic"] for each in lines(tmp_path)]
    assert times == sorted(times)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        SettingsError, match=r"BYTEPS_AB_RECORD='.*/file': the folder '.*/file/cell' .*: Not a directory"
    ):
        prepare(RecordSettings(record=str(tmp_path / "file")))
    prepare(RecordSettings())


def test_a_file_that_cannot_be_made_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = settings(tmp_path)
    (tmp_path / "cell" / "0000000000c0ffee").touch()
    record = Recorder(given, WORKER, lambda: dict(STAGES))
    record.watch()
    record.step(20, 0)
    record.close()
    (text,) = caplog.messages
    assert text.startswith("no record is written any more: ")
    assert text.endswith(("worker-3.jsonl: Not a directory", "worker-3.jsonl: File exists"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_told_once_and_ends_the_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = make(tmp_path, warmup_steps=1)
    assert record._file is not None
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), record._file.fileno())
    for step in range(5):
        record.step(step, 0)
    record.close()
    (text,) = caplog.messages
    assert text.endswith(os.strerror(errno.ENOSPC))
    assert [each["kind"] for each in lines(tmp_path)] == ["start"]


def test_a_line_that_did_not_fit_is_the_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make(tmp_path, warmup_steps=1)
    assert record._file is not None
    own = record._file
    part = SimpleNamespace(write=lambda data: own.write(data[:10]), close=own.close)
    monkeypatch.setattr(record, "_file", part)
    for step in range(5):
        record.step(step, 0)
    record.close()
    (path,) = tmp_path.glob("*/*/*.jsonl")
    assert path.read_text().splitlines()[1:] == ['{"kind":"s']
    assert len(caplog.messages) == 1
    assert own.closed


def test_a_handler_may_end_the_record_in_the_middle_of_a_sample(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a program does whose signal handler leaves the job."""
    caplog.set_level(logging.WARNING)
    ends: list[Callable[[], None]] = []

    def stages() -> dict[str, tuple[int, float]]:
        if ends:
            ends.pop()()
        return dict(STAGES)

    record = Recorder(settings(tmp_path, warmup_steps=1), WORKER, stages)
    ends.append(record.close)
    record.step(1, 0)
    assert [each["kind"] for each in lines(tmp_path)] == ["start", "sample"]
    assert caplog.messages == []


FORKING = """
import os, sys
from byteps_py.settings import RecordSettings
from byteps_py.telemetry.recorder import Member, Recorder, prepare
settings = RecordSettings(record=sys.argv[1], warmup_steps=1)
prepare(settings)
record = Recorder(settings, Member("worker", 0, 1, 1, 0), dict)
if os.fork() == 0:
    record.step(1, 0)
    record.close()
    os._exit(0)
os.wait()
record.step(2, 0)
record.close()
"""


@pytest.mark.timeout(60)
def test_a_forked_child_leaves_the_record_alone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKING, str(tmp_path)], timeout=30, check=True)
    assert steps(tmp_path)[-1] == 2
    assert 1 not in steps(tmp_path)


def test_whatever_is_wrong_with_a_sample_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> dict[str, tuple[int, float]]:
        raise ZeroDivisionError("of stages")

    record = Recorder(settings(tmp_path), WORKER, fail)
    record.step(20, 0)
    record.step(21, 0)
    record.close()
    assert len(lines(tmp_path)) == 1
    assert [each.getMessage().endswith("of stages") for each in caplog.records] == [True]


def test_one_warning_for_a_disk_that_fails_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        def close(self) -> None:
            super().close()
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    record = make(tmp_path)
    assert record._file is not None
    record._file.close()
    record._file = Full(tmp_path / "full", "x")
    record.step(20, 0)
    record.close()
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == ["no record is written any more"]


def test_a_watcher_that_cannot_be_started_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    record = make(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    record.watch()
    record.close()
    assert "can't start new thread" in caplog.text
