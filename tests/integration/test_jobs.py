"""Jobs of real processes over TCP: start in any order, correct results, an orderly and a disorderly end."""

from __future__ import annotations

import itertools
import re
import sys
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
        made.wait_for("worker0", "s for the scheduler at 127.0.0.1:")
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
from ml_dtypes import bfloat16
def data(rank, index, count, dtype):
    random = np.random.default_rng([rank, index])
    whole = np.issubdtype(dtype, np.integer)
    return (random.integers(-50, 50, count) if whole else random.standard_normal(count)).astype(dtype)
handles = {}
for index in range(1000):
    handles[index] = bps.push_pull_async(data(bps.rank(), index, 256, np.float32), f't{index}')
for index, handle in handles.items():
    want = data(0, index, 256, np.float32) + data(1, index, 256, np.float32)
    assert bps.synchronize(handle).tobytes() == want.tobytes(), index
assert bps.push_pull(np.empty((0, 4)), 'empty').shape == (0, 4)
for number, dtype in enumerate(map(np.dtype, ('f4', 'f8', 'f2', bfloat16, 'i1', 'u1', 'i4', 'i8'))):
    narrow = dtype.name in ('float16', 'bfloat16')  # computed in float32 and rounded once
    a, b = (data(rank, number, 100_003, dtype) for rank in range(2))
    total = np.add(a, b, dtype=np.float32 if narrow else dtype)
    average = total // dtype.type(2) if np.issubdtype(dtype, np.integer) else total / total.dtype.type(2)
    for op, want in ((bps.SUM, total), (bps.AVG, average)):
        got = bps.push_pull(b if bps.rank() else a, f'{dtype.name}.{op}', op)
        assert got.dtype == dtype
        assert got.tobytes() == want.astype(dtype).tobytes(), (dtype, op)
large = np.full(1000, 40000, np.float16)  # the sum of two is no float16
assert bps.push_pull(large, 'large', bps.AVG).tolist() == [40000.0] * 1000
print('done')
"""


def test_a_thousand_small_tensors_an_empty_one_and_all_dtypes(tmp_path: Path) -> None:
    with running(tmp_path, MANY, servers=2) as made:
        assert set(made.wait(60).values()) == {0}, made.everything()
        assert made.output("worker1") == "done\n"


CONNECTED = """
import glob, pathlib, psutil
process = psutil.Process()
connections = getattr(process, 'net_connections', None) or process.connections
assert len([each for each in connections() if each.status == 'ESTABLISHED']) == 2 * 3 + 1
threads = [pathlib.Path(each).read_text().strip() for each in glob.glob('/proc/self/task/*/comm')]
assert 'ZMQbg/IO/1' in threads, threads
"""


def test_several_connections_and_io_threads_change_no_bit(tmp_path: Path) -> None:
    environ = {"BYTEPS_TRANSPORT": "tcp", "BYTEPS_TCP_CONNECTIONS": "3", "BYTEPS_IO_THREADS": "2"}
    body = MANY.replace("print('done')", CONNECTED + "print('done')")
    with running(tmp_path, body, servers=2, **environ) as made:
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


@pytest.mark.slow
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


def test_an_exception_in_one_worker_ends_the_job_with_its_text(tmp_path: Path) -> None:
    body = "if bps.rank() == 1: raise ValueError('too hot')\nbps.push_pull(np.ones(3), 'x')\n"
    with running(tmp_path, body) as made:
        assert set(made.wait().values()) == {1}, made.everything()
        for name in ("worker0", "server0", "scheduler"):
            assert "failed: ValueError: too hot" in made.output(name), made.everything()


def test_an_aborted_job_is_no_success_for_those_who_do_not_look(tmp_path: Path) -> None:
    body = "print('ready')\ntime.sleep(2)\n"
    for number, end in enumerate(("", "bps.shutdown()\n")):
        folder = tmp_path / str(number)
        folder.mkdir()
        with running(folder, body + end) as made:
            for name in ("worker0", "worker1"):
                made.wait_for(name, "ready")
            made.kill("server0")
            statuses = made.wait(10)
            assert statuses == {"scheduler": 1, "server0": -9, "worker0": 1, "worker1": 1}, made.everything()


def test_the_last_contribution_of_a_worker_that_leaves_counts(tmp_path: Path) -> None:
    body = (
        "handle = bps.push_pull_async(np.ones(300_000), 'new')\n"
        "if bps.rank() == 0: assert bps.synchronize(handle).tolist() == [2.0] * 300_000\n"
    )
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        with running(folder, body) as made:
            assert set(made.wait().values()) == {0}, made.everything()


FAILED_PUSHES = """
handles = [
    bps.push_pull_async(np.ones(5_000_000), f'x{index}', bps.SUM if bps.rank() else bps.AVG) for index in range(6)
]
for handle in handles:
    try:
        bps.synchronize(handle)
        raise SystemExit('no error')
    except bps.AgreementError:
        pass
