"""Training that is interrupted and goes on in the same processes, in the manner of BytePS's elastic benchmark."""

import os

import byteps.torch as bps
import torch
from torch import nn, optim

bps.init()
torch.manual_seed(bps.rank())
model = nn.Linear(8, 2)
optimizer = optim.SGD(model.parameters(), lr=0.01)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


train(2)
rank, size = bps.rank(), bps.size()
bps.suspend()
bps.resume(int(os.environ["DMLC_NUM_WORKER"]), int(os.environ["DMLC_NUM_SERVER"]), rank)
assert (bps.rank(), bps.size()) == (rank, size)
train(2)
weight = bps.push_pull(model.weight.detach(), name="weight")
assert torch.equal(weight, model.weight), "the workers' models differ"
print("done", bps.rank(), bps.size(), flush=True)
