"""Small frozen values that every layer speaks of."""

from __future__ import annotations

import enum
import math
import operator
import sys
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from byteps_py.errors import UnsupportedError
from byteps_py.role import Role

__all__ = [
    "GROUP_TENSORS",
    "MAX_GROUP",
    "PARTITION_BITS",
    "DType",
    "Operation",
    "Participant",
    "Partition",
    "Role",
    "ServerInfo",
    "TensorSpec",
    "check_count",
    "check_shape",
    "group_of",
    "make_key",
    "make_tensor_id",
    "split_key",
]

PARTITION_BITS = 32
"""The lower bits of a key, which count the partitions of a tensor."""

_GROUP_TENSOR_BITS = 18
GROUP_TENSORS = 1 << _GROUP_TENSOR_BITS
"""Most tensors that one group of workers has."""
MAX_GROUP = (1 << 13) - 1
"""Highest id of a group of workers: as many pairs as 128 workers can form."""
_OF_A_GROUP = 1 << 31
"""Highest bit of a tensor id: whether 13 bits of it are those of a group, and only the others count tensors."""


def check_shape(shape: Any) -> tuple[int, ...]:
    """The shape of a new array, given as a number or as numbers of any kind of integer.

    Raises:
        TypeError: it is neither.
        ValueError: a dimension is negative or beyond 2**63 - 1.
    """
    is_one = hasattr(shape, "__index__") or isinstance(shape, str | bytes)  # whose parts mean nothing here
    try:
        checked = tuple(map(operator.index, (shape,) if is_one else shape))
    except TypeError:
        raise TypeError(f"shape must be a whole number or a tuple of whole numbers, not {shape!r}") from None
    if not all(0 <= each <= sys.maxsize for each in checked):
        raise ValueError(f"shape {shape!r}: each dimension must be a number from 0 to {sys.maxsize}")
    return checked


def check_count(samples: Any) -> Any:
    """A number of samples as a Python number, for what may be NumPy's or torch's.

    Raises:
        TypeError, ValueError: it is no number from 0 on.
    """
    try:
        found: float = operator.index(samples)
    except TypeError:
        try:
            found = float(samples)
        except (TypeError, ValueError):
            raise TypeError(f"step(samples=...) takes the number of samples in the step, not {samples!r}") from None
    if not 0 <= found < math.inf:
        raise ValueError(f"step(samples=...) takes a number from 0 on, not {samples!r}")
    return found


