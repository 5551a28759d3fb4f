"""Traces of jobs of real processes: launched with nothing but variables, queried with Perfetto, and cut short."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from byteps_py.traces.merge import find_traces
from tests.helpers import traces
from tests.helpers.jobs import running
from tests.helpers.launches import PYTHON, launches, until

pytestmark = pytest.mark.timeout(120)

STEPS, FIRST, LAST = 12, 4, 7
TRAIN = f"""
import numpy as np
import byteps_py as bps
bps.init()
tensors = [("large", np.ones(250_000, np.float32)), ("a", np.ones(10, np.float32)), ("b", np.ones(20, np.float32))]
for _ in range({STEPS}):
    for handle in [bps.push_pull_async(each, name) for name, each in tensors]:
        bps.synchronize(handle)
bps.shutdown()
"""
FOR_EVER = """
step = 0
while True:
    bps.push_pull(np.ones(250_000, np.float32), name="large")
    step += 1
    if step == 5:
        print("five", flush=True)
"""


REJECTED = """
import numpy as np
import byteps_py as bps
bps.init()
tensors = [("large", np.ones(250_000, np.float32)), ("a", np.ones(10, np.float32)), ("b", np.ones(20, np.float32))]
for step in range(1, 7):
    for name, each in tensors:
        differs = step == 3 and bps.rank() and name != "b"
        if step > 3 and name != "b":
            continue
        try:
            bps.push_pull(each, name, op=bps.SUM if differs else bps.AVG)
        except bps.AgreementError:
            print("rejected", name)
bps.shutdown()
"""


WAITS = """
import os, sys, time
import numpy as np
import byteps_py as bps
bps.init()
for _ in range(4):
    bps.push_pull(np.ones(10, np.float32), "a")
