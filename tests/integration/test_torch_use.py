"""How ``byteps_py.torch`` is used and misused, in real jobs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.jobs import running

pytest.importorskip("torch", reason="torch is not installed")

HEAD = """
import copy
import torch
import byteps_py.torch as bps
from torch import nn
torch.set_num_threads(1)
rank, size = bps.rank(), bps.size()
"""

USE = """
torch.manual_seed(1)
plain = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))
model = bps.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
whole = torch.randn(4, 9, 6)
def make(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(make(model), model.named_parameters())
other = bps.DistributedOptimizer(torch.optim.Adam(nn.Linear(2, 2).parameters()))  # never steps, on no worker
for batch in whole:
    optimizer.zero_grad()
    model(batch.chunk(size)[rank]).square().mean().backward()
    optimizer.step()
reference = make(plain)
for batch in whole:
    reference.zero_grad()
    plain(batch).square().mean().backward()
    reference.step()
for (name, ours), theirs in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5), (name, ours, theirs)

# worker 1 alone has an infinite gradient in the second step: all skip it, in three orders of calls
def scaled(order):
    torch.manual_seed(2)
    model = nn.Linear(3, 3)
    optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())
    scaler = torch.amp.GradScaler('cpu', init_scale=256.0)
    for step in range(4):
        model.zero_grad()
        with torch.autocast('cpu', torch.bfloat16):
            loss = model(torch.full((2, 3), rank + step + 1.0)).float().square().mean()
        if (step, rank) != (2, 0):
            scaler.scale(loss * float('inf') if (step, rank) == (1, 1) else loss).backward()
        order(optimizer, scaler)
        scaler.update()
    assert scaler.get_scale() == 128.0
    return torch.cat([each.detach().flatten() for each in model.parameters()])
def documented(optimizer, scaler):
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
first = scaled(lambda optimizer, scaler: scaler.step(optimizer))
assert torch.equal(first, scaled(documented))
assert torch.equal(first, scaled(lambda optimizer, scaler: (scaler.unscale_(optimizer), scaler.step(optimizer))))
theirs = first.clone()
bps.broadcast_parameters({'scaled': theirs}, root_rank=1)
assert torch.equal(theirs, first)

bps.byteps_torch_set_num_grads(2)
for step in range(3):
    tensors = [torch.full((70_000,), float(rank + step)), torch.ones(3)]
    for number, each in enumerate(tensors):
        bps.push_pull_group_sync_inplace(each, average=False, name=f'group{number}', version=step)
    assert torch.equal(tensors[0], torch.full((70_000,), 3.0 + 3 * step))
    assert torch.equal(tensors[1], torch.full((3,), 3.0))

layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(300)])
bps.broadcast_parameters(layers.state_dict(), prefix='layers.')
optimizer = bps.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=0.1), layers.named_parameters())
for step in range(3):
    optimizer.zero_grad()
    layers(torch.ones(1, 4) * rank).square().mean().backward()
    optimizer.step()
theirs = copy.deepcopy(layers)
bps.broadcast_parameters(theirs.state_dict(), root_rank=2, prefix='check.')
assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), layers.parameters(), strict=True))
print('done')
"""


def test_what_surrounds_an_optimizer_in_a_real_job(tmp_path: Path) -> None:
    with running(tmp_path, HEAD + USE, workers=3, servers=2) as made:
        assert set(made.wait(120).values()) == {0}, made.everything()


ORDER = """
models = {name: nn.Linear(2, 2) for name in (['generator', 'judge'] if rank == 0 else ['judge', 'generator'])}
optimizers = {
    name: bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(name))
    for name, model in models.items()
}
models['judge'](torch.ones(1, 2)).sum().backward()
optimizers['judge'].step()
"""
FEWER = """
models = [nn.Linear(2, 2) for _ in range(2 - rank)]
optimizers = [bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0)) for model in models]
for optimizer in optimizers:
    optimizer.step()
bps.barrier()
"""
UNUSED = """
x = torch.ones(2, requires_grad=True)
loss = bps.push_pull(x, name='t').sum()
if rank == 0:
    loss.backward()
