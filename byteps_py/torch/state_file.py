"""What is in a state dict that torch has saved."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["read_shapes"]


def read_shapes(path: Path) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, name of the dtype and shape of each tensor in a file of ``torch.save``, also of those in dicts within.

    Nothing but tensors and plain containers is loaded (``weights_only``), and tensors without their values.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, or holds other objects.
    """
    try:
        content = torch.load(path, map_location="meta", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, AttributeError) as error:
        raise ValueError(str(error).partition("\n")[0] or type(error).__name__) from None
    return _tensors("", content)


def _tensors(name: str, content: Any) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    if isinstance(content, torch.Tensor):
        yield name, str(content.dtype).removeprefix("torch."), tuple(content.shape)
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(f"{name}.{key}" if name else str(key), value)
