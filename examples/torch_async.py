"""Train on handwritten digits until they are known well enough, with a worker that is slower than the others.

    BYTEPS_ENABLE_ASYNC=1 bpslaunch -n 2 -s 1 -- python examples/torch_async.py --slowdown 3

The last worker computes so many times as long as it needs.  Without BYTEPS_ENABLE_ASYNC=1 the same script trains
synchronously: every step takes as long as the slowest worker.  Each worker draws its batches from all training images,
in an order of its own, and stops when it finds the accuracy on held-out images high enough.  The last line that worker
0 prints is a JSON object; the others print nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import byteps_py.torch as bps

HELD_OUT = 360


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20, help="of each worker, at most")
    parser.add_argument("--target", type=float, default=0.95, help="accuracy on the held-out images that is enough")
    parser.add_argument("--slowdown", type=float, default=3.0, help="how many times as long the last worker computes")
    parser.add_argument("--seed", type=int, default=1, help="of the initial parameters and the order of the data")
    parser.add_argument("--batch-size", type=int, default=64, help="images per worker and step")
    parser.add_argument("--lr", type=float, default=0.1, help="of a step")
    parser.add_argument("--evaluate-every", type=int, default=5, help="steps between two looks at the accuracy")
    return parser.parse_args()


def load_data(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images ``(n, 1, 8, 8)`` and labels ``(n,)``, then those held out; the same split on every worker."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(digits.images).float().unsqueeze(1)[order] / 16 - 0.3
    labels = torch.from_numpy(digits.target).long()[order]
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )


def batches(count: int, arguments: argparse.Namespace) -> Iterator[torch.Tensor]:
    """The places of the images of each step of this worker."""
    for epoch in range(arguments.epochs):
        generator = torch.Generator().manual_seed((arguments.seed * 1009 + epoch) * 1009 + bps.rank())
        order = torch.randperm(count, generator=generator)
        for first in range(0, count - arguments.batch_size + 1, arguments.batch_size):
            yield order[first : first + arguments.batch_size]


def measure(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of images that the model gets right."""
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    bps.init()
    torch.manual_seed(arguments.seed + bps.rank())  # the optimizer begins with the parameters of worker 0 everywhere
    slowdown = arguments.slowdown if bps.rank() == bps.size() - 1 > 0 else 1.0

    images, labels, test_images, test_labels = load_data(arguments.seed)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)  # synchronous training needs it; else it does no harm
    bps.barrier()

    steps, accuracy = 0, 0.0
    started = time.perf_counter()
    for chosen in batches(len(images), arguments):
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        time.sleep((slowdown - 1) * (time.perf_counter() - begun))
        optimizer.step()
        bps.step(samples=len(chosen))
        steps += 1
        if steps % arguments.evaluate_every == 0:
            accuracy = measure(model, test_images, test_labels)
            if accuracy >= arguments.target:
                break
    seconds = time.perf_counter() - started

    if bps.rank() == 0:
        staleness = bps.stats()["staleness"]
        print(f"{steps} steps in {seconds:.2f} s, accuracy {accuracy:.4f}", file=sys.stderr)
        result = {
            "accuracy": round(accuracy, 4),
            "seconds": round(seconds, 3),
            "steps": steps,
            "staleness_mean": round(staleness["mean"], 2),
            "staleness_max": staleness["max"],
        }
        print(json.dumps(result))
    bps.shutdown()


if __name__ == "__main__":
    main()
