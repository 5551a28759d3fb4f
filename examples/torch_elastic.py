"""Train on handwritten digits while workers and servers come and go.

    bpslaunch -n 3 -s 2 -- python examples/torch_elastic.py --generations 3x2 2x2 --steps 40

A job has generations: here of 3 workers and 2 servers, then of 2 and 2.  At the end of each, all workers suspend the
job; those that the next one has no place for end, the others resume it.  Workers that come later are started by the
same command with `--first 1` (or 2 ...): docs/elastic.md shows how.  Each worker prints a JSON object for each
generation.
"""

from __future__ import annotations

import argparse
import hashlib
import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import byteps_py.torch as bps

BATCH = 32


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--generations", nargs="+", default=["3x2", "2x2"], help="workers x servers of each")
    parser.add_argument("--steps", type=int, default=40, help="of each generation")
    parser.add_argument("--first", type=int, default=0, help="the generation in which this worker comes")
    return parser.parse_args()


def digest(model: nn.Module) -> str:
    """SHA-256 over all parameters."""
    sha = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters()):
        sha.update(parameter.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, done: int, steps: int) -> list[float]:
    """Make ``steps`` steps after ``done`` ones, all workers together; returns the losses, averaged over the workers."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().flatten(1) / 16 - 0.3
    labels = torch.from_numpy(digits.target).long()
    losses = []
    for step in range(done, done + steps):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))
        chosen = order[bps.rank() * BATCH :][:BATCH]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        losses.append(bps.push_pull(loss.detach(), name="loss").item())
    return losses


def main() -> None:
    arguments = parse_arguments()
    generations = [tuple(map(int, each.split("x"))) for each in arguments.generations]
    torch.set_num_threads(1)
    torch.manual_seed(arguments.first)  # whoever comes later is given what the others have learnt
    bps.init()
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    done = 0
    for number in range(arguments.first, len(generations)):
        if number > arguments.first:
            workers, servers = generations[number]
            bps.resume(workers, servers)
        # Worker 0 was in the job before, if anybody was: these give the others what it has.
        done = int(bps.broadcast_object(done, root_rank=0))  # type: ignore[call-overload]
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        bps.broadcast_optimizer_state(optimizer, root_rank=0)
        losses = train(model, optimizer, done, arguments.steps)
        done += len(losses)
        result = {
            "generation": number,
            "rank": bps.rank(),
            "workers": bps.size(),
            "servers": sum(bps.stats()["transport"].values()),
            "steps": done,
            "first_loss": round(losses[0], 4),
            "last_loss": round(losses[-1], 4),
            "params_sha256": digest(model),
        }
        print(json.dumps(result), flush=True)
        if number + 1 == len(generations) or bps.rank() >= generations[number + 1][0]:
            break  # there is no place for this worker any more; the others do not wait for it
        bps.suspend()
    bps.shutdown()


if __name__ == "__main__":
    main()
