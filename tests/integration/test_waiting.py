"""Jobs that wait, stand still or are told to end: everything says what for, and ends everywhere with one cause."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.jobs import PREAMBLE, job, running

pytestmark = pytest.mark.timeout(120)

TRAINING = """
print("joined", flush=True)
for step in range(600):
    bps.push_pull(np.ones(3), "w")
    if os.path.exists(os.environ["STOP_FILE"]):
        break
    time.sleep(0.05)
"""
FOR_EVER = """
print("joined", flush=True)
while True:
    bps.push_pull(np.ones(3), "w")
    time.sleep(0.05)
"""


class TestStart:
    def test_a_worker_that_takes_long_to_start_is_named_and_waited_for(self, tmp_path: Path) -> None:
        """Its launcher vouches for it, so BYTEPS_START_TIMEOUT does not end the job."""
        slow = "import os, time\nwhile not os.path.exists(os.environ['GO_FILE']): time.sleep(0.05)\n" + PREAMBLE
        go = tmp_path / "go"
        with job(tmp_path, BYTEPS_START_TIMEOUT="2", GO_FILE=str(go)) as made:
            made.scheduler()
            made.server()
            made.launch(1, "bash", "-c", '"$0" "$@"; true', sys.executable, "-c", slow)
            made.worker(0, "")
            made.wait_for("worker0", "missing DMLC_WORKER_ID=1; servers 1/1; worker DMLC_WORKER_ID=1 runs on ")
            assert "but has not called init() yet" in made.output("worker0")
            go.touch()
            assert set(made.wait().values()) == {0}, made.everything()

    def test_a_worker_that_ends_without_joining_ends_the_job(self, tmp_path: Path) -> None:
        with job(tmp_path, BYTEPS_START_TIMEOUT="0") as made:
            made.scheduler()
            made.server()
            made.wait_for("scheduler", "servers 1/1")  # what is over sooner is not told
            made.worker(0, "")
            made.launch(1, sys.executable, "-c", "")
            statuses = made.wait()
            assert statuses == {"scheduler": 1, "server0": 1, "worker0": 1, "worker1": 0}, made.everything()
            for name in ("scheduler", "server0", "worker0"):
                assert "ended with status 0 before it joined the job: does the script call init()?" in made.output(name)

    def test_workers_that_all_end_without_joining(self, tmp_path: Path) -> None:
        with job(tmp_path, BYTEPS_START_TIMEOUT="0") as made:
            made.scheduler()
            made.server()
            made.wait_for("scheduler", "servers 1/1")  # what is over sooner is not told
            for index in range(2):
                made.launch(index, sys.executable, "-c", "print('hello')")
            assert set(made.wait().values()) == {0}, made.everything()
            assert "every worker has ended with status 0 and none of them ever called init()" in made.output(
                "scheduler"
            )

    def test_on_one_machine_the_scheduler_says_so_when_it_is_ended(self) -> None:
        script = (
            "import os, socket, time\n"
            "place = os.environ['DMLC_PS_ROOT_URI'], int(os.environ['DMLC_PS_ROOT_PORT'])\n"
            "while socket.socket().connect_ex(place): time.sleep(0.1)"
        )
        command = [sys.executable, "-m", "byteps_py.launcher", "-n", "2", sys.executable, "-c", script]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        (line,) = [each for each in result.stderr.splitlines() if "scheduler on " not in each]
        assert line.startswith("[scheduler] ")
        assert line.endswith("WARNING byteps scheduler: no worker called init(): nothing was exchanged")
        assert result.returncode == 0

    def test_a_launch_is_told_that_its_workers_will_wait_in_vain(self, tmp_path: Path) -> None:
        with job(tmp_path) as made:
            made.scheduler()
            made.wait_for("scheduler", "listening at ")  # what is over sooner is not told
            made.launch(0, sys.executable, "-c", "import time; time.sleep(100)")
            made.launch(1, sys.executable, "-c", "raise SystemExit(7)")
            statuses = made.wait()
            assert statuses == {"scheduler": 1, "worker0": 1, "worker1": 7}, made.everything()
            assert "ended with status 7 before it joined the job" in made.output("worker0")

    def test_a_process_joins_once(self, tmp_path: Path) -> None:
        with running(tmp_path, "bps.barrier()\nif bps.rank() == 0:\n    bps.shutdown()\n    bps.init()") as made:
            statuses = made.wait()
            assert statuses.pop("worker0") == 1, made.everything()
            assert set(statuses.values()) == {0}, made.everything()
            (line,) = made.output("worker0").splitlines()
            assert line.startswith("byteps_py: this process has left its job by shutdown() and cannot join it again: ")

    def test_a_worker_alone_says_so(self, tmp_path: Path) -> None:
        with job(tmp_path, workers=1, BYTEPS_FORCE_DISTRIBUTED="") as made:
            made.worker(0, "print(bps.size())")
            assert made.wait() == {"worker0": 0}, made.everything()
            assert "this worker runs alone, without the scheduler and the servers" in made.output("worker0")
            assert made.output("worker0").endswith("\n1\n")


class TestStalls:
    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ("bps.push_pull(np.ones(3), 'w')", "for the result of 'w': missing worker 1 (pid "),
            ("bps.barrier()", "at barrier 1 for worker 1 (pid "),
        ],
    )
    def test_the_end_reaches_everybody_with_the_same_cause(self, tmp_path: Path, body: str, words: str) -> None:
        with running(tmp_path, f"if bps.rank() == 0: {body}\nelse: time.sleep(100)", BYTEPS_STALL_TIMEOUT="2") as made:
            assert set(made.wait().values()) == {1}, made.everything()
            for name in made.processes:
                assert words in made.output(name), made.everything()
                assert "giving up (BYTEPS_STALL_TIMEOUT=2)" in made.output(name), made.everything()
            assert "gave up: waiting " in made.output("worker1")

    def test_a_worker_that_holds_the_interpreters_lock_is_not_lost(self, tmp_path: Path) -> None:
        body = "if bps.rank() == 1: import ctypes; ctypes.PyDLL(None).sleep(9)\nbps.push_pull(np.ones(3), 'w')"
        with running(tmp_path, body, BYTEPS_LOST_TIMEOUT="3") as made:
            assert set(made.wait().values()) == {0}, made.everything()
            assert "but its process runs (is it in a long call that holds the GIL?)" in made.output("scheduler")

    def test_a_worker_that_is_stopped_is(self, tmp_path: Path) -> None:
        with running(tmp_path, FOR_EVER, BYTEPS_LOST_TIMEOUT="3") as made:
            made.wait_for("worker1", "joined")
            made.processes["worker1"].send_signal(signal.SIGSTOP)
            made.processes["scheduler"].wait(30)
            made.kill("worker1")
            statuses = made.wait()
            assert {statuses[name] for name in ("scheduler", "server0", "worker0")} == {1}, made.everything()
            assert re.search(r"worker 1 .* is lost: it has not been heard from for \d s", made.output("worker0"))


class TestToldToEnd:
    @pytest.mark.parametrize("name", ["scheduler", "server0"])
    def test_the_workers_have_time_to_leave(self, tmp_path: Path, name: str) -> None:
        stop = tmp_path / "stop"
        with running(tmp_path, TRAINING, STOP_FILE=str(stop)) as made:
            made.wait_for("worker1", "joined")
            made.processes[name].terminate()
            for worker in ("worker0", "worker1"):
                made.wait_for(worker, "was told to end (SIGTERM)")
                assert "for 20 s at most (BYTEPS_GRACE_PERIOD)" in made.output(worker)
            stop.touch()
            statuses = made.wait()
            assert statuses.pop(name) == 143, made.everything()
            assert set(statuses.values()) == {0}, made.everything()

    @pytest.mark.parametrize("name", ["scheduler", "server0"])
    def test_but_no_more_than_the_grace_period(self, tmp_path: Path, name: str) -> None:
        with running(tmp_path, FOR_EVER, BYTEPS_GRACE_PERIOD="1") as made:
            made.wait_for("worker1", "joined")
            made.processes[name].terminate()
            statuses = made.wait()
            assert statuses.pop(name) == 143, made.everything()
            assert set(statuses.values()) == {1}, made.everything()
            role = "the scheduler" if name == "scheduler" else "server 0"
            for other in statuses:
                assert f"{role} (pid {made.processes[name].pid} on " in made.output(other)
                assert ") was told to end (SIGTERM)" in made.output(other)

    @pytest.mark.parametrize("name", ["scheduler", "server0"])
    def test_at_once_before_the_job_is_complete(self, tmp_path: Path, name: str) -> None:
        with job(tmp_path, BYTEPS_LOG_LEVEL="info") as made:
            made.scheduler()
            made.server()
            made.wait_for("scheduler", "joined: workers 0/2, servers 1/1")
            made.processes[name].terminate()
            made.processes[name].wait(10)
            assert made.processes[name].returncode == 143
            if name == "scheduler":
                assert made.wait()["server0"] == 0, made.everything()
            else:
                made.wait_for("scheduler", "was told to end (SIGTERM); the job was not complete")

    def test_a_worker_that_dies_of_it_is_named_at_once(self, tmp_path: Path) -> None:
        with running(tmp_path, FOR_EVER) as made:
            made.wait_for("worker1", "joined")
            made.processes["worker1"].terminate()
            statuses = made.wait()
            assert statuses == {"scheduler": 1, "server0": 1, "worker0": 1, "worker1": -15}, made.everything()
            for name in ("scheduler", "server0", "worker0"):
                assert re.search(r"worker 1 \(pid \d+ on \S+\) was terminated by SIGTERM", made.output(name))

    def test_an_interrupted_server_says_so(self, tmp_path: Path) -> None:
        with running(tmp_path, FOR_EVER) as made:
            made.wait_for("worker1", "joined")
            made.processes["server0"].send_signal(signal.SIGINT)
            statuses = made.wait()
            assert statuses == {"scheduler": 1, "server0": 130, "worker0": 1, "worker1": 1}, made.everything()
            for name in ("scheduler", "worker0", "worker1"):
                assert ") was interrupted" in made.output(name)