class DType(enum.IntEnum):
    """Element types that can be summed.  The number is the tag on the wire and in C (``csrc/cdefs.h``)."""

    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    INT8 = 5
    UINT8 = 6
    INT32 = 7
    INT64 = 8

    @property
    def label(self) -> str:
        """The lower-case name, such as ``"bfloat16"``."""
        return self.name.lower()

    @property
    def storage(self) -> np.dtype[Any]:
        """The NumPy dtype that holds the bits, which is the same type, but ``uint16`` for bfloat16, which it lacks."""
        return _STORAGE[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _STORAGE[self].itemsize

    @property
    def is_floating(self) -> bool:
        """Whether AVERAGE is a true division (else it floors)."""
        return self in (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)

    @classmethod
    def from_numpy(cls, dtype: npt.DTypeLike) -> DType:
        """The tag of a NumPy dtype; ``ml_dtypes.bfloat16`` is known by its name.

        Raises:
            UnsupportedError: for any other dtype (bool, complex, float8, uint16, big-endian ...).
        """
        resolved: np.dtype[Any] = np.dtype(dtype)
        found = _FROM_NUMPY.get(resolved)  # dtypes of other byte orders are not equal to these
        if found is None:
            if resolved.name == "bfloat16":
                return cls.BFLOAT16
            known = ", ".join(each.label for each in cls)
            raise UnsupportedError(
                f"dtype {resolved.name!r} ({resolved.str}) cannot be pushed; supported are {known} in native "
                "byte order: convert the array first"
            )
        return found


_STORAGE: dict[DType, np.dtype[Any]] = {
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT64: np.dtype(np.float64),
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(np.uint16),
    DType.INT8: np.dtype(np.int8),
    DType.UINT8: np.dtype(np.uint8),
    DType.INT32: np.dtype(np.int32),
    DType.INT64: np.dtype(np.int64),
}
_FROM_NUMPY: dict[np.dtype[Any], DType] = {
    storage: dtype for dtype, storage in _STORAGE.items() if dtype is not DType.BFLOAT16
}


class Operation(enum.IntEnum):
    """What is made of the contributions of one round."""

    SUM = 1
    AVERAGE = 2
    """SUM divided by the number of workers, or of members of the tensor's group."""
    BROADCAST = 3
    """The contribution of one worker, the root."""
    SEED = 4
    """The same; and the servers hold it from then on, for DIFFERENCE. In asynchronous training only."""
    DIFFERENCE = 5
    """The contribution is added to what the servers hold, which is the result as it is then. Nobody waits for others,
    and rounds are counted for each worker by itself."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether the servers hold the tensor; see ``byteps_py/core/parameters.py``."""
        return self >= Operation.SEED


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """A declared tensor: its name is its identity, the rest must be equal on all workers.

    ``group`` is the id of those workers that contribute to it and have its results, as
    :meth:`~byteps_py.session.Session.form_group` gives it; 0: all.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    group: int = 0

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.count * self.dtype.itemsize

    def describe(self) -> str:
        """For messages: ``float32 (3, 4)``, or ``float32 (3, 4) of group 2``."""
        return f"{self.dtype.label} {self.shape}" + (f" of group {self.group}" if self.group else "")


class Partition(msgspec.Struct, frozen=True, array_like=True):
    """A contiguous run of elements of one tensor that travels in one message; ``offset`` and ``count`` in elements."""

    key: int
    offset: int
    count: int
    server: int


class Participant(msgspec.Struct, frozen=True, array_like=True):
    """One worker process as the scheduler lists it.

    ``rank`` is the place in the list, ``node`` the index of its machine, ``incarnation`` a random 64-bit number
    drawn anew by every process start.
    """

    rank: int
    node: int
    local_rank: int
    local_size: int
    host: str
    pid: int
    incarnation: int

    def describe(self) -> str:
        """For messages: ``worker 1 (pid 4242 on host-a)``."""
        return f"worker {self.rank} (pid {self.pid} on {self.host})"


class ServerInfo(msgspec.Struct, frozen=True, array_like=True):
    """One server process as the scheduler lists it; ``address`` is where its data socket listens."""

    rank: int
    address: str
    host: str
    pid: int
    incarnation: int

    def describe(self) -> str:
        """For messages: ``server 0 (pid 4242 on host-a)``."""
        return f"server {self.rank} (pid {self.pid} on {self.host})"


def make_key(tensor_id: int, index: int) -> int:
    """The 64-bit key of partition ``index`` of tensor ``tensor_id`` (32 bits each)."""
    return (tensor_id << PARTITION_BITS) | index


def make_tensor_id(group: int, number: int) -> int:
    """The id of tensor ``number`` (from 0) of a group; of those of all workers (group 0) it is the number itself."""
    return _OF_A_GROUP | group << _GROUP_TENSOR_BITS | number if group else number


def group_of(key: int) -> int:
    """The group of workers that the tensor of a key is for; 0: all."""
    tensor_id = key >> PARTITION_BITS
    return (tensor_id & ~_OF_A_GROUP) >> _GROUP_TENSOR_BITS if tensor_id & _OF_A_GROUP else 0


def split_key(key: int) -> tuple[int, int]:
    """Inverse of :func:`make_key`: ``(tensor_id, index)``."""
    return key >> PARTITION_BITS, key & ((1 << PARTITION_BITS) - 1)
