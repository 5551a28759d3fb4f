"""Jobs of real processes over TCP: start in any order, correct results, an orderly and a disorderly end."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import psutil
import pytest

from tests.helpers.jobs import Job, job, running

SUM = "got = bps.push_pull(np.full(1000, bps.rank() + 1.0), 'x')\nassert got.tolist() == [3.0] * 1000\nprint('done')\n"
ORDERS = list(itertools.permutations(["scheduler", "server0", "worker0", "worker1"]))


def start(made: Job, name: str, body: str) -> None:
    if name == "scheduler":
        made.scheduler()
    elif name == "server0":
        made.server()
    else:
        made.worker(int(name[-1]), body)


@pytest.mark.parametrize("order", [ORDERS[0], ORDERS[9], ORDERS[-1]], ids="-".join)
def test_the_order_of_start_does_not_matter(order: tuple[str, ...], tmp_path: Path) -> None:
    with job(tmp_path) as made:
        for name in order:
            start(made, name, SUM)
            time.sleep(0.3)
        assert made.wait() == dict.fromkeys(order, 0), made.everything()
        assert made.output("worker0").endswith("done\n")


def test_the_scheduler_may_be_late(tmp_path: Path) -> None:
    with job(tmp_path) as made:
        for name in ("worker1", "server0", "worker0"):
            start(made, name, SUM)
        made.wait_for("worker0", "waiting 10 s for the scheduler at 127.0.0.1:")
        made.scheduler()
        assert set(made.wait().values()) == {0}, made.everything()


def test_workers_without_an_id_get_ranks_of_their_own(tmp_path: Path) -> None:
    with job(tmp_path) as made:
        made.scheduler()
        made.server()
        for index in range(2):
            made.worker(index, "print('rank', bps.rank(), 'of', bps.size())\n", DMLC_WORKER_ID="")
        assert set(made.wait().values()) == {0}, made.everything()
        ranks = sorted(made.output(f"worker{index}") for index in range(2))
        assert ranks == ["rank 0 of 2\n", "rank 1 of 2\n"]


MANY = """
from byteps_py.types import DType, Operation, TensorSpec
from byteps_py.session import current
def data(rank, index, count, dtype):
    return np.random.default_rng([rank, index]).integers(-50, 50, count).astype(dtype)
handles = {}
for index in range(1000):
    handles[index] = bps.push_pull_async(data(bps.rank(), index, 256, np.float32), f't{index}')
for index, handle in handles.items():
    want = data(0, index, 256, np.float32) + data(1, index, 256, np.float32)
    assert bps.synchronize(handle).tobytes() == want.tobytes(), index
assert bps.push_pull(np.empty((0, 4)), 'empty').shape == (0, 4)
for number, dtype in enumerate(('f4', 'f8', 'f2', 'i1', 'u1', 'i4', 'i8')):
    mine = data(bps.rank(), number, 100_003, dtype)
    other = data(1 - bps.rank(), number, 100_003, dtype)
    assert bps.push_pull(mine, dtype).tobytes() == (mine + other).astype(dtype).tobytes(), dtype
    floor = (mine + other) // np.array(2, dtype) if number > 2 else (mine + other) / np.array(2, dtype)
    assert bps.push_pull(mine, dtype + '.avg', bps.AVG).tobytes() == floor.astype(dtype).tobytes(), dtype
print('done')
"""


def test_a_thousand_small_tensors_an_empty_one_and_all_dtypes(tmp_path: Path) -> None:
    with running(tmp_path, MANY, servers=2) as made:
        assert set(made.wait(60).values()) == {0}, made.everything()
        assert made.output("worker1") == "done\n"


GIGABYTE = """
count = 250_000_000
mine = np.arange(count, dtype=np.float32)
mine += bps.rank()
bps.push_pull(mine, 'big', out=mine)
for first in range(0, count, 10_000_000):
    part = np.arange(first, first + 10_000_000, dtype=np.int32).astype(np.float32)
    assert np.array_equal(mine[first : first + 10_000_000], part + (part + 1)), first
