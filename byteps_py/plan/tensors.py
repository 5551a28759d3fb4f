"""The tensors of a model, from a file or by a well-known name.

A file says more than a number of bytes does: how evenly its tensors can be spread over servers, and how many messages
they are.  Only shapes and dtypes are read, never the values, and nothing is unpickled here.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from byteps_py.errors import SettingsError, UnsupportedError
from byteps_py.plan.known_models import KNOWN
from byteps_py.types import DType, TensorSpec

__all__ = ["Model", "read_model"]

_MOST_HEADER: Final = 100 << 20
"""Bytes of the header of a safetensors file: its format's own limit."""
_SAFETENSORS: Final = {"F64": DType.FLOAT64, "F32": DType.FLOAT32, "F16": DType.FLOAT16, "BF16": DType.BFLOAT16}
_MOST_ELEMENTS: Final = 1 << 60
_FORMATS: Final = ".json, .npz, .safetensors, .pt or .pth"


@dataclass(frozen=True)
class Model:
    """What is exchanged in each step.

    Attributes:
        name: what it was called.
        specs: one for each tensor that has a gradient, at least one.
    """

    name: str
    specs: tuple[TensorSpec, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(each.nbytes for each in self.specs)


def read_model(name: str, dtype: DType = DType.FLOAT32) -> Model:
    """A model by its well-known name, or from a file.

    Args:
        name: one of :data:`KNOWN`, or the path of a JSON file (an object of names and shapes, or a list of shapes), of
            an ``.npz`` or ``.safetensors`` file, or of a state dict that torch has saved (which needs torch).
        dtype: of the gradients, where a file does not say; tensors of integers have no gradients, and are left out.

    Raises:
        SettingsError: there is no such model or file, it is damaged, or it has no tensor with a gradient.
    """
    if name in KNOWN:
        return Model(name, tuple(TensorSpec(each, dtype, shape) for each, shape in KNOWN[name]()))
    path = Path(name)
    readers = {".json": _json, ".npz": _npz, ".safetensors": _safetensors, ".pt": _torch, ".pth": _torch}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise SettingsError(f"--model {name}: it must be one of {', '.join(KNOWN)}, or the path of a {_FORMATS} file")
    try:
        found = tuple(_checked(each, kind, shape) for each, kind, shape in reader(path, dtype))
    except OSError as error:
        raise SettingsError(f"--model {name}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError, zipfile.BadZipFile) as error:
        raise SettingsError(f"--model {name} cannot be read as {path.suffix} file: {error}") from None
    if not any(each.nbytes for each in found):
        raise SettingsError(f"--model {name}: there is no tensor of floating-point numbers in it")
    return Model(path.name, found)


_Found = Iterable[tuple[str, DType, Any]]


def _checked(name: str, dtype: DType, shape: Any) -> TensorSpec:
    if not isinstance(shape, (list, tuple)) or not all(type(each) is int and each >= 0 for each in shape):
        raise ValueError(f"the shape of {name!r} must be a list of whole numbers from 0 on, not {shape!r}")
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ValueError(f"{name!r} of shape {shape!r} is too large")
    return TensorSpec(name, dtype, tuple(shape))


def _json(path: Path, dtype: DType) -> _Found:
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, Mapping):
        return [(name, dtype, shape) for name, shape in content.items()]
    if isinstance(content, list):
        return [(f"tensor{index}", dtype, shape) for index, shape in enumerate(content)]
    raise ValueError('it must be an object of names and shapes, {"weight": [512, 10]}, or a list of shapes')


def _npz(path: Path, _: DType) -> _Found:
    found = []
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _order, dtype = read(stream)
            found.append((member.removesuffix(".npy"), dtype, tuple(map(int, shape))))
    return [(name, kind, shape) for name, dtype, shape in found if (kind := _floating(dtype)) is not None]


def _floating(dtype: np.dtype[Any]) -> DType | None:
    """None for what has no gradient."""
    try:
        found = DType.from_numpy(dtype)
    except UnsupportedError:
        return None
    return found if found.is_floating else None


def _safetensors(path: Path, _: DType) -> _Found:
    """Eight bytes of the header's length, and the header in JSON: ``{name: {"dtype", "shape", "data_offsets"}}``."""
    with path.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 < length <= _MOST_HEADER:
            raise ValueError(f"its first eight bytes are no length of a header: {start.hex(' ')}")
        header = stream.read(length)
    if len(header) < length:
        raise ValueError(f"its header ends after {len(header)} of {length} bytes")
    content = json.loads(header)
    if not isinstance(content, Mapping):
        raise ValueError("its header is no object")
    return [
        (name, _SAFETENSORS[entry["dtype"]], entry["shape"])
        for name, entry in content.items()
        if name != "__metadata__" and entry["dtype"] in _SAFETENSORS
    ]


def _torch(path: Path, _: DType) -> _Found:
    try:
        from byteps_py.torch import state_file
    except ImportError as error:
        raise ValueError(f"{error}; or save it as .safetensors") from None
    return [
        (name, DType[dtype.upper()], shape)
        for name, dtype, shape in state_file.read_shapes(path)
        if dtype in ("float32", "float64", "float16", "bfloat16")
    ]
