"""benchmarks/models.py: the models have the size that their names promise."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from benchmarks import models  # noqa: E402  it needs torch


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [("resnet18", 11_689_512, 62), ("mlp", 25_076_712, 6), ("transformer", 7_512_040, 51)],
)
def test_parameters(name: str, parameters: int, tensors: int) -> None:
    model = models.make(name, 1)
    sizes = [each.numel() for each in model.parameters()]
    assert (sum(sizes), len(sizes)) == (parameters, tensors)


@pytest.mark.parametrize("name", ["resnet18", "mlp", "transformer"])
def test_a_seed_gives_the_same_model_and_the_same_data(name: str) -> None:
    first, second = (models.make(name, 3).eval()(models.batches(name, 2, 32, 5)[0][0]) for _ in range(2))
    assert first.shape == (2, models.CLASSES)
    assert torch.equal(first, second)
    inputs, others = (models.batches(name, 2, 32, seed)[0][0] for seed in (5, 6))
    assert not torch.equal(inputs, others)
