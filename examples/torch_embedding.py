"""Learn vectors for words, such that those of one topic lie close together, from pairs that occur together.

    bpslaunch -n 2 -s 1 -- python examples/torch_embedding.py --steps 300 --seed 1

The gradient of the table is sparse: it travels as the rows of those words that a batch has.  With --dense it travels as
a whole, which gives the same parameters, bit for bit, and takes many more bytes.  The last line that worker 0 prints is
a JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys

import torch
from torch import nn
from torch.nn import functional

import byteps_py.torch as bps


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="of the initial vectors and of the pairs")
    parser.add_argument("--words", type=int, default=5_000)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256, help="pairs per process and step")
    parser.add_argument("--lr", type=float, default=150.0)
    parser.add_argument("--dense", action="store_true", help="push the gradient of the table as a whole")
    return parser.parse_args()


def draw(arguments: argparse.Namespace, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pairs of words, and 1 where both are of one topic, else 0; common words are drawn more often."""
    count = arguments.batch_size
    rarity = torch.rand(2, count, generator=generator) ** 3
    first, second = (rarity * arguments.words).long()
    together = torch.arange(count) % 2 == 0
    topic = first % arguments.topics
    second = torch.where(together, second - second % arguments.topics + topic, second)
    second = second.clamp(max=arguments.words - 1)
    return first, second, (first % arguments.topics == second % arguments.topics).float()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)  # the order in which torch adds, and so the last bits, change with the threads
    torch.manual_seed(arguments.seed)
    bps.init()

    table = nn.Embedding(arguments.words, 16, sparse=not arguments.dense)
    nn.init.normal_(table.weight, std=0.3)
    optimizer = torch.optim.SGD(table.parameters(), lr=arguments.lr)
    optimizer = bps.DistributedOptimizer(optimizer, table.named_parameters())
    bps.broadcast_parameters(table.state_dict(), root_rank=0)

    generator = torch.Generator().manual_seed(1000 * arguments.seed + bps.rank())
    losses = []
    for step in range(arguments.steps):
        first, second, together = draw(arguments, generator)
        optimizer.zero_grad()
        one, other = table(
            torch.stack([first, second])
        )  # in one look-up: torch adds up the rows of two in another order
        loss = functional.binary_cross_entropy_with_logits((one * other).sum(1), together)
        loss.backward()
        optimizer.step()
        losses.append(bps.push_pull(loss.detach(), name="loss").item())
        if bps.rank() == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {sum(losses[-50:]) / 50:.4f}", file=sys.stderr)

    if bps.rank() == 0:
        shown = max(1, min(20, len(losses) // 2))
        result = {
            "sparse": not arguments.dense,
            "first_loss": round(sum(losses[:shown]) / shown, 4),
            "last_loss": round(sum(losses[-shown:]) / shown, 4),
            "params_sha256": hashlib.sha256(table.weight.detach().numpy().tobytes()).hexdigest(),
        }
        print(json.dumps(result))
    bps.shutdown()


if __name__ == "__main__":
    main()
