"""The MXNet plugin in jobs of real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.jobs import job, running

pytest.importorskip("mxnet", reason="MXNet is not installed: make test-mxnet")

EXAMPLE = Path(__file__).parents[2] / "examples" / "mxnet_digits.py"

START = """
import mxnet as mx
import byteps_py.mxnet as bps
rank, size = bps.rank(), bps.size()
bps.byteps_declare_tensor('x')
"""

EVERYTHING = (
    START
    + """
from mxnet import gluon
assert size == 3
for dtype in 'float32 float64 float16 int8 uint8 int32 int64'.split():
    mine = mx.nd.full((7, 3), rank * 2 + 1, dtype=dtype)
    bps.byteps_declare_tensor(dtype)
    bps.byteps_push_pull(mine, name=dtype)
    assert (mine == 3).asnumpy().all()

large = mx.nd.full((2, 1_500_000), rank)  # several partitions
bps.byteps_push_pull(large[1], name='x', is_average=False)
assert (large[0] == rank).asnumpy().all() and (large[1] == 3).asnumpy().all()

mx.random.seed(rank)
net = gluon.nn.Sequential(prefix='net_')
with net.name_scope():
    net.add(gluon.nn.Conv2D(32, 3), gluon.nn.BatchNorm(), gluon.nn.Conv2D(32, 3, in_channels=32), gluon.nn.Dense(10))
net.initialize()
bps.broadcast_parameters(net.collect_params(), root_rank=1)
trainer = bps.DistributedTrainer(net.collect_params(), 'adam', compression_params={'fp16': rank >= 0})
data = gluon.data.ArrayDataset(mx.nd.random.uniform(shape=(24, 16, 9, 9)), mx.nd.arange(24) % 10)
softmax = gluon.loss.SoftmaxCrossEntropyLoss()
for epoch in range(2):
    # The data loader forks its processes while pushes are on their way.
    for inputs, labels in gluon.data.DataLoader(data, batch_size=8, num_workers=2):
        with mx.autograd.record():
            loss = softmax(net(inputs), labels)
        loss.backward()
        trainer.step(8)
for name, each in sorted(net.collect_params().items()):
    if each.grad_req != 'null':  # the running means of BatchNorm are each worker's own
        mine = each.data().asnumpy()
        assert np.array_equal(mine, bps.broadcast_object(mine)), name

