"""Train a small convolutional network on handwritten digits with Gluon, with as many workers as there are.

    bpslaunch -n 2 -s 1 -- python examples/mxnet_digits.py --epochs 5 --seed 1

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
import tempfile
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

import byteps_py.mxnet as bps

HELD_OUT = 360


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5, help="in total, those before a resumption included")
    parser.add_argument("--seed", type=int, default=1, help="of the initial parameters and the order of the data")
    parser.add_argument("--batch-size", type=int, default=16, help="images per worker and step")
    parser.add_argument(
        "--lr", type=float, default=0.1, help="for 32 images per step; goes with the root of their number"
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="worker 0 writes it after every epoch")
    parser.add_argument("--resume", action="store_true", help="worker 0 reads --checkpoint first")
    arguments = parser.parse_args()
    if arguments.resume and not arguments.checkpoint:
        parser.error("--resume needs --checkpoint FILE")
    return arguments


def load_data(seed: int) -> tuple[mx.nd.NDArray, mx.nd.NDArray, mx.nd.NDArray, np.ndarray]:
    """Training images ``(n, 1, 8, 8)`` and labels ``(n,)``, then those held out; the same split on every worker."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images = digits.images.astype(np.float32)[order, np.newaxis] / 16 - 0.3
    labels = digits.target.astype(np.float32)[order]
    training = mx.nd.array(images[HELD_OUT:]), mx.nd.array(labels[HELD_OUT:])
    return *training, mx.nd.array(images[:HELD_OUT]), labels[:HELD_OUT]


def make_model() -> gluon.nn.Sequential:
    model = gluon.nn.Sequential(prefix="digits_")
    with model.name_scope():
        model.add(
            gluon.nn.Conv2D(16, 3, padding=1, in_channels=1, activation="tanh"),
            gluon.nn.Conv2D(32, 3, padding=1, in_channels=16, activation="tanh"),
            gluon.nn.MaxPool2D(2),
            gluon.nn.Flatten(),
            gluon.nn.Dense(10, in_units=32 * 4 * 4),
        )
    model.initialize(mx.init.Xavier())
    return model


def batches(count: int, batch_size: int, epoch: int, seed: int) -> list[np.ndarray]:
    """This worker's share of every step of an epoch; all workers get the same number of steps."""
    order = np.random.default_rng(seed * 100_003 + epoch).permutation(count)
    together = batch_size * bps.size()
    first = batch_size * bps.rank()
    return [order[step * together + first :][:batch_size] for step in range(count // together)]


def parameters_of(model: gluon.Block) -> dict[str, np.ndarray]:
    """In the order of their names; waits until they are up to date."""
    return {name: each.data().asnumpy() for name, each in sorted(model.collect_params().items())}


def save(path: str, model: gluon.Block, trainer: gluon.Trainer, epoch: int) -> None:
    """Replace the checkpoint in one go: a reader sees the old or the new one, never a part."""
    temporary = f"{path}.{os.getpid()}.tmp"
    trainer.save_states(temporary)
    with open(temporary, "rb") as file:
        states = np.frombuffer(file.read(), np.uint8)
    with open(temporary, "wb") as file:
        np.savez(file, _epoch=epoch, _states=states, **parameters_of(model))
    os.replace(temporary, path)


def restore(path: str, model: gluon.Block) -> tuple[int, bytes]:
    """Load parameters; returns the epochs that the checkpoint contains, and the trainer's states."""
    with np.load(path) as saved:
        for name, each in model.collect_params().items():
            each.set_data(mx.nd.array(saved[name]))
        return int(saved["_epoch"]), saved["_states"].tobytes()


def load_states(trainer: gluon.Trainer, states: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(states)
        file.flush()
        trainer.load_states(file.name)


def main() -> None:
    arguments = parse_arguments()
    mx.random.seed(arguments.seed)
    np.random.seed(arguments.seed)  # of the initializers
    bps.init()

    images, labels, test_images, test_labels = load_data(arguments.seed)
    model = make_model()
    rate = arguments.lr * (arguments.batch_size * bps.size() / 32) ** 0.5
    done, states = 0, b""
    if arguments.resume and bps.rank() == 0:
        done, states = restore(arguments.checkpoint, model)
    done, states = bps.broadcast_object((done, states), root_rank=0)
    bps.broadcast_parameters(model.collect_params(), root_rank=0)
    trainer = bps.DistributedTrainer(model.collect_params(), "sgd", {"learning_rate": rate, "momentum": 0.9})
    if states:
        load_states(trainer, states)
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

    steps = 0
    started = time.perf_counter()
    for epoch in range(done, arguments.epochs):
        total = 0.0
        order = batches(len(images), arguments.batch_size, epoch, arguments.seed)
        for chosen in order:
            index = mx.nd.array(chosen)
            with autograd.record():
                loss = cross_entropy(model(images.take(index)), labels.take(index))
            loss.backward()
            trainer.step(arguments.batch_size)
            bps.step(samples=len(chosen))  # for `bps ab`, which then compares images/s
            total += loss.mean().asscalar()
        steps += len(order)
        if bps.rank() == 0:
            print(f"epoch {epoch + 1}: loss {total / max(len(order), 1):.4f}", file=sys.stderr)
            if arguments.checkpoint:
                save(arguments.checkpoint, model, trainer, epoch + 1)
    parameters = parameters_of(model)
    seconds = time.perf_counter() - started

    if bps.rank() == 0:
        predicted = model(test_images).asnumpy().argmax(1)
        trained = steps * arguments.batch_size * bps.size()
        sha = hashlib.sha256()
        for array in parameters.values():
            sha.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
        result = {
            "accuracy": round(float((predicted == test_labels).mean()), 4),
            "images_per_s": round(trained / seconds, 1),
            "steps": steps,
            "params_sha256": sha.hexdigest(),
        }
        print(json.dumps(result))
    bps.shutdown()


if __name__ == "__main__":
    main()
