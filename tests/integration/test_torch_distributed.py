"""torch's own DistributedDataParallel, and torch.distributed, in real jobs: by the backend "byteps" and by the hook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.jobs import job, running

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("torch.distributed", reason="torch is built without torch.distributed")

IMPORTS = """
import datetime, threading
import torch
import torch.distributed as dist
import byteps_py.torch as bps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
"""
TRAINING = (
    IMPORTS
    + """
dist.init_process_group('byteps')
rank, size = dist.get_rank(), dist.get_world_size()
assert dist.get_backend() == 'byteps' and (rank, size) == (bps.rank(), bps.size())
gloo = dist.new_group(backend='gloo')

def make():
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Linear(12, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 3)
    )

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.branches = nn.ModuleList(nn.Linear(12, 3) for _ in range(3))
        self.all = nn.Linear(12, 3)

    def forward(self, data):
        return self.branches[(rank + int(data[0, 0] > 0)) % 2](data) + self.all(data)

def train(model, steps=6, accumulate=False, together=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(7)
    for step in range(steps):
        data = torch.randn(size * 8, 12, generator=generator)
        target = torch.randn(size * 8, 3, generator=generator)
        if not together:
            data, target = data[rank * 8 :][:8], target[rank * 8 :][:8]
        optimizer.zero_grad()
        if accumulate:
            with model.no_sync():
                (model(data[:4]) - target[:4]).square().mean().backward()
            data, target = data[4:], target[4:]
        (model(data) - target).square().mean().backward()
        optimizer.step()
    return model

def state(model):
    return [each.detach().clone() for each in model.state_dict().values()]

def compare(mine, other, exact):
    for a, b in zip(mine, other, strict=True):
        assert torch.equal(a, b) if exact else torch.allclose(a, b, rtol=1e-4, atol=1e-6), (a - b).abs().max()

def agree(tensors):
    for each in tensors:
        parts = [torch.empty_like(each) for _ in range(size)]
        dist.all_gather(parts, each)
        assert all(torch.equal(part, each) for part in parts)

small = dict(bucket_cap_mb=0.1)
for options, inside, accumulate in [
    (dict(small, gradient_as_bucket_view=True), make, True),
    (dict(find_unused_parameters=True), Branches, False),
    (small, make, False),
    (dict(static_graph=True), make, False),
][: 4 if size == 2 else 2]:
    reference = state(train(DDP(inside(), process_group=gloo, **options), accumulate=accumulate))
    ours = state(train(DDP(inside(), **options), accumulate=accumulate))
    compare(ours, reference, exact=size == 2)
    for group in (gloo, None):
        model = DDP(inside(), process_group=group, **options)
        model.register_comm_hook(bps.CommHookState(), bps.comm_hook)
        hooked = state(train(model, accumulate=accumulate))
        compare(hooked, ours, exact=False)
    if inside is Branches:
        agree(ours)

# Against one process on the joined batch; BatchNorm would see other batches.
def plain():
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(12, 50), nn.Tanh(), nn.Linear(50, 3))

for state_of_hook in (False, None, bps.CommHookState(bps.Compression.bf16), bps.CommHookState(bps.Compression.fp16)):
    model = DDP(plain())
    if state_of_hook is not False:
        model.register_comm_hook(state_of_hook, bps.comm_hook)
    trained = state(train(model, steps=20))
    agree(trained)
    alone = state(train(plain(), steps=20, together=True))
    narrow = isinstance(state_of_hook, bps.CommHookState)
    for a, b in zip(trained, alone, strict=True):
        assert torch.allclose(a, b, rtol=1e-2 if narrow else 1e-4, atol=5e-3 if narrow else 1e-6)

# Two models whose backward passes are mixed, and a hook of two threads at once.
first, second = DDP(plain()), DDP(plain())
for model in (first, second):
    model.register_comm_hook(bps.CommHookState(), bps.comm_hook)
(first(torch.ones(2, 12)) * (rank + 1)).sum().backward()
threads = [threading.Thread(target=lambda m=m: m(torch.ones(2, 12)).sum().backward()) for m in (first, second)]
for each in threads if rank else reversed(threads):
    each.start()
for each in threads:
    each.join()
agree([each.grad for model in (first, second) for each in model.parameters()])