bps.byteps_declare_tensor('behind')
slow = mx.nd.full((1000, 1000), rank)
bps.byteps_push_pull(slow, name='behind')
child = os.fork()
if not child:
    try:
        bps.byteps_push_pull(mx.nd.ones(2), name='x')
    except ValueError as error:
        os._exit(7 if 'forked' in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert (slow == 1).asnumpy().all()
bps.byteps_push_pull(slow, name='behind')  # nobody reads it, or says shutdown()
"""
)


def test_every_part_in_a_real_job(tmp_path: Path) -> None:
    with running(tmp_path, EVERYTHING, workers=3, servers=2) as made:
        assert set(made.wait(100).values()) == {0}, made.everything()


NAIVE = (
    START
    + """
net = mx.gluon.nn.Dense(3, in_units=2, prefix='net_')
net.initialize(mx.init.Constant(rank))
bps.broadcast_parameters(net.collect_params(), root_rank=1)
trainer = bps.DistributedTrainer(net.collect_params(), 'sgd', {'learning_rate': 1.0})
with mx.autograd.record():
    loss = net(mx.nd.full((1, 2), rank + 1)).sum()
loss.backward()
trainer.step(1)
assert (net.weight.data() == 1 - 1.5).asnumpy().all()
try:
    bps.byteps_push_pull(mx.nd.ones(2), name='x', version=rank)
except ValueError as error:
    assert 'tensor' in str(error)
    bps.shutdown()
    sys.exit(5)
"""
)


def test_the_naive_engine_waits_and_raises_at_once(tmp_path: Path) -> None:
    with running(tmp_path, NAIVE, MXNET_ENGINE_TYPE="NaiveEngine") as made:
        status = made.wait(60)
        assert (status["worker0"], status["worker1"]) == (5, 5), made.everything()


def test_a_worker_that_is_killed_ends_the_waits_of_the_others(tmp_path: Path) -> None:
    body = START + (
        "if rank == 0:\n"
        "    array = mx.nd.ones(5)\n"
        "    bps.byteps_push_pull(array, name='x')\n"
        "    print('pushed', flush=True)\n"
        "    array.asnumpy()\n"
        "time.sleep(100)\n"
    )
    with running(tmp_path, body) as made:
        made.wait_for("worker0", "pushed")
        made.kill("worker1")
        assert made.wait(60)["worker0"] == 1, made.everything()
        assert "worker 1 (pid" in made.output("worker0"), made.everything()


def test_what_fails_unread_does_not_end_with_success(tmp_path: Path) -> None:
    body = START + "bps.byteps_push_pull(mx.nd.ones(5), name='x', version=rank)\n"
    with running(tmp_path, body) as made:
        status = made.wait(60)
        assert (status["worker0"], status["worker1"]) == (1, 1), made.everything()
        assert "tensor 'x'" in made.output("worker0") + made.output("worker1")


def test_an_exception_on_one_worker_is_told_to_those_that_wait(tmp_path: Path) -> None:
    body = START + (
        "array = mx.nd.ones(5)\n"
        "bps.byteps_declare_tensor('mine')\n"
        "bps.byteps_push_pull(array, name='mine' if rank == 1 else 'x')\n"
        "if rank == 1:\n"
        "    raise OSError('no data')\n"
        "array.asnumpy()\n"
    )
    with running(tmp_path, body) as made:
        status = made.wait(60)
        assert (status["worker0"], status["worker1"]) == (1, 1), made.everything()
        assert "OSError: no data" in made.output("worker0"), made.everything()


def test_an_end_with_a_status_does_not_wait_for_what_never_comes(tmp_path: Path) -> None:
    body = START + (
        "bps.byteps_declare_tensor('mine')\n"
        "array = mx.nd.ones(5)\n"
        "bps.byteps_push_pull(array, name='mine' if rank == 1 else 'x')\n"
        "if rank == 1:\n"
        "    sys.exit(3)\n"
        "array.asnumpy()\n"
    )
    with running(tmp_path, body) as made:
        status = made.wait(40)
        assert (status["worker0"], status["worker1"]) == (1, 3), made.everything()
        assert "worker 1" in made.output("worker0"), made.everything()


def launch(*arguments: str, servers: int = 1) -> dict[str, Any]:
    """Run the example with two workers by bpslaunch; returns the object in the last line of worker 0."""
    command = [sys.executable, "-m", "byteps_py.launcher", "-n", "2", "-s", str(servers)]
    command += ["--", sys.executable, str(EXAMPLE), "--seed", "1", *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (last,) = (line for line in done.stdout.splitlines() if line.startswith("[worker 0] {"))
    return json.loads(last.removeprefix("[worker 0] "))  # type: ignore[no-any-return]


def test_the_example_learns_and_resumes_with_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is missing")
    whole = launch("--epochs", "5", servers=2)
    assert whole["accuracy"] >= 0.95
    assert whole["steps"] == 5 * 44
    saving = ("--checkpoint", str(tmp_path / "checkpoint"))
    launch("--epochs", "4", *saving)
    resumed = launch("--epochs", "5", *saving, "--resume")
    assert resumed["params_sha256"] == whole["params_sha256"]
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


GENERATIONS = (
    START
    + """
from mxnet import gluon
first = int(os.environ.get('FIRST', '0'))
mx.random.seed(int(os.environ['DMLC_WORKER_ID']))
net = gluon.nn.Dense(3, in_units=5, prefix='net_')
net.initialize()
trainer = bps.DistributedTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})
for number in range(first, 2):
    if number > first:
        bps.resume(3, 1)
    for _ in range(3):
        inputs = mx.nd.random.uniform(shape=(4, 5))
        with mx.autograd.record():
            loss = net(inputs).square().mean()
        loss.backward()
        trainer.step(4)
    total = mx.nd.ones(3)
    bps.byteps_push_pull(total, name='x', is_average=False)
    assert (total == bps.size()).asnumpy().all()
    print('trained', bps.size(), net.weight.data().asnumpy().tobytes().hex())
    if number == 0:
        bps.suspend()
"""
)


def test_a_trainer_goes_on_with_a_newcomer(tmp_path: Path) -> None:
    with job(tmp_path, 2, 1, BYTEPS_LOG_LEVEL="info") as made:
        made.scheduler()
        made.server()
        for index in range(2):
            made.worker(index, GENERATIONS)
        made.wait_for("scheduler", "generation 2 of the job gathers")
        made.change(3, 1)
        made.worker(2, GENERATIONS, FIRST="1")
        assert set(made.wait().values()) == {0}, made.everything()
        lines = "".join(made.output(f"worker{index}") for index in range(3)).splitlines()
        said = [line for line in lines if line.startswith("trained")]
        assert sorted(line.split()[1] for line in said) == ["2", "2", "3", "3", "3"]
        assert len(set(said)) == 2  # the same parameters on all
