"""A small classifier, in the manner of BytePS's MNIST example; images are generated, as nothing is downloaded."""

import argparse

import byteps.torch as bps
import torch
import torch.nn.functional as F
from byteps.torch.compression import Compression
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.5)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--fp16-pushpull", action="store_true", default=False)
parser.add_argument("--no-cuda", action="store_true", default=False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, kernel_size=3)
        self.conv2_drop = nn.Dropout2d(0.1)
        self.fc1 = nn.Linear(4 * 9, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv1(x)), 2))
        return F.log_softmax(self.fc1(x.flatten(1)), dim=1)


def make_dataset(count):
    """Noisy images, whose class is the row that is lit."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(0, 8, (count,), generator=generator)
    images = torch.randn(count, 1, 8, 8, generator=generator) * 0.3
    images[torch.arange(count), 0, labels] += 2.0
    return TensorDataset(images, labels)


def main():
    args = parser.parse_args()
    args.cuda = not args.no_cuda and torch.cuda.is_available()
    bps.init()
    torch.manual_seed(args.seed)
    if args.cuda:
        torch.cuda.set_device(bps.local_rank())
        torch.cuda.manual_seed(args.seed)
    train_dataset, test_dataset = make_dataset(512), make_dataset(128)
    train_sampler = DistributedSampler(train_dataset, num_replicas=bps.size(), rank=bps.rank())
    # Children that are spawned import this file, and byteps with it.
    train_loader = DataLoader(
        train_dataset,
        batch_size=args.batch_size,
        sampler=train_sampler,
        num_workers=1,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    test_sampler = DistributedSampler(test_dataset, num_replicas=bps.size(), rank=bps.rank())
    test_loader = DataLoader(test_dataset, batch_size=32, sampler=test_sampler)

    model = Net()
    if args.cuda:
        model.cuda()
    optimizer = optim.SGD(model.parameters(), lr=args.lr * bps.size(), momentum=args.momentum)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = Compression.fp16 if args.fp16_pushpull else Compression.none
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)

    def train(epoch):
        model.train()
        train_sampler.set_epoch(epoch)
        for batch in train_loader:
            data, target = (each.cuda() for each in batch) if args.cuda else batch
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()

    def metric_average(value, name):
        return bps.push_pull(torch.tensor(value), name=name).item()

    def test():
        model.eval()
        loss, right = 0.0, 0.0
        with torch.no_grad():
            for batch in test_loader:
                data, target = (each.cuda() for each in batch) if args.cuda else batch
                output = model(data)
                loss += F.nll_loss(output, target, reduction="sum").item()
                right += output.argmax(1).eq(target).sum().item()
        loss, right = loss / len(test_sampler), right / len(test_sampler)
        loss, right = metric_average(loss, "avg_loss"), metric_average(right, "avg_accuracy")
        if bps.rank() == 0:
            print(f"Test set: Average loss: {loss:.4f}, Accuracy: {100.0 * right:.2f}%", flush=True)
        return right

    accuracy = 0.0
    for epoch in range(1, args.epochs + 1):
        train(epoch)
        accuracy = test()
    assert accuracy > 0.5, accuracy
    print("done", bps.rank(), bps.size(), flush=True)


if __name__ == "__main__":
    main()