bps.barrier()
"""


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (ORDER, r"parameters of gradient exchange 2: workers do not have the same.*judge\.weight.*generator\.weight"),
        (FEWER, r"'Agreement\.the parameters of gradient exchange 2'.*worker 1"),
        (UNUSED, r"'t\.backward'.*worker 1"),
    ],
    ids=["order", "fewer", "unused"],
)
def test_workers_that_do_different_things_are_told_so(script: str, message: str, tmp_path: Path) -> None:
    with running(tmp_path, HEAD + script, BYTEPS_STALL_TIMEOUT="4") as made:
        statuses = made.wait(60)
        assert all(statuses[name] for name in ("worker0", "worker1")), made.everything()
        assert re.search(message, made.output("worker0"), re.DOTALL), made.everything()


WRONG = """
import threading
from byteps_py.errors import AgreementError, BytePSError, NotInitializedError, UnsupportedError

def raised(kind, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except kind as error:
        return str(error)
    raise SystemExit(f'{call} of {arguments} has not raised {kind}')

class Forked(torch.utils.data.Dataset):
    calls = [bps.rank, lambda: bps.push_pull(torch.ones(1), name='forked'), lambda: bps.synchronize(kept), bps.barrier]
    def __len__(self):
        return len(self.calls)
    def __getitem__(self, index):
        return raised(NotInitializedError, self.calls[index])

if rank == 0:
    kept = bps.push_pull_async(torch.ones(1), name='kept')  # worker 1 comes later
    loader = torch.utils.data.DataLoader(Forked(), None, num_workers=1, multiprocessing_context='fork', timeout=60)
    assert all('forked from a worker' in told for told in loader)
    bps.barrier()
else:
    bps.barrier()
    kept = bps.push_pull_async(torch.ones(1), name='kept')
assert bps.synchronize(kept).tolist() == [1.0]
assert 'is no handle' in raised(ValueError, bps.synchronize, kept)
assert 'complex64' in raised(UnsupportedError, bps.push_pull, torch.ones(1, dtype=torch.complex64), name='odd')
assert 'meta device' in raised(UnsupportedError, bps.push_pull, torch.ones(1, device='meta'), name='odd')

results = {}
def work(name):
    results[name] = [bps.push_pull(torch.full((9,), float(turn)), name=name)[0].item() for turn in range(20)]
threads = [threading.Thread(target=work, args=(name,)) for name in ('a', 'b')]
for each in threads if rank else threads[::-1]:
    each.start()
for each in threads:
    each.join()
assert results == {'a': list(range(20)), 'b': list(range(20))}

told = raised(AgreementError, bps.push_pull, torch.ones(1), name='version', version=rank)
assert 'worker 0' in told and 'worker 1' in told, told
told = raised(AgreementError, bps.broadcast_parameters, {f'mine{rank}': torch.ones(1)})
assert 'Only worker 0 has Parameter.mine0' in told and 'only worker 1 has Parameter.mine1' in told, told
leaf = torch.ones(2, requires_grad=True)
optimizer = bps.DistributedOptimizer(torch.optim.SGD([leaf], lr=1.0))
optimizer.step()
bps.shutdown()
leaf.sum().backward()
for call in (bps.rank, optimizer.step, lambda: bps.push_pull(torch.ones(1), name='late')):
    assert 'call init() first' in raised(NotInitializedError, call)
"""


def test_wrong_calls_in_a_real_job(tmp_path: Path) -> None:
    with running(tmp_path, HEAD + WRONG) as made:
        assert set(made.wait(90).values()) == {0}, made.everything()


LARGE = """
import resource
model = nn.utils.skip_init(nn.Linear, 12_500, 10_000, bias=False)
nn.init.zeros_(model.weight)
assert model.weight.nbytes == 500_000_000
optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
model(torch.full((1, 12_500), rank + 1.0)).sum().backward()
optimizer.step()
assert (model.weight.detach().min().item(), model.weight.detach().max().item()) == (-1.5, -1.5)
print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, 'MiB')
"""


@pytest.mark.slow
def test_a_single_layer_of_500_megabytes(tmp_path: Path) -> None:
    """About 2 GB of memory in each worker."""
    with running(tmp_path, HEAD + LARGE) as made:
        assert set(made.wait(120).values()) == {0}, made.everything()
