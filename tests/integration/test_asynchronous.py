"""Asynchronous training in real jobs: NumPy arrays by the session, and torch."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.jobs import job, running

ASYNC = {"BYTEPS_ENABLE_ASYNC": "1"}

COUNTED = """
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec
session = current()
specs = [TensorSpec('small', DType.INT64, (3,)), TensorSpec('large', DType.INT64, (100000,))]
session.declare(specs)
for spec in specs:
    own = np.full(spec.shape, 1000 + bps.rank())
    store = session.submit(spec, own, None, Operation.SEED).wait()
    assert (store == 1000).all(), store
seen = {spec.name: 1000 for spec in specs}
for step in range(50):
    for spec in specs:
        store = session.submit(spec, np.full(spec.shape, 1 << 8 * bps.rank()), None, Operation.DIFFERENCE).wait()
        # Partitions are stores of their own, so others may have been added to one and not yet to another.
        assert ((store - 1000) >> 8 * bps.rank() & 255 == step + 1).all(), (step, store)
        assert (store >= seen[spec.name]).all(), (step, seen, store)
        seen[spec.name] = store
bps.barrier()
for spec in specs:
    store = session.submit(spec, None, None, Operation.DIFFERENCE).wait()
    assert (store == 1000 + sum(50 << 8 * rank for rank in range(bps.size()))).all(), store
print('done', bps.stats()['staleness'])
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_store_begins_with_the_values_of_worker_0_and_counts_each_difference_once(
    transport: str, tmp_path: Path
) -> None:
    environ = {**ASYNC, "BYTEPS_TRANSPORT": transport, "BYTEPS_PARTITION_BYTES": "65536"}
    with running(tmp_path, COUNTED, workers=3, servers=2, **environ) as made:
        assert set(made.wait(60).values()) == {0}, made.everything()
        # 50 of the small tensor, and 50 of each partition of the large one.
        assert all("'count': 700" in made.output(f"worker{rank}") for rank in range(3)), made.everything()


BOUND = """
import time
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec
session = current()
spec = TensorSpec('clock', DType.INT64, (2,))
session.submit(spec, np.zeros(2, int), None, Operation.SEED).wait()
mine = np.zeros(2, int)
mine[bps.rank()] = 1
for step in range(1, 31):
    if bps.rank() == 1:
        time.sleep(0.01)
    store = session.submit(spec, mine, None, Operation.DIFFERENCE).wait()
    # Round r of a worker is answered when the other has pushed r - 2, whose sum may not be done yet.
    assert store[0] - store[1] <= 2 + 1, (step, store)
    assert store[bps.rank()] == step
stats = bps.stats()['staleness']
assert stats['count'] == 30
print('done', stats)
"""


def test_a_bound_holds_the_faster_worker(tmp_path: Path) -> None:
    with running(tmp_path, BOUND, **ASYNC, BYTEPS_ASYNC_MAX_STALENESS="2") as made:
        assert set(made.wait(60).values()) == {0}, made.everything()


WAITS = """
import time
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec
session = current()
spec = TensorSpec('clock', DType.INT64, (2,))
session.submit(spec, np.zeros(2, int), None, Operation.SEED).wait()
for step in range(10):
    if bps.rank() == 1:
        time.sleep(3600)
    session.submit(spec, np.ones(2, int), None, Operation.DIFFERENCE).wait()
"""


def test_who_is_held_says_for_whom_it_waits(tmp_path: Path) -> None:
    limits = {"BYTEPS_ASYNC_MAX_STALENESS": "1", "BYTEPS_STALL_TIMEOUT": "4"}
    with running(tmp_path, WAITS, **ASYNC, **limits) as made:
        made.wait_for("worker0", "for the result of 'clock': missing worker 1 (pid")
        made.wait(60)


LEAVES = """
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec
session = current()
spec = TensorSpec('sum', DType.INT64, (70000,))
session.submit(spec, np.zeros(70000, int), None, Operation.SEED).wait()
for step in range(3 if bps.rank() == 1 else 200):
    store = session.submit(spec, np.ones(70000, int), None, Operation.DIFFERENCE).wait()
if bps.rank() == 0:
    assert (store == 203).all(), store[:4]
"""


@pytest.mark.parametrize("bound", ["", "2"])
def test_a_worker_that_ends_early_is_no_fault(bound: str, tmp_path: Path) -> None:
    with running(tmp_path, LEAVES, **ASYNC, BYTEPS_ASYNC_MAX_STALENESS=bound) as made:
        assert set(made.wait(60).values()) == {0}, made.everything()


