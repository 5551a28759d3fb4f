"""Between torch tensors and the NumPy arrays that the session moves.

A *staged* tensor lies on the CPU, is contiguous and has the dtype that travels.  Wherever the user's tensor is so
already, the staged tensor shares its memory, and a result that is written there needs no copy back.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd.graph import increment_version

from byteps_py.errors import UnsupportedError
from byteps_py.types import DType, TensorSpec

__all__ = [
    "as_array",
    "as_bytes",
    "can_be_summed",
    "check_dense",
    "check_writable",
    "copy_back",
    "dtype_name",
    "spec_of",
    "stage",
    "to_device",
    "to_tensor",
    "wire_tag",
]

_TAGS: Final[dict[torch.dtype, DType]] = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.int8: DType.INT8,
    torch.uint8: DType.UINT8,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
}


def dtype_name(dtype: torch.dtype) -> str:
    """``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def can_be_summed(dtype: torch.dtype) -> bool:
    """Whether tensors of ``dtype`` can be pushed."""
    return dtype in _TAGS


def wire_tag(dtype: torch.dtype, what: str) -> DType:
    """The tag of ``dtype``; ``what`` names the tensor in the message.

    Raises:
        UnsupportedError: tensors of this dtype cannot be summed by the servers.
    """
    tag = _TAGS.get(dtype)
    if tag is None:
        known = ", ".join(map(dtype_name, _TAGS))
        raise UnsupportedError(
            f"{what} has dtype {dtype}, which cannot be pushed; supported are {known}: convert it first"
        )
    return tag


def check_dense(tensor: object, what: str) -> None:
    """Refuse what is no plain strided tensor; ``what`` names it in the message.

    Raises:
        UnsupportedError: it is sparse, or has no data, or is no tensor at all.
    """
    if not isinstance(tensor, torch.Tensor):
        kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
        raise UnsupportedError(f"{what} is a {kind}, not a torch.Tensor: convert it, for example by torch.as_tensor()")
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        raise UnsupportedError(
            f"{what} is sparse ({kind}), and only dense tensors are pushed: "
            "use to_dense(), or sparse=False in the layer that makes it"
        )
    if tensor.is_meta:
        raise UnsupportedError(f"{what} is on the meta device and has no data: give it some before it is pushed")


def check_writable(tensor: torch.Tensor, what: str) -> None:
    """Refuse a tensor whose elements share memory: a result cannot be written into it.

    Raises:
        UnsupportedError: it was made by ``expand()`` or its like.
    """
    if tensor.is_contiguous():
        return
    if any(stride == 0 and extent > 1 for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)):
        raise UnsupportedError(
            f"{what} is expanded: several of its elements share memory, and no result can be written into it; "
            "pass a clone() of it"
        )


def stage(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``tensor`` staged as ``dtype`` (None: its own), detached; shares its memory where that is possible."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.to(device="cpu", dtype=dtype or tensor.dtype).contiguous()


def copy_back(staged: torch.Tensor, tensor: torch.Tensor) -> None:
    """Bring a result that was written into ``staged`` to ``tensor``, from which it was staged.

    No autograd graph sees the change, but one that has saved the older values will notice it.
    """
    if staged.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(staged)
    elif not tensor.is_inference():
        increment_version(tensor)


def as_array(staged: torch.Tensor) -> npt.NDArray[Any]:
    """The memory of a staged tensor as the session wants it: bfloat16 as uint16."""
    if staged.dtype is torch.bfloat16:
        return staged.view(torch.int16).numpy().view(np.uint16)
    return staged.numpy()


def to_tensor(array: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """The inverse of :func:`as_array`; shares the memory."""
    if dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_bytes(staged: torch.Tensor) -> torch.Tensor:
    """The memory of a staged tensor of any dtype, as uint8 in one dimension."""
    return staged.reshape(-1).view(torch.uint8)


def spec_of(name: str, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> TensorSpec:
    """What ``tensor`` is declared as when it travels as ``dtype`` (None: its own).

    Raises:
        UnsupportedError: it is not dense, or the dtype cannot be pushed; the message names it.
    """
    what = f"tensor {name!r}"
    check_dense(tensor, what)
    return TensorSpec(name, wire_tag(dtype or tensor.dtype, what), tuple(tensor.shape))


def to_device(value: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """``value`` with the tensors in it, within tuples, lists and dicts, on ``device``; ``non_blocking`` as in torch."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=non_blocking)
    if isinstance(value, list | tuple):
        moved = [to_device(each, device, non_blocking=non_blocking) for each in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)  # a named tuple, or not
    if isinstance(value, dict):
        return {key: to_device(each, device, non_blocking=non_blocking) for key, each in value.items()}
    return value