print("there", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
bps.shutdown()
"""


def bps(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "byteps_py", *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The traces of a launch of two workers and two servers, which ran with the folder of BytePS's default."""
    found = tmp_path_factory.mktemp("job")
    environ = {
        "BYTEPS_TRACE_ON": "1",
        "BYTEPS_TRACE_START_STEP": str(FIRST),
        "BYTEPS_TRACE_END_STEP": str(LAST),
        "BYTEPS_PARTITION_BYTES": "400000",
    }
    with launches(found) as start:
        launched = start("-n", "2", "-s", "2", "--", PYTHON, "-c", TRAIN, env=environ)
        assert launched.wait(60) == 0, launched.err
    (traced,) = found.rglob("trace")
    return traced


def test_each_process_writes_a_trace_and_bps_makes_one_of_them(folder: Path) -> None:
    files = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
    assert files == ["0/comm.json", "1/comm.json", "server-0/comm.json", "server-1/comm.json"]
    for each in files:
        traces.check(folder / each)
    done = bps("trace", "merge", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    events = traces.check(folder / "trace.json")
    spans = [each for each in events if each["ph"] == "X"]
    assert {each["args"]["step"] for each in spans} == set(range(FIRST, LAST + 1))
    for pid in (9, 11):
        count = Counter(each["name"] for each in spans if each["pid"] == pid)
        assert [count[f"Comm.{name}"] for name in ("large", "a", "b")] == [LAST - FIRST + 1] * 3
        assert count["Comm.large.COPY_OUT"] == 3 * (LAST - FIRST + 1)
    check_causes(events, traces.load(folder / "trace.json")["otherData"]["processes"])
    told = json.loads(bps("trace", "summary", str(folder), "--json").stdout)
    assert sum(each["rounds"] for each in told["waited_for"]) > 3 * (LAST - FIRST)
    assert told["clock"]["unknown"] == 0


def test_what_is_rejected_is_over(tmp_path: Path) -> None:
    environ = {
        "BYTEPS_TRACE_ON": "1",
        "BYTEPS_TRACE_START_STEP": "2",
        "BYTEPS_TRACE_END_STEP": "5",
        "BYTEPS_TRACE_DIR": str(tmp_path / "trace"),
    }
    with launches(tmp_path) as start:
        launched = start("-n", "2", "-s", "1", "--", PYTHON, "-c", REJECTED, env=environ)
        assert launched.wait(60) == 0, launched.err
    assert launched.out.count("rejected") == 4
    found = find_traces(tmp_path / "trace")
    marked: dict[str, set[str]] = {}
    for each in found.readers:
        events = [event for event in traces.check(each.path) if event["ph"] == "X"]
        assert not [event for event in events if event["args"].get("unfinished")]
        failed = [event for event in events if event["args"].get("failed")]
        assert {event["args"]["step"] for event in failed} == {3}
        marked[each.about["role"]] = {event["name"] for event in failed if "PULL" not in event["name"]}
        label = "Comm.b" if each.about["role"] == "worker" else "bundle of 1"
        assert {event["args"]["step"] for event in events if event["name"] == label} == {2, 3, 4, 5}
    assert marked["worker"] == {"Comm.a", "Comm.a.PUSH", "Comm.large.PUSH"}
    assert {name.startswith("tensor ") and "." not in name for name in marked["server"]} == {True}
    summary = bps("trace", "summary", str(tmp_path / "trace")).stdout
    assert "  server 0: Comm.large, step 3\n" in summary
    assert "Not over" not in summary


def check_causes(events: list[dict[str, Any]], processes: list[dict[str, Any]]) -> None:
    """What is pushed arrives later, give or take what the clocks are known to."""
    starts = {each["id"]: each for each in events if each["ph"] == "s"}
    assert {each["name"] for each in starts.values()} == {"push", "result"}
    by_way = Counter((each["name"], each["pid"]) for each in starts.values())
    assert {pid for name, pid in by_way if name == "push"} == {9, 11}
    assert {pid for name, pid in by_way if name == "result"} <= {8, 10}
    error = 2 * max(each["clock"]["error_us"] for each in processes) + 2
    ways: dict[tuple[int, int], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for each in events:
        if each["ph"] == "X" and "partition" in each["args"] and each["args"]["name"] == "Comm.large":
            stage = each["name"].removeprefix("Comm.large.").replace("PUSH_PULL", "PUSH")
            ways[each["args"]["partition"], each["args"]["step"]][stage].append(each)
    assert len(ways) == 3 * (LAST - FIRST + 1)
    for stages in ways.values():
        (total,) = stages["SUM"]
        assert (len(stages["PUSH"]), len(stages["RECEIVE"]), len(stages["COPY_OUT"])) == (2, 2, 2)
        assert max(each["ts"] for each in stages["PUSH"]) <= max(each["ts"] for each in stages["RECEIVE"]) + error
        assert max(each["ts"] for each in stages["RECEIVE"]) <= total["ts"] + total["dur"]
        assert total["ts"] <= min(each["ts"] for each in stages["COPY_OUT"]) + error


def test_perfetto_reads_it(folder: Path) -> None:
    """A query in Perfetto's own engine finds the spans, nested, with what they mean."""
    api = pytest.importorskip("perfetto.trace_processor", reason="pip install perfetto: its Python API is not here")
    shell = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if shell is None:
        pytest.skip("trace_processor_shell, which perfetto's Python API would download, is not on PATH")
    assert bps("trace", "merge", str(folder)).returncode == 0
    query = """
        select process.name as process, slice.name as name, count(*) as times, max(slice.depth) as depth
        from slice join thread_track on slice.track_id = thread_track.id
        join thread using (utid) join process using (upid)
        group by process.name, slice.name
    """
    with api.TraceProcessor(
        trace=str(folder / "trace.json"), config=api.TraceProcessorConfig(bin_path=shell)
    ) as opened:
        found = {(row.process, row.name): (row.times, row.depth) for row in opened.query(query)}
        (lost,) = opened.query("select sum(value) as lost from stats where severity = 'error'")
        (arrows,) = opened.query("select count(*) as number from flow")
    assert not lost.lost
    assert arrows.number > 0
    for worker in ("worker 0", "worker 1"):
        assert found[worker, "Comm.a"] == (LAST - FIRST + 1, 0)
        assert found[worker, "Comm.a.QUEUE"] == (LAST - FIRST + 1, 1)


def test_after_kill_9_the_others_have_valid_traces(tmp_path: Path) -> None:
    environ = {
        "BYTEPS_TRACE_ON": "1",
        "BYTEPS_TRACE_START_STEP": "1",
        "BYTEPS_TRACE_END_STEP": "1000000",
        "BYTEPS_TRACE_DIR": str(tmp_path / "trace"),
        "BYTEPS_LOST_TIMEOUT": "5",
    }
    with running(tmp_path, FOR_EVER, **environ) as job:
        job.wait_for("worker0", "five")
        job.wait_for("worker1", "five")
        job.kill("worker1")
        assert job.wait(60)["worker0"] != 0
    found = find_traces(tmp_path / "trace")
    assert [(each.about["role"], each.about["rank"]) for each in found.readers] == [("server", 0), ("worker", 0)]
    assert found.broken == []
    for each in found.readers:
        assert len([event for event in traces.check(each.path) if event["ph"] == "X"]) > 5
    assert [each for each in found.remarks if each.startswith("no trace of worker 1: killed")]


@pytest.mark.parametrize("role", ["", "worker"])
def test_a_folder_that_cannot_be_used_is_told_once_and_nothing_started(tmp_path: Path, role: str) -> None:
    (tmp_path / "file").write_text("")
    environ = {"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_DIR": str(tmp_path / "file")}
    if role:
        environ |= {"DMLC_ROLE": role, "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1", "BYTEPS_FORCE_DISTRIBUTED": "1"}
        environ |= {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9", "DMLC_WORKER_ID": "0"}
    servers = [] if role else ["-s", "2"]
    with launches(tmp_path) as start:
        launched = start("-n", "2", *servers, "--", "touch", str(tmp_path / "started"), env=environ)
        assert launched.wait(60) == 2
        shown = start("-n", "2", *servers, "--dry-run", "--", "true", env=environ)
        assert shown.wait(60) == 0, shown.err
        alone = start("-n", "1", "--", "true", env={**environ, "DMLC_ROLE": "", "BYTEPS_FORCE_DISTRIBUTED": "0"})
        assert alone.wait(60) == 0, alone.err
    (line,) = launched.err.splitlines()
    assert line.startswith(f"bpslaunch: BYTEPS_TRACE_DIR='{tmp_path / 'file'}': the folder '{tmp_path / 'file'}'")
    assert not (tmp_path / "started").exists()


def test_two_jobs_with_one_folder_lose_nothing_and_are_told(tmp_path: Path) -> None:
    environ = {"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_START_STEP": "1", "BYTEPS_TRACE_END_STEP": "3"}
    environ["BYTEPS_TRACE_DIR"] = str(folder := tmp_path / "trace")
    with launches(tmp_path) as start:
        first = start("-n", "2", "-s", "1", "--", PYTHON, "-c", WAITS, str(tmp_path / "go"), env=environ)
        until(lambda: first.out.count("there") == 2)
        second = start("-n", "2", "-s", "1", "--", PYTHON, "-c", WAITS, str(tmp_path), env=environ)
        assert second.wait(60) == 0, second.err
        (tmp_path / "go").touch()
        assert first.wait(60) == 0, first.err
    assert "another job" not in first.err
    (line,) = [line for line in second.err.splitlines() if "another job" in line]
    (own,) = folder.glob("job-*")
    assert f"another job that runs now traces into {folder}: the traces of this one go to {own}, where" in line
    files = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
    places = ["0/comm.json", "1/comm.json", "server-0/comm.json"]
    assert files == sorted([*places, *(f"{own.name}/{each}" for each in places)])
    jobs = [{traces.load(where / each)["otherData"]["job"] for each in places} for where in (folder, own)]
    assert [len(each) for each in jobs] == [1, 1]
    assert jobs[0] != jobs[1]