"""


def test_failed_pushes_that_are_still_being_sent_do_not_crash_the_exit(tmp_path: Path) -> None:
    with running(tmp_path, FAILED_PUSHES, BYTEPS_SCHEDULING_CREDIT="64") as made:
        statuses = made.wait()
        assert set(statuses.values()) == {0}, made.everything()


def test_unnamed_calls_do_not_fill_the_memory(tmp_path: Path) -> None:
    body = (
        "import psutil\nme = psutil.Process()\n"
        "for index in range(200):\n"
        "    bps.push_pull(np.ones(125_000))\n"
        "    if index == 20: before = me.memory_info().rss\n"
        "grown = me.memory_info().rss - before\nassert grown < 60e6, grown\n"
    )
    with running(tmp_path, body) as made:
        assert set(made.wait(60).values()) == {0}, made.everything()


def test_a_worker_that_exits_reaches_those_who_wait(tmp_path: Path) -> None:
    body = "if bps.rank() == 1: raise SystemExit(3)\nbps.push_pull(np.ones(3), 'x')\n"
    with running(tmp_path, body) as made:
        statuses = made.wait()
        assert statuses["worker1"] == 3
        assert statuses["worker0"] == 1
        assert "ParticipantLeft" in made.output("worker0")
        assert "worker 1 left the job" in made.output("worker0")


def test_a_second_job_cannot_join(tmp_path: Path) -> None:
    go = tmp_path / "go"
    body = f"print('ready')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\nbps.barrier()\n"
    with running(tmp_path, body, BYTEPS_JOB_ID="mine") as made:
        made.wait_for("worker0", "ready")
        made.worker(7, "", BYTEPS_JOB_ID="other", DMLC_WORKER_ID="1")
        made.processes["worker7"].wait(30)
        go.touch()
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
        for index in range(2):
            made.worker(index, SUM, **{name: values[index]})
        assert made.wait() == dict.fromkeys(("scheduler", "worker0", "worker1"), 2), made.everything()
        told = made.everything()
        for word in (name, *values):
            assert word in told


@pytest.mark.parametrize("launched", [False, True], ids=["plain python", "bpslaunch"])
def test_a_worker_that_must_have_shared_memory_and_is_elsewhere(launched: bool, tmp_path: Path) -> None:
    """It looks for lanes where there are none, as it would in another network namespace."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "sitecustomize.py").write_text(
        "import byteps_py.transport.lanes as lanes\nlanes.lane_name = lambda identity: b'\\0elsewhere/' + identity\n"
    )
    alone = {"BYTEPS_TRANSPORT": "shm", "PYTHONPATH": str(elsewhere)}
    with job(tmp_path) as made:
        made.scheduler()
        made.server()
        if launched:
            made.launch(0, sys.executable, "-c", "import byteps_py as bps; bps.init()", **alone)
        else:
            made.worker(0, "", **alone)
        made.worker(1, SUM)
        statuses = made.wait()
        assert (statuses["worker0"], statuses["worker1"]) == (2, 1), made.everything()
        text = r"BYTEPS_TRANSPORT=shm, but there is no shared memory with server 0 \(pid \d+ on .*\) at tcp://.*: no "
        assert re.search(f"byteps_py: {text}", made.output("worker0")), made.everything()
        assert "Traceback" not in made.output("worker0")
        for name in ("worker1", "server0", "scheduler"):
            assert re.search(rf"worker 0 \(pid .*\) failed: {text}", made.output(name)), made.everything()


@pytest.mark.parametrize(("transport", "counted"), [("auto", (1, 0)), ("tcp", (0, 1))])
def test_stats_and_a_line_tell_which_way_servers_are_reached(
    transport: str, counted: tuple[int, int], tmp_path: Path
) -> None:
    body = "assert bps.stats()['transport'] == dict(zip(('shm', 'tcp'), COUNTED)), bps.stats()\nbps.barrier()\n"
    with job(tmp_path, 1, 1, BYTEPS_FORCE_DISTRIBUTED="1") as made:
        made.scheduler()
        made.server()
        made.worker(0, body.replace("COUNTED", repr(counted)), BYTEPS_TRANSPORT=transport, BYTEPS_LOG_LEVEL="info")
        assert set(made.wait().values()) == {0}, made.everything()
        way = "through shared memory" if transport == "auto" else "over TCP (BYTEPS_TRANSPORT=tcp)"
        assert re.search(rf"server 0 at tcp://127[^ ]*: {re.escape(way)}", made.output("worker0")), made.everything()