MIXED = """
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec
session = current()
bps.push_pull(np.ones(4, np.float32), name='summed')
summed, held, new = [TensorSpec(name, DType.FLOAT32, (4,)) for name in ('summed', 'held', 'new')]
session.submit(held, np.ones(4, np.float32), None, Operation.SEED).wait()
for call in (
    lambda: session.submit(summed, np.ones(4, np.float32), None, Operation.SEED).wait(),
    lambda: bps.push_pull(np.ones(4, np.float32), name='held'),
    lambda: session.submit(new, np.ones(4, np.float32), None, Operation.DIFFERENCE).wait(),
):
    try:
        call()
    except bps.AgreementError as error:
        print(error)
    else:
        raise AssertionError('was not refused')
"""


def test_operations_that_do_not_go_together_are_told_apart(tmp_path: Path) -> None:
    with running(tmp_path, MIXED, **ASYNC) as made:
        assert set(made.wait(60).values()) == {0}, made.everything()
        for rank in range(2):
            said = made.output(f"worker{rank}")
            assert re.search("tensor 'summed': worker .* a name of their own", said), said
            assert re.search("tensor 'held': worker .* since its SEED", said), said
            assert re.search("tensor 'new': worker .* the first operation on them is a SEED", said), said


REFUSED = """
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec
try:
    current().submit(TensorSpec('x', DType.FLOAT32, (4,)), np.ones(4, np.float32), None, Operation.SEED).wait()
except bps.UnsupportedError as error:
    assert 'set BYTEPS_ENABLE_ASYNC=1' in str(error)
    print('refused')
"""


@pytest.mark.parametrize("bound", [{}, {**ASYNC, "BYTEPS_ASYNC_MAX_STALENESS": "0"}])
def test_a_synchronous_job_refuses_the_operations(bound: dict[str, str], tmp_path: Path) -> None:
    with running(tmp_path, REFUSED, **bound) as made:
        assert set(made.wait(60).values()) == {0}, made.everything()
        assert "refused" in made.output("worker0")


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ({"BYTEPS_ENABLE_ASYNC": "0"}, "BYTEPS_ENABLE_ASYNC is "),
        ({"BYTEPS_ASYNC_MAX_STALENESS": "3"}, "BYTEPS_ASYNC_MAX_STALENESS is "),
    ],
)
@pytest.mark.parametrize("odd", ["server", "worker"])
def test_processes_that_train_otherwise_are_told_so_by_name(
    own: dict[str, str], text: str, odd: str, tmp_path: Path
) -> None:
    with job(tmp_path, **ASYNC) as made:
        made.scheduler()
        made.worker(0, "print('done')")
        if odd == "worker":
            made.server()
            made.worker(1, "print('done')", **own)
        else:
            made._environ |= own
            made.server()
            made._environ |= ASYNC
        made.wait_for("scheduler", text)
        statuses = made.wait(60)
        assert statuses["worker0"] == 2, made.everything()
        assert re.search(rf"{text}.* on .*\(pid .* and .* on .*\(pid ", made.output("worker0")), made.everything()


BITS = """
import hashlib
import torch
import byteps_py.torch as bps
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 3))
optimizer = torch.optim.{optimizer}
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
generator = torch.Generator().manual_seed(9 + bps.rank())
for step in range(12):
    inputs, labels = torch.randn(16, 20, generator=generator), torch.randint(0, 3, (16,), generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
flat = torch.cat([each.detach().flatten() for each in model.parameters()])
print('sha', hashlib.sha256(flat.numpy().tobytes()).hexdigest())
"""


