"""Python objects as bytes, and their broadcast from one worker to the others.

Numbers, strings, bytes, containers and NumPy arrays travel; a plugin adds the arrays of its framework as an
:class:`Extension`.  Nothing is unpickled: what arrives can only be a value of these types.

The bytes are msgpack.  ``None``, booleans, floats, strings, bytes and integers of 64 bits stand for themselves;
everything else is a msgpack array that starts with a :class:`_Tag`, so that a tuple stays a tuple and a dictionary may
have keys of any hashable type.
"""

from __future__ import annotations

import enum
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from byteps_py import session as _session
from byteps_py.errors import RemoteProtocolError, UnsupportedError
from byteps_py.types import DType, Operation, TensorSpec

__all__ = ["Extension", "broadcast_object", "decode", "encode"]

MAX_DEPTH: Final = 100
"""Containers may be nested so deep; a container that holds itself is found this way too."""

_ARRAY_KINDS: Final = "biufcSU"
_DTYPE_TEXT: Final = re.compile(rf"[<>|=]?[{_ARRAY_KINDS}][0-9]{{1,9}}")
_WIRE_INTEGERS: Final = range(-(2**63), 2**64)


class Extension(Protocol):
    """Carries one more type.

    Attributes:
        name: names the extension in the bytes; the receiver needs one of the same name.
    """

    name: str

    def encode(self, value: object) -> object | None:
        """``value`` in terms of types that travel already; None if it is not for this extension.

        Raises:
            UnsupportedError: it is the right type, but this value cannot travel; the message says why.
        """

    def decode(self, plain: Any) -> object:
        """The inverse. ``plain`` comes from the network.

        Raises:
            ValueError, TypeError, KeyError: it is nothing that :meth:`encode` would have made.
        """


class _Tag(enum.IntEnum):
    LIST = 0
    TUPLE = 1
    SET = 2
    FROZENSET = 3
    DICT = 4
    ORDERED_DICT = 5
    BIG_INTEGER = 6
    COMPLEX = 7
    BYTEARRAY = 8
    ARRAY = 9
    SCALAR = 10
    EXTENSION = 11


_SEQUENCES: Final[dict[type, _Tag]] = {
    list: _Tag.LIST,
    tuple: _Tag.TUPLE,
    set: _Tag.SET,
    frozenset: _Tag.FROZENSET,
}
_MAPPINGS: Final[dict[type, _Tag]] = {dict: _Tag.DICT, OrderedDict: _Tag.ORDERED_DICT}
_BUILDERS: Final[dict[_Tag, Callable[[Iterable[Any]], Any]]] = {
    tag: kind for kinds in (_SEQUENCES, _MAPPINGS) for kind, tag in kinds.items()
}


def encode(value: object, extensions: Sequence[Extension] = ()) -> bytes:
    """The bytes of ``value``.

    Args:
        value: None, bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, OrderedDict,
            NumPy arrays and scalars of numbers, booleans or fixed-size text, what the extensions know, and all of
            these within one another. Subclasses do not count: they would arrive as something else.
        extensions: asked in order.

    Raises:
        UnsupportedError: (a TypeError) names the type and the place of what cannot travel.
    """
    return msgspec.msgpack.encode(_plain(value, "object", 0, extensions))


def _plain(value: object, path: str, depth: int, extensions: Sequence[Extension]) -> object:
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes):
        return value
    if isinstance(value, int) and kind is int:
        return value if value in _WIRE_INTEGERS else [_Tag.BIG_INTEGER, _big_integer(value)]
    if isinstance(value, complex) and kind is complex:
        return [_Tag.COMPLEX, value.real, value.imag]
    if isinstance(value, bytearray) and kind is bytearray:
        return [_Tag.BYTEARRAY, bytes(value)]
    if isinstance(value, np.ndarray | np.generic) and _can_travel(value):
        if isinstance(value, np.generic):
            return [_Tag.SCALAR, value.dtype.str, value.tobytes()]
        return [_Tag.ARRAY, value.dtype.str, list(value.shape), value.tobytes()]
    if kind in _SEQUENCES or kind in _MAPPINGS:
        if depth == MAX_DEPTH:
            raise UnsupportedError(f"{path[:200]} ... is nested deeper than {MAX_DEPTH} levels, or holds itself")
        return _container(value, path, depth + 1, extensions)
    for extension in extensions:
        plain = extension.encode(value)
        if plain is not None:
            return [_Tag.EXTENSION, extension.name, _plain(plain, path, depth, extensions)]
    raise UnsupportedError(f"{path} is a {_describe(value)}, which cannot be broadcast: {_ADVICE}")


_ADVICE: Final = "send numbers, strings, bytes, lists, tuples, sets, dicts, arrays or tensors, for example vars(x)"


def _container(value: Any, path: str, depth: int, extensions: Sequence[Extension]) -> list[object]:
    tag = _MAPPINGS.get(type(value))
    if tag is not None:
        flat: list[object] = [tag]
        for key, item in value.items():
            flat.append(_plain(key, f"a key of {path}", depth, extensions))
            flat.append(_plain(item, f"{path}[{key!r}]", depth, extensions))
        return flat
    items = (_plain(item, f"{path}[{index}]", depth, extensions) for index, item in enumerate(value))
    return [_SEQUENCES[type(value)], *items]


def _can_travel(value: np.ndarray[Any, Any] | np.generic) -> bool:
    exact = isinstance(value, np.generic) or type(value) is np.ndarray
    return exact and _DTYPE_TEXT.fullmatch(value.dtype.str) is not None and value.dtype.itemsize > 0


