"""Between MXNet's arrays and the NumPy arrays that the session moves."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import mxnet as mx
import numpy as np
import numpy.typing as npt

from byteps_py.errors import UnsupportedError
from byteps_py.roles.tensors import check_spec
from byteps_py.types import DType, TensorSpec

__all__ = ["memory_of", "spec_of"]

_TAGS: Final[dict[np.dtype[Any], DType]] = {
    each.storage: each
    for each in DType
    if each is not DType.BFLOAT16  # an MXNet on CPUs cannot make such arrays
}
_DEVICES: Final = ("cpu", "cpu_pinned", "cpu_shared")


def spec_of(name: str, array: Any) -> TensorSpec:
    """What ``array`` is declared as.

    Raises:
        UnsupportedError: it is no dense array in the memory of the host, or of a dtype that cannot be pushed, or the
            name is impossible.
    """
    what = f"tensor {name!r}"
    if not isinstance(array, mx.nd.NDArray):
        raise UnsupportedError(f"{what} is a {type(array).__qualname__}, not an MXNet NDArray")
    if array.stype != "default":
        raise UnsupportedError(
            f"{what} is sparse ({array.stype}), and only dense arrays are pushed: "
            "use tostype('default'), or sparse_grad=False in the layer that makes it"
        )
    device = array.ctx.device_type
    if device not in _DEVICES:
        raise UnsupportedError(
            f"{what} is on a {device}, and only arrays on CPUs are pushed: use as_in_context(mx.cpu()) first"
        )
    dtype: np.dtype[Any] = np.dtype(array.dtype)
    tag = _TAGS.get(dtype)
    if tag is None:
        known = ", ".join(each.label for each in _TAGS.values())
        raise UnsupportedError(
            f"{what} has dtype {dtype.name!r}, which cannot be pushed; supported are {known}: convert it first"
        )
    spec = TensorSpec(name, tag, tuple(array.shape))
    check_spec(spec)
    return spec


def memory_of(array: Any, spec: TensorSpec) -> npt.NDArray[Any]:
    """The memory of ``array``, whose spec is ``spec``, as a writable NumPy array that does not keep it alive.

    Only for an operation of the engine that has the array to itself, and in MXNet's default layout: then nothing here
    waits.

    Raises:
        MXNetError: the engine refuses it.
    """
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    if not spec.nbytes:
        return np.empty(spec.shape, spec.dtype.storage)
    if not pointer.value:
        raise UnsupportedError(f"tensor {spec.name!r} has no memory yet: give it a value before it is pushed")
    memory = memoryview((ctypes.c_uint8 * spec.nbytes).from_address(pointer.value))
    flat: npt.NDArray[Any] = np.frombuffer(memory, spec.dtype.storage)
    return flat.reshape(spec.shape)