@pytest.mark.parametrize(
    "optimizer", ["SGD(model.parameters(), lr=0.2, momentum=0.9)", "Adam(model.parameters(), lr=0.01)"]
)
def test_with_a_bound_of_0_the_bits_are_those_of_synchronous_training(optimizer: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    found: dict[str, set[str]] = {}
    for name, environ in {
        "synchronous": {},
        "bound": {**ASYNC, "BYTEPS_ASYNC_MAX_STALENESS": "0"},
        "asynchronous": ASYNC,
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        with running(folder, BITS.format(optimizer=optimizer), servers=2, **environ) as made:
            assert set(made.wait(100).values()) == {0}, made.everything()
            found[name] = {made.output(f"worker{rank}").splitlines()[-1] for rank in range(2)}
    assert len(found["bound"]) == 1
    assert found["bound"] == found["synchronous"]
    assert found["asynchronous"].isdisjoint(found["synchronous"])  # or nothing was compared


SEEDS = """
import torch
import byteps_py.torch as bps
from torch import nn
torch.manual_seed(5 + bps.rank())
model = nn.Linear(4, 3)
with torch.no_grad():  # as a checkpoint that is read late
    model.weight.fill_(10.0 + bps.rank())
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
with torch.no_grad():
    model.bias.fill_(20.0 + bps.rank())
for step in range(4):
    optimizer.zero_grad()
    (model.weight.sum() * (1 + bps.rank())).backward()  # the bias gets no gradient
    optimizer.step()
bps.barrier()
optimizer.zero_grad()
optimizer.step()
assert model.bias.tolist() == [20.0] * 3, model.bias
assert torch.equal(model.weight, torch.full((3, 4), 10.0 - 4 * 1 - 4 * 2)), model.weight
assert bps.stats()['staleness']['count'] == 4, bps.stats()
print('done')
"""


def test_torch_begins_with_the_parameters_of_worker_0(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    with running(tmp_path, SEEDS, **ASYNC) as made:
        assert set(made.wait(100).values()) == {0}, made.everything()


USES = """
import torch
import byteps_py.torch as bps
from byteps_py.torch.cross_barrier import CrossBarrier
from byteps_py.torch.parallel import DistributedDataParallel
from torch import nn

def refused(call, text):
    try:
        call()
    except bps_errors as error:
        assert text in str(error), error
    else:
        raise AssertionError(f'{text}: was not refused')

bps_errors = (TypeError, ValueError)
def fresh(kind=torch.optim.SGD, **options):
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(8.0)
    return model, kind(model.parameters(), **options)

model, optimizer = fresh(lr=1.0)
refused(lambda: CrossBarrier(model, optimizer), 'CrossBarrier averages gradients')
refused(lambda: DistributedDataParallel(model), 'DistributedDataParallel averages gradients')
refused(lambda: bps.DistributedOptimizer(optimizer, compression=bps.Compression.fp16), 'too small for 16 bits')
refused(lambda: bps.DistributedOptimizer(optimizer, backward_passes_per_step=0), 'at least 1')

# Two backward passes add up; clipping needs no synchronize(); a scheduler finds its step.
optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
refused(optimizer.skip_synchronize, 'no gradients are synchronized')
refused(lambda: optimizer.set_backward_passes_per_step(0), 'at least 1')
for _ in range(2):
    model(torch.ones(1, 2)).sum().backward()
optimizer.synchronize()
nn.utils.clip_grad_value_(model.parameters(), 1.5)
optimizer.step()
scheduler.step()
optimizer.zero_grad()
assert optimizer.param_groups[0]['lr'] == 0.1
bps.barrier()
optimizer.step()
assert torch.equal(model.weight, torch.full((1, 2), 8.0 - 2 * 1.5)), model.weight

# A group that all add later begins as on worker 0.
late = nn.Parameter(torch.full((3,), 4.0 + bps.rank()))
optimizer.add_param_group({'params': [late], 'lr': 1.0})
optimizer.step()
assert torch.equal(late, torch.full((3,), 4.0)), late

# A closure is evaluated as often as the own class wants, and a scaler leaves out one worker's step alone.
model, optimizer = fresh(torch.optim.LBFGS, lr=0.5, max_iter=3)
optimizer = bps.DistributedOptimizer(optimizer)
def closure():
    optimizer.zero_grad()
    loss = (model.weight ** 2).sum()
    loss.backward()
    return loss
assert optimizer.step(closure).item() == 128.0
bps.barrier()
optimizer.zero_grad()

model, optimizer = fresh(lr=1.0)
optimizer = bps.DistributedOptimizer(optimizer)
scaler = torch.amp.GradScaler('cpu', init_scale=4.0)
for step in range(2):
    optimizer.zero_grad()
    factor = float('inf') if (step, bps.rank()) == (1, 0) else 1.0
    scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
    scaler.step(optimizer)
    scaler.update()
bps.barrier()
optimizer.zero_grad()
optimizer.step()
assert torch.equal(model.weight, torch.full((1, 2), 8.0 - 2 - 1)), model.weight

# Of two optimizers of one model the later one counts.
first = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
second = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
try:
    first.step()
except BytePSError as error:
    assert 'made later' in str(error)
else:
    raise AssertionError('was not refused')
second.step()

half = nn.Parameter(torch.full((5,), 2.0, dtype=torch.bfloat16))
optimizer = bps.DistributedOptimizer(torch.optim.SGD([half], lr=1.0))
half.grad = torch.ones_like(half)
optimizer.step()
bps.barrier()
half.grad = None
optimizer.step()
assert torch.equal(half, torch.zeros_like(half)), half
print('done')
"""


def test_torch_optimizers_of_all_kinds(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    with running(tmp_path, "from byteps_py.errors import BytePSError\n" + USES, servers=2, **ASYNC) as made:
        assert set(made.wait(100).values()) == {0}, made.everything()


def test_the_example_learns_with_a_worker_that_is_slower(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is missing")
    example = Path(__file__).parents[2] / "examples" / "torch_async.py"
    body = f"sys.argv[1:] = ['--slowdown', '3']\nexec(open({str(example)!r}).read())\n"
    with running(tmp_path, body, **ASYNC) as made:
        assert set(made.wait(100).values()) == {0}, made.everything()
        result = json.loads(made.output("worker0").splitlines()[-1])
    assert result["accuracy"] >= 0.95
    assert np.isfinite(result["staleness_mean"])


SUSPENDED = """
import torch
import byteps_py.torch as tbps
from torch import nn
model = nn.Linear(3, 2)
with torch.no_grad():
    for each in model.parameters():
        each.fill_(float(bps.rank()))
optimizer = tbps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters())

def step(gradient):
    for each in model.parameters():
        each.grad = torch.full_like(each, gradient)
    optimizer.step()

def look():
    bps.barrier()  # all differences are in the store, and the last to come see them
    step(0.0)
    return {float(value) for each in model.parameters() for value in each.detach().flatten()}

step(1.0)
assert look() == {-1.0}, look()  # from worker 0's zeros, less half of each worker's one
bps.suspend()
bps.resume(2, 1)
step(1.0)
assert look() == {-2.0}, look()
assert bps.stats()['staleness']['count'] == 4 * len(list(model.parameters())) // 2, bps.stats()
print('done')
"""


def test_an_optimizer_goes_on_in_a_new_generation(tmp_path: Path) -> None:
    """The servers hold nothing then, and begin with what worker 0 had last."""
    pytest.importorskip("torch", reason="torch is not installed")
    with running(tmp_path, SUSPENDED, **ASYNC, BYTEPS_LOG_LEVEL="info") as made:
        assert set(made.wait(90).values()) == {0}, made.everything()
        told = [made.output(f"worker{rank}").count("staleness of 4 differences") for rank in range(2)]
        assert told == [2, 2], made.everything()  # of each generation
        assert all("done" in made.output(f"worker{rank}") for rank in range(2)), made.everything()


SPARSE = """
import torch
import byteps_py.torch as tbps
from torch import nn

def table_of(kind, **options):
    table = nn.Embedding(6, 2, sparse=True)
    with torch.no_grad():
        table.weight.fill_(8.0 + bps.rank())
    optimizer = tbps.DistributedOptimizer(kind(table.parameters(), **options), table.named_parameters())
    return table, optimizer

def look(table, optimizer):
    bps.barrier()
    optimizer.zero_grad()
    optimizer.step()
    return table.weight.detach()

# Each worker has rows of its own, one that both have, and one of them has a row twice.
table, optimizer = table_of(torch.optim.SGD, lr=1.0)
for number in range(2):
    optimizer.zero_grad()
    table(torch.tensor([bps.rank(), 3, 3][: 3 - bps.rank()])).sum().backward()
    assert table.weight.grad.is_sparse
    optimizer.step()
wanted = torch.full((6, 2), 8.0)
wanted[:2] -= 2
wanted[3] -= 2 * (2 + 1)
assert torch.equal(look(table, optimizer), wanted), table.weight

table, optimizer = table_of(torch.optim.SparseAdam, lr=0.5)
table(torch.tensor([bps.rank()])).sum().backward()
optimizer.step()
found = look(table, optimizer)
assert torch.allclose(found[:2], torch.tensor(7.5)) and torch.equal(found[2:], torch.full((4, 2), 8.0)), found
print('done')
"""


def test_sparse_gradients_move_their_rows_only(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    with running(tmp_path, SPARSE, **ASYNC) as made:
        assert set(made.wait(100).values()) == {0}, made.everything()
