"""Every part of the torch plugin in one real job of three workers and two servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.jobs import running

pytest.importorskip("torch", reason="torch is not installed")

BODY = """
import torch
import byteps_py.torch as bps
from byteps_py import session
from byteps_py.torch.tensors import as_array
from torch import nn
torch.set_num_threads(1)
rank, size = bps.rank(), bps.size()
assert size == 3

dtypes = 'float32 float64 float16 bfloat16 int8 uint8 int32 int64'.split()
for dtype in (getattr(torch, name) for name in dtypes):
    for shape in [(), (0,), (7, 3)]:
        mine = torch.full(shape, rank * 2 + 1, dtype=dtype)
        assert torch.equal(bps.push_pull(mine, name=f'{dtype}{shape}'), torch.full(shape, 3, dtype=dtype))
        assert torch.equal(bps.push_pull(mine, average=False), torch.full(shape, 9, dtype=dtype))

large = torch.full((3_000_000,), float(rank))  # several partitions, and every second element in place
bps.push_pull_inplace(large[::2], name='large')
assert torch.equal(large[::2], torch.ones(1_500_000))
assert torch.equal(large[1::2], torch.full((1_500_000,), float(rank)))

endpoint = session.current()._worker._endpoint
for dtype in (torch.float32, torch.bfloat16):
    buffer = bps.empty((300, 1000), dtype)
    assert endpoint.owns(as_array(buffer)) and endpoint.owns(as_array(buffer[10:200]))
    for _ in range(3):
        buffer.fill_(rank * 2 + 1)
        assert torch.equal(bps.push_pull(buffer[10:200], name=f'part {dtype}'), torch.full((190, 1000), 3, dtype=dtype))
        bps.push_pull_inplace(buffer, name=f'buffer {dtype}')
        assert torch.equal(buffer, torch.full((300, 1000), 3, dtype=dtype))

arrived = bps.broadcast_object({'a': (1, np.arange(3)), 't': torch.ones(2)} if rank == 1 else None, root_rank=1)
assert arrived['a'][0] == 1 and arrived['t'].tolist() == [1, 1]
try:
    bps.broadcast_object([open] if rank == 0 else None)
    raise SystemExit('a function was broadcast')
except TypeError as error:
    assert 'object[0] is a builtins.builtin_function_or_method' in str(error)

torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(50, 80), nn.BatchNorm1d(80), nn.Linear(80, 1))
model.register_buffer('mask', torch.tensor([rank == 0, True]))
optimizer = torch.optim.Adam(model.parameters())
if rank == 0:  # as after a resumption: only the root has state
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(9, 50)).square().sum().backward()
        optimizer.step()
bps.broadcast_parameters(model.state_dict())
assert model.mask.tolist() == [True, True]
assert int(model[1].num_batches_tracked) == 3
optimizer = bps.DistributedOptimizer(
    optimizer, model.named_parameters(), compression=bps.Compression.fp16, backward_passes_per_step=2
)
bps.broadcast_optimizer_state(optimizer)
for _ in range(4):
    optimizer.zero_grad()
    for _ in range(2):
        model(torch.randn(9, 50)).square().sum().backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()

line = nn.Linear(6, 1)
bps.broadcast_parameters(line.state_dict(), prefix='line.')
search = bps.DistributedOptimizer(
    torch.optim.LBFGS(line.parameters(), line_search_fn='strong_wolfe'), line.named_parameters()
)
inputs = torch.randn(20, 6)
def closure():
    search.zero_grad()
    loss = (line(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    return loss
for _ in range(3):
    loss = search.step(closure)
assert loss < 1e-6

for name, each in [*model.named_parameters(prefix='m'), *line.named_parameters(prefix='l')]:
    theirs = each.detach().clone()
    bps.broadcast_parameters({name: theirs}, prefix='check.')
    assert torch.equal(theirs, each), name
"""


def test_every_part_in_a_real_job(tmp_path: Path) -> None:
    with running(tmp_path, BODY, workers=3, servers=2) as made:
        assert set(made.wait(90).values()) == {0}, made.everything()