print('done')
"""


@pytest.mark.timeout(300)
def test_a_tensor_of_a_gigabyte(tmp_path: Path) -> None:
    if psutil.virtual_memory().available < 12e9:
        pytest.skip("needs 12 GB of free memory")
    with running(tmp_path, GIGABYTE, servers=2) as made:
        assert set(made.wait(240).values()) == {0}, made.everything()
        assert made.output("worker1") == "done\n"


def test_an_idle_job_uses_no_cpu(tmp_path: Path) -> None:
    """One worker holds the others at a barrier; whoever waits must sleep."""
    body = "bps.push_pull(np.ones(10), 'x')\nprint('ready')\nif bps.rank() == 0: time.sleep(8)\nbps.barrier()\n"
    with running(tmp_path, body) as made:
        for name in ("worker0", "worker1"):
            made.wait_for(name, "ready")
        time.sleep(1)
        processes = {name: psutil.Process(each.pid) for name, each in made.processes.items()}
        before = {name: sum(each.cpu_times()[:2]) for name, each in processes.items()}
        time.sleep(5)
        used = {name: sum(each.cpu_times()[:2]) - before[name] for name, each in processes.items()}
        assert max(used.values()) < 0.1, used
        assert set(made.wait().values()) == {0}, made.everything()


ROUNDS = """
print('ready')
for _ in range(10_000):
    bps.push_pull(np.ones(1000), 'x')
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("victim", "named"),
    [("worker1", "worker 1"), ("worker0", "worker 0"), ("server0", "server 0"), ("scheduler", "scheduler")],
)
def test_kill_9_of_any_process_ends_all_others_with_its_name(victim: str, named: str, tmp_path: Path) -> None:
    with running(tmp_path, ROUNDS) as made:
        for name in ("worker0", "worker1"):
            made.wait_for(name, "ready")
        pid = made.processes[victim].pid
        made.kill(victim)
        statuses = made.wait(10)
        assert statuses.pop(victim) == -9
        for name, status in statuses.items():
            assert status > 0, made.everything()
            assert named in made.output(name), made.everything()
            assert f"{pid}" in made.output(name), made.everything()


def test_a_worker_that_is_busy_elsewhere_ends_too(tmp_path: Path) -> None:
    with running(tmp_path, "print('ready')\nwhile True: time.sleep(100)\n") as made:
        for name in ("worker0", "worker1"):
            made.wait_for(name, "ready")
        made.kill("worker1")
        assert made.wait(10) == {"scheduler": 1, "server0": 1, "worker0": 1, "worker1": -9}
        assert "worker 1" in made.output("worker0")


def test_an_exception_in_one_worker_reaches_those_who_wait(tmp_path: Path) -> None:
    body = "if bps.rank() == 1: raise SystemExit(3)\nbps.push_pull(np.ones(3), 'x')\n"
    with running(tmp_path, body) as made:
        statuses = made.wait(15)
        assert statuses["worker1"] == 3
        assert statuses["worker0"] == 1
        assert "ParticipantLeft" in made.output("worker0")
        assert "worker 1 left the job" in made.output("worker0")


def test_a_second_job_cannot_join(tmp_path: Path) -> None:
    with running(tmp_path, "print('ready')\ntime.sleep(3)\nbps.barrier()\n", BYTEPS_JOB_ID="mine") as made:
        made.wait_for("worker0", "ready")
        made.worker(7, "", BYTEPS_JOB_ID="other", DMLC_WORKER_ID="1")
        statuses = made.wait()
        assert statuses.pop("worker7") == 1
        assert "other" in made.output("worker7")
        assert "mine" in made.output("worker7")
        assert set(statuses.values()) == {0}, made.everything()


@pytest.mark.parametrize(
    ("name", "values"),
    [("BYTEPS_PARTITION_BYTES", ("1024000", "2048000")), ("DMLC_NUM_WORKER", ("2", "3"))],
)
def test_settings_that_must_be_equal_are_compared(name: str, values: tuple[str, str], tmp_path: Path) -> None:
    with job(tmp_path) as made:
        made.scheduler()
        made.server()
        for index in range(2):
            made.worker(index, SUM, **{name: values[index]})
        statuses = made.wait()
        assert min(statuses.values()) > 0, made.everything()
        told = made.everything()
        for word in (name, *values):
            assert word in told
