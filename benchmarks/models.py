"""The models of train_step, written out so that torchvision is not needed, and synthetic data for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

CLASSES = 1000
VOCABULARY = 16000
Batch = tuple[torch.Tensor, torch.Tensor]


class Block(nn.Module):
    """A basic residual block: two 3 x 3 convolutions around which the input goes unchanged, or by 1 x 1."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.around(images))


def resnet18() -> nn.Module:
    """He et al., "Deep residual learning for image recognition", CVPR 2016: 11.7 M parameters in 62 tensors."""
    widths = (64, 64, 128, 256, 512)
    blocks = [
        Block(widths[stage - 1] if index == 0 else widths[stage], widths[stage], 2 if index == 0 and stage > 1 else 1)
        for stage in range(1, 5)
        for index in range(2)
    ]
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def mlp() -> nn.Module:
    """Three layers, 25.1 M parameters, for little arithmetic: the exchange is most of a step."""
    layers = (nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES))
    return nn.Sequential(*layers)


class Transformer(nn.Module):
    """A small encoder: 4 layers of width 256 over 64 tokens, 7.5 M parameters in 52 tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(self.embedding(tokens)).mean(1))
        return logits


def make(name: str, seed: int) -> nn.Module:
    """A model whose weights are the same wherever the seed is the same."""
    torch.manual_seed(seed)
    return {"resnet18": resnet18, "mlp": mlp, "transformer": Transformer}[name]()


def batches(name: str, size: int, side: int, seed: int, count: int = 4) -> Sequence[Batch]:
    """Synthetic batches of ``size`` samples; images are ``side`` pixels high and wide."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        if name == "transformer":
            inputs = torch.randint(0, VOCABULARY, (size, 64), generator=generator)
        else:
            shape = (size, 3, side, side) if name == "resnet18" else (size, 1024)
            inputs = torch.randn(shape, generator=generator)
        found.append((inputs, torch.randint(0, CLASSES, (size,), generator=generator)))
    return found