from torch.distributed.algorithms.join import Join
def of_uneven_inputs(group):
    model = DDP(plain(), process_group=group)
    with Join([model]):
        for _ in range(3 + rank):
            model(torch.ones(2, 12)).sum().backward()
    return [each.grad for each in model.parameters()]
compare(of_uneven_inputs(None), of_uneven_inputs(gloo), exact=size == 2)
print('trained', flush=True)
dist.destroy_process_group()
assert bps.size() == size

# Groups of the same names, of other workers; and the hook over a group of some.
for first in range(size):
    members = sorted({first, (first + 1) % size})
    dist.init_process_group('byteps', timeout=datetime.timedelta(seconds=60))
    some = dist.new_group(members)
    if rank in members:
        model = DDP(nn.Linear(4, 2), process_group=some)
        model.register_comm_hook(bps.CommHookState(name='some', process_group=some), bps.comm_hook)
        model(torch.full((1, 4), rank + 1.0)).sum().backward()
        assert model.module.weight.grad.tolist() == [[sum(members) / 2 + 1] * 4] * 2
    dist.barrier()
    dist.destroy_process_group()
"""
)
CALLS = (
    IMPORTS
    + """
# Ranks of torch that are not those of the job: worker 0 is the last one, and makes the store.
size = bps.size()
mine = (bps.rank() - 1) % size
dist.init_process_group('byteps', rank=mine, world_size=size, timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
assert rank == mine and os.environ['WORLD_SIZE'] == str(size) and os.environ['LOCAL_RANK'] == '0'

for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.complex64):
    for shape in [(), (0,), (3, 5)]:
        tensor = torch.full(shape, rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full(shape, size * (size + 1) // 2, dtype=dtype))
        gathered = [torch.empty(shape, dtype=dtype) for _ in range(size)]
        dist.all_gather(gathered, torch.full(shape, rank, dtype=dtype))
        for index, each in enumerate(gathered):
            assert torch.equal(each, torch.full(shape, index, dtype=dtype))
large = torch.full((3_000_000,), float(rank))
works = [dist.all_reduce(part, async_op=True) for part in large.chunk(6)] + [dist.barrier(async_op=True)]
for work in reversed(works):
    work.wait()
assert (large == size * (size - 1) / 2).all()
flags = torch.tensor([rank == 1, False])
dist.all_reduce(flags, op=dist.ReduceOp.MAX)
assert flags.tolist() == [True, False]
worst = torch.tensor([rank, -rank], dtype=torch.int64)
dist.all_reduce(worst, op=dist.ReduceOp.MIN)
assert worst.tolist() == [0, 1 - size]

objects = [None] * size
dist.all_gather_object(objects, {'rank': rank, 'text': 'x' * rank})
assert objects == [{'rank': each, 'text': 'x' * each} for each in range(size)]
listed = [f'of {rank}', rank]
dist.broadcast_object_list(listed, src=1)
assert listed == ['of 1', 1]
received = [None]
dist.scatter_object_list(received, list(range(10, 10 + size)) if rank == 0 else None, src=0)
assert received == [10 + rank]
collected = [None] * size if rank == size - 1 else None
dist.gather_object(rank, collected, dst=size - 1)
assert collected is None or collected == list(range(size))

ring = torch.full((5,), float(rank))
before = torch.empty(5)
for work in dist.batch_isend_irecv([
    dist.P2POp(dist.isend, ring, (rank + 1) % size), dist.P2POp(dist.irecv, before, (rank - 1) % size)
]):
    work.wait()
assert before.tolist() == [(rank - 1) % size] * 5
if rank == 0:
    dist.send(torch.arange(3), 1, tag=5)
elif rank == 1:
    got = torch.empty(3, dtype=torch.int64)
    assert dist.recv(got, 0, tag=5) == 0 and got.tolist() == [0, 1, 2]

members = [0, size - 1]
part = dist.new_group(members)
twin = dist.new_group(members)
if rank in members:
    assert part.size() == 2 and dist.get_group_rank(part, size - 1) == 1
    one, two = torch.full((4,), rank + 1.0), torch.full((4,), rank + 1.0)
    summed = dist.all_reduce(one, group=part, async_op=True)
    dist.all_reduce(two, op=dist.ReduceOp.AVG, group=twin)
    summed.wait()
    assert one.tolist() == [size + 1.0] * 4 and two.tolist() == [(size + 1) / 2] * 4
    dist.broadcast(one.fill_(rank), src=size - 1, group=part)
    assert one.tolist() == [size - 1] * 4
    dist.barrier(group=part)
    assert dist.get_backend(part) == 'byteps'
alone = [dist.new_group([each]) for each in range(size)][rank]
dist.all_reduce(ring, group=alone)
assert ring.tolist() == [float(rank)] * 5

with dist._coalescing_manager():
    several = [torch.ones(2), torch.ones(3)]
    for each in several:
        dist.all_reduce(each)
assert all((each == size).all() for each in several)
outcome = torch.empty(2, size)
dist.all_to_all_single(outcome.view(-1)[:size], torch.arange(size, dtype=torch.float32) + rank * size)
assert outcome[0].tolist() == [rank + size * each for each in range(size)]

if size == 2:
    from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
    mesh = DeviceMesh('cpu', [0, 1])
    whole = torch.arange(8.0).reshape(4, 2)
    shards = distribute_tensor(whole, mesh, [Shard(0)])
    assert shards.to_local().tolist() == whole.chunk(2)[rank].tolist()
    assert torch.equal(shards.full_tensor(), whole)
    assert torch.equal(shards.redistribute(mesh, [Shard(1)]).to_local(), whole[:, rank : rank + 1])
    partial = distribute_tensor(whole, mesh, [Shard(1)]) @ distribute_tensor(whole.t(), mesh, [Shard(0)])
    assert torch.equal(partial.redistribute(mesh, [Shard(0)]).to_local(), (whole @ whole.t()).chunk(2)[rank])
    assert torch.equal(partial.redistribute(mesh, [Replicate()]).to_local(), whole @ whole.t())

# Two threads, each with a group of its own, in whatever order.
groups = [dist.new_group() for _ in range(2)]
def work(group, value):
    for _ in range(20):
        tensor = torch.full((7,), value)
        dist.all_reduce(tensor, group=group)
        assert (tensor == value * size).all()
    done.append(value)
done = []
threads = [threading.Thread(target=work, args=(group, index + 1.0)) for index, group in enumerate(groups)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert sorted(done) == [1.0, 2.0]

before = dist.all_reduce(torch.ones(2), async_op=True)
before.wait()
child = os.fork()
if child == 0:
    refused = 0
    for call in (lambda: dist.all_reduce(torch.ones(2)), before.get_future, bps.init):
        try:
            call()
        except ValueError as error:
            refused += 'forked' in str(error)
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
if size == 2:
    from torch.utils.data import DataLoader, TensorDataset
    loaded = [batch for (batch,) in DataLoader(TensorDataset(torch.arange(8.0)), 2, num_workers=1)]
    dist.all_reduce(loaded[0])
    assert loaded[0].tolist() == [0, size]

dist.barrier()
wrong = torch.zeros(3 + (rank == 1))
try:
    dist.all_reduce(wrong, group=groups[0])
    raise SystemExit('shapes differ')
except bps_errors.AgreementError as error:
    assert 'float32 (3,)' in str(error) and 'float32 (4,)' in str(error), error
bps.shutdown()
try:
    dist.barrier()
    raise SystemExit('there is no session')
except ValueError as error:
    assert 'not initialized' in str(error)
dist.destroy_process_group()
print('called', flush=True)
"""
).replace("import datetime, threading", "import datetime, threading\nfrom byteps_py import errors as bps_errors", 1)


@pytest.mark.parametrize("workers", [2, 3])
def test_training_equals_gloo_and_one_process(tmp_path: Path, workers: int) -> None:
    with running(tmp_path, TRAINING, workers=workers, servers=2) as made:
        assert set(made.wait(150).values()) == {0}, made.everything()
        assert all("trained" in made.output(f"worker{index}") for index in range(workers))


@pytest.mark.parametrize("workers", [2, 3])
def test_every_call_where_ranks_differ(tmp_path: Path, workers: int) -> None:
    with running(tmp_path, CALLS, workers=workers) as made:
        statuses = made.wait(120)
        assert all("called" in made.output(f"worker{index}") for index in range(workers)), made.everything()
        assert {statuses[f"worker{index}"] for index in range(workers)} == {0}


SCRIPT = (
    IMPORTS
    + """
import os
dist.init_process_group('byteps')
rank, size = dist.get_rank(), dist.get_world_size()
assert (rank, size) == (bps.rank(), bps.size()) == (int(os.environ['RANK']), int(os.environ['WORLD_SIZE']))
assert os.environ['LOCAL_RANK'] == str(bps.local_rank()) and os.environ['LOCAL_WORLD_SIZE'] == str(bps.local_size())
model = DDP(nn.Linear(4, 2))
model(torch.full((3, 4), rank + 1.0)).sum().backward()
assert model.module.weight.grad.tolist() == [[3 * (size + 1) / 2] * 4] * 2
dist.barrier()
dist.destroy_process_group()
print(f'rank {rank} of {size} done', flush=True)
"""
)


def write(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_torchrun_starts_the_workers_of_a_job(tmp_path: Path) -> None:
    script = write(tmp_path, SCRIPT)
    with job(tmp_path, workers=1) as made:
        made.scheduler()
        made.server()
        made.torchrun(2, script)
        assert set(made.wait(100).values()) == {0}, made.everything()
        assert {f"rank {rank} of 2 done" for rank in range(2)} <= set(made.output("worker0").splitlines())


def test_a_process_alone_needs_no_variables(tmp_path: Path) -> None:
    foreign = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    environ = {name: value for name, value in os.environ.items() if name not in foreign}
    command = [sys.executable, str(write(tmp_path, SCRIPT))]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1 done" in done.stdout


DEATH = (
    IMPORTS
    + """
dist.init_process_group('byteps')
model = DDP(nn.Sequential(*(nn.Linear(50, 50) for _ in range(4))), bucket_cap_mb=0.01)
if HOOK:
    model.register_comm_hook(None, bps.comm_hook)
for step in range(1000):
    loss = model(torch.ones(2, 50)).sum()
    if bps.rank() == 1 and step == 3:
        print('dies', flush=True)
        if BACKWARD:
            model.module[0].weight.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    if not BACKWARD:
        tensor = torch.ones(5)
        dist.all_reduce(tensor)
print('ended well', flush=True)
"""
)


@pytest.mark.parametrize(("hook", "backward"), [(True, True), (False, False)])
def test_the_death_of_a_worker_is_an_error_in_the_others(tmp_path: Path, hook: bool, backward: bool) -> None:
    body = f"HOOK, BACKWARD = {hook}, {backward}\n{DEATH}"
    with running(tmp_path, body, BYTEPS_LOST_TIMEOUT="10") as made:
        statuses = made.wait(60)
        assert statuses["worker1"] == -9
        assert statuses["worker0"] == 1, made.everything()
        output = made.output("worker0")
        assert "ended well" not in output
        assert "Traceback" in output
        assert "worker 1 (pid" in output.rpartition("Traceback")[2]


DEATH_IN_MEETING = (
    IMPORTS
    + """
import time
os.environ.update(MASTER_ADDR='192.0.2.1', MASTER_PORT='9')  # as a profile may, for other jobs
bps.init()
dies = DEAD == bps.rank()
os.environ['RANK'] = '7'  # as a wrapper may
dist.init_process_group('byteps', timeout=datetime.timedelta(seconds=300))
assert dist.get_rank() == bps.rank() == int(os.environ['RANK'])
if dies:
    time.sleep(1.0)
    print('dies', flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
dist.new_group()
print('ended well', flush=True)
"""
)


@pytest.mark.parametrize("dead", [0, 1])
def test_the_death_of_a_worker_is_an_error_where_a_group_is_made(tmp_path: Path, dead: int) -> None:
    """Worker 0 has torch's store."""
    body = f"DEAD = {dead}\n{DEATH_IN_MEETING}"
    with running(tmp_path, body, BYTEPS_LOST_TIMEOUT="10") as made:
        statuses = made.wait(60)
        assert statuses[f"worker{dead}"] == -9, made.everything()
        output = made.output(f"worker{1 - dead}")
        assert statuses[f"worker{1 - dead}"] == 1, made.everything()
        assert "ended well" not in output
        assert f"worker {dead} (pid" in output.rpartition("Traceback")[2]
