"""A model wrapped by DistributedDataParallel, in the manner of BytePS's benchmark of that."""

import argparse

import byteps.torch as bps
import torch
import torch.nn.functional as F
from byteps.torch.parallel import DistributedDataParallel as DDP
from torch import nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--num-iters", type=int, default=4)
parser.add_argument("--no-cuda", action="store_true", default=False)
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()

bps.init()
torch.manual_seed(bps.rank())
if args.cuda:
    torch.cuda.set_device(bps.local_rank())
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
if args.cuda:
    model.cuda()
model = DDP(model, device_ids=[bps.local_rank()])
optimizer = optim.SGD(model.parameters(), lr=0.01 * bps.size())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)

data, target = torch.randn(32, 8), torch.randint(0, 4, (32,))
if args.cuda:
    data, target = data.cuda(), target.cuda()
for step in range(args.num_iters):
    optimizer.zero_grad()
    if step == 1:
        with model.no_sync():
            F.cross_entropy(model(data), target).backward()
    F.cross_entropy(model(data), target).backward()
    model.synchronize()
    optimizer.step()
for name, each in model.named_parameters():
    mean = bps.push_pull(each.detach(), average=True, name="check." + name)
    assert torch.equal(mean, each), name
print("done", bps.rank(), bps.size(), flush=True)
