"""Jobs of real processes that are suspended and resumed with other numbers of workers and servers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers.examples import EXAMPLES
from tests.helpers.jobs import Job, job

pytestmark = pytest.mark.timeout(240)
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("sklearn") is None, reason="torch or scikit-learn is not installed"
)
SCRIPT = EXAMPLES / "torch_elastic.py"
PLAN = ("--generations", "3x2", "2x1", "4x3", "--steps", "30")


def results(text: str) -> list[dict[str, Any]]:
    """What a worker of the example has printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def pids(made: Job, *names: str) -> list[int]:
    """Of processes that are alive."""
    assert [made.processes[name].poll() for name in names] == [None] * len(names), made.everything()
    return [made.processes[name].pid for name in names]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Job]:
    """Scheduler, two servers, and nobody else yet, in a job of three workers."""
    with job(tmp_path, 3, 2, BYTEPS_LOG_LEVEL="info") as made:
        made.scheduler()
        made.server(0)
        made.server(1)
        yield made


@needs_torch
def test_training_goes_on_with_fewer_and_then_with_more(three: Job) -> None:
    made = three
    for index in range(3):
        made.script(index, SCRIPT, *PLAN)
    services = pids(made, "scheduler", "server0", "server1")
    made.wait_for("scheduler", "generation 3 of the job gathers", 120)
    assert pids(made, "scheduler", "server0", "server1") == services
    made.change(4, 3)
    made.server(2)  # one lacks: the one in reserve is used again
    made.script(3, SCRIPT, *PLAN, "--first", "2", DMLC_WORKER_ID="2")
    made.script(4, SCRIPT, *PLAN, "--first", "2", DMLC_WORKER_ID="3")
    assert set(made.wait(120).values()) == {0}, made.everything()

    said = [each for index in range(5) for each in results(made.output(f"worker{index}"))]
    for number, (workers, servers) in enumerate([(3, 2), (2, 1), (4, 3)]):
        of_it = [each for each in said if each["generation"] == number]
        assert sorted(each["rank"] for each in of_it) == list(range(workers))
        assert {(each["workers"], each["servers"]) for each in of_it} == {(workers, servers)}
        assert len({each["params_sha256"] for each in of_it}) == 1, of_it
        assert {each["steps"] for each in of_it} == {30 * (number + 1)}
    first, second, third = (next(each for each in said if each["generation"] == number) for number in range(3))
    assert first["last_loss"] < first["first_loss"] / 2
    # The noise of one batch: a model that had been lost would be at ln(10).
    assert second["first_loss"] < first["last_loss"] + 0.5 < 2.0
    assert third["first_loss"] < second["last_loss"] + 0.5 < 1.5
    # Nobody was started again: each service speaks once of the address that it listens at.
    for name in ("scheduler", "server0", "server1"):
        assert made.output(name).count("listening at") == 1


PUSHES = """
import byteps_py.session as session
def total(name='x'):
    return float(bps.push_pull(np.full(5, bps.rank() + 1.0), name)[0])
"""


def test_one_worker_suspends_and_the_numbers_follow(three: Job) -> None:
    body = PUSHES + (
        "assert total() == 6.0\n"
        "held = bps.empty(1000)\n"
        "bps.suspend()\n"
        "bps.suspend()\n"
        "try: total()\n"
        "except bps.NotInitializedError as error: print(error)\n"
        "held[:] = 1.0\n"
        "if os.environ['DMLC_WORKER_ID'] == '1': sys.exit()\n"
        "wish = {'0': 1, '2': 0}[os.environ['DMLC_WORKER_ID']]\n"
        "bps.resume(2, 1, wish)\n"
        "assert (bps.rank(), bps.size()) == (wish, 2)\n"
        "assert os.environ['DMLC_NUM_WORKER'] == '2' and os.environ['BYTEPS_GLOBAL_RANK'] == str(wish)\n"
        "assert total() == 3.0 and total('y') == 3.0\n"
        "assert bps.push_pull(held, 'held', out=held)[999] == 2.0\n"
        "bps.barrier()\n"
        "print('done')\n"
    )
    for index in range(3):
        three.worker(index, body)
    assert set(three.wait().values()) == {0}, three.everything()
    for index in (0, 2):
        out = three.output(f"worker{index}")
        assert "done" in out
        assert "byteps_py is suspended: call resume(num_workers, num_servers) first" in out


