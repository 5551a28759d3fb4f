"""What is in a state dict that torch has saved."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["read_shapes"]

_WANTED = "wanted is what torch.save(model.state_dict(), FILE) has written"


def read_shapes(path: Path) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, name of the dtype and shape of each tensor in a file of ``torch.save``, also of those in dicts within.

    Nothing but tensors and plain containers is loaded (``weights_only``), and tensors without their values.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, or holds other objects.
    """
    try:
        with warnings.catch_warnings():  # of files that are refused in a moment
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="meta", weights_only=True)
    except OSError:
        raise
    except Exception:  # torch's own texts advise to load whatever it is, and damaged files fail in many ways
        raise ValueError(f"{_why_not(path)}; {_WANTED}") from None
    return _tensors("", content)


def _why_not(path: Path) -> str:
    """What a file is that torch does not load as plain tensors, as far as that is seen from outside."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [each.partition("/")[2] for each in archive.namelist()]
    except zipfile.BadZipFile:
        return "it is damaged, or torch.save has not written it"
    if "constants.pkl" in names:
        return "it is a program of TorchScript"
    if "data.pkl" not in names:
        return "torch.save has not written it"
    return "it holds other objects than tensors and plain containers, such as a whole model, or is damaged"


def _tensors(name: str, content: Any) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    if isinstance(content, torch.Tensor):
        yield name, str(content.dtype).removeprefix("torch."), tuple(content.shape)
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(f"{name}.{key}" if name else str(key), value)
