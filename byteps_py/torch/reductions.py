"""What ``torch.distributed`` may ask to be made of the members' tensors, and who does it.

============================================ ======================================================================
asked for                                    done by
============================================ ======================================================================
SUM and AVG of what servers can sum, and of  the servers; AVG of whole numbers rounds down
complex numbers
all else                                     each member, which gathers the tensors and folds them in order of rank
============================================ ======================================================================

Of booleans, SUM and MAX are "or", PRODUCT and MIN are "and", as with NCCL.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

from byteps_py.errors import UnsupportedError
from byteps_py.torch.circle import Exchange
from byteps_py.torch.tensors import can_be_summed, wire_tag
from byteps_py.types import Operation

__all__ = ["begin", "check", "name_of"]

Result = Callable[[], torch.Tensor]
"""Gives the reduced tensor once the operations of its exchange are done."""

_Fold = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_NAMES: Final = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_SERVERS: Final = {"SUM": Operation.SUM, "AVG": Operation.AVERAGE}
_FOLDS: Final[dict[str, _Fold]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_FOLDS_OF_BOOL: Final[dict[str, _Fold]] = {
    **_FOLDS,
    "SUM": torch.logical_or,
    "MAX": torch.logical_or,
    "PRODUCT": torch.logical_and,
    "MIN": torch.logical_and,
}


def name_of(op: Any) -> str:
    """The name of a ``torch.distributed.ReduceOp``.

    Raises:
        UnsupportedError: it is not one of those above.
    """
    for name in _NAMES:
        if op == getattr(dist.ReduceOp, name):
            return name
    asked = getattr(op, "op", op)
    raise UnsupportedError(
        f"the backend byteps does not reduce by {asked}; supported are {', '.join(_NAMES)}: scale the tensor before "
        "the call, and use SUM"
    )


def check(name: str, dtype: torch.dtype) -> None:
    """Refuse what nobody can do, before anything is sent.

    Raises:
        UnsupportedError: there is no such reduction of tensors of ``dtype``.
    """
    if not _by_servers(name, dtype):
        _fold(name, dtype)


def begin(exchange: Exchange, staged: torch.Tensor, name: str) -> Result:
    """Begin to reduce ``staged`` over the members; it must not be touched before the end, and what it holds then is
    arbitrary.

    Args:
        staged: contiguous, on the CPU; for what :func:`check` has let pass.
    """
    if _by_servers(name, staged.dtype):
        summed = torch.view_as_real(staged) if staged.is_complex() else staged
        exchange.reduce(summed, wire_tag(summed.dtype, "the tensor"), _SERVERS[name])
        return lambda: staged
    fold = _fold(name, staged.dtype)
    circle = exchange.circle
    parts = [staged if rank == circle.rank else torch.empty_like(staged) for rank in range(circle.size)]
    for rank, part in enumerate(parts):
        exchange.broadcast(rank, part)
    return lambda: functools.reduce(fold, parts)


def _by_servers(name: str, dtype: torch.dtype) -> bool:
    return name in _SERVERS and can_be_summed(dtype.to_real() if dtype.is_complex else dtype)


@functools.cache
def _fold(name: str, dtype: torch.dtype) -> _Fold:
    found = (_FOLDS_OF_BOOL if dtype is torch.bool else _FOLDS).get(name)
    try:
        if found is not None:
            one = torch.zeros(1).to(dtype)
            found(one, one)
            return found
    except (RuntimeError, TypeError):  # torch cannot do it
        pass
    raise UnsupportedError(f"the backend byteps cannot reduce {dtype} by {name}: convert the tensor first")
