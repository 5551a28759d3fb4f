"""Whatever the bytes are: a valid message or a RemoteProtocolError, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_py.errors import LocalProtocolError, RemoteProtocolError
from byteps_py.roles.envelope import open_bundle
from byteps_py.types import MAX_GROUP, DType, Operation, Participant, Partition, Role, ServerInfo, TensorSpec, make_key
from byteps_py.wire import control
from byteps_py.wire.bundle import ENTRY_SIZE
from byteps_py.wire.control import ControlMessage, decode_control, encode_control
from byteps_py.wire.header import (
    HEADER_SIZE,
    MAX_ELEMENTS,
    MAX_ENTRIES,
    MAX_PROBE_BYTES,
    MAX_REASON_BYTES,
    Flag,
    Header,
    Opcode,
    decode,
    encode,
)
from tests.helpers.messages import BUNDLES, CONTROL, DATA

many = settings(max_examples=400, deadline=None)

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
natural = st.integers(0, 2**31 - 1)
positive = st.integers(1, 2**31 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    """Any header that may be sent."""
    opcode = draw(st.sampled_from(Opcode))
    dtype = draw(st.sampled_from(DType))
    offset = draw(st.integers(0, MAX_ELEMENTS))
    count = draw(st.integers(0, MAX_ELEMENTS - offset))
    flags, detail, length = Flag.NONE, 0, 0
    if opcode is Opcode.PUSH:
        flags = draw(st.sampled_from([Flag.NONE, Flag.ABSENT, Flag.WANT_RESULT, Flag.ABSENT | Flag.WANT_RESULT]))
        if draw(st.booleans()):
            flags |= Flag.PARTIAL
            detail = 0 if Flag.ABSENT in flags else draw(st.integers(1, 65535))
    elif opcode is Opcode.RESULT:
        flags, detail = draw(st.sampled_from([Flag.NONE, Flag.ABSENT])), draw(u32)
    elif opcode is Opcode.ACCEPT:
        detail = draw(st.integers(1, 2**32 - 1))
        length = detail * 16
    elif opcode is Opcode.WAITING:
        detail, flags = draw(u32), draw(st.sampled_from([Flag.NONE, Flag.PARTIAL]))
        length = detail * 4
    elif opcode in (Opcode.PUSH_MANY, Opcode.RESULT_MANY):
        detail, length = draw(st.integers(1, MAX_ENTRIES)), draw(st.integers(0, 2**64 - 1))
    elif opcode is Opcode.REJECT:
        detail, length = draw(st.integers(0, 1)), draw(st.integers(1, MAX_REASON_BYTES))
    elif opcode is Opcode.PROBE:
        length = draw(st.integers(1, MAX_PROBE_BYTES))
    if opcode in (Opcode.PUSH, Opcode.RESULT) and Flag.ABSENT not in flags:
        wide = opcode is Opcode.PUSH and detail > 1 and dtype in (DType.FLOAT16, DType.BFLOAT16)
        length = count * (4 if wide else dtype.itemsize)
    may_be_held = Flag.PARTIAL not in flags or opcode is not Opcode.PUSH
    operation = draw(st.sampled_from([each for each in Operation if may_be_held or not each.is_asynchronous]))
    if opcode is Opcode.PUSH and detail > 1:
        operation = Operation.SUM
    return Header(
        opcode=opcode,
        sender=draw(u32),
        job=draw(u64),
        incarnation=draw(u64),
        epoch=draw(u32),
        key=draw(u64),
        round=draw(st.integers(1, 2**64 - 1)),
        dtype=dtype,
        operation=operation,
        flags=flags,
        root=draw(u16),
        detail=detail,
        step=draw(u64),
        offset=offset,
        count=count,
        length=length,
    )


processes = st.builds(control.ProcessInfo, host=text, host_id=text, pid=natural, started=u64)
groups = st.integers(0, MAX_GROUP)
ranks = st.lists(natural, min_size=1, max_size=5, unique=True).map(lambda each: tuple(sorted(each)))
shapes = st.lists(st.integers(0, 50), max_size=5).map(tuple)
specs = st.builds(TensorSpec, name=name, dtype=st.sampled_from(DType), shape=shapes, group=groups)


@st.composite
def placements(draw: st.DrawFn) -> control.Placement:
    tensor_id = draw(u32)
    partitions, offset = [], 0
    for index, count in enumerate(draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=4))):
        partitions.append(Partition(make_key(tensor_id, index), offset, count, draw(u16)))
        offset += count
    return control.Placement(draw(name), tensor_id, tuple(partitions))


@st.composite
def welcomes(draw: st.DrawFn) -> control.Welcome:
    participants = tuple(
        Participant(rank, draw(u16), draw(u16), draw(st.integers(1, 9)), draw(text), draw(u32), draw(u64))
        for rank in range(draw(st.integers(0, 3)))
    )
    servers = tuple(
        ServerInfo(rank, draw(text), draw(text), draw(u32), draw(u64)) for rank in range(draw(st.integers(0, 3)))
    )
    return control.Welcome(draw(u64), draw(natural), draw(natural), participants, servers)


@st.composite
def vouches(draw: st.DrawFn) -> control.Vouch:
    ranks = draw(st.lists(natural.filter(lambda rank: rank < 2**31 - 1), max_size=3, unique=True))
    local_size = draw(st.integers(max(ranks, default=0) + 1, 2**31 - 1))
    children = tuple(control.Child(rank, draw(processes)) for rank in ranks)
    return control.Vouch(draw(text), draw(text), draw(st.none() | natural), local_size, children)


messages: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        control.Register,
        version=text,
        job_id=text,
        role=st.sampled_from(Role),
        process=processes,
        incarnation=u64,
        num_worker=positive,
        num_server=natural,
        worker_id=st.none() | natural,
        local_rank=natural,
        local_size=positive,
        launch_id=text,
        address=text,
        partition_bytes=natural,
    ),
    st.builds(control.Refused, reason=text),
    st.builds(control.Waiting, text=text, barrier=natural),
    st.builds(control.Notice, text=text),
    welcomes(),
    st.builds(control.Declare, request=natural, tensors=st.lists(specs, max_size=3).map(tuple), link=u64),
    st.builds(
        control.Declared,
        request=natural,
        placements=st.lists(placements(), max_size=3).map(tuple),
        partition_bytes=natural,
        window_bytes=natural,
    ),
    st.builds(control.Conflict, name=text, text=text),
    st.builds(control.FormGroup, request=natural, ranks=ranks),
    st.builds(control.Group, group=groups.filter(bool), ranks=ranks),
    st.builds(control.GroupKnown, group=groups.filter(bool)),
    st.builds(control.GroupFormed, request=natural, group=groups, problem=text),
    st.builds(control.Barrier, number=positive),
    st.builds(control.BarrierDone, number=positive),
    st.builds(control.HeartbeatReply, scheduler=processes),
    st.builds(control.Clock, number=natural),
    st.tuples(u64, u64).map(lambda two: control.ClockReply(1, min(two), max(two))),
    st.builds(control.Left, rank=natural),
    st.builds(
        control.ChildEnded,
        job_id=text,
        process=processes,
        status=st.integers(-64, 255),
        launch_id=text,
        worker_id=st.none() | natural,
        local_rank=st.none() | natural,
        local_size=positive,
    ),
    vouches(),
    st.builds(control.Vouched, missing=st.lists(natural, max_size=3).map(tuple)),
    st.builds(control.Abort, reason=text),
    st.builds(control.Heartbeat, job=u64),
    st.builds(control.Bye, reason=text),
    st.just(control.Finished()),
)

mutations = st.tuples(st.integers(0, 10**6), st.integers(1, 255))
"""Where a byte is changed (modulo the length), and what it is xored with."""

payload_lengths = st.none() | st.sampled_from([0, 1, 4, 8, 16, 32]) | st.integers(0, 2**40)


def mutate(frame: bytes, mutation: tuple[int, int]) -> bytes:
    place, mask = mutation
    changed = bytearray(frame)
    changed[place % len(changed)] ^= mask
    return bytes(changed)


def check_data(frame: bytes, payload_length: int | None) -> None:
    """The promise; and what is accepted is exactly what :func:`encode` makes."""
    try:
        header = decode(frame, payload_length)
    except RemoteProtocolError:
        return
    assert encode(header) == frame
    assert header.length == (payload_length or 0)


def check_bundle(frames: Sequence[bytes]) -> None:
    """The promise; what is accepted has one table entry for each that the header announces."""
    try:
        header, table, payload = open_bundle([memoryview(each) for each in frames])
    except RemoteProtocolError:
        return
    assert encode(header) == frames[0]
    assert table.nbytes == header.detail * ENTRY_SIZE
    assert header.length == payload.nbytes


def check_control(frame: bytes) -> None:
    """The promise; and what is accepted can be passed on."""
    try:
        message = decode_control(frame)
    except RemoteProtocolError:
        return
    assert isinstance(message, ControlMessage)
    assert decode_control(encode_control(message)) == message


class TestData:
    @many
    @given(st.binary(max_size=200), payload_lengths)
    def test_any_bytes(self, frame: bytes, payload_length: int | None) -> None:
        check_data(frame, payload_length)

    @many
    @given(st.binary(min_size=HEADER_SIZE - 5, max_size=HEADER_SIZE - 5), payload_lengths)
    def test_any_bytes_behind_magic_and_version(self, rest: bytes, payload_length: int | None) -> None:
        check_data(b"BPSy\x01" + rest, payload_length)

    @many
    @given(st.sampled_from(sorted(DATA)), mutations)
    def test_one_changed_byte(self, example: str, mutation: tuple[int, int]) -> None:
        header, payload = DATA[example]
        check_data(mutate(encode(header), mutation), None if payload is None else len(payload))

    @many
    @given(headers())
    def test_round_trip(self, header: Header) -> None:
        assert decode(encode(header), header.length) == header

    @many
    @given(headers(), mutations)
    def test_one_changed_byte_of_any_header(self, header: Header, mutation: tuple[int, int]) -> None:
        check_data(mutate(encode(header), mutation), header.length)

    @many
    @given(headers(), payload_lengths)
    def test_another_payload_length_is_refused(self, header: Header, payload_length: int | None) -> None:
        if (payload_length or 0) != header.length:
            with pytest.raises(RemoteProtocolError, match="announces"):
                decode(encode(header), payload_length)

    @many
    @given(
        headers(),
        st.sampled_from(["sender", "job", "key", "round", "step", "offset", "count", "length", "root", "detail"]),
        st.integers(-(2**70), 2**70),
    )
    def test_any_number_is_encoded_or_refused(self, header: Header, field: str, value: int) -> None:
        changed = msgspec.structs.replace(header, **{field: value})
        try:
            frame = encode(changed)
        except LocalProtocolError:
            return
        assert decode(frame, changed.length) == changed


class TestBundles:
    @many
    @given(st.sampled_from(sorted(BUNDLES)), st.lists(st.binary(max_size=200), max_size=3))
    def test_any_frames_behind_a_header(self, example: str, frames: list[bytes]) -> None:
        check_bundle([encode(BUNDLES[example][0]), *frames])

    @many
    @given(st.sampled_from(sorted(BUNDLES)), mutations)
    def test_one_changed_byte_of_the_header(self, example: str, mutation: tuple[int, int]) -> None:
        header, table, payload = BUNDLES[example]
        check_bundle([mutate(encode(header), mutation), table, payload])

    @many
    @given(headers(), st.binary(max_size=200), st.binary(max_size=9))
    def test_any_header(self, header: Header, table: bytes, payload: bytes) -> None:
        changed = msgspec.structs.replace(header, length=len(payload))
        with contextlib.suppress(LocalProtocolError):
            check_bundle([encode(changed), table, payload])

    @pytest.mark.parametrize("example", sorted(BUNDLES))
    def test_every_truncation_of_the_table_is_refused(self, example: str) -> None:
        header, table, payload = BUNDLES[example]
        for length in range(len(table)):
            with pytest.raises(RemoteProtocolError, match="entries of 40 bytes"):
                open_bundle([memoryview(encode(header)), memoryview(table)[:length], memoryview(payload)])


class TestControl:
    @many
    @given(st.binary(max_size=200))
    def test_any_bytes(self, frame: bytes) -> None:
        check_control(frame)

    @many
    @given(st.binary(max_size=200))
    def test_any_bytes_behind_the_prefix(self, rest: bytes) -> None:
        check_control(b"BPSc\x01" + rest)

    @many
    @given(
        st.sampled_from(sorted(CONTROL)),
        st.dictionaries(
            st.sampled_from(["request", "tensors", "rank", "number", "reason", "participants", "job", "placements"]),
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers(-(2**63), 2**64 - 1)
                | st.floats()
                | text
                | st.binary(max_size=9),
                lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=3),
            ),
        ),
    )
    def test_any_fields(self, tag: str, fields: dict[str, Any]) -> None:
        check_control(b"BPSc\x01" + msgspec.msgpack.encode({"type": tag, **fields}))

    @many
    @given(st.sampled_from(sorted(CONTROL)), mutations)
    def test_one_changed_byte(self, example: str, mutation: tuple[int, int]) -> None:
        check_control(mutate(encode_control(CONTROL[example]), mutation))

    @many
    @given(st.sampled_from(sorted(CONTROL)), mutations, st.integers(1, 9), st.binary(max_size=9))
    def test_a_changed_length_or_piece(self, example: str, mutation: tuple[int, int], cut: int, piece: bytes) -> None:
        frame = encode_control(CONTROL[example])
        place = mutation[0] % len(frame)
        check_control(frame[:place] + piece + frame[place + cut :])

    @many
    @given(messages)
    def test_round_trip(self, message: ControlMessage) -> None:
        assert decode_control(encode_control(message)) == message

    @many
    @given(messages, mutations)
    def test_one_changed_byte_of_any_message(self, message: ControlMessage, mutation: tuple[int, int]) -> None:
        check_control(mutate(encode_control(message), mutation))

    @pytest.mark.parametrize("example", sorted(CONTROL))
    def test_every_truncation_is_refused(self, example: str) -> None:
        frame = encode_control(CONTROL[example])
        for length in range(len(frame)):
            with pytest.raises(RemoteProtocolError):
                decode_control(frame[:length])
