"""Training with checkpoints, in the manner of BytePS's ImageNet example: several batches for each exchange, a
learning rate that warms up and falls, and a start from the last epoch that worker 0 finds. Images are generated."""

import argparse
import os

import byteps.torch as bps
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.pth.tar")
parser.add_argument("--fp16-pushpull", action="store_true", default=False)
parser.add_argument("--batches-per-pushpull", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--base-lr", type=float, default=0.0125)
parser.add_argument("--warmup-epochs", type=float, default=1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--wd", type=float, default=0.00005)
parser.add_argument("--no-cuda", action="store_true", default=False)
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()
pushpull_batch_size = args.batch_size * args.batches_per_pushpull

bps.init()
torch.manual_seed(bps.rank())
if args.cuda:
    torch.cuda.set_device(bps.local_rank())

resume_from_epoch = 0
if bps.rank() == 0:
    for try_epoch in range(args.epochs, 0, -1):
        if os.path.exists(args.checkpoint_format.format(epoch=try_epoch)):
            resume_from_epoch = try_epoch
            break
found = torch.tensor(resume_from_epoch)  # the others have looked for nothing
resume_from_epoch = bps.push_pull(found, average=False, name="resume_from_epoch").item()

images, labels = torch.randn(64, 3, 8, 8), torch.randint(0, 10, (64,))
dataset = TensorDataset(images, labels)
sampler = DistributedSampler(dataset, num_replicas=bps.size(), rank=bps.rank())
loader = DataLoader(dataset, batch_size=pushpull_batch_size, sampler=sampler, num_workers=1)

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
if args.cuda:
    model.cuda()
scale = args.batches_per_pushpull * bps.size()
optimizer = optim.SGD(model.parameters(), lr=args.base_lr * scale, momentum=args.momentum, weight_decay=args.wd)
compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
optimizer = bps.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    backward_passes_per_step=args.batches_per_pushpull,
)
if resume_from_epoch > 0 and bps.rank() == 0:
    checkpoint = torch.load(args.checkpoint_format.format(epoch=resume_from_epoch))
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)


class Metric:
    """An average over workers and steps."""

    def __init__(self, name):
        self.name = name
        self.sum, self.n = torch.tensor(0.0), torch.tensor(0.0)

    def update(self, value):
        self.sum += bps.push_pull(value.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self):
        return self.sum / self.n


def adjust_learning_rate(epoch, batch_idx):
    epoch += float(batch_idx + 1) / len(loader)
    if epoch < args.warmup_epochs:
        factor = 1.0 / bps.size() * (epoch * (bps.size() - 1) / args.warmup_epochs + 1)
    else:
        factor = 1.0 if epoch < 30 else 0.1
    for group in optimizer.param_groups:
        group["lr"] = args.base_lr * scale * factor


def train(epoch):
    model.train()
    sampler.set_epoch(epoch)
    train_loss = Metric("train_loss")
    for batch_idx, (data, target) in enumerate(loader):
        adjust_learning_rate(epoch, batch_idx)
        optimizer.zero_grad()
        for start in range(0, len(data), args.batch_size):
            data_batch, target_batch = data[start : start + args.batch_size], target[start : start + args.batch_size]
            loss = F.cross_entropy(model(data_batch), target_batch)
            train_loss.update(loss)
            loss.div_(len(data) / args.batch_size)
            loss.backward()
        optimizer.step()
    return train_loss.avg


def save_checkpoint(epoch):
    if bps.rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.checkpoint_format.format(epoch=epoch + 1))


for epoch in range(resume_from_epoch, args.epochs):
    loss = train(epoch)
    save_checkpoint(epoch)
    print(f"epoch {epoch} loss {loss:.6f}", flush=True)
print("done", bps.rank(), bps.size(), flush=True)
