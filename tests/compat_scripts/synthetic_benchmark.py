"""A benchmark on synthetic data, in the manner of BytePS's: images per second of a DistributedOptimizer."""

import argparse
import timeit

import byteps.torch as bps
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim

parser = argparse.ArgumentParser(
    description="synthetic benchmark", formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
parser.add_argument("--fp16-pushpull", action="store_true", default=False, help="compress to fp16 during pushpull")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--num-warmup-batches", type=int, default=2)
parser.add_argument("--num-batches-per-iter", type=int, default=3)
parser.add_argument("--num-iters", type=int, default=2)
parser.add_argument("--no-cuda", action="store_true", default=False)
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()

bps.init()
if args.cuda:
    torch.cuda.set_device(bps.local_rank())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 10)

    def forward(self, x):
        return self.linear(F.relu(self.norm(self.conv(x))).mean(dim=(2, 3)))


model = Net()
if args.cuda:
    model.cuda()
optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)

data, target = torch.randn(args.batch_size, 3, 16, 16), torch.randint(0, 10, (args.batch_size,))
if args.cuda:
    data, target = data.cuda(), target.cuda()


def benchmark_step():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data), target)
    loss.backward()
    optimizer.step()


def log(text, nl=True):
    if bps.local_rank() == 0:
        print(text, end="\n" if nl else "", flush=True)


log(f"Batch size: {args.batch_size}")
log("Running warmup...")
timeit.timeit(benchmark_step, number=args.num_warmup_batches)
img_secs = []
for number in range(args.num_iters):
    seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
    img_secs.append(args.batch_size * args.num_batches_per_iter / seconds)
    log(f"Iter #{number}: {img_secs[-1]:.1f} img/sec")
total = bps.push_pull(torch.tensor(np.mean(img_secs)), average=False, name="img_secs")
log(f"Total img/sec on {bps.size()} worker(s): {total.item():.1f}")
weights = bps.push_pull(model.linear.weight.detach(), name="weights")
assert torch.equal(weights, model.linear.weight), "the workers' models differ"
print("done", bps.rank(), bps.size(), flush=True)