def test_a_suspended_job_uses_no_cpu(three: Job) -> None:
    body = PUSHES + "total()\nbps.suspend()\nprint('suspended')\ntime.sleep(5)\nbps.resume(3, 2)\ntotal()\n"
    for index in range(3):
        three.worker(index, body)
    for index in range(3):
        three.wait_for(f"worker{index}", "suspended")
    processes = {name: psutil.Process(each.pid) for name, each in three.processes.items()}
    time.sleep(0.5)
    before = {name: sum(each.cpu_times()[:2]) for name, each in processes.items()}
    time.sleep(3)
    used = {name: sum(each.cpu_times()[:2]) - before[name] for name, each in processes.items()}
    assert max(used.values()) < 0.1, used
    assert set(three.wait().values()) == {0}, three.everything()


def test_if_nobody_resumes_the_job_ends_in_order(three: Job) -> None:
    for index in range(3):
        three.worker(index, PUSHES + "total()\nbps.suspend()\n")
    assert set(three.wait().values()) == {0}, three.everything()
    assert "every worker has ended after suspend(), and nobody has called resume()" in three.output("scheduler")


def test_whoever_suspends_for_too_long_finds_the_job_ended_in_order(tmp_path: Path) -> None:
    body = PUSHES + "total()\nbps.suspend()\nprint('suspended')\ntime.sleep(60)\n"
    with job(tmp_path, 1, 1, BYTEPS_START_TIMEOUT="4", BYTEPS_LOG_LEVEL="info") as made:
        made.scheduler()
        made.server()
        made.worker(0, body)
        made.wait_for("scheduler", "nobody has called resume() within BYTEPS_START_TIMEOUT=4 seconds after suspend()")
        assert made.processes["scheduler"].wait(30) == 0
        assert made.processes["server0"].wait(30) == 0


def test_a_worker_that_dies_while_others_suspend_ends_the_job(three: Job) -> None:
    three.worker(0, PUSHES + "total()\nbps.suspend()\n")
    three.worker(1, PUSHES + "total()\nbps.suspend()\n")
    three.worker(2, PUSHES + "total()\nprint('works')\ntime.sleep(60)\n")
    three.wait_for("worker2", "works")
    three.wait_for("scheduler", "worker 1 (pid", 30)
    deadline = time.monotonic() + 30
    while three.output("scheduler").count("has called suspend()") < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    three.kill("worker2")
    codes = three.wait()
    assert codes["worker0"] == codes["worker1"] == codes["scheduler"] == codes["server0"] == 1
    for name in ("worker0", "worker1", "server1"):
        assert re.search(r"worker 2 \(pid \d+ on .*\) is lost", three.output(name)), three.everything()


def test_a_server_that_dies_while_the_job_is_suspended_is_replaced(three: Job) -> None:
    go = three.folder / "go"
    body = PUSHES + (
        "total()\nbps.suspend()\nprint('suspended')\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        "bps.resume(3, 2)\ntotal()\n"
    )
    for index in range(3):
        three.worker(index, body)
    for index in range(3):
        three.wait_for(f"worker{index}", "suspended")
    three.kill("server1")
    three.wait_for("scheduler", "it was in reserve, and another server may take its place")
    go.touch()
    three.wait_for("scheduler", "generation 2 of the job gathers")
    three.server(2)
    codes = three.wait()
    assert codes.pop("server1") == -9
    assert set(codes.values()) == {0}, three.everything()


def test_workers_that_name_different_numbers_are_told_so(three: Job) -> None:
    for index in range(3):
        resume = f"time.sleep(0.5 * {index})\nbps.resume({3 - (index == 1)}, 2)\n"
        three.worker(index, PUSHES + "total()\nbps.suspend()\n" + resume)
    codes = three.wait()
    assert {codes[f"worker{index}"] for index in range(3)} == {2}, three.everything()
    assert codes["scheduler"] == 2
    assert re.search(r"DMLC_NUM_WORKER is 3 on worker .* and 2 on worker", three.output("worker1"))


@pytest.mark.parametrize(
    ("wishes", "words"),
    [((1, 1), "global_rank=1 .* is wished for by both worker"), ((5, 0), "global_rank=5 of worker .* is no rank")],
)
def test_a_rank_that_cannot_be_had_is_told(tmp_path: Path, wishes: tuple[int, int], words: str) -> None:
    with job(tmp_path, 2, 1) as made:
        made.scheduler()
        made.server()
        for index, wish in enumerate(wishes):
            made.worker(index, PUSHES + f"total()\nbps.suspend()\nbps.resume(2, 1, {wish})\n")
        codes = made.wait()
        assert {codes["worker0"], codes["worker1"], codes["scheduler"]} == {2}, made.everything()
        assert re.search(words, made.output("worker0"))
        assert re.search(words, made.output("worker1"))


