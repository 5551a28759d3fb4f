"""One trace of a whole job, and its numbers, from files that the test writes."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from byteps_py import cli
from byteps_py.settings import TraceSettings
from byteps_py.telemetry.clock import ClockProbe
from byteps_py.telemetry.server_spans import ServerSpans
from byteps_py.telemetry.spans import WorkerSpans
from byteps_py.telemetry.timeline import server_groups, worker_groups
from byteps_py.telemetry.trace import Owner, Trace
from byteps_py.traces.summary import _STAGES, _meaning
from byteps_py.types import make_key
from tests.helpers import traces

AHEAD = 5
"""Seconds that the server's own clock is ahead of all others."""
KEY = make_key(3, 0)
WAIT_SECONDS = (0.25, 0.05)
"""How long the second worker is waited for, in step 1 and in step 2."""


def make(folder: Path, owner: Owner, ahead: float = 0.0, *, asks: bool = True) -> Trace:
    trace = Trace(TraceSettings(trace_on=True, trace_start_step=1, trace_end_step=2, trace_dir=str(folder)), LOG)
    trace.probe = ClockProbe(lambda: time.monotonic_ns() + int(ahead * 1e9), time.time_ns)
    if asks:
        number = trace.probe.ask()
        assert number is not None
        trace.probe.take(number, time.monotonic_ns(), time.monotonic_ns())
    return trace


LOG = logging.getLogger("byteps_py.test")


def write_worker(folder: Path, rank: int, base: float, *, job: int = 7, asks: bool = True) -> None:
    trace = make(folder, owner := Owner("worker", rank, job, 2, 1, rank), asks=asks)
    spans = WorkerSpans(trace.window)
    for round_, wait in enumerate(WAIT_SECONDS, 1):
        start = base + round_ + (wait if rank else 0.0)
        spans.sent(KEY, round_, start, start + 0.001)
        if rank == 0:
            spans.accepted(KEY, round_, start + 0.02)
        spans.received(KEY, base + round_ + wait + 0.02)
        spans.copied_out(KEY, base + round_ + wait + 0.02)
        spans.passages[-1].copied = base + round_ + wait + 0.03
        spans.completed(KEY, round_, start, 0.0005)
        spans.finished[-1] = spans.finished[-1]._replace(completed=base + round_ + wait + 0.03)
    trace.names[3] = "grad.weight"
    trace.begin(owner, (("lane", lambda names, us, now: worker_groups(spans, names, us, now)),))
    trace.finish()


def write_server(folder: Path, base: float, *, job: int = 7) -> None:
    trace = make(folder, owner := Owner("server", 0, job, 2, 1), AHEAD)
    spans = ServerSpans(trace.window)
    held, sums = spans.held(2), spans.sum_times()
    for round_, wait in enumerate(WAIT_SECONDS, 1):
        start = base + round_ + AHEAD + 0.005
        held.arrived(KEY, round_, 0, start)
        held.arrived(KEY, round_, 1, start + wait)
        sums.add(start + wait, start + wait + 0.001, KEY, round_)
        found = spans.rounds[-1]
        found.arrivals = {rank: (at, at + 0.0005) for rank, (at, _) in found.arrivals.items()}
        spans.sums[-1] = spans.sums[-1]._replace(done=start + wait + 0.002)
        held.replied(KEY, round_, 0)
        held.replied(KEY, round_, 1)
        found.replied = start + wait + 0.003
    trace.begin(owner, (("lane", lambda names, us, now: server_groups(spans, names, us, now)),))
    trace.finish()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "trace"
    base = time.monotonic() - 100
    for rank in (0, 1):
        write_worker(folder, rank, base)
    write_server(folder, base)
    return folder


def run(*words: str | Path) -> int:
    return cli.main(["trace", *map(str, words)])


def named(events: list[dict[str, Any]], name: str, pid: int) -> list[dict[str, Any]]:
    return [each for each in events if each["name"] == name and each["pid"] == pid and each["ph"] == "X"]


