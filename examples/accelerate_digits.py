"""Train the handwritten digits with Hugging Face Accelerate, through the process-group backend.

    bpslaunch -n 2 -s 1 -- python examples/accelerate_digits.py --epochs 5 --seed 1

All that an Accelerate script needs is a process group that exists before the Accelerator does, which then takes it.
"""

from __future__ import annotations

import argparse
import hashlib
import json

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import byteps_py.torch as bps

HELD_OUT = 360


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """What is trained on, and what is held out: the same split on every worker."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(digits.images).float().unsqueeze(1)[order] / 16 - 0.3
    labels = torch.from_numpy(digits.target).long()[order]
    return TensorDataset(images[HELD_OUT:], labels[HELD_OUT:]), TensorDataset(images[:HELD_OUT], labels[:HELD_OUT])


def models(model: nn.Module) -> int:
    """How many different models the workers have ended with: one, if their gradients were averaged."""
    bits = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    found: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, hashlib.sha256(bits).hexdigest())
    return len(set(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the initial parameters and the order of the data")
    parser.add_argument("--batch-size", type=int, default=16, help="images per worker and step")
    parser.add_argument("--lr", type=float, default=0.1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the images are small, and the workers share the cores

    dist.init_process_group("byteps")
    accelerator = Accelerator(cpu=True)

    set_seed(arguments.seed)
    trained, held_out = load_data(arguments.seed)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 4 * 4, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    # prepare() gives each worker its share of the batches, and wraps the model in torch's DistributedDataParallel.
    model, optimizer, batches, held_out_batches = accelerator.prepare(
        model,
        optimizer,
        DataLoader(trained, batch_size=arguments.batch_size, shuffle=True, drop_last=True),
        DataLoader(held_out, batch_size=60),
    )
    steps = 0
    for _ in range(arguments.epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            accelerator.backward(functional.cross_entropy(model(images), labels))
            optimizer.step()
            steps += 1

    correct = 0
    for images, labels in held_out_batches:
        with torch.no_grad():
            found = model(images).argmax(1)
        correct += int(accelerator.gather_for_metrics(found == labels).sum())
    result = {"accuracy": round(correct / HELD_OUT, 4), "steps": steps, "models": models(model)}
    accelerator.print(json.dumps(result))
    accelerator.end_training()  # destroys the process group
    bps.shutdown()


if __name__ == "__main__":
    main()
