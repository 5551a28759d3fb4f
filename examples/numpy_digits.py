"""Train a small network on handwritten digits in NumPy alone, with as many workers as there are.

    bpslaunch -n 2 -s 1 -- python examples/numpy_digits.py --epochs 5 --seed 1

Shows the plain API: each layer's gradient is pushed as soon as backpropagation has it, while the layers before it are
still being computed, and the averages are collected before the update.  Data, shards and the JSON object in worker 0's
last line are those of ``torch_digits.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
import time

import numpy as np
from sklearn.datasets import load_digits

import byteps_py as bps

HELD_OUT = 360
LAYERS = (64, 256, 10)
MOMENTUM = np.float32(0.9)
Arrays = dict[str, np.ndarray]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5, help="in total, those before a resumption included")
    parser.add_argument("--seed", type=int, default=1, help="of the initial parameters and the order of the data")
    parser.add_argument("--batch-size", type=int, default=16, help="images per worker and step")
    parser.add_argument(
        "--lr", type=float, default=0.1, help="for 32 images per step; goes with the root of their number"
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="worker 0 writes it (.npz) after every epoch")
    parser.add_argument("--resume", action="store_true", help="worker 0 reads --checkpoint first")
    arguments = parser.parse_args()
    if arguments.resume and not arguments.checkpoint:
        parser.error("--resume needs --checkpoint FILE")
    return arguments


def load_data(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images ``(n, 64)`` and labels ``(n,)``, then those held out; the same split on every worker."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images = (digits.data[order] / 16 - 0.3).astype(np.float32)
    labels = digits.target[order]
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def make_parameters(seed: int) -> Arrays:
    """Weights ``(inputs, outputs)`` and biases ``(outputs,)`` of each layer, float32."""
    random = np.random.default_rng(seed)
    parameters: Arrays = {}
    for index, (inputs, outputs) in enumerate(itertools.pairwise(LAYERS)):
        weights = random.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)
        parameters[f"weight{index}"] = weights.astype(np.float32)
        parameters[f"bias{index}"] = np.zeros(outputs, np.float32)
    return parameters


def forward(parameters: Arrays, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hidden activations and the class probabilities, each ``(n, units)``."""
    hidden = np.maximum(images @ parameters["weight0"] + parameters["bias0"], 0)
    scores = hidden @ parameters["weight1"] + parameters["bias1"]
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, exponentials / exponentials.sum(axis=1, keepdims=True)


def averaged_gradients(parameters: Arrays, images: np.ndarray, labels: np.ndarray, step: int) -> tuple[Arrays, float]:
    """The gradients over the batches of all workers, and this worker's own loss."""
    hidden, probabilities = forward(parameters, images)
    handles: dict[str, int] = {}

    def push(name: str, gradient: np.ndarray, priority: int) -> None:
        handles[name] = bps.push_pull_async(gradient, f"gradient.{name}", bps.AVG, priority=priority, version=step)

    error = probabilities.copy()
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    push("weight1", hidden.T @ error, priority=-1)
    push("bias1", error.sum(axis=0), priority=-1)
    error = (error @ parameters["weight1"].T) * (hidden > 0)
    push("weight0", images.T @ error, priority=0)
    push("bias0", error.sum(axis=0), priority=0)
    loss = -np.log(np.maximum(probabilities[np.arange(len(labels)), labels], 1e-12)).mean()
    return {name: bps.synchronize(handle) for name, handle in handles.items()}, float(loss)


def save(path: str, parameters: Arrays, momenta: Arrays, epoch: int) -> None:
    """Replace the checkpoint in one go: a reader sees the old or the new one, never a part."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        np.savez(file, epoch=epoch, **parameters, **{f"momentum.{name}": each for name, each in momenta.items()})
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def restore(path: str, parameters: Arrays, momenta: Arrays) -> int:
    """Load a checkpoint into the arrays; returns the epochs that it contains."""
    with np.load(path) as checkpoint:
        for name in parameters:
            parameters[name][...] = checkpoint[name]
            momenta[name][...] = checkpoint[f"momentum.{name}"]
        return int(checkpoint["epoch"])


def start(arguments: argparse.Namespace) -> tuple[Arrays, Arrays, int]:
    """Parameters, momenta and finished epochs: those of worker 0, everywhere."""
    parameters = make_parameters(arguments.seed)
    momenta = {name: np.zeros_like(each) for name, each in parameters.items()}
    done = 0
    if arguments.resume and bps.rank() == 0:
        done = restore(arguments.checkpoint, parameters, momenta)
    done = int(bps.broadcast(np.int64(done), 0, "epoch"))
    for name in parameters:
        bps.broadcast(parameters[name], 0, f"parameter.{name}", out=parameters[name])
        bps.broadcast(momenta[name], 0, f"momentum.{name}", out=momenta[name])
    return parameters, momenta, done


def digest(parameters: Arrays) -> str:
    """SHA-256 over all parameters in the order of their names, as little-endian bytes."""
    sha = hashlib.sha256()
    for _, array in sorted(parameters.items()):
        sha.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return sha.hexdigest()


def main() -> None:
    arguments = parse_arguments()
    bps.init()
    images, labels, test_images, test_labels = load_data(arguments.seed)
    parameters, momenta, done = start(arguments)
    together = arguments.batch_size * bps.size()
    rate = np.float32(arguments.lr * (together / 32) ** 0.5)
    steps = 0
    started = time.perf_counter()
    for epoch in range(done, arguments.epochs):
        order = np.random.default_rng([arguments.seed, epoch]).permutation(len(images))
        losses = []
        for first in range(0, len(images) - together + 1, together):
            mine = order[first + arguments.batch_size * bps.rank() :][: arguments.batch_size]
            gradients, loss = averaged_gradients(parameters, images[mine], labels[mine], steps)
            for name, gradient in gradients.items():
                momenta[name] *= MOMENTUM
                momenta[name] += gradient
                parameters[name] -= rate * momenta[name]
            bps.step(samples=len(mine))
            losses.append(loss)
            steps += 1
        if bps.rank() == 0:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}", file=sys.stderr)
            if arguments.checkpoint:
                save(arguments.checkpoint, parameters, momenta, epoch + 1)
    seconds = time.perf_counter() - started

    if bps.rank() == 0:
        correct = (forward(parameters, test_images)[1].argmax(axis=1) == test_labels).mean()
        result = {
            "accuracy": round(float(correct), 4),
            "images_per_s": round(steps * together / seconds, 1),
            "steps": steps,
            "params_sha256": digest(parameters),
        }
        print(json.dumps(result))
    bps.shutdown()


if __name__ == "__main__":
    main()