class TestMerge:
    def test_all_processes_are_on_one_clock_though_one_of_them_is_ahead(self, job: Path) -> None:
        assert run("merge", job) == 0
        events = traces.check(job / "trace.json")
        error = sum(each["clock"]["error_us"] for each in traces.load(job / "trace.json")["otherData"]["processes"])
        assert error < 1e6
        for push, received in zip(
            named(events, "Comm.grad.weight.PUSH", 9),
            [each for each in named(events, "Comm.grad.weight.RECEIVE", 8) if each["args"]["worker"] == 0],
            strict=True,
        ):
            assert received["ts"] - push["ts"] == pytest.approx(4000, abs=error + 2)

    def test_servers_learn_names_and_processes_are_sorted(self, job: Path) -> None:
        run("merge", job)
        events = traces.load(job / "trace.json")["traceEvents"]
        assert not [each for each in events if "tensor 3" in each["name"]]
        assert {each["args"]["name"] for each in named(events, "Comm.grad.weight.SUM", 8)} == {"Comm.grad.weight"}
        order = {each["pid"]: each["args"]["sort_index"] for each in events if each["name"] == "process_sort_index"}
        assert sorted(order, key=lambda pid: order[pid]) == [8, 9, 11]

    def test_arrows_lead_from_pushes_to_their_receipts_and_back(
        self, job: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run("merge", job)
        events = traces.check(job / "trace.json")
        starts = [each for each in events if each["ph"] == "s"]
        ends = {each["id"]: each for each in events if each["ph"] == "f"}
        found = sorted((each["name"], each["pid"], ends[each["id"]]["pid"]) for each in starts)
        assert found == sorted([("push", 9, 8), ("push", 11, 8), ("result", 8, 9), ("result", 8, 11)] * 2)
        assert "3 processes" in capsys.readouterr().out

    def test_the_output_goes_where_it_is_asked_to_and_is_not_merged_again(self, job: Path, tmp_path: Path) -> None:
        assert run("merge", job, "-o", tmp_path / "all.json") == 0
        assert run("merge", job) == run("merge", job) == 0
        assert traces.load(tmp_path / "all.json")["traceEvents"] == traces.load(job / "trace.json")["traceEvents"]
        assert run("merge", job, "-o", tmp_path) == 1

    def test_a_broken_file_is_named_and_the_others_are_merged(
        self, job: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = job / "1" / "comm.json"
        path.write_bytes(path.read_bytes()[:-10])
        assert run("merge", job) == 1
        told = capsys.readouterr()
        assert f"{path}: cut off" in told.err or f"{path}: line" in told.err
        assert "no trace of worker 1" in told.err
        assert "2 processes" in told.out
        traces.check(job / "trace.json")

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b'"dur":', b'"dur":-'),
            (b'"step":', b'"stop":'),
            (b'"last":', b'"first":'),
            (b'"worker":1', b'"worker":"1"'),
            (b'"tensor":', b'"tenser":'),
        ],
    )
    def test_a_file_that_breaks_the_format_is_named(
        self, job: Path, capsys: pytest.CaptureFixture[str], old: bytes, new: bytes
    ) -> None:
        path = job / "server-0" / "comm.json"
        assert run("merge", job) == 0
        for each in (path, job / "trace.json"):
            before = each.read_bytes()
            assert old in before
            each.write_bytes(before.replace(old, new))
        assert run("merge", job, "-o", job / "other.json") == 1
        assert f"{path}: no valid trace: " in capsys.readouterr().err
        assert run("summary", job / "trace.json") == 1
        assert f"{job / 'trace.json'}: no valid trace: " in capsys.readouterr().err

    def test_what_was_merged_is_no_process_whatever_it_is_called(self, job: Path) -> None:
        (job / "all").mkdir()
        for _ in range(2):
            assert run("merge", job, "-o", job / "all" / "comm.json") == 0
        assert len(traces.load(job / "all" / "comm.json")["otherData"]["processes"]) == 3

    @pytest.mark.parametrize("damage", ["[1]", '{"x":"y"}', '{"0":5}', '"a"'])
    def test_damaged_names_of_tensors_are_named(
        self, job: Path, capsys: pytest.CaptureFixture[str], damage: str
    ) -> None:
        path = job / "1" / "comm.json"
        text = path.read_text()
        assert '"tensors":{"3":"grad.weight"}' in text
        path.write_text(text.replace('"tensors":{"3":"grad.weight"}', f'"tensors":{damage}'))
        assert run("merge", job) == 1
        assert f"{path}: its first line is damaged: no names of tensors" in capsys.readouterr().err
        assert len(traces.load(job / "trace.json")["otherData"]["processes"]) == 2

    def test_the_output_is_none_of_the_inputs(
        self, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = job / "0" / "comm.json"
        before = path.read_bytes()
        (tmp_path / "link").symlink_to(job)
        for output in (path, job / "1" / ".." / "0" / "comm.json", tmp_path / "link" / "0" / "comm.json"):
            assert run("merge", job, "-o", output) == 2
            assert "is the trace of a process" in capsys.readouterr().err
        assert path.read_bytes() == before

    def test_nothing_to_merge(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("merge", tmp_path) == 1
        assert f"bps trace: {tmp_path}: no comm.json in it" in capsys.readouterr().err
        assert run("merge", tmp_path / "none") == 1
        told = capsys.readouterr().err
        assert f"bps trace: {tmp_path / 'none'}: there is no such folder; give the folder that holds" in told
        assert run("merge", tmp_path / ("x" * 300)) == run("summary", tmp_path / ("x" * 300)) == 1
        (tmp_path / "comm.json").write_text("{}")
        assert run("merge", tmp_path) == 1
        assert "no trace in it can be used" in capsys.readouterr().err

    def test_a_file_is_no_folder(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("merge", job / "0" / "comm.json") == 1
        told = capsys.readouterr().err
        assert told.startswith(f"bps trace: {job / '0' / 'comm.json'}: this is a file; give the folder that holds ")

    @pytest.mark.timeout(30)
    def test_what_is_no_regular_file_is_not_opened(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pipe = job / "pipe" / "comm.json"
        pipe.parent.mkdir()
        os.mkfifo(pipe)
        assert run("merge", job) == run("summary", job) == 1
        told = capsys.readouterr()
        assert told.err.count(f"{pipe}: no regular file") == 2
        assert "3 processes" in told.out
        assert run("merge", pipe) == run("summary", pipe) == 1
        assert capsys.readouterr().err.count("this is something else than a folder") == 2

    def test_what_is_no_regular_file_is_not_replaced(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        os.mkfifo(job / "trace.json")
        assert run("merge", job) == 1
        assert f"{job / 'trace.json'}: the merged trace cannot be written" in capsys.readouterr().err
        assert (job / "trace.json").is_fifo()
        assert run("merge", job, "-o", "/dev/null") == 1
        assert Path("/dev/null").is_char_device()

    def test_a_job_of_fewer_processes_is_not_mixed_with_what_the_one_before_has_left(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        base = time.monotonic() - 100
        for rank in range(4):
            write_worker(tmp_path, rank, base, job=6)
        for rank in (0, 1):
            write_worker(tmp_path, rank, base, job=7)
        write_server(tmp_path, base, job=7)
        assert run("merge", tmp_path) == 0
        told = capsys.readouterr()
        assert told.err == f"bps trace: {tmp_path / '2' / 'comm.json'} and 1 more: of an earlier run, left out\n"
        processes = traces.load(tmp_path / "trace.json")["otherData"]["processes"]
        assert [(each["role"], each["rank"], each["job"]) for each in processes] == [
            ("server", 0, f"{7:016x}"),
            ("worker", 0, f"{7:016x}"),
            ("worker", 1, f"{7:016x}"),
        ]

    def test_a_job_of_which_nothing_was_traced(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        trace = make(tmp_path, owner := Owner("worker", 0, 7, 1, 0))
        trace.begin(owner, ())
        trace.finish()
        assert run("merge", tmp_path) == 0
        assert "nothing was traced: no tensor was pushed 1 times" in capsys.readouterr().err
        assert run("summary", tmp_path) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3
        assert lines[0].startswith("1 worker; ")
        assert lines[2].startswith("nothing was traced: ")

    def test_files_of_an_earlier_run_are_left_out(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (job / "1").rename(job / "old")
        write_worker(job, 0, time.monotonic() - 50, job=8)
        write_worker(job, 1, time.monotonic() - 50, job=8)
        write_server(job, time.monotonic() - 50, job=8)
        assert run("merge", job) == 0
        told = capsys.readouterr()
        assert f"{job / 'old' / 'comm.json'}: of an earlier run, left out" in told.err
        assert "3 processes" in told.out

    def test_who_has_no_common_clock_is_named(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_worker(job, 1, time.monotonic() - 100, asks=False)
        assert run("merge", job) == 0
        assert f"{job / '1' / 'comm.json'}: by a clock of its own" in capsys.readouterr().err


class TestSummary:
    def test_numbers(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("summary", job, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        stages = {(each["role"], each["stage"]): each for each in found["stages"]}
        assert (stages["worker", "PUSH"]["count"], stages["worker", "PUSH_PULL"]["count"]) == (2, 2)
        assert stages["worker", "PUSH"]["median_us"] == pytest.approx(19_000, abs=5)
        assert stages["worker", "COPY_OUT"]["sum_s"] == pytest.approx(0.04, abs=1e-4)
        assert stages["server", "WAIT"]["sum_s"] == pytest.approx(sum(WAIT_SECONDS), abs=1e-4)
        assert stages["server", "SUM"]["p95_us"] == pytest.approx(1000, abs=5)
        (worker,) = found["waited_for"]
        assert (worker["worker"], worker["rounds"], worker["share"]) == (1, 2, 1.0)
        assert worker["alone_s"] == pytest.approx(sum(WAIT_SECONDS), abs=1e-4)
        (tensor,) = found["tensors"]
        assert (tensor["name"], tensor["count"]) == ("Comm.grad.weight", 4)
        assert 0 < found["clock"]["error_us"] < 1e6
        assert (found["steps"], found["unfinished"], found["broken"]) == ([1, 2], [], [])
        assert found["processes"] == ["server 0", "worker 0", "worker 1"]

    def test_what_is_not_over_or_has_failed_is_in_no_sum(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        def medians() -> dict[str, float]:
            assert run("summary", job, "--json") == 0
            stages = json.loads(capsys.readouterr().out)["stages"]
            return {each["stage"]: each["sum_s"] for each in stages if each["role"] == "worker"}

        before = medians()
        path = job / "1" / "comm.json"
        lines = path.read_text().splitlines(keepends=True)
        marks = iter(('"unfinished":true', '"failed":true'))
        path.write_text(
            "".join(
                line.replace('"args":{', f'"args":{{{next(marks)},') if ".PUSH_PULL" in line else line for line in lines
            )
        )
        assert next(marks, None) is None
        assert "PUSH_PULL" in before
        del before["PUSH_PULL"]
        assert medians() == before

    def test_a_merged_file_says_the_same(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("merge", job)
        capsys.readouterr()
        told = []
        for place in (job, job / "trace.json"):
            assert run("summary", place, "--json") == 0
            told.append(json.loads(capsys.readouterr().out))
        assert told[0] == told[1]

    def test_text(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("summary", job, "--top", "1") == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "2 workers and 1 server; steps 1 to 2 of each tensor"
        assert lines[1].startswith("clocks: the scheduler's, give or take ")
        words = [line.split()[:6] for line in lines]
        assert ["server", "WAIT", "2", "0.300", "150.000", "240.000"] in words
        assert ["worker", "1", "2", "100%", "0.300"] in words

    def test_every_stage_is_explained(self) -> None:
        for stages in _STAGES.values():
            for each in stages:
                assert _meaning(each)

    def test_what_was_rejected_or_is_not_over_is_listed(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = job / "0" / "comm.json"
        marks = iter(('"failed":true', '"unfinished":true', '"unfinished":true'))
        lines = path.read_text().splitlines(keepends=True)
        path.write_text(
            "".join(
                line.replace('"args":{', f'"args":{{{next(marks)},') if ".PUSH" in line or ".PULL" in line else line
                for line in lines[:-3]
            )
            + "".join(lines[-3:])
        )
        assert run("summary", job, "--top", "1") == 0
        told = capsys.readouterr().out
        assert "Failed, as what a server has rejected; in none of the figures: 1\n  worker 0: Comm.grad.weight." in told
        assert "Not over when the trace ended; in none of the figures: 2\n  worker 0: Comm.grad.weight." in told
        assert told.endswith("\n  ...\n")

    def test_a_round_of_a_server_that_is_not_over_is_listed(
        self, job: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = job / "server-0" / "comm.json"
        whole, marked = '"name":"tensor 3","cat"', '"args":{"unfinished":true,'
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line.replace('"args":{', marked) if whole in line else line for line in lines))
        assert run("summary", job, "--json") == 0
        found = json.loads(capsys.readouterr().out)["unfinished"]
        assert found == [{"process": "server 0", "span": "Comm.grad.weight", "step": step} for step in (1, 2)]

    def test_who_has_not_come_is_not_waited_for_by_name(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = job / "server-0" / "comm.json"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text(
            "".join(line.replace('"args":{', '"args":{"failed":true,') if ".WAIT" in line else line for line in lines)
        )
        assert run("summary", job, "--json") == 0
        assert json.loads(capsys.readouterr().out)["waited_for"] == []

    def test_a_broken_file(self, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (job / "0" / "comm.json").write_text("")
        assert run("summary", job) == 1
        assert "no trace that byteps_py has written" in capsys.readouterr().err
        assert run("summary", job / "0" / "comm.json") == 1

    @pytest.mark.parametrize("words", [[], ["merge"], ["summary", "x", "--top", "0"], ["summary", "x", "--top", "a"]])
    def test_usage(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            run(*words)
        assert caught.value.code == 2
        assert "usage: bps trace" in capsys.readouterr().err
