"""Train a small network on handwritten digits, by a script for BytePS: it knows nothing of byteps_py.

    bpslaunch --compat -n 2 -s 1 -- python examples/byteps_digits.py --epochs 5 --seed 1

The last line that worker 0 prints is a JSON object; the others print nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time

import byteps.torch as bps
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

HELD_OUT = 360


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the initial parameters and the order of the data")
    parser.add_argument("--batch-size", type=int, default=16, help="images per process and step")
    parser.add_argument("--lr", type=float, default=0.05, help="per process")
    parser.add_argument("--fp16-pushpull", action="store_true", help="push and pull gradients as 16-bit floats")
    parser.add_argument("--no-cuda", action="store_true")
    return parser.parse_args()


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Images ``(n, 64)`` and labels ``(n,)`` for training, and those held out; the same split in every process."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(digits.data).float()[order] / 16 - 0.3
    labels = torch.from_numpy(digits.target).long()[order]
    return TensorDataset(images[HELD_OUT:], labels[HELD_OUT:]), TensorDataset(images[:HELD_OUT], labels[:HELD_OUT])


def digest(model: nn.Module) -> str:
    """SHA-256 over all parameters in the order of their names, as little-endian bytes."""
    sha = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters()):
        array = parameter.detach().cpu().contiguous().numpy()
        sha.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return sha.hexdigest()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)  # the order in which torch adds, and so the last bits, change with the threads
    torch.manual_seed(arguments.seed)
    bps.init()
    device = torch.device("cpu")
    if not arguments.no_cuda and torch.cuda.is_available():
        torch.cuda.set_device(bps.local_rank())
        device = torch.device("cuda", bps.local_rank())

    training, held_out = load_data(arguments.seed)
    sampler: DistributedSampler[int] = DistributedSampler(training, num_replicas=bps.size(), rank=bps.rank())
    loader = DataLoader(training, arguments.batch_size, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr * bps.size(), momentum=0.9)
    optimizer = bps.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=bps.Compression.fp16 if arguments.fp16_pushpull else bps.Compression.none,
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

    steps = 0
    started = time.perf_counter()
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            total += loss.detach()
            steps += 1
        mean = bps.push_pull(total / len(loader), average=True, name="loss").item()
        if bps.rank() == 0:
            print(f"epoch {epoch + 1}: loss {mean:.4f}", file=sys.stderr)
    seconds = time.perf_counter() - started

    if bps.rank() == 0:
        images, labels = (each.to(device) for each in held_out.tensors)
        with torch.no_grad():
            correct = (model(images).argmax(1) == labels).float().mean().item()
        result = {
            "accuracy": round(correct, 4),
            "images_per_s": round(steps * arguments.batch_size * bps.size() / seconds, 1),
            "steps": steps,
            "params_sha256": digest(model),
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
