"""torch in real jobs: training with several workers is training with one and a larger batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.jobs import running

torch = pytest.importorskip("torch", reason="torch is not installed")

TRAIN = """
import torch
import byteps_py.torch as bps
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(5 + bps.rank())
model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3))
optimizer = torch.optim.{optimizer}
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)
generator = torch.Generator().manual_seed(9)
for step in range(12):
    inputs = torch.randn(16, 20, generator=generator)
    labels = torch.randint(0, 3, (16,), generator=generator)
    share = 16 // bps.size()
    mine = slice(share * bps.rank(), share * (bps.rank() + 1))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs[mine]), labels[mine]).backward()
    optimizer.step()
if bps.rank() == 0:
    np.savez({path!r}, **{{name: each.detach().numpy() for name, each in model.named_parameters()}})
print('done')
"""


def train(folder: Path, workers: int, optimizer: str) -> dict[str, np.ndarray]:
    folder.mkdir()
    path = str(folder / "parameters.npz")
    with running(folder, TRAIN.format(optimizer=optimizer, path=path), workers=workers, servers=2) as made:
        assert set(made.wait(100).values()) == {0}, made.everything()
    with np.load(path) as saved:
        return dict(saved)


@pytest.mark.parametrize(
    "optimizer", ["SGD(model.parameters(), lr=0.2, momentum=0.9)", "AdamW(model.parameters(), lr=0.01)"]
)
def test_two_workers_train_like_one_with_the_double_batch(optimizer: str, tmp_path: Path) -> None:
    one, two = train(tmp_path / "one", 1, optimizer), train(tmp_path / "two", 2, optimizer)
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=2e-5, atol=2e-6)


BRANCHES = """
import torch
import byteps_py.torch as bps
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.ModuleDict({'a': nn.Linear(4, 4), 'b': nn.Linear(4, 4), 'never': nn.Linear(4, 4)})
optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
mine = np.random.default_rng(bps.rank())
everyone = [np.random.default_rng(rank) for rank in range(2)]
for step in range(30):
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    inputs = torch.full((1, 4), step + 1.0)
    choices = [str(each.choice(['a', 'b'])) for each in everyone]
    optimizer.zero_grad()
    model[choices[bps.rank()]](inputs).sum().backward()
    optimizer.step()
    for name, each in model.named_parameters():
        share = choices.count(name.partition('.')[0]) / 2
        gradient = share * (step + 1.0 if name.endswith('weight') else 1.0)
        assert torch.allclose(each, before[name] - 0.1 * gradient), (step, name)
assert model['never'].weight.grad is None
print('done')
"""


def test_branches_taken_at_random_never_mix_steps(tmp_path: Path) -> None:
    with running(tmp_path, BRANCHES, servers=2) as made:
        assert set(made.wait(100).values()) == {0}, made.everything()


LARGE = """
import hashlib
import torch
import byteps_py.torch as bps
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(256, 1200), nn.Tanh(), nn.Linear(1200, 1000), nn.Tanh(), nn.Linear(1000, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), bps.Compression.{compression}, arena={arena})
generator = torch.Generator().manual_seed(bps.rank())
places = set()
kept = None
for step in range(6):
    optimizer.zero_grad()
    inputs, labels = torch.randn(8, 256, generator=generator), torch.randint(0, 10, (8,), generator=generator)
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    with optimizer.skip_synchronize():
        optimizer.step()
    places.add(model[2].weight.grad.data_ptr())
    if step == 2:
        kept = model[2].weight.grad
        was = kept.clone()
assert torch.equal(kept, was)
homes = {arena} and '{compression}' == 'none'
assert len(places) == 2 if homes else True, places
flat = torch.cat([each.detach().flatten() for each in model.parameters()])
with open({path!r} + str(bps.rank()), 'w') as file:
    file.write(hashlib.sha256(flat.numpy().tobytes()).hexdigest())
"""


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_the_bits_do_not_depend_on_the_transport_nor_on_where_large_gradients_live(
    compression: str, tmp_path: Path
) -> None:
    found = set()
    ways = [("tcp", False), ("shm", True)]
    if compression == "none":
        ways += [("tcp", True), ("shm", False)]
    for transport, arena in ways:
        folder = tmp_path / f"{transport}-{arena}"
        folder.mkdir()
        script = LARGE.format(compression=compression, arena=arena, path=str(folder / "sha"))
        environ = {"BYTEPS_TRANSPORT": transport, "BYTEPS_PARTITION_BYTES": "1000000"}
        with running(folder, script, workers=2, servers=2, **environ) as made:
            assert set(made.wait(100).values()) == {0}, made.everything()
        found |= {(folder / f"sha{rank}").read_text() for rank in range(2)}
    assert len(found) == 1, found
