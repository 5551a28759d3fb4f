"""Train a small convolutional network on handwritten digits, with as many workers as there are.

    bpslaunch -n 2 -s 1 -- python examples/torch_digits.py --epochs 5 --seed 1

The data are the 1797 images of 8 x 8 pixels that scikit-learn ships.  In every step the workers take neighbouring
slices of one shuffled order, so that two workers at batch size B see what one sees at 2 B.  The last line that worker 0
prints is a JSON object; the others print nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import byteps_py.torch as bps

HELD_OUT = 360


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5, help="in total, those before a resumption included")
    parser.add_argument("--seed", type=int, default=1, help="of the initial parameters and the order of the data")
    parser.add_argument("--batch-size", type=int, default=16, help="images per worker and step")
    parser.add_argument(
        "--lr", type=float, default=0.1, help="for 32 images per step; goes with the root of their number"
    )
    parser.add_argument(
        "--arena",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="gradients of 64 KiB and more live in memory that local servers read",
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="worker 0 writes it after every epoch")
    parser.add_argument("--resume", action="store_true", help="worker 0 reads --checkpoint first")
    arguments = parser.parse_args()
    if arguments.resume and not arguments.checkpoint:
        parser.error("--resume needs --checkpoint FILE")
    return arguments


def load_data(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images ``(n, 1, 8, 8)`` and labels ``(n,)``, then those held out; the same split on every worker."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(digits.images).float().unsqueeze(1)[order] / 16 - 0.3
    labels = torch.from_numpy(digits.target).long()[order]
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def batches(count: int, batch_size: int, epoch: int, seed: int) -> list[torch.Tensor]:
    """This worker's share of every step of an epoch; all workers get the same number of steps."""
    generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
    order = torch.randperm(count, generator=generator)
    together = batch_size * bps.size()
    first = batch_size * bps.rank()
    return [order[step * together + first :][:batch_size] for step in range(count // together)]


def save(path: str, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Replace the checkpoint in one go: a reader sees the old or the new one, never a part."""
    temporary = f"{path}.{os.getpid()}.tmp"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, temporary)
    os.replace(temporary, path)


def restore(path: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load a checkpoint; returns the epochs that it contains."""
    checkpoint = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return int(checkpoint["epoch"])


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
    bps.init()

    images, labels, test_images, test_labels = load_data(arguments.seed)
    model = make_model()
    rate = arguments.lr * (arguments.batch_size * bps.size() / 32) ** 0.5
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    done = 0
    if arguments.resume and bps.rank() == 0:
        done = restore(arguments.checkpoint, model, optimizer)
    done = int(bps.broadcast_object(done, root_rank=0))  # type: ignore[call-overload]
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), arena=arguments.arena)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

    steps = 0
    started = time.perf_counter()
    for epoch in range(done, arguments.epochs):
        total = 0.0
        order = batches(len(images), arguments.batch_size, epoch, arguments.seed)
        for chosen in order:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            bps.step(samples=len(chosen))  # for `bps ab`, which then compares images/s
            total += loss.item()
        steps += len(order)
        if bps.rank() == 0:
            print(f"epoch {epoch + 1}: loss {total / max(len(order), 1):.4f}", file=sys.stderr)
            if arguments.checkpoint:
                save(arguments.checkpoint, model, optimizer, epoch + 1)
    seconds = time.perf_counter() - started

    if bps.rank() == 0:
        with torch.no_grad():
            correct = (model(test_images).argmax(1) == test_labels).float().mean().item()
        trained = steps * arguments.batch_size * bps.size()
        result = {
            "accuracy": round(correct, 4),
            "images_per_s": round(trained / seconds, 1),
            "steps": steps,
            "params_sha256": digest(model),
        }
        print(json.dumps(result))
    bps.shutdown()


if __name__ == "__main__":
    main()
