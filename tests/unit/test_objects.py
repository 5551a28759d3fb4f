"""Objects as bytes and back, and their broadcast."""

from __future__ import annotations

import datetime
import enum
from collections import OrderedDict, defaultdict
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from byteps_py.errors import AgreementError, RemoteProtocolError, UnsupportedError
from byteps_py.objects import MAX_DEPTH, broadcast_object, decode, encode, padded_length
from byteps_py.types import TensorSpec
from tests.helpers.fake_session import FakeSession, run_workers


def same(left: Any, right: Any) -> bool:
    """Equal in value, bits and type, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray | np.generic):
        return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())
    if isinstance(left, dict):
        return len(left) == len(right) and all(map(same, left.items(), right.items()))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return repr(left) == repr(right) if isinstance(left, float | complex) else bool(left == right)


NUMBERS = (
    numpy_strategies.integer_dtypes(endianness="?")
    | numpy_strategies.unsigned_integer_dtypes(endianness="?")
    | numpy_strategies.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | numpy_strategies.complex_number_dtypes(endianness="?", sizes=(64, 128))
    | numpy_strategies.boolean_dtypes()
    | numpy_strategies.unicode_string_dtypes(endianness="?", min_len=1, max_len=5)
    | numpy_strategies.byte_string_dtypes(min_len=1, max_len=5)
)
ARRAYS = numpy_strategies.arrays(NUMBERS, numpy_strategies.array_shapes(min_dims=0, min_side=0, max_dims=3))
KEYS = st.text() | st.integers() | st.binary() | st.tuples(st.integers(), st.text()) | st.none() | st.booleans()
LEAVES = KEYS | st.floats() | st.complex_numbers() | ARRAYS | st.binary().map(bytearray)
OBJECTS = st.recursive(
    LEAVES | st.sets(KEYS) | st.frozensets(KEYS),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
    ),
)


@given(OBJECTS)
def test_objects_arrive_equal_in_value_and_type(value: object) -> None:
    assert same(decode(encode(value)), value)


@given(st.binary() | OBJECTS.map(encode).map(lambda data: data[: len(data) // 2]))
def test_any_bytes_give_an_object_or_a_protocol_error(data: bytes) -> None:
    try:
        decode(data)
    except RemoteProtocolError:
        return


PLAIN = st.recursive(
    st.none()
    | st.integers(-2, 13)
    | st.floats()
    | st.binary(max_size=16)
    | st.sampled_from(["<f4", "<U0", "O", "<i8"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.integers(0, 3), inner, max_size=2),
)


@given(PLAIN)
def test_any_message_gives_an_object_or_a_protocol_error(plain: object) -> None:
    try:
        decode(msgspec.msgpack.encode(plain))
    except RemoteProtocolError:
        return


@pytest.mark.parametrize(
    "plain",
    [
        [9, "|O", [1], b"12345678"],
        [9, "<f4", [3], b"12345678"],
        [9, "<f4", [-1, -2], b"12345678"],
        [9, "<f4", [0, 2**62, 2**62], b""],
        [10, "<f4", b"12345678"],
        [4, 1],
        [11, "torch", None],
        [99],
        [],
        {"a": 1},
        datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
    ],
)
def test_forged_messages_are_refused(plain: object) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed"):
        decode(msgspec.msgpack.encode(plain))


class Color(enum.IntEnum):
    RED = 1


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, r"object\['a'\]\[1\] is a builtins.object"),
        ({"a": Color.RED}, r"object\['a'\] is a .*Color"),
        (Name("x"), "object is a .*Name"),
        ((1, defaultdict(int)), r"object\[1\] is a collections.defaultdict"),
        ({frozenset([Color.RED]): 1}, r"a key of object\[0\] is a .*Color"),
        (np.array([None]), "object is a numpy.ndarray of dtype object"),
        (np.zeros(2, ml_dtypes.bfloat16), "of dtype bfloat16"),
        (np.ma.masked_array([1, 2]), "MaskedArray"),
        (lambda: 1, "builtins.function"),
    ],
)
def test_other_types_are_refused_with_type_and_place(value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encode(value)


def test_containers_may_not_hold_themselves() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(UnsupportedError, match=f"deeper than {MAX_DEPTH}"):
        encode(endless)


def test_nesting_up_to_the_limit_travels() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert decode(encode(value)) == value


def test_arrays_arrive_writable_and_in_one_piece() -> None:
    array = np.arange(12.0).reshape(3, 4).T
    arrived = decode(encode(array))
    assert isinstance(arrived, np.ndarray)
    assert arrived.flags.writeable
    assert np.array_equal(arrived, array)


@pytest.mark.parametrize("root", [0, 2])
def test_every_worker_gets_the_roots_object(root: int) -> None:
    value = {"step": 7, "name": "x" * 5000, "data": (np.arange(4), {1, 2})}

    def body(session: FakeSession) -> object:
        mine = value if session.rank == root else f"of {session.rank}"
        first = broadcast_object(mine, root)
        second = broadcast_object({"n": session.rank}, root, name="other")
        return first, second

    results = run_workers(3, body)
    assert all(same(each, (value, {"n": root})) for each in results)
    assert results[root][0] is value  # type: ignore[index]


def test_what_cannot_travel_is_a_type_error_on_every_worker() -> None:
    def body(session: FakeSession) -> str:
        with pytest.raises(TypeError, match=r"object\['x'\] is a builtins\.object") as caught:
            broadcast_object({"x": object()} if session.rank == 0 else None)
        return str(caught.value)

    ours, theirs = run_workers(2, body)
    assert theirs == f"worker 0 could not broadcast its object: {ours}"


def test_text_that_is_no_text_fails_on_every_worker() -> None:
    def body(session: FakeSession) -> None:
        with pytest.raises(UnicodeEncodeError if session.rank == 0 else TypeError):
            broadcast_object("\ud800")

    run_workers(2, body)


def test_an_object_that_fails_on_its_way_is_not_announced_again() -> None:
    """The others have taken the length already: they would take a second one for that of the next object."""

    def body(session: FakeSession) -> None:
        submit = session.submit

        def without_bytes(spec: TensorSpec, *arguments: Any, **more: Any) -> Any:
            if ".bytes." in spec.name:
                raise AgreementError("no")
            return submit(spec, *arguments, **more)

        session.submit = without_bytes  # type: ignore[method-assign]
        with pytest.raises(AgreementError):
            broadcast_object("x")
        assert [each.name for each in session.submitted] == ["Object.length"]

    run_workers(1, body)


def test_an_unknown_root_is_named() -> None:
    def body(session: FakeSession) -> None:
        with pytest.raises(ValueError, match="root_rank=2: there are 2 workers"):
            broadcast_object(1, root_rank=2)

    run_workers(2, body)


def test_objects_of_many_lengths_need_few_tensor_names() -> None:
    lengths = [padded_length(n) for n in range(100_000)]
    assert all(padded >= n for n, padded in enumerate(lengths))
    assert all(padded <= n * 1.125 for n, padded in enumerate(lengths) if n > 8192)
    assert len(set(lengths)) < 60
