"""Control messages, byte by byte, and what makes one unacceptable."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from byteps_py.errors import LocalProtocolError, RemoteProtocolError
from byteps_py.types import DType, Participant, Partition, ServerInfo, TensorSpec, make_key
from byteps_py.wire import control
from byteps_py.wire.control import ControlMessage, decode_control, encode_control
from tests.helpers import golden
from tests.helpers.messages import CONTROL

PROTOCOL = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
PREFIX = b"BPSc\x01"


def pack(**fields: Any) -> bytes:
    """A frame with these fields, made without the module that is tested."""
    return PREFIX + msgspec.msgpack.encode(fields)


def declare(*tensors: Any) -> bytes:
    return pack(type="declare", request=1, tensors=tensors)


def declared(*partitions: tuple[int, int, int, int]) -> bytes:
    return pack(type="declared", request=1, placements=[("w", 7, partitions)])


def test_every_message_has_an_example() -> None:
    assert {type(each) for each in CONTROL.values()} == set(get_args(ControlMessage))


def test_the_protocol_document_lists_every_message_with_its_fields() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| [^|]+ \|([^|]*)\|", PROTOCOL, re.MULTILINE)
    documented = {tag: [field for field in fields.strip().split(", ") if field] for tag, fields in rows}
    assert documented == {tag: list(message.__struct_fields__) for tag, message in CONTROL.items()}


@pytest.mark.parametrize("name", CONTROL)
def test_golden_bytes(name: str) -> None:
    (frame,) = golden.read(f"control-{name}.hex")
    assert encode_control(CONTROL[name]) == frame
    assert decode_control(frame) == CONTROL[name]
    assert msgspec.msgpack.decode(frame[5:])["type"] == name


def test_literal_bytes() -> None:
    assert encode_control(control.Left(rank=3)) == b"BPSc" + b"\x01" + b"\x82\xa4type\xa4left\xa4rank\x03"
    assert decode_control(b"BPSc\x01\x81\xa4type\xa3bye") == control.Bye()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_decoded(kind: type) -> None:
    assert decode_control(kind(b"BPSc\x01\x81\xa4type\xa3bye")) == control.Bye()


class TestPrefix:
    @pytest.mark.parametrize("frame", [b"", b"B", b"GET / HTTP/1.1", b"BPSy" + bytes(84)])
    def test_another_magic(self, frame: bytes) -> None:
        with pytest.raises(RemoteProtocolError, match="not a byteps_py control message"):
            decode_control(frame)

    @pytest.mark.parametrize(("frame", "theirs"), [(b"BPSc", "none"), (b"BPSc\x00", "0"), (b"BPSc\x02\x80", "2")])
    def test_another_version(self, frame: bytes, theirs: str) -> None:
        with pytest.raises(RemoteProtocolError, match=f"version {theirs}, this process 1: install the same"):
            decode_control(frame)

    def test_too_long(self) -> None:
        with pytest.raises(RemoteProtocolError, match="longer than"):
            decode_control(PREFIX + bytes(control.MAX_CONTROL_BYTES))


class TestMalformed:
    @pytest.mark.parametrize(
        "body",
        [
            pytest.param(b"", id="nothing"),
            pytest.param(b"\x80", id="no type"),
            pytest.param(b"\x81\xa4type\xa4nope", id="unknown type"),
            pytest.param(b"\x81\xa4type\x01", id="type is a number"),
            pytest.param(b"\x81\xa4type\xa3bye\x00", id="trailing byte"),
            pytest.param(b"\x82\xa4type\xa3bye\xa1x\x01", id="unknown field"),
            pytest.param(b"\x81\xa4type\xa4left", id="missing field"),
            pytest.param(b"\x82\xa4type\xa4left\xa4rank\xff", id="negative rank"),
            pytest.param(b"\x82\xa4type\xa4left\xa4rank\xce\x80\x00\x00\x00", id="rank of 2**31"),
            pytest.param(b"\x82\xa4type\xa4left\xa4rank\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", id="rank of 1.5"),
            pytest.param(b"\x82\xa4type\xa4left\xa4rank\xc0", id="rank of nil"),
            pytest.param(b"\x82\xa4type\xa7barrier\xa6number\x00", id="barrier 0"),
            pytest.param(b"\x82\xa4type\xa5abort\xa6reason\xa2\xff\xfe", id="no UTF-8"),
            pytest.param(b"\x82\xa4type\xa5abort\xa6reason\xa3\xed\xa0\x80", id="a surrogate in UTF-8"),
            pytest.param(b"\x82\xa4type\xa5abort\xa6reason\xda\x10\x01" + b"x" * 4097, id="a text too long"),
            pytest.param(b"\x82\xa4type\xa5abort\xa6reason\xc1", id="reserved byte"),
            pytest.param(b"\x82\xa4type\xa5abort\xa6reason\xa5abc", id="truncated text"),
            pytest.param(b"\x82\xa1x" + b"\x91" * 100_000, id="deeply nested before the type"),
            pytest.param(b"\x82\xa4type\xa3bye\xa1x" + b"\x91" * 1_000_000, id="deeply nested after the type"),
            pytest.param(b"\x91" * 1_000_000, id="deeply nested at the top"),
            pytest.param(b"\xd6\xff\x00\x00\x00\x00", id="a timestamp"),
        ],
    )
    def test_is_refused(self, body: bytes) -> None:
        with pytest.raises(RemoteProtocolError, match="malformed"):
            decode_control(PREFIX + body)

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param(b"\x83\xa4type\xa7declare\xa7request\x01\xa7tensors\xdd\xff\xff\xff\xff", id="array"),
            pytest.param(
                b"\x83\xa4type\xa7declare\xa7request\x01\xa7tensors\x91\x93\xa1w\x01\xdd\xff\xff\xff\xff", id="shape"
            ),
            pytest.param(b"\x82\xa4type\xa5abort\xa6reason\xdb\xff\xff\xff\xff", id="text"),
            pytest.param(b"\x82\xa4type\xa5abort\xa6reason\xc6\xff\xff\xff\xff", id="binary"),
            pytest.param(b"\xdf\xff\xff\xff\xff\xa4type\xa3bye", id="map"),
        ],
    )
    def test_an_announced_length_allocates_nothing(self, body: bytes) -> None:
        tracemalloc.start()
        try:
            with pytest.raises(RemoteProtocolError, match="malformed"):
                decode_control(PREFIX + body)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


class TestTensors:
    @pytest.mark.parametrize(
        ("name", "shape", "problem"),
        [
            ("", (1,), "1 to 4096 characters, not 0"),
            ("n" * 4097, (1,), "1 to 4096 characters, not 4097"),
            ("w", (-1,), "cannot have the shape"),
            ("w", (3, -(2**63)), "cannot have the shape"),
            ("w", (2**48 + 1,), "cannot have the shape"),
            ("w", (2**64 - 1,), "cannot have the shape"),
            ("w", (2**25, 2**25), "cannot have the shape"),
            ("w", (2**40, 2**40, 0), "cannot have the shape"),
            ("w", (1,) * 65, "65 dimensions"),
        ],
    )
    def test_that_cannot_be(self, name: str, shape: tuple[int, ...], problem: str) -> None:
        with pytest.raises(RemoteProtocolError, match=problem):
            decode_control(declare(("ok", 1, ()), (name, 1, shape)))
        with pytest.raises(LocalProtocolError, match=problem):
            encode_control(control.Declare(1, (TensorSpec(name, DType.INT8, shape),)))

    def test_whose_name_is_no_text(self) -> None:
        spec = TensorSpec("\udc80", DType.INT8, ())
        assert control.tensor_problem(spec) == "the tensor name '\\udc80' cannot be written in UTF-8"

    @pytest.mark.parametrize("shape", [(), (0,), (2**48,), (0, 2**48), (1,) * 64])
    def test_that_can_be(self, shape: tuple[int, ...]) -> None:
        message = control.Declare(1, (TensorSpec("n" * 4096, DType.BFLOAT16, shape),))
        assert decode_control(encode_control(message)) == message

    @pytest.mark.parametrize("tensor", [("w", 0, ()), ("w", 9, ()), ("w", 1), ("w", 1, [1.5]), ("w", "1", ()), "w"])
    def test_of_the_wrong_form(self, tensor: Any) -> None:
        with pytest.raises(RemoteProtocolError, match="malformed"):
            decode_control(declare(tensor))

    @pytest.mark.parametrize("group", [-1, 8192, 2**40])
    def test_of_a_group_that_cannot_be(self, group: int) -> None:
        with pytest.raises(RemoteProtocolError, match=f"'w' is of group {group}: groups are 0"):
            decode_control(declare(("w", 1, (), group)))


class TestGroups:
    @pytest.mark.parametrize("kind", ["form-group", "group"])
    @pytest.mark.parametrize("ranks", [(), (1, 1), (2, 1)])
    def test_ranks_that_cannot_be(self, kind: str, ranks: tuple[int, ...]) -> None:
        number = {"form-group": "request", "group": "group"}[kind]
        with pytest.raises(RemoteProtocolError, match="a group cannot have the ranks"):
            decode_control(pack(type=kind, ranks=ranks, **{number: 1}))

    @pytest.mark.parametrize("group", [-1, 0, 8192])
    def test_a_number_that_cannot_be(self, group: int) -> None:
        with pytest.raises(RemoteProtocolError, match="malformed"):
            decode_control(pack(type="group-known", group=group))

    def test_a_long_problem_is_cut(self) -> None:
        arrived = decode_control(encode_control(control.GroupFormed(1, 0, "x" * 5000)))
        assert arrived == control.GroupFormed(1, 0, "x" * 4095 + "…")


class TestPlacements:
    def test_partitions_that_follow_one_another(self) -> None:
        message = decode_control(declared((make_key(7, 0), 0, 5, 1), (make_key(7, 1), 5, 3, 0)))
        assert isinstance(message, control.Declared)
        assert message.placements[0].partitions[1] == Partition(make_key(7, 1), 5, 3, 0)

    @pytest.mark.parametrize(
        "partitions",
        [
            pytest.param((), id="none"),
            pytest.param(((make_key(6, 0), 0, 5, 0),), id="key of another tensor"),
            pytest.param(((make_key(7, 1), 0, 5, 0),), id="key of another partition"),
            pytest.param(((make_key(7, 0), 1, 5, 0),), id="begins late"),
            pytest.param(((make_key(7, 0), 0, 5, 0), (make_key(7, 1), 6, 1, 0)), id="a gap"),
            pytest.param(((make_key(7, 0), 0, 5, 0), (make_key(7, 1), 4, 1, 0)), id="an overlap"),
            pytest.param(((make_key(7, 0), 0, -1, 0),), id="negative count"),
            pytest.param(((make_key(7, 0), 0, 5, -1),), id="negative server"),
            pytest.param(((make_key(7, 0), 0, 2**48 + 1, 0),), id="too large"),
        ],
    )
    def test_that_cannot_be(self, partitions: tuple[tuple[int, int, int, int], ...]) -> None:
        with pytest.raises(RemoteProtocolError, match="Declared is wrong"):
            decode_control(declared(*partitions))


class TestWelcome:
    @staticmethod
    def frame(participants: list[Any], servers: list[Any]) -> bytes:
        return pack(type="welcome", job=1, epoch=0, rank=0, participants=participants, servers=servers)

    def test_lists_in_order_of_rank(self) -> None:
        message = decode_control(self.frame([(0, 0, 0, 1, "a", 1, 5)], [(0, "tcp://a:1", "a", 2, 6)]))
        assert isinstance(message, control.Welcome)
        assert message.participants == (Participant(0, 0, 0, 1, "a", 1, 5),)
        assert message.servers == (ServerInfo(0, "tcp://a:1", "a", 2, 6),)

    @pytest.mark.parametrize(
        "participant",
        [(1, 0, 0, 1, "a", 1, 5), (0, -1, 0, 1, "a", 1, 5), (0, 0, 0, 0, "a", 1, 5), (0, 0, 0, 1, "a", 1, -5)],
    )
    def test_a_participant_that_cannot_be(self, participant: Any) -> None:
        with pytest.raises(RemoteProtocolError, match="participant 0"):
            decode_control(self.frame([participant], []))

    @pytest.mark.parametrize("server", [(1, "tcp://a:1", "a", 2, 6), (0, "tcp://a:1", "a", -2, 6)])
    def test_a_server_that_cannot_be(self, server: Any) -> None:
        with pytest.raises(RemoteProtocolError, match="server 0"):
            decode_control(self.frame([], [server]))


class TestEncode:
    @pytest.mark.parametrize(
        "message", [control.Abort("x" * 5000), control.Refused("x" * 5000), control.Waiting("x" * 5000)]
    )
    def test_a_long_text_is_cut(self, message: Any) -> None:
        arrived = decode_control(encode_control(message))
        text = getattr(arrived, "text", None) or getattr(arrived, "reason", "")
        assert text == "x" * 4095 + "…"

    def test_a_text_that_quotes_undecodable_bytes_arrives(self) -> None:
        quoted = b"host-\xff".decode("utf-8", "surrogateescape")
        assert decode_control(encode_control(control.Conflict("w", quoted))) == control.Conflict("w", "host-?")

    @pytest.mark.parametrize(
        "message",
        [
            control.Left(rank=-1),
            control.Left(rank=2**64),
            control.Barrier(number=0),
            control.Conflict(name="n" * 5000, text=""),
            control.Declare(1, (TensorSpec("\udc80", DType.INT8, ()),)),
            msgspec.structs.replace(CONTROL["register"], job_id="\udc80"),
            msgspec.structs.replace(CONTROL["register"], incarnation=-1),
        ],
    )
    def test_what_the_receiver_would_refuse_is_not_sent(self, message: ControlMessage) -> None:
        with pytest.raises(LocalProtocolError, match=f"{type(message).__name__} cannot be sent"):
            encode_control(message)

    def test_a_frame_that_is_too_long_is_not_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(control, "MAX_CONTROL_BYTES", 20)
        with pytest.raises(LocalProtocolError, match="longer than 20"):
            encode_control(CONTROL["register"])
