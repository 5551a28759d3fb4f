"""A model whose passes leave parameters out."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

__all__ = ["Branches"]


class Branches(nn.Module):
    """Each call takes one of four ways, or several, or none; the others get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ParameterList([torch.full((2,), float(way + 1)) for way in range(4)])

    def forward(self, taken: Iterable[int]) -> torch.Tensor:
        """The sum over the ways that are ``taken``; 0 of none."""
        return sum((self.ways[way] ** 2).sum() * (way + 1) for way in taken)  # type: ignore[return-value]
