"""Who averages the gradients of a parameter: two at once would write to the same gradient."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from byteps_py.errors import BytePSError
from byteps_py.torch.names import some

__all__ = ["Owner", "check_kept", "claim", "claiming", "release"]


class Owner(Protocol):
    """Who claims parameters."""

    def give_up(self, parameters: Sequence[torch.Tensor]) -> None:
        """Another one has claimed ``parameters``; an exclusive owner is never told so.

        Raises:
            BytePSError: it cannot now; then the other one cannot have them.
        """


@dataclass(frozen=True)
class _Claim:
    owner: weakref.ref[Owner]
    kind: str
    exclusive: bool


_claims: Final = WeakTensorKeyDictionary()
"""The latest claim to each parameter."""


def claim(owner: Owner, kind: str, parameters: Iterable[torch.Tensor], exclusive: bool = True) -> None:
    """Note that ``owner`` averages the gradients of ``parameters`` from now on, as long as it exists.

    Args:
        owner: kept by a weak reference.
        kind: what it is called in messages.
        parameters: those that require a gradient count.
        exclusive: whether it tolerates no other. One that is not takes the place of others like it, which give up.

    Raises:
        ValueError: another one does that already, and one of the two is exclusive; nothing is noted then.
        BytePSError: another one cannot give up now.
    """
    wanted = [each for each in parameters if each.requires_grad]
    if _others(owner, wanted):
        gc.collect()  # who is still there only as garbage claims nothing
    others = _others(owner, wanted)
    for _, other in others:
        if other.exclusive or exclusive:
            raise ValueError(
                f"{kind}: the gradients of these parameters are averaged by a {other.kind} already: "
                "use that one, or delete it before"
            )
    for holder in {id(each): each for _, other in others if (each := other.owner()) is not None}.values():
        holder.give_up([parameter for parameter, other in others if other.owner() is holder])
    for parameter in wanted:
        _claims[parameter] = _Claim(weakref.ref(owner), kind, exclusive)


def release(owner: Owner, parameter: torch.Tensor) -> None:
    """``owner`` averages the gradient of ``parameter`` no more; another one's claim stays."""
    known: _Claim | None = _claims.get(parameter)  # type: ignore[no-untyped-call]
    if known is not None and known.owner() is owner:
        del _claims[parameter]


@contextlib.contextmanager
def claiming(owner: Owner, kind: str, parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """:func:`claim`, and :func:`release` if what is done within it fails: then ``owner``, which an error may keep for a
    while, has not come to be."""
    claim(owner, kind, parameters)
    try:
        yield
    except BaseException:
        for each in parameters:
            release(owner, each)
        raise


def _others(owner: Owner, parameters: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, _Claim]]:
    found: list[tuple[torch.Tensor, _Claim]] = []
    for parameter in parameters:
        known: _Claim | None = _claims.get(parameter)  # type: ignore[no-untyped-call]
        if known is not None and known.owner() not in (None, owner):
            found.append((parameter, known))
    return found


def check_kept(kind: str, does: str, lost: Sequence[str]) -> None:
    """Whether an owner has all its parameters still.

    Args:
        kind: what such owners are, in messages.
        does: what they do with parameters, in messages.
        lost: names of parameters that it has given up.

    Raises:
        BytePSError: it has lost some.
    """
    if lost:
        raise BytePSError(
            f"a {kind} that was made later {does} {some(lost)}: use that one, and make another if these are to be "
            "trained here again"
        )
