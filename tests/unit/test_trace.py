"""The trace of a process: where it is written, when, and what happens if it cannot be."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from byteps_py.errors import SettingsError
from byteps_py.settings import ServerSettings, WorkerSettings, read
from byteps_py.telemetry import trace as tracing
from byteps_py.telemetry.spans import WorkerSpans
from byteps_py.telemetry.timeline import Microseconds, Names
from byteps_py.telemetry.trace import Owner, Trace
from byteps_py.telemetry.trace_file import Event, temporary_name
from byteps_py.telemetry.trace_folder import IN_USE, lock_folder
from byteps_py.telemetry.tracks import Span
from byteps_py.trace_settings import TraceSettings, prepare_trace
from tests.helpers import traces

LOG = logging.getLogger("byteps_py.worker")
JOB = {
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9",
    "BYTEPS_TRACE_ON": "1",
}


def worker(rank: int = 0, *, shares: bool = False, job: int = 7) -> Owner:
    return Owner("worker", rank, job, 2, 1, 0, shares)


def make(folder: Path, owner: Owner | None = None, *, most: int = 1000) -> tuple[Trace, WorkerSpans]:
    settings = TraceSettings(trace_on=True, trace_start_step=1, trace_end_step=2, trace_dir=str(folder))
    prepare_trace(settings)
    trace = Trace(settings, LOG, most)
    spans = WorkerSpans(trace.window)

    def groups(names: Names, us: Microseconds, now: float) -> Iterable[Sequence[Span]]:
        for each in spans.finished:
            yield [Span(us(each.submitted), us(now), f"Comm.{names[0]}", {"name": f"Comm.{names[0]}"})]

    trace.names[0] = "w"
    trace.begin(worker() if owner is None else owner, (("lane", groups),))
    return trace, spans


def step(spans: WorkerSpans, round_: int) -> None:
    spans.sent(0, round_, 1.0, 2.0)
    spans.received(0, 3.0)
    spans.completed(0, round_, 1.0, 0.0)


class TestSettings:
    def test_defaults_are_those_of_byteps(self) -> None:
        found = read(WorkerSettings, {name: text for name, text in JOB.items() if "TRACE" not in name})
        assert (found.trace_on, found.trace_start_step, found.trace_end_step) == (False, 10, 20)
        assert found.trace_dir == "./trace"

    @pytest.mark.parametrize("kind", [WorkerSettings, ServerSettings])
    @pytest.mark.parametrize(
        ("start", "end", "text"),
        [
            ("20", "20", "BYTEPS_TRACE_START_STEP=20 must be less than BYTEPS_TRACE_END_STEP=20"),
            ("30", None, "BYTEPS_TRACE_START_STEP=30 must be less than BYTEPS_TRACE_END_STEP=20: "),
            ("0", "5", "BYTEPS_TRACE_START_STEP='0' must be a whole number from 1"),
        ],
    )
    def test_steps_that_make_no_sense_are_one_problem(
        self, kind: type[WorkerSettings], start: str, end: str | None, text: str
    ) -> None:
        environ = {**JOB, "BYTEPS_TRACE_START_STEP": start, **({} if end is None else {"BYTEPS_TRACE_END_STEP": end})}
        with pytest.raises(SettingsError) as caught:
            read(kind, environ)
        assert len(caught.value.problems) == 1
        assert caught.value.problems[0].startswith(text)

    def test_where_nothing_is_traced_they_do_not_matter(self) -> None:
        read(WorkerSettings, {**JOB, "BYTEPS_TRACE_ON": "0", "BYTEPS_TRACE_START_STEP": "30"})

    def test_a_folder_that_cannot_be_made_is_told_at_the_start(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(SettingsError, match=r"BYTEPS_TRACE_DIR=.*cannot be used: "):
            prepare_trace(TraceSettings(trace_on=True, trace_dir=str(tmp_path / "file" / "trace")))
        prepare_trace(TraceSettings(trace_on=False, trace_dir=str(tmp_path / "file" / "trace")))

    def test_a_folder_is_made(self, tmp_path: Path) -> None:
        prepare_trace(TraceSettings(trace_on=True, trace_dir=str(tmp_path / "a" / "b")))
        assert (tmp_path / "a" / "b").is_dir()


class TestPlaces:
    def test_a_worker_writes_where_byteps_did_and_a_server_beside_it(self, tmp_path: Path) -> None:
        make(tmp_path)[0].finish()
        make(tmp_path, Owner("server", 3, 7, 2, 4))[0].finish()
        assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.*")) == [
            "0/comm.json",
            "server-3/comm.json",
        ]

    def test_workers_of_several_machines_share_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "0").mkdir()
        (tmp_path / "0" / "comm.json").write_text("of an earlier run")
        both = [make(tmp_path, worker(rank, shares=True))[0] for rank in (1, 0)]
        for each in both:
            each.finish()
        found = {
            str(each.relative_to(tmp_path)): traces.load(each)["otherData"]["rank"] for each in tmp_path.rglob("*.json")
        }
        assert found == {"0/comm.json": 1, "worker-0/comm.json": 0}
        assert not list(tmp_path.rglob(".job-*"))

    def test_on_folders_of_their_own_each_has_the_path_of_byteps(self, tmp_path: Path) -> None:
        for rank in (0, 1):
            make(tmp_path / str(rank), worker(rank, shares=True))[0].finish()
            assert (tmp_path / str(rank) / "0" / "comm.json").is_file()


class TestJobsAtTheSameTime:
    def test_the_second_one_goes_to_a_folder_of_its_own_and_says_so_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        own = tmp_path / "job-0000000000000002"
        with caplog.at_level("WARNING", "byteps_py.worker"):
            running = [make(tmp_path, worker(job=1)), make(tmp_path, Owner("server", 0, 1, 2, 1))]
            running[0][0].finish()
            later = [make(tmp_path, worker(job=2)), make(tmp_path, Owner("server", 0, 2, 2, 1))]
        (line,) = caplog.messages
        assert line.startswith(f"another job that runs now traces into {tmp_path}: the traces of this one go to {own}")
        for trace, _ in (*later, *running):
            trace.finish()
        found = {str(each.relative_to(tmp_path)): job_of(each) for each in tmp_path.rglob("*") if each.is_file()}
        assert found == {
            "0/comm.json": 1,
            "server-0/comm.json": 1,
            f"{own.name}/0/comm.json": 2,
            f"{own.name}/server-0/comm.json": 2,
        }

    def test_what_a_job_has_left_is_replaced_by_the_next_one_however_it_ended(self, tmp_path: Path) -> None:
        make(tmp_path)[0].finish()
        program = (
            "import os, sys, pathlib\n"
            "from byteps_py.telemetry.trace_folder import lock_folder\n"
            "assert lock_folder(pathlib.Path(sys.argv[1]), 8) is not None\n"
            "os.kill(os.getpid(), 9)\n"
        )
        assert subprocess.run([sys.executable, "-c", program, tmp_path], check=False).returncode == -9
        assert (tmp_path / IN_USE).is_file()
        make(tmp_path, worker(job=9))[0].finish()
        assert [each.name for each in tmp_path.iterdir()] == ["0"]
        assert job_of(tmp_path / "0" / "comm.json") == 9

    def test_a_forked_child_does_not_hold_the_folder(self, tmp_path: Path) -> None:
        lock = lock_folder(tmp_path, 1)
        assert lock is not None
        copy = os.dup(lock._fd)  # as a child has it
        assert lock_folder(tmp_path, 2) is None
        lock.release()
        lock.release()
        other = lock_folder(tmp_path, 2)
        assert other is not None
        other.release()
        os.close(copy)
        assert not list(tmp_path.iterdir())

    def test_a_file_that_is_removed_meanwhile_is_made_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opens = os.open

        def remove_at_once(path: Path, *others: int) -> int:
            fd = opens(path, *others)
            path.unlink()
            monkeypatch.undo()
            return fd

        monkeypatch.setattr(os, "open", remove_at_once)
        lock = lock_folder(tmp_path, 1)
        assert lock is not None
        assert lock_folder(tmp_path, 2) is None
        lock.release()

    def test_where_there_are_no_locks_it_is_written_as_ever(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(*_: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)
        with caplog.at_level("WARNING", "byteps_py.worker"):
            make(tmp_path)[0].finish()
        assert caplog.messages == []
        assert (tmp_path / "0" / "comm.json").is_file()


def job_of(path: Path) -> int:
    return int(traces.load(path)["otherData"]["job"], 16)


class TestWriting:
    def test_it_is_written_when_all_have_passed_while_the_job_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tracing, "_STRAGGLE_SECONDS", 0.0)
        trace, spans = make(tmp_path)
        for round_ in (1, 2):
            step(spans, round_)
        assert trace._thread is not None
        trace._thread.join(10)
        path = tmp_path / "0" / "comm.json"
        assert len(traces.spans(path)) == 2
        assert trace.probe.ask() is None
        step(spans, 3)
        before = path.read_bytes()
        trace.finish()
        assert path.read_bytes() == before

    def test_where_no_thread_can_be_started_any_more_it_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class NoThread:
            def __init__(self, **_: object) -> None:
                """As any."""

            def start(self) -> None:
                raise RuntimeError("can't create new thread at interpreter shutdown")

        trace, spans = make(tmp_path)
        monkeypatch.setattr(tracing.threading, "Thread", NoThread)  # as at the end of an interpreter
        for round_ in (1, 2):
            step(spans, round_)
        trace.finish()
        assert len(traces.spans(tmp_path / "0" / "comm.json")) == 2

    def test_what_is_there_is_written_when_the_role_ends_early(self, tmp_path: Path) -> None:
        trace, spans = make(tmp_path)
        step(spans, 1)
        trace.finish()
        events = traces.check(tmp_path / "0" / "comm.json")
        assert [each["name"] for each in events if each["ph"] == "X"] == ["Comm.w"]
        about = traces.load(tmp_path / "0" / "comm.json")["otherData"]
        assert (about["clock"]["of"], about["clock"]["error_us"]) == ("itself", None)
        assert (about["first_step"], about["last_step"], about["tensors"]) == (1, 2, {"0": "w"})
        step(spans, 2)
        assert len(spans.finished) == 1

    def test_a_write_that_hangs_holds_the_role_until_one_deadline(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(tracing, "_CLOSE_SECONDS", 0.1)
        hangs = threading.Event()
        monkeypatch.setattr(tracing, "write_trace", lambda *_: hangs.wait(60) and 0)
        trace, _ = make(tmp_path)
        with caplog.at_level("WARNING", "byteps_py.worker"):
            trace.finish()
            trace.finish()
        hangs.set()
        assert trace._thread is not None
        trace._thread.join(60)
        (line,) = caplog.messages
        assert line.startswith("the trace of this process is lost if the process ends now: ")
        assert str(tmp_path / "0" / "comm.json") in line

    def test_tensors_may_be_placed_while_it_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        trace, spans = make(tmp_path)
        events = trace._events

        def place(owner: Owner, names: Names, us: Microseconds, now: float) -> Iterator[Event]:
            trace.names[1] = "placed meanwhile"
            assert names == {0: "w"}
            return events(owner, names, us, now)

        monkeypatch.setattr(trace, "_events", place)
        step(spans, 1)
        trace.finish()
        assert len(traces.spans(tmp_path / "0" / "comm.json")) == 1

    def test_what_was_killed_while_it_wrote_leaves_nothing_for_ever(self, tmp_path: Path) -> None:
        with subprocess.Popen(["true"]) as dead:
            dead.wait(30)
        path = tmp_path / "0" / "comm.json"
        path.parent.mkdir()
        names = [temporary_name(path, pid) for pid in (dead.pid, os.getppid())]
        names.append(f".comm.json.another-host.{dead.pid}.tmp")
        for name in names:
            (path.parent / name).write_text("cut off")
        make(tmp_path)[0].finish()
        assert sorted(each.name for each in path.parent.iterdir()) == sorted([*names[1:], "comm.json"])

    def test_what_was_kept_is_freed_and_nothing_recorded_though_there_is_no_path(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        trace = Trace(TraceSettings(trace_on=True, trace_dir=str(tmp_path)), LOG)
        spans = WorkerSpans(trace.window)
        (tmp_path / "0").write_text("no folder")
        with caplog.at_level("WARNING", "byteps_py.worker"):
            trace.begin(worker(shares=True), (), spans.forget)
        spans.sent(0, 10, 1.0, 2.0)
        assert len(spans.passages) == 1
        trace.finish()
        assert not spans.passages
        assert trace.window.last == 0
        assert trace.probe.ask() is None
        assert len(caplog.messages) == 1

    def test_a_role_that_never_was_in_a_job_writes_nothing(self, tmp_path: Path) -> None:
        Trace(TraceSettings(trace_on=True, trace_dir=str(tmp_path)), LOG).finish()
        assert not list(tmp_path.iterdir())

    def test_a_folder_that_is_gone_is_made_again_and_one_that_cannot_be_is_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        trace, _ = make(tmp_path / "trace")
        shutil.rmtree(tmp_path / "trace")
        (tmp_path / "trace").write_text("a file by now")
        with caplog.at_level("WARNING", "byteps_py.worker"):
            trace.finish()
            trace.finish()
        (line,) = caplog.messages
        assert line.startswith("the trace of this process cannot be written, the job goes on: ")
        assert line.endswith((": Not a directory", ": File exists"))

    def test_a_trace_that_is_full_says_so(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        trace, spans = make(tmp_path, most=6)
        step(spans, 1)
        step(spans, 2)
        with caplog.at_level("WARNING", "byteps_py.worker"):
            trace.finish()
        (line,) = caplog.messages
        assert line.startswith("the trace is full: 6 spans were left out")
        assert traces.load(tmp_path / "0" / "comm.json")["otherData"]["dropped"] == 6

    def test_no_track_has_the_number_of_its_process(self, tmp_path: Path) -> None:
        trace, spans = make(tmp_path)
        for _ in range(12):
            spans.completed(0, 1, 1.0, 0.0)  # all at once, each on a track of its own
        trace.finish()
        tracks = {each["tid"] for each in traces.check(tmp_path / "0" / "comm.json") if each["ph"] == "X"}
        assert len(tracks) == 12
        assert 9 not in tracks, "viewers would take it for the main thread"

    def test_a_forked_child_writes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        trace, _ = make(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            trace.finish()
        assert not list(tmp_path.rglob("*.json"))
        trace.finish()
