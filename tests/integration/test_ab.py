"""``bps ab`` from end to end: real jobs, small ones, and what it does when something goes wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.helpers.launches import OWN_GROUP, until

pytestmark = pytest.mark.timeout(120)

PYTHON = sys.executable
TRAIN = """
import os, sys, time
import numpy as np
import byteps_py as bps

if os.environ.get("STATUS"):
    print("these are the last words", flush=True)
    sys.exit(int(os.environ["STATUS"]))
bps.init()
(open(sys.argv[1] + f"/worker-{bps.rank()}", "x")).close()
last = int(os.environ.get("LAST_STEP", 10**9))
for step in range(last):
    bps.push_pull(np.ones(1000, np.float32), name="a")
    time.sleep(float(os.environ.get("DELAY", "0.002")))
    bps.step(samples=int(os.environ.get("BATCH", 0)) or None)
print("throughput:", 1 / float(os.environ.get("DELAY", "1")), flush=True)
"""
"""Trains for ever, unless LAST_STEP says something else; it fails if a file of an earlier run is there."""
SMALL = ("--steps", "20", "--warmup-steps", "3", "--repeats", "2")
ALONE = ("--num-workers", "1", "--repeats", "1", "--steps", "10", "--warmup-steps", "2")
"""One worker needs no server: such a run takes hardly longer than Python needs to start."""


def said(err: str) -> str:
    """What a command has said, but for the picture, which needs a library that may be missing."""
    return re.sub(r"report\.png is left out, since matplotlib .*\n", "", err)


class Ab:
    """A running ``bps ab``; its outputs go to files."""

    def __init__(self, folder: Path, words: Sequence[str], env: dict[str, str]) -> None:
        self._outputs = folder / "stdout", folder / "stderr"
        with self._outputs[0].open("wb") as out, self._outputs[1].open("wb") as err:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "byteps_py", "ab", *words],
                cwd=folder,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                **OWN_GROUP,
            )

    @property
    def out(self) -> str:
        return self._outputs[0].read_text()

    @property
    def err(self) -> str:
        return self._outputs[1].read_text()

    def wait(self) -> int:
        """Its exit status."""
        try:
            return self.process.wait(90)
        finally:
            self.process.kill()
            self.process.wait()


def start(folder: Path, *words: str, script: str = TRAIN, env: dict[str, str] | None = None) -> Ab:
    """``bps ab WORDS --out out -- python train.py {run_dir}``."""
    (folder / "train.py").write_text(script)
    return Ab(folder, [*words, "--out", "out", "--", PYTHON, "train.py", "{run_dir}"], env or {})


def ab(folder: Path, *words: str, script: str = TRAIN, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """The same, with its exit status and outputs."""
    running = start(folder, *words, script=script, env=env)
    return running.wait(), running.out, running.err


def report(folder: Path, *words: str) -> tuple[int, str, str]:
    made = Ab(folder, ["report", *words], {})
    return made.wait(), made.out, made.err


def runs(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "out" / "runs.jsonl").read_text().splitlines()]


def processes_of(folder: Path) -> list[int]:
    """Processes of runs of the experiment."""
    found = []
    for each in psutil.process_iter():
        try:
            if each.environ().get("BYTEPS_RUN_DIR", "").startswith(str(folder)) and each.status() != "zombie":
                found.append(each.pid)
        except (psutil.Error, OSError):
            continue
    return found


def is_in_second_run(folder: Path) -> bool:
    journal = folder / "out" / "runs.jsonl"
    if not journal.exists() or not journal.read_bytes().endswith(b"\n"):
        return False
    return len(list((folder / "out").glob("runs/1-*/files/worker-1"))) == 2


@pytest.mark.slow
def test_an_experiment_from_end_to_end(tmp_path: Path) -> None:
    status, out, err = ab(tmp_path, "--vary", "DELAY=0.02,0.002", *SMALL, env={"DMLC_ROLE": "worker"})
    assert status == 0, err
    lines = [line for line in err.splitlines() if not line.startswith("checking ")]
    assert "each run is a job of its own, so these are not used: DMLC_ROLE=worker" in lines[0]
    assert lines[1].startswith("4 runs: 2 cells x 2 blocks, in random order")
    assert [line.partition(",")[0] for line in lines[2:6]] == ["block 1/2", "block 1/2", "block 2/2", "block 2/2"]
    assert "baseline (DELAY=0.02)" in out
    assert "+ DELAY=0.002" in out
    made = runs(tmp_path)
    assert [each["problem"] for each in made] == [""] * 4
    assert {each["steps"] for each in made} == {20}
    assert {each["unit"] for each in made} == {"steps/s"}
    folders = sorted(each.name for each in (tmp_path / "out" / "runs").iterdir())
    assert folders == ["1-DELAY=0.002", "1-baseline", "2-DELAY=0.002", "2-baseline"]
    for each in folders:
        place = tmp_path / "out" / "runs" / each
        assert sorted(file.name for file in (place / "files").iterdir()) == ["worker-0", "worker-1"]
        printed = (place / "output.log").read_text()
        assert "bpslaunch: " in printed
        assert "OPENMP DISPLAY ENVIRONMENT" not in printed
        assert not (place / "log").exists(), "it is all in output.log"
    assert {"report.json", "report.csv", "report.html"} <= {each.name for each in (tmp_path / "out").iterdir()}
    # The same command finds nothing to do; more repeats add runs; another experiment is refused.
    before = (tmp_path / "out" / "runs.jsonl").read_bytes()
    status, out, err = ab(tmp_path, "--vary", "DELAY=0.02,0.002", *SMALL)
    assert (status, said(err)) == (0, "all 4 runs are done\n")
    assert (tmp_path / "out" / "runs.jsonl").read_bytes() == before
    status, out, err = ab(tmp_path, "--vary", "DELAY=0.02,0.003", *SMALL)
    assert status == 2
    assert "factors DELAY=0.02,0.002 there, DELAY=0.02,0.003 here" in err
    assert report(tmp_path, "out", "--out", "again")[0] == 0
    assert (tmp_path / "again" / "report.html").is_file()
    status, out, err = report(tmp_path, *(f"out/runs/{each}/records" for each in folders), "--out", "records")
    assert status == 0, err
    assert "DELAY=0.002" in out


@pytest.mark.slow
def test_it_goes_on_after_kill_9(tmp_path: Path) -> None:
    words = ("--vary", "DELAY=0.05,0.04", *SMALL)
    running = start(tmp_path, *words)
    until(lambda: is_in_second_run(tmp_path), 60)
    assert processes_of(tmp_path)
    running.process.kill()
    running.wait()
    assert len(runs(tmp_path)) == 1
    # At once, while the launcher of the run is still ending it.
    status, _, err = ab(tmp_path, *words)
    assert status == 0, err
    assert "resuming: 1 of 4 runs are done" in err
    assert processes_of(tmp_path) == []
    assert sorted((each["block"], each["cell"]) for each in runs(tmp_path)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_nothing_is_left_after_kill_9(tmp_path: Path) -> None:
    running = start(tmp_path, "--vary", "DELAY=0.05,0.04", "--repeats", "1", "--steps", "100000")
    until(lambda: list((tmp_path / "out").glob("runs/*/files/worker-1")), 60)
    running.process.kill()
    running.wait()
    until(lambda: processes_of(tmp_path) == [], 10)


def test_a_screen_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ["--vary", "DELAY=0.003,0.002", *ALONE, "--out", "out", "--", PYTHON, "train.py", "{run_dir}"]
    line = shlex.join([PYTHON, "-m", "byteps_py", "ab", *words])
    done = subprocess.run(["bash", "-c", f"{line} <&- >&- 2>/dev/full"], cwd=tmp_path, timeout=90, check=False)
    assert done.returncode == 0
    assert [each["problem"] for each in runs(tmp_path)] == ["", ""]
    assert (tmp_path / "out" / "report.html").is_file()
    status, out, err = report(tmp_path, "out")
    assert (status, said(err)) == (0, "")
    assert "+ DELAY=0.002" in out


def test_a_terminal_that_is_closed_leaves_a_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ["--vary", "DELAY=0.05,0.04", *ALONE[:-4], "--steps", "50", "--out", "out"]
    terminal, theirs = os.openpty()
    running = subprocess.Popen(
        [PYTHON, "-m", "byteps_py", "ab", *words, "--", PYTHON, "train.py", "{run_dir}"],
        **(dict.fromkeys(("stdin", "stdout", "stderr"), theirs) | {"cwd": tmp_path, "start_new_session": True}),
    )
    os.close(theirs)
    try:
        until(lambda: len(list((tmp_path / "out").glob("runs/*/files/worker-0"))) == 1, 60)
        os.close(terminal)
        until(lambda: len(list((tmp_path / "out").glob("runs/*/files/worker-0"))) == 2, 60)
        running.send_signal(signal.SIGHUP)
        assert running.wait(60) == 129
    finally:
        running.kill()
        running.wait()
    assert processes_of(tmp_path) == []
    assert len(runs(tmp_path)) == 1
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_order(tmp_path: Path, number: int, status: int) -> None:
    words = ("--vary", "DELAY=0.05,0.04", *ALONE[:-4], "--steps", "50")
    running = start(tmp_path, *words)
    until(lambda: len(list((tmp_path / "out").glob("runs/*/files/worker-0"))) == 2, 60)
    running.process.send_signal(number)
    assert running.wait() == status
    assert processes_of(tmp_path) == []
    assert "interrupted: the same command goes on from here" in running.err
    assert len(runs(tmp_path)) == 1
    assert (tmp_path / "out" / "report.html").is_file()
    assert "1 of 2 runs" in running.out


def test_a_second_signal_leaves_nobody_time(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TRAIN
    running = start(
        tmp_path, "--vary", "X=1,2", "--num-workers", "1", script=stubborn, env={"BYTEPS_GRACE_PERIOD": "80"}
    )
    until(lambda: list((tmp_path / "out").glob("runs/*/files/worker-0")), 60)
    running.process.send_signal(signal.SIGINT)
    until(lambda: "SIGTERM" in next((tmp_path / "out").glob("runs/*/output.log")).read_text(), 30)
    time.sleep(1.1)  # the launcher takes what follows sooner for the same signal, delivered twice
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == 130
    assert processes_of(tmp_path) == []
    assert "interrupted" in running.err
    assert not (tmp_path / "out" / "report.html").exists(), "there is nothing to report"


def test_a_launcher_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    running = start(tmp_path, "--vary", "X=1,2", "--repeats", "1")
    place = tmp_path / "out"
    for count in (1, 2):
        until(lambda: len(list(place.glob("runs/*/files/worker-1"))) == count, 60)  # noqa: B023
        (launcher,) = psutil.Process(running.process.pid).children()
        launcher.kill()
    assert running.wait() == 1
    assert processes_of(tmp_path) == []
    assert running.err.count("FAILED: the job was ended by SIGKILL") == 2


def test_a_cell_that_fails_does_not_hide_the_others(tmp_path: Path) -> None:
    status, out, err = ab(tmp_path, "--vary", "STATUS=,3", *ALONE)
    assert status == 1
    assert "FAILED: the job ended with exit status 3" in err
    assert "    | [worker 0] these are the last words" in err
    assert "these are the last words" in out
    assert sorted(bool(each["problem"]) for each in runs(tmp_path)) == [False, True]
    assert "OPENMP DISPLAY" not in err + out
    # What has failed is made again, and what has not is kept.
    status, _, err = ab(tmp_path, "--vary", "STATUS=,3", *ALONE)
    assert status == 1
    assert "resuming: 1 of 2 runs are done; 1 that failed is made again" in err


def test_it_is_given_up_when_nothing_works(tmp_path: Path) -> None:
    status, out, err = ab(tmp_path, "--vary", "STATUS=4,3", "--num-workers", "1", "--repeats", "5")
    assert status == 1
    assert "given up: every combination has failed" in err
    assert len(runs(tmp_path)) == 2
    assert out.count("  | [worker 0] these are the last words") == 2
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_metric_from_the_output(tmp_path: Path) -> None:
    words = ("--vary", "DELAY=0.02,0.01", "--metric", r"throughput: ([\d.]+)", "--num-workers", "1", "--repeats", "1")
    status, out, err = ab(tmp_path, *words, env={"LAST_STEP": "5"})
    assert status == 0, err
    assert sorted((each["value"], each["unit"]) for each in runs(tmp_path)) == [(50.0, "metric"), (100.0, "metric")]
    assert "+ DELAY=0.01" in out


def test_a_metric_is_that_of_worker_0(tmp_path: Path) -> None:
    script = (
        "import os, time; rank = int(os.environ['BYTEPS_LOCAL_RANK']); time.sleep(rank / 5); print('loss', 1 + rank)"
    )
    words = ("--vary", "A=1,2", "--metric", r"loss (\d+)", "--num-workers", "2", "--repeats", "1")
    status, _, err = ab(tmp_path, *words, script=script)
    assert status == 0, err
    assert [each["value"] for each in runs(tmp_path)] == [1.0, 1.0]


def test_a_mistake_can_be_corrected_and_runs_stay_in_their_folder(tmp_path: Path) -> None:
    wrong = ("--vary", "A=1,2", *ALONE, "--metric", "speed=(.*)")
    assert ab(tmp_path, *wrong, env={"LAST_STEP": "12"})[0] == 1
    words = ["--vary", "A=1,2", *ALONE, "--out", str(tmp_path / "out"), "--", PYTHON, "train.py", "{run_dir}"]
    made = Ab(tmp_path, words, {})
    assert made.wait() == 0, made.err
    assert "no run of the experiment that was there is good: this one takes its place" in made.err
    assert [each["problem"] for each in runs(tmp_path)] == ["", ""]
    (tmp_path / "other").mkdir()
    words[words.index("--repeats") + 1] = "2"
    made = Ab(tmp_path / "other", words, {})
    assert made.wait() == 0, made.err
    assert f"runs are made in {tmp_path}, where the others were, not in {tmp_path}/other" in made.err
    assert [each["problem"] for each in runs(tmp_path)] == [""] * 4


def test_samples_are_compared_where_the_script_counts_them(tmp_path: Path) -> None:
    status, out, err = ab(tmp_path, "--vary", "BATCH=8,16", *ALONE)
    assert status == 0, err
    assert {each["unit"] for each in runs(tmp_path)} == {"samples/s"}
    assert "samples/s" in out


@pytest.mark.parametrize(
    ("script", "words", "problem"),
    [
        ("pass", (), "it ended before every worker had made a step: the script must call bps.step() after each one"),
        (TRAIN.replace("10**9", "7"), (), "it ended after 7 of 12 steps (2 warm-up + 10): give --steps 5 or fewer"),
        ("import time; time.sleep(1000)", ("--timeout", "1"), "not finished after 1 s (0 of 12 steps): --timeout"),
        ("print('loss=3')", ("--metric", "speed=(.*)"), "nothing in the output matches --metric 'speed=(.*)'"),
        ("import os; os.kill(os.getpid(), 9)", (), "the job was ended by SIGKILL"),
        ("import shutil, time; shutil.rmtree('out'); time.sleep(1000)", (), "out was removed during the run"),
    ],
)
def test_why_a_run_has_failed(tmp_path: Path, script: str, words: tuple[str, ...], problem: str) -> None:
    status, _, err = ab(tmp_path, "--vary", "X=1,2", *ALONE, *words, script=script)
    assert status == 1
    assert f"FAILED: {problem}" in err
    assert processes_of(tmp_path) == []


def test_all_usage_errors_are_told_at_once(tmp_path: Path) -> None:
    words = ["--vary", "x", "--repeats", "0", "--metric", "(", "--step", "5", "--timeout", "never"]
    made = Ab(tmp_path, words, {})
    assert made.wait() == 2
    for text in (
        "--vary 'x'",
        "--repeats '0'",
        "--metric '('",
        "'--step' (did you mean --steps?)",
        "--timeout 'never'",
    ):
        assert text in made.err
    for text in ("--out DIR is missing", "the training command is missing"):
        assert text in made.err
    assert all(line.startswith("bps ab: ") for line in made.err.splitlines())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["stderr", "stdout"]


@pytest.mark.parametrize(
    ("words", "env", "text"),
    [
        (["--", "no-such-command"], {}, "there is no command 'no-such-command'"),
        (["--", "true"], {"BYTEPS_PORT_RANGE": "x"}, "BYTEPS_PORT_RANGE='x' must be two ports"),
        (["--steps", "0", "--", "true"], {}, "--steps 0 leaves nothing to measure"),
        (["--metric", "speed", "--", "true"], {}, "--metric 'speed' has no group"),
        (["--", "true", os.fsdecode(b"\xff")], {}, r"'\udcff' is not UTF-8"),
        (["--", "true"], {"OMP_PLACES": os.fsdecode(b"\xff")}, r"the variable 'OMP_PLACES=\udcff' is not UTF-8"),
    ],
)
def test_what_cannot_work_is_told_before_anything_starts(
    tmp_path: Path, words: list[str], env: dict[str, str], text: str
) -> None:
    made = Ab(tmp_path, ["--vary", "X=1,2", "--out", "out", *words], env)
    assert made.wait() == 2
    assert text in made.err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_starts_nothing(tmp_path: Path) -> None:
    status, out, _ = ab(tmp_path, "--vary", "num-servers=1,2", "--repeats", "2", "--dry-run")
    assert status == 0
    assert out.count("bpslaunch --num-workers=2 --num-servers=") == 4
    assert not (tmp_path / "out").exists()


def test_help_has_examples(tmp_path: Path) -> None:
    for words in (["-h"], ["--out", "x", "--help"]):
        made = Ab(tmp_path, words, {})
        assert made.wait() == 0
        assert made.out.count("  bps ab --vary ") == 3
    status, out, _ = report(tmp_path, "--help")
    assert status == 0
    assert "BYTEPS_AB_RECORD" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "a DIR is missing"),
        (["nowhere"], "nowhere is no folder"),
        (["."], "no records were found"),
    ],
)
def test_a_report_of_nothing(tmp_path: Path, words: list[str], text: str) -> None:
    status, _, err = report(tmp_path, *words)
    assert status == 2
    assert text in err