def _describe(value: object) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return f"{kind} of dtype {value.dtype}" if isinstance(value, np.ndarray | np.generic) else kind


def _big_integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def decode(data: bytes | bytearray | memoryview, extensions: Sequence[Extension] = ()) -> object:
    """The value whose :func:`encode` gave ``data``; arrays are writable copies.

    Raises:
        RemoteProtocolError: whatever else the bytes are.
    """
    try:
        return _value(msgspec.msgpack.decode(data), {each.name: each for each in extensions})
    except (
        msgspec.MsgspecError,
        ValueError,  # also UnicodeDecodeError
        TypeError,
        LookupError,
        OverflowError,
        RuntimeError,  # also RecursionError, and what torch raises
        MemoryError,
    ) as error:
        raise RemoteProtocolError(f"the bytes of an object are malformed: {error}") from error


def _value(plain: Any, extensions: dict[str, Extension]) -> Any:
    if plain is None or type(plain) in (bool, int, float, str, bytes):
        return plain
    if type(plain) is not list:
        raise ValueError(f"a {type(plain).__name__} has no place here")
    tag, *rest = plain
    if tag in _BUILDERS:
        items = (_value(each, extensions) for each in rest)
        return _BUILDERS[tag](zip(items, items, strict=True) if tag in _MAPPINGS.values() else items)
    if tag == _Tag.EXTENSION:
        name, inner = rest
        return extensions[name].decode(_value(inner, extensions))
    return _LEAVES[_Tag(tag)](*rest)


def _array(text: str, shape: list[int], data: bytes) -> np.ndarray[Any, Any]:
    dtype = _dtype(text)
    if math.prod(shape) * dtype.itemsize != len(data) or any(each < 0 for each in shape):
        raise ValueError(f"{len(data)} bytes are no array of {shape} {dtype}")
    return np.frombuffer(data, dtype).reshape(shape).copy() if data else np.empty(shape, dtype)


def _scalar(text: str, data: bytes) -> Any:
    (value,) = np.frombuffer(data, _dtype(text))
    return value


def _dtype(text: str) -> np.dtype[Any]:
    if _DTYPE_TEXT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no dtype that travels")
    return np.dtype(text)


_LEAVES: Final[dict[_Tag, Callable[..., Any]]] = {
    _Tag.BIG_INTEGER: lambda data: int.from_bytes(data, "little", signed=True),
    _Tag.COMPLEX: complex,
    _Tag.BYTEARRAY: bytearray,
    _Tag.ARRAY: _array,
    _Tag.SCALAR: _scalar,
}


def broadcast_object(
    obj: object, root_rank: int = 0, name: str | None = None, extensions: Sequence[Extension] = ()
) -> object:
    """What worker ``root_rank`` passed, on every worker. All workers must call it; it blocks.

    Args:
        obj: at the root, see :func:`~byteps_py.objects.encode`; ignored elsewhere.
        root_rank: the worker whose object is sent.
        name: distinguishes calls that may cross; calls of one name are matched in their order.
        extensions: the same on all workers.

    Returns:
        ``obj`` itself at the root, elsewhere a copy.

    Raises:
        UnsupportedError: (a TypeError) the object cannot travel; raised on every worker, with type and place.
        ValueError: there is no such root.
    """
    session = _session.current()
    check_root(root_rank, session.size)
    prefix = f"Object.{name}" if name else "Object"
    if session.rank != root_rank:
        return _receive(session, prefix, root_rank, extensions)
    try:
        data = encode(obj, extensions)
    except Exception as error:  # the others wait already: they must hear of it, whatever it is
        _send(session, prefix, root_rank, str(error).encode(errors="replace"), ok=False)
        raise
    _send(session, prefix, root_rank, data, ok=True)
    return obj


def check_root(root_rank: int, size: int) -> None:
    """ValueError unless ``root_rank`` is one of the ``size`` workers."""
    if not 0 <= root_rank < size:
        raise ValueError(f"root_rank={root_rank}: there are {size} workers, counted from 0")


def _send(session: _session.Session, prefix: str, root: int, data: bytes, *, ok: bool) -> None:
    head = np.array([len(data), ok], np.int64)
    body = np.zeros(padded_length(len(data)), np.uint8)
    body[: len(data)] = np.frombuffer(data, np.uint8)
    session.submit(_head_spec(prefix), head, head, Operation.BROADCAST, root=root).wait()
    session.submit(_body_spec(prefix, body.size), body, body, Operation.BROADCAST, root=root).wait()


def _receive(session: _session.Session, prefix: str, root: int, extensions: Sequence[Extension]) -> object:
    head = session.submit(_head_spec(prefix), None, None, Operation.BROADCAST, root=root).wait()
    length, ok = head.tolist()
    spec = _body_spec(prefix, padded_length(length))
    body = session.submit(spec, None, None, Operation.BROADCAST, root=root).wait()
    data = body[:length].tobytes()
    if not ok:
        raise UnsupportedError(f"worker {root} could not broadcast its object: {data.decode(errors='replace')}")
    return decode(data, extensions)


def _head_spec(prefix: str) -> TensorSpec:
    return TensorSpec(f"{prefix}.length", DType.INT64, (2,))


def _body_spec(prefix: str, length: int) -> TensorSpec:
    return TensorSpec(f"{prefix}.bytes.{length}", DType.UINT8, (length,))


def padded_length(length: int) -> int:
    """``length`` bytes rounded up by at most an eighth.

    A tensor's shape is fixed by its name, so each length needs a name of its own; rounding keeps their number small
    however many objects are sent.
    """
    unit = max(1024, 1 << max(length.bit_length() - 4, 0))
    return max(1, -(-length // unit)) * unit