def test_counts_that_never_come_name_who_is_missing(tmp_path: Path) -> None:
    with job(tmp_path, 2, 1, BYTEPS_START_TIMEOUT="4") as made:
        made.scheduler()
        made.server()
        for index in range(2):
            made.worker(index, PUSHES + "total()\nbps.suspend()\nbps.resume(3, 2)\n")
        codes = made.wait()
        assert {codes["worker0"], codes["worker1"], codes["scheduler"], codes["server0"]} == {1}, made.everything()
        assert re.search(r"1 of 3 workers; servers 1/2; gave up after BYTEPS_START_TIMEOUT=4", made.output("worker0"))


def test_wrong_order_of_calls(tmp_path: Path) -> None:
    body = (
        "import byteps_py as bps, os\n"
        "for call in (bps.suspend, lambda: bps.resume(1, 1)):\n"
        "    try: call()\n"
        "    except bps.NotInitializedError as error: print(error)\n"
        "bps.init()\n"
        "try: bps.resume(1, 1)\n"
        "except bps.NotInitializedError as error: print(error)\n"
        "bps.suspend()\n"
        "try: bps.init()\n"
        "except bps.NotInitializedError as error: print(error)\n"
        "bps.resume(1, 0)\n"
        "print(bps.size())\n"
    )
    run = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.splitlines() == [
        "byteps_py is not initialized: call init() first",
        "resume() is for a process that has called suspend(), and this one has not",
        "resume() is for a process that has called suspend(), and this one has not",
        "byteps_py is suspended: call resume(num_workers, num_servers) first",
        "1",
    ]


def test_who_was_alone_cannot_go_on_asynchronously() -> None:
    """Its optimizers average gradients, and those of the others would push differences."""
    body = (
        "import byteps_py as bps, os\n"
        "bps.init()\n"
        "bps.suspend()\n"
        "os.environ.update(DMLC_PS_ROOT_URI='127.0.0.1', DMLC_PS_ROOT_PORT='9', DMLC_ROLE='worker')\n"
        "os.environ.update(BYTEPS_ENABLE_ASYNC='1', BYTEPS_START_TIMEOUT='5')\n"
        "try: bps.resume(2, 1)\n"
        "except bps.SettingsError as error: print(error)\n"
        "bps.resume(1, 0)\n"
        "print(bps.size())\n"
    )
    run = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=True)
    said = run.stdout.splitlines()
    assert "this process was a job of its own, which trains synchronously" in said[0]
    assert "BYTEPS_FORCE_DISTRIBUTED=1" in said[0]
    assert said[1:] == ["1"]


