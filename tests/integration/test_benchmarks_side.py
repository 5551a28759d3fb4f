"""benchmarks/side.py: phases, failures, and that nothing is left running."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from benchmarks.side import Program, Side, SideError

WORKER = """
import os, subprocess, sys, time
from pathlib import Path
from benchmarks import phases
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
def double(order):
    return {"value": 2 * order["value"] + rank, "child": child.pid}
def fail(order):
    print("these are the last words")
    sys.exit(3)
def spend(order):
    started = time.process_time()
    while time.process_time() - started < 0.2:
        pass
    return {}
phases.follow(folder, rank, {"double": double, "fail": fail, "spend": spend, "wait": lambda order: time.sleep(1000)})
child.kill()
child.wait()
sys.exit(phases.read(folder / "work.json")["status"])
"""


def side(workers: int = 2, status: int = 0) -> Side:
    command = (sys.executable, "-c", textwrap.dedent(WORKER), "{folder}")
    programs = [Program((*command, str(rank)), {"DMLC_ROLE": "worker"}) for rank in range(workers)]
    return Side("the side", programs, workers, {"status": status})


def test_all_workers_do_it_and_report_by_rank() -> None:
    with side() as made:
        assert [each["value"] for each in made.phase("double", value=5)] == [10, 11]
        assert [each["value"] for each in made.phase("double", value=6)] == [12, 13]


def test_cpu_time_and_memory_are_those_of_all_processes() -> None:
    with side() as made:
        made.phase("spend", watch_memory=True)
        assert sum(made.cpu["worker"]) >= 0.3, "two workers with 0.2 s each, in ticks of 0.01 s"
        made.note_memory()
        assert set(made.peaks) == {f"worker-{index}" for index in range(4)}, "two workers and a child of each"
        assert min(made.peaks.values()) > 1


def test_a_process_that_ends_ends_it_and_says_why() -> None:
    children = []

    def fail() -> None:
        with side() as made:
            children.extend(each["child"] for each in made.phase("double", value=1))
            made.phase("fail")

    with pytest.raises(SideError, match=r"(?s)the side: a process has ended with status 3 in 'fail'.*the last words"):
        fail()
    assert len(children) == 2
    assert not any(psutil.pid_exists(each) for each in children)


def test_it_does_not_wait_for_ever() -> None:
    with pytest.raises(SideError, match="'wait' took more than 0 s"), side() as made:
        made.phase("wait", limit=0.3)


def test_a_failure_at_the_end_is_one() -> None:
    with pytest.raises(SideError, match="a process has ended with status 4 at the end"), side(status=4):
        pass


def test_its_folder_goes_with_it(tmp_path: Path) -> None:
    with side(1) as made:
        path = made.path("")
        assert path.exists()
    assert not path.exists()


def test_what_cannot_be_started_leaves_nothing() -> None:
    made = Side("none", [Program(("/nowhere/python",))], 1, {})
    with pytest.raises(FileNotFoundError), made:
        pass
    assert not made.path("").exists()
