"""Who averages the gradients of a parameter: two at once would write to the same gradient."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["claim"]


@dataclass(frozen=True)
class _Claim:
    owner: weakref.ref[object]
    kind: str
    exclusive: bool


_claims: Final = WeakTensorKeyDictionary()
"""The latest claim to each parameter."""


def claim(owner: object, kind: str, parameters: Iterable[torch.Tensor], exclusive: bool = True) -> None:
    """Note that ``owner`` averages the gradients of ``parameters`` from now on, as long as it exists.

    Args:
        owner: kept by a weak reference.
        kind: what it is called in messages.
        parameters: those that require a gradient count.
        exclusive: whether it tolerates no other. One that is not takes the place of others like it, which go when
            nothing refers to them any more.

    Raises:
        ValueError: another one does that already, and one of the two is exclusive; nothing is noted then.
    """
    wanted = [each for each in parameters if each.requires_grad]
    for parameter in wanted:
        other: _Claim | None = _claims.get(parameter)  # type: ignore[no-untyped-call]
        if other is not None and other.owner() not in (None, owner) and (other.exclusive or exclusive):
            raise ValueError(
                f"{kind}: the gradients of these parameters are averaged by a {other.kind} already: "
                "use that one, or delete it before"
            )
    for parameter in wanted:
        _claims[parameter] = _Claim(weakref.ref(owner), kind, exclusive)
