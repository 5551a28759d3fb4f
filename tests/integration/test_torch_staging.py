"""Gradients of a device in a real job; the device is played by the CPU, all else is as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.jobs import running

pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
BODY = f"""
sys.path.insert(0, {str(ROOT)!r})
import os
import torch
import byteps_py.torch as bps
from byteps_py.torch import gradients
from byteps_py.torch.staging import Staging
from tests.helpers.fake_cuda import FakeCuda
torch.set_num_threads(1)

def train(prefix):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.Tanh(), torch.nn.Linear(700, 5))
    named = [(prefix + name, each) for name, each in model.named_parameters()]
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named)
    generator = torch.Generator().manual_seed(bps.rank())
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 300, generator=generator)).square().mean().backward()
        optimizer.step()
    return list(model.parameters())

plain = train('plain.')
cuda = FakeCuda()
gradients._staging = Staging(cuda, 'cpu')
staged = train('staged.')
assert cuda.registrations == 4
assert all(torch.equal(one, other) for one, other in zip(plain, staged, strict=True))
folder = os.environ['FOLDER']
torch.save(staged, f'{{folder}}/{{bps.rank()}}.pt')
bps.barrier()
other = torch.load(f'{{folder}}/{{1 - bps.rank()}}.pt')
assert all(torch.equal(one, other) for one, other in zip(staged, other, strict=True))

# At the end of the script pushes are under way: they are delivered, and the job ends in order.
last = torch.nn.Linear(3, 3)
optimizer = bps.DistributedOptimizer(torch.optim.SGD(last.parameters(), lr=0.1), last.named_parameters())
last(torch.ones(1, 3)).sum().backward()
print('done')
"""


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_the_bits_are_those_of_gradients_on_the_host(transport: str, tmp_path: Path) -> None:
    environ = {"BYTEPS_TRANSPORT": transport, "BYTEPS_PARTITION_BYTES": "262144", "FOLDER": str(tmp_path)}
    with running(tmp_path, BODY, workers=2, servers=1, **environ) as made:
        assert set(made.wait(100).values()) == {0}, made.everything()
