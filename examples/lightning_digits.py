"""Train the handwritten digits with PyTorch Lightning, through the process-group backend.

    bpslaunch -n 2 -s 1 -- python examples/lightning_digits.py --epochs 5 --seed 1

What a Lightning script needs: a process group that exists before the Trainer does, and as many devices and nodes as the
job has. That other programs have started the processes, Lightning finds in the variables that torchrun sets too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import warnings

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import byteps_py.torch as bps

HELD_OUT = 360


class Digits(lightning.LightningModule):
    """Images ``(n, 1, 8, 8)`` to ten classes."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 4 * 4, 10)
        )

    def training_step(self, batch: list[torch.Tensor], batch_index: int) -> torch.Tensor:
        images, labels = batch
        return functional.cross_entropy(self.layers(images), labels)

    def test_step(self, batch: list[torch.Tensor], batch_index: int) -> None:
        images, labels = batch
        correct = (self.layers(images).argmax(1) == labels).float().mean()
        self.log("accuracy", correct, batch_size=len(labels), sync_dist=True)  # the average over all workers

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9)


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
    # The digits are in memory: nothing would be won by processes that load them. Each share has as many images.
    warnings.filterwarnings("ignore", "The '.*_dataloader' does not have many workers")
    warnings.filterwarnings("ignore", "Using `DistributedSampler` with the dataloaders")

    dist.init_process_group("byteps")
    os.environ["NODE_RANK"] = str(bps.rank() // bps.local_size())  # as many workers on every machine

    lightning.seed_everything(arguments.seed, verbose=False)
    trained, held_out = load_data(arguments.seed)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=bps.local_size(),
        num_nodes=bps.size() // bps.local_size(),
        strategy=DDPStrategy(process_group_backend="byteps"),
        max_epochs=arguments.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Digits(arguments.lr)
    # Lightning gives each worker its share of both, by a DistributedSampler.
    shuffled = DataLoader(trained, batch_size=arguments.batch_size, shuffle=True, drop_last=True)
    trainer.fit(model, shuffled)
    (found,) = trainer.test(model, DataLoader(held_out, batch_size=HELD_OUT), verbose=False)
    result = {"accuracy": round(found["accuracy"], 4), "steps": trainer.global_step, "models": models(model)}
    if bps.rank() == 0:
        print(json.dumps(result))
    dist.destroy_process_group()
    bps.shutdown()


if __name__ == "__main__":
    main()
