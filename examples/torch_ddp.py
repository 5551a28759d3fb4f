"""Train a small convolutional network on handwritten digits by torch's own DistributedDataParallel.

    bpslaunch -n 2 -s 1 -- python examples/torch_ddp.py --epochs 5 --seed 1

An ordinary script for torch.distributed: what makes it one for byteps_py are the import and the name of the backend.
The last line that worker 0 prints is a JSON object; the others print nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import byteps_py.torch  # noqa: F401 - makes the backend known

HELD_OUT = 360


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the initial parameters and the order of the data")
    parser.add_argument("--batch-size", type=int, default=16, help="images per process and step")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--backend", default="byteps")
    return parser.parse_args()


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Images ``(n, 1, 8, 8)`` and labels ``(n,)`` for training, and those held out; the same split in every process."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(digits.images).float().unsqueeze(1)[order] / 16 - 0.3
    labels = torch.from_numpy(digits.target).long()[order]
    return TensorDataset(images[HELD_OUT:], labels[HELD_OUT:]), TensorDataset(images[:HELD_OUT], labels[:HELD_OUT])


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def digest(model: nn.Module) -> str:
    """SHA-256 over all parameters in the order of their names, as little-endian bytes."""
    sha = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters()):
        array = parameter.detach().contiguous().numpy()
        sha.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return sha.hexdigest()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)  # the order in which torch adds, and so the last bits, change with the threads
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(arguments.seed)
    dist.init_process_group(arguments.backend)

    training, held_out = load_data(arguments.seed)
    sampler: DistributedSampler[int] = DistributedSampler(training, seed=arguments.seed, drop_last=True)
    loader = DataLoader(training, arguments.batch_size, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)

    steps = 0
    started = time.perf_counter()
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            steps += 1
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            mean = total.item() / (len(loader) * dist.get_world_size())
            print(f"epoch {epoch + 1}: loss {mean:.4f}", file=sys.stderr)
    seconds = time.perf_counter() - started

    if dist.get_rank() == 0:
        model.eval()
        images, labels = held_out.tensors
        with torch.no_grad():
            correct = (model.module(images).argmax(1) == labels).float().mean().item()
        trained = steps * arguments.batch_size * dist.get_world_size()
        result = {
            "accuracy": round(correct, 4),
            "images_per_s": round(trained / seconds, 1),
            "steps": steps,
            "params_sha256": digest(model.module),
        }
        print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