@needs_torch
def test_a_launch_of_which_one_worker_ends_and_two_go_on() -> None:
    command = [sys.executable, "-m", "byteps_py.launcher", "-n", "3", "-s", "2", "--", sys.executable, str(SCRIPT)]
    run = subprocess.run(
        [*command, "--generations", "3x2", "2x1", "1x2", "--steps", "20"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr + run.stdout
    lines = re.findall(r"\{.*\}", run.stdout)
    said = [json.loads(line) for line in lines]
    assert sorted((each["generation"], each["rank"], each["servers"]) for each in said) == [
        (0, 0, 2),
        (0, 1, 2),
        (0, 2, 2),
        (1, 0, 1),
        (1, 1, 1),
        (2, 0, 2),
    ]
    assert len({each["params_sha256"] for each in said}) == 3


MODELS = """
import hashlib, torch
import byteps_py.torch as bps
from byteps_py.torch.cross_barrier import CrossBarrier
from byteps_py.torch.parallel import DistributedDataParallel
torch.set_num_threads(1)
torch.manual_seed(int(os.environ['DMLC_WORKER_ID']))

def net():
    return torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Tanh(), torch.nn.Linear(200, 2))

a, b, c = net(), net(), net()
first = torch.optim.SGD(a.parameters(), lr=0.01, momentum=0.9)
first = bps.DistributedOptimizer(first, a.named_parameters(), arena=True)
second = CrossBarrier(b, torch.optim.Adam(b.parameters(), lr=0.01))
wrapped = DistributedDataParallel(torch.nn.Sequential(c, bps.SyncBatchNorm(2)))
third = torch.optim.SGD(c.parameters(), lr=0.01)

def train():
    bps.broadcast_parameters(a.state_dict(), prefix='A.')
    bps.broadcast_parameters(b.state_dict(), prefix='B.')
    bps.broadcast_optimizer_state(first, prefix='First.')
    bps.broadcast_optimizer_state(second, prefix='Second.')
    for _ in range(3):
        inputs = torch.randn(8, 200)
        for model, optimizer in ((a, first), (b, second), (wrapped, third)):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    second.synchronize()
    parameters = [each for model in (a, b, c) for each in model.parameters()]
    sha = hashlib.sha256(b''.join(each.detach().numpy().tobytes() for each in parameters))
    print('trained', bps.size(), sha.hexdigest())
    assert float(bps.push_pull(torch.ones(3), average=False, name='sum')[0]) == bps.size()

for number in range(int(os.environ.get('FIRST', '0')), 2):
    if number > int(os.environ.get('FIRST', '0')):
        bps.resume(3, 2)
    train()
    if number == 0:
        bps.suspend()
"""


@needs_torch
def test_whatever_is_made_by_the_plugin_goes_on_with_a_newcomer(tmp_path: Path) -> None:
    with job(tmp_path, 2, 1, BYTEPS_LOG_LEVEL="info") as made:
        made.scheduler()
        made.server(0)
        for index in range(2):
            made.worker(index, MODELS)
        made.wait_for("scheduler", "generation 2 of the job gathers", 120)
        made.change(3, 2)
        made.server(1)
        made.worker(2, MODELS, FIRST="1")
        assert set(made.wait(120).values()) == {0}, made.everything()
        said = re.findall(r"trained (\d) (\w+)", "".join(made.output(f"worker{index}") for index in range(3)))
        assert sorted(size for size, _ in said) == ["2", "2", "3", "3", "3"]
        assert len(set(said)) == 2


@needs_torch
def test_suspending_before_the_step_is_told(tmp_path: Path) -> None:
    body = (
        "import torch, byteps_py.torch as bps\n"
        "model = torch.nn.Linear(1100, 1000)\n"  # more than is gathered before it is pushed
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=2)\n"
        "for _ in range(2): model(torch.ones(1, 1100)).sum().backward()\n"
        "bps.suspend()\n"
        "bps.resume(2, 1)\n"
        "try: optimizer.step()\n"
        "except bps_numpy.BytePSError as error: print(error)\n"
        "model.zero_grad()\n"
        "for _ in range(2): model(torch.ones(1, 1100)).sum().backward()\n"
        "optimizer.step()\n"
        "print('done')\n"
    )
    with job(tmp_path, 2, 1) as made:
        made.scheduler()
        made.server()
        for index in range(2):
            made.worker(index, "bps_numpy = bps\n" + body)
        assert set(made.wait().values()) == {0}, made.everything()
        assert "suspend() was called when a backward pass had begun to push the gradients of" in made.output("worker0")
        assert "call it after step() or synchronize()" in made.output("worker0")
        assert "done" in made.output("worker1")


def test_each_generation_has_a_record_and_the_first_one_a_trace(tmp_path: Path) -> None:
    body = PUSHES + "for _ in range(9): total(); bps.step()\nbps.suspend()\nbps.resume(2, 1)\ntotal()\nbps.step()\n"
    records, traces, output = (tmp_path / name for name in ("records", "traces", "output"))
    output.mkdir()
    environ = {
        "BYTEPS_AB_RECORD": str(records),
        "BYTEPS_TRACE_ON": "1",
        "BYTEPS_TRACE_DIR": str(traces),
        "BYTEPS_TRACE_START_STEP": "2",
        "BYTEPS_TRACE_END_STEP": "5",
    }
    with job(output, 2, 1, **environ) as made:
        made.scheduler()
        made.server()
        for index in range(2):
            made.worker(index, body)
        assert set(made.wait().values()) == {0}, made.everything()
    found = sorted(path.name for path in records.rglob("*.jsonl"))
    assert found == sorted(2 * ["scheduler-0.jsonl", "server-0.jsonl", "worker-0.jsonl", "worker-1.jsonl"])
    for name in ("0", "server-0"):
        about = json.loads((traces / name / "comm.json").read_text())["otherData"]
        assert (about["num_worker"], about["last_step"]) == (2, 5)


def test_a_scheduler_that_is_told_to_end_ends_a_suspended_job_in_order(three: Job) -> None:
    for index in range(3):
        three.worker(index, PUSHES + "total()\nbps.suspend()\nprint('suspended')\ntime.sleep(4)\nbps.resume(3, 2)\n")
    for index in range(3):
        three.wait_for(f"worker{index}", "suspended")
    three.processes["scheduler"].terminate()
    codes = three.wait()
    assert [codes.pop(name) for name in ("scheduler", "server0", "server1")] == [143, 0, 0], three.everything()
    assert set(codes.values()) == {1}
    assert "has ended (its process" in three.output("worker0")
    assert "while this process had suspended the job" in three.output("worker0")
