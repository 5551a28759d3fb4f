"""Tensors of well-known models, from their papers: shapes of what has a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

__all__ = ["KNOWN", "Shapes"]

Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Names and shapes, in the order of the forward pass."""

_CLASSES: Final = 1000


def _convolution(name: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    """Without a bias, and the normalisation behind it."""
    yield f"{name}.weight", (outputs, inputs, kernel, kernel)
    yield f"{name}.norm.weight", (outputs,)
    yield f"{name}.norm.bias", (outputs,)


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def _resnet(blocks: Sequence[int], *, bottleneck: bool) -> Shapes:
    """He et al., "Deep residual learning for image recognition" (CVPR 2016)."""
    yield from _convolution("stem", 3, 64, 7)
    inputs = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        outputs = width * 4 if bottleneck else width
        for block in range(count):
            name = f"stage{stage + 1}.{block}"
            if bottleneck:
                yield from _convolution(f"{name}.1", inputs, width, 1)
                yield from _convolution(f"{name}.2", width, width, 3)
                yield from _convolution(f"{name}.3", width, outputs, 1)
            else:
                yield from _convolution(f"{name}.1", inputs, width, 3)
                yield from _convolution(f"{name}.2", width, width, 3)
            if inputs != outputs:
                yield from _convolution(f"{name}.around", inputs, outputs, 1)
            inputs = outputs
    yield from _linear("classes", inputs, _CLASSES)


def _vgg16() -> Shapes:
    """Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition" (ICLR 2015)."""
    inputs = 3
    for index, outputs in enumerate((64, 64, 128, 128, *(256,) * 3, *(512,) * 6)):
        yield f"convolution{index}.weight", (outputs, inputs, 3, 3)
        yield f"convolution{index}.bias", (outputs,)
        inputs = outputs
    yield from _linear("hidden1", 512 * 7 * 7, 4096)
    yield from _linear("hidden2", 4096, 4096)
    yield from _linear("classes", 4096, _CLASSES)


def _bert_large() -> Shapes:
    """Devlin et al., "BERT: pre-training of deep bidirectional transformers" (NAACL 2019), without a head."""
    width, inner = 1024, 4096
    for name, rows in (("words", 30522), ("positions", 512), ("segments", 2)):
        yield f"{name}.weight", (rows, width)
    yield from _norm("norm", width)
    for layer in range(24):
        for name in ("query", "key", "value", "output"):
            yield from _linear(f"layer{layer}.{name}", width, width)
        yield from _norm(f"layer{layer}.norm1", width)
        yield from _linear(f"layer{layer}.inner", width, inner)
        yield from _linear(f"layer{layer}.outer", inner, width)
        yield from _norm(f"layer{layer}.norm2", width)
    yield from _linear("pooler", width, width)


def _norm(name: str, width: int) -> Shapes:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


KNOWN: Final[dict[str, Callable[[], Shapes]]] = {
    "resnet18": lambda: _resnet((2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda: _resnet((3, 4, 6, 3), bottleneck=True),
    "vgg16": _vgg16,
    "bert-large": _bert_large,
}
"""By the name after ``--model``."""
