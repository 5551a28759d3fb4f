"""A benchmark of the cross barrier, in the manner of BytePS's: one module stands for byteps.torch too."""

import argparse

import byteps.torch.cross_barrier as bps
import torch
import torch.nn.functional as F
from torch import nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--fp16-pushpull", action="store_true", default=False)
parser.add_argument("--num-warmup-batches", type=int, default=2)
parser.add_argument("--num-batches-per-iter", type=int, default=2)
parser.add_argument("--num-iters", type=int, default=3)
parser.add_argument("--optimizer", default="SGD", choices=["SGD", "Adam", "RMSprop"])
parser.add_argument("--no-cuda", action="store_true", default=False)
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()

bps.init()
torch.manual_seed(bps.rank())
if args.cuda:
    torch.cuda.set_device(bps.local_rank())
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
if args.cuda:
    model.cuda()
optimizer = getattr(optim, args.optimizer)(model.parameters(), lr=0.01)
compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
num_steps = args.num_warmup_batches + args.num_iters * args.num_batches_per_iter
# All by position, as BytePS has them: one backward pass makes a step.
optimizer = bps.CrossBarrier(model, optimizer, model.named_parameters(), compression, 1, num_steps)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)

data, target = torch.randn(32, 8), torch.randint(0, 4, (32,))
for _ in range(num_steps):
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()
for name, each in model.state_dict().items():
    handle = bps.byteps_push_pull(each.clone(), average=True, name="check." + name)
    assert torch.equal(bps.synchronize(handle), each), name
print("done", bps.rank(), bps.size(), flush=True)
