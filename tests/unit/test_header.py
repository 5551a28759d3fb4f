"""The data header, byte by byte."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from byteps_py.errors import LocalProtocolError, RemoteProtocolError
from byteps_py.types import DType, Operation, make_key
from byteps_py.wire import header as wire
from byteps_py.wire.header import ACCEPT_ENTRY, HEADER_SIZE, Flag, Header, Opcode, decode, encode
from tests.helpers import golden
from tests.helpers.messages import DATA, JOB, WORKER

PROTOCOL = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
PULL = DATA["pull"][0]
PUSH = DATA["push"][0]

ALL_FIELDS = Header(
    opcode=Opcode.RESULT,
    sender=0x0B0A0908,
    job=0x1111111111111112,
    incarnation=0x2222222222222223,
    epoch=0x0F0E0D0C,
    key=0x3333333333333334,
    round=0x4444444444444445,
    dtype=DType.INT64,
    operation=Operation.BROADCAST,
    flags=Flag.ABSENT,
    root=0x0706,
    detail=0x13121110,
    step=0x5555555555555556,
    offset=0x0000000000666667,
    count=0x0000000000777778,
)


PLACES: dict[str, bytes] = {
    "magic": b"BPSy",
    "version": b"\x01",
    "opcode": b"\x02",
    "flags": b"\x00",
    "dtype": b"\x01",
    "operation": b"\x01",
    "codec": b"\x00",
    "root": b"\x00\x00",
    "sender": b"\x00\x00\x00\x00",
    "epoch": b"\x00\x00\x00\x00",
    "detail": b"\x00\x00\x00\x00",
    "job": b"\xef\xcd\xab\x89\x67\x45\x23\x01",
    "incarnation": b"\x88\x77\x66\x55\x44\x33\x22\x11",
    "key": b"\x03\x00\x00\x00\x07\x00\x00\x00",
    "round": b"\x05\x00\x00\x00\x00\x00\x00\x00",
    "step": bytes(8),
    "offset": bytes(8),
    "count": bytes(8),
    "length": bytes(8),
}
"""A PULL header, place by place."""


def literal(**changed: bytes) -> bytes:
    """A PULL header as bytes, with some places replaced."""
    assert all(len(value) == len(PLACES[name]) for name, value in changed.items())
    return b"".join((PLACES | changed).values())


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


class TestLayout:
    def test_size(self) -> None:
        assert HEADER_SIZE == 88
        assert ACCEPT_ENTRY.size == 16

    def test_every_offset(self) -> None:
        frame = encode(ALL_FIELDS)
        assert frame[0:4] == b"BPSy"
        assert frame[4:5] == b"\x01", "version"
        assert frame[5:6] == b"\x04", "opcode"
        assert frame[6:7] == b"\x01", "flags"
        assert frame[7:8] == b"\x08", "dtype"
        assert frame[8:9] == b"\x03", "operation"
        assert frame[9:10] == b"\x00", "codec"
        assert frame[10:12] == b"\x06\x07", "root"
        assert frame[12:16] == b"\x08\x09\x0a\x0b", "sender"
        assert frame[16:20] == b"\x0c\x0d\x0e\x0f", "epoch"
        assert frame[20:24] == b"\x10\x11\x12\x13", "detail"
        assert frame[24:32] == b"\x12\x11\x11\x11\x11\x11\x11\x11", "job"
        assert frame[32:40] == b"\x23\x22\x22\x22\x22\x22\x22\x22", "incarnation"
        assert frame[40:48] == b"\x34\x33\x33\x33\x33\x33\x33\x33", "key"
        assert frame[48:56] == b"\x45\x44\x44\x44\x44\x44\x44\x44", "round"
        assert frame[56:64] == b"\x56\x55\x55\x55\x55\x55\x55\x55", "step"
        assert frame[64:72] == b"\x67\x66\x66\x00\x00\x00\x00\x00", "offset"
        assert frame[72:80] == b"\x78\x77\x77\x00\x00\x00\x00\x00", "count"
        assert frame[80:88] == bytes(8), "length"

    def test_length_is_the_last_place(self) -> None:
        assert encode(PUSH)[80:88] == b"\x08\x00\x00\x00\x00\x00\x00\x00"

    def test_the_literal_of_these_tests_is_a_pull(self) -> None:
        assert decode(literal(), None) == PULL
        assert encode(PULL) == literal()

    def test_tags(self) -> None:
        assert [(each.name, each.value) for each in Opcode] == [
            ("PUSH", 1),
            ("PULL", 2),
            ("ACCEPT", 3),
            ("RESULT", 4),
            ("MISSING", 5),
            ("REJECT", 6),
            ("WAITING", 7),
            ("PUSH_MANY", 8),
            ("RESULT_MANY", 9),
            ("PROBE", 10),
            ("PROBED", 11),
        ]
        assert [(each.name, each.value) for each in Flag if each] == [
            ("ABSENT", 1),
            ("WANT_RESULT", 2),
            ("PARTIAL", 4),
            ("ROWS", 8),
        ]


@pytest.mark.parametrize("name", DATA)
def test_golden_bytes(name: str) -> None:
    header, payload = DATA[name]
    frames = golden.read(f"{name}.hex")
    assert frames == [encode(header)] + ([] if payload is None else [payload])
    assert decode(frames[0], None if payload is None else len(payload)) == header


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_decoded(kind: type) -> None:
    assert decode(kind(literal()), 0) == PULL


class TestDecodeRefuses:
    @pytest.mark.parametrize("length", [0, 1, 87, 89, 4096])
    def test_another_size(self, length: int) -> None:
        with pytest.raises(RemoteProtocolError, match=f"has 88 bytes, this one has {length}"):
            decode(literal().ljust(89, b"\0")[:length].ljust(length, b"\0"), None)

    def test_another_magic(self) -> None:
        with pytest.raises(RemoteProtocolError, match="starts with b'GET '"):
            decode(literal(magic=b"GET "), None)

    @pytest.mark.parametrize("version", [0, 2, 255])
    def test_another_version(self, version: int) -> None:
        with pytest.raises(RemoteProtocolError, match=f"version {version}, this process 1: install the same"):
            decode(literal(version=bytes([version])), None)

    @pytest.mark.parametrize("opcode", [0, 12, 255])
    def test_an_unknown_opcode(self, opcode: int) -> None:
        with pytest.raises(RemoteProtocolError, match="out of range"):
            decode(literal(opcode=bytes([opcode])), None)

    @pytest.mark.parametrize("dtype", [0, 9, 255])
    def test_an_unknown_dtype(self, dtype: int) -> None:
        with pytest.raises(RemoteProtocolError, match="out of range"):
            decode(literal(dtype=bytes([dtype])), None)

    @pytest.mark.parametrize("operation", [0, 6, 255])
    def test_an_unknown_operation(self, operation: int) -> None:
        with pytest.raises(RemoteProtocolError, match="out of range"):
            decode(literal(operation=bytes([operation])), None)

    @pytest.mark.parametrize("flags", [16, 128, 255])
    def test_unknown_flags(self, flags: int) -> None:
        with pytest.raises(RemoteProtocolError, match="unknown flags"):
            decode(literal(opcode=b"\x01", flags=bytes([flags])), None)

    def test_an_unknown_codec(self) -> None:
        with pytest.raises(RemoteProtocolError, match="unknown codec 1"):
            decode(literal(codec=b"\x01"), None)

    def test_round_zero(self) -> None:
        with pytest.raises(RemoteProtocolError, match="PULL of round 0"):
            decode(literal(round=bytes(8)), None)

    @pytest.mark.parametrize(
        ("opcode", "flags"),
        [
            *((2, 1), (2, 2), (3, 1), (3, 2), (4, 2), (4, 3), (5, 1), (5, 2), (6, 1), (6, 2), (7, 1), (7, 2)),
            *((8, 1), (8, 2), (9, 1), (9, 2), (2, 4), (3, 4), (4, 4), (5, 4), (6, 4), (7, 5), (8, 4), (9, 4)),
        ],
    )
    def test_a_flag_of_another_message(self, opcode: int, flags: int) -> None:
        with pytest.raises(RemoteProtocolError, match="must not carry flags"):
            decode(literal(opcode=bytes([opcode]), flags=bytes([flags])), None)

    @pytest.mark.parametrize(
        ("flags", "operation", "detail", "problem"),
        [
            (4, 1, 0, "PARTIAL PUSH of 0 contributions with flags 0x04"),
            (5, 1, 1, "PARTIAL PUSH of 1 contributions with flags 0x05"),
            (4, 1, 65536, "PARTIAL PUSH of 65536 contributions"),
            (4, 3, 2, "PARTIAL PUSH of 2 contributions to a BROADCAST"),
        ],
    )
    def test_a_partial_push_of_impossible_contributions(
        self, flags: int, operation: int, detail: int, problem: str
    ) -> None:
        frame = literal(
            opcode=b"\x01", flags=bytes([flags]), operation=bytes([operation]), detail=detail.to_bytes(4, "little")
        )
        with pytest.raises(RemoteProtocolError, match=problem):
            decode(frame, None)

    @pytest.mark.parametrize(("dtype", "detail", "itemsize"), [(3, 2, 4), (3, 1, 2), (4, 3, 4), (5, 2, 1), (2, 2, 8)])
    def test_a_partial_push_of_16_bit_floats_carries_float32(self, dtype: int, detail: int, itemsize: int) -> None:
        for length in (1, 2, 4, 8):
            frame = literal(
                opcode=b"\x01",
                flags=b"\x04",
                dtype=bytes([dtype]),
                detail=detail.to_bytes(4, "little"),
                count=u64(10),
                length=u64(10 * length),
            )
            if length == itemsize:
                assert decode(frame, 10 * length).detail == detail
            else:
                with pytest.raises(RemoteProtocolError, match=f"must carry {10 * itemsize} payload bytes"):
                    decode(frame, 10 * length)

    @pytest.mark.parametrize(("opcode", "detail"), [(1, 1), (2, 1), (5, 1), (6, 2), (8, 65537), (9, 65537)])
    def test_a_detail_of_another_message(self, opcode: int, detail: int) -> None:
        with pytest.raises(RemoteProtocolError, match="must not carry the detail"):
            decode(literal(opcode=bytes([opcode]), detail=detail.to_bytes(4, "little")), None)

    @pytest.mark.parametrize(("offset", "count"), [(2**48, 1), (0, 2**48 + 1), (2**64 - 1, 0), (2**47, 2**47 + 1)])
    def test_an_element_range_beyond_any_tensor(self, offset: int, count: int) -> None:
        with pytest.raises(RemoteProtocolError, match="beyond any tensor"):
            decode(literal(opcode=b"\x01", flags=b"\x01", offset=u64(offset), count=u64(count)), None)


class TestLengths:
    """Every length in the header is compared with what came and with what the other fields demand."""

    @pytest.mark.parametrize(("announced", "actual"), [(8, None), (8, 0), (8, 7), (8, 9), (0, 8), (2**64 - 1, 8)])
    def test_announced_and_carried(self, announced: int, actual: int | None) -> None:
        frame = literal(opcode=b"\x01", count=u64(2), length=u64(announced))
        with pytest.raises(RemoteProtocolError, match=f"announces {announced} payload bytes and carries {actual or 0}"):
            decode(frame, actual)

    @pytest.mark.parametrize("dtype", DType)
    @pytest.mark.parametrize("opcode", [Opcode.PUSH, Opcode.RESULT])
    def test_elements(self, opcode: Opcode, dtype: DType) -> None:
        right = 3 * dtype.itemsize

        def frame(length: int) -> bytes:
            return literal(opcode=bytes([opcode]), dtype=bytes([dtype]), count=u64(3), length=u64(length))

        assert decode(frame(right), right).length == right
        for length in (0, right - 1, right + 1):
            with pytest.raises(RemoteProtocolError, match=f"3 {dtype.label} elements must carry {right} "):
                decode(frame(length), length)

    @pytest.mark.parametrize("payload", [None, 0])
    def test_no_elements_need_no_payload(self, payload: int | None) -> None:
        assert decode(literal(opcode=b"\x01"), payload).count == 0

    @pytest.mark.parametrize("opcode", [Opcode.PUSH, Opcode.RESULT])
    def test_absent_carries_nothing(self, opcode: Opcode) -> None:
        places = {"opcode": bytes([opcode]), "flags": b"\x01", "count": u64(2)}
        assert decode(literal(**places), None).count == 2
        with pytest.raises(RemoteProtocolError, match="must carry 0 payload bytes, not 8"):
            decode(literal(**places, length=u64(8)), 8)

    @pytest.mark.parametrize(("entries", "length"), [(2, 16), (2, 33), (2, 0), (0, 0), (0, 16), (2**32 - 1, 16)])
    def test_accept(self, entries: int, length: int) -> None:
        frame = literal(opcode=b"\x03", detail=entries.to_bytes(4, "little"), length=u64(length))
        with pytest.raises(RemoteProtocolError, match=f"ACCEPT of {entries} entries"):
            decode(frame, length)
        right = literal(opcode=b"\x03", detail=b"\x02\x00\x00\x00", length=u64(32))
        assert decode(right, 32).detail == 2

    @pytest.mark.parametrize(("ranks", "length"), [(2, 4), (2, 9), (2, 0), (0, 4), (2**32 - 1, 4)])
    def test_waiting(self, ranks: int, length: int) -> None:
        frame = literal(opcode=b"\x07", detail=ranks.to_bytes(4, "little"), length=u64(length))
        with pytest.raises(RemoteProtocolError, match=f"WAITING of {ranks} ranks"):
            decode(frame, length)

    @pytest.mark.parametrize("ranks", [0, 1, 3])
    def test_waiting_for_ranks(self, ranks: int) -> None:
        frame = literal(opcode=b"\x07", detail=ranks.to_bytes(4, "little"), length=u64(4 * ranks))
        assert decode(frame, 4 * ranks).detail == ranks

    def test_reject(self) -> None:
        for length in (1, wire.MAX_REASON_BYTES):
            assert decode(literal(opcode=b"\x06", length=u64(length)), length).length == length
        for length in (0, wire.MAX_REASON_BYTES + 1):
            with pytest.raises(RemoteProtocolError, match=f"REJECT of a reason .* not {length}"):
                decode(literal(opcode=b"\x06", length=u64(length)), length)

    def test_probe(self) -> None:
        for length in (1, wire.MAX_PROBE_BYTES):
            assert decode(literal(opcode=b"\x0a", length=u64(length)), length).length == length
        for length in (0, wire.MAX_PROBE_BYTES + 1):
            with pytest.raises(RemoteProtocolError, match=f"PROBE of anything .* not {length}"):
                decode(literal(opcode=b"\x0a", length=u64(length)), length)

    @pytest.mark.parametrize("opcode", [Opcode.PUSH_MANY, Opcode.RESULT_MANY])
    def test_many(self, opcode: Opcode) -> None:
        """How many bytes so many entries need is told by the table."""
        for entries, length in ((1, 0), (1, 7), (wire.MAX_ENTRIES, 2**30)):
            detail = entries.to_bytes(4, "little")
            frame = literal(opcode=bytes([opcode]), detail=detail, length=u64(length))
            assert decode(frame, length).detail == entries
        with pytest.raises(RemoteProtocolError, match=f"{opcode.name} of 0 entries"):
            decode(literal(opcode=bytes([opcode]), length=u64(8)), 8)

    @pytest.mark.parametrize("opcode", [Opcode.PULL, Opcode.MISSING])
    def test_questions_carry_nothing(self, opcode: Opcode) -> None:
        with pytest.raises(RemoteProtocolError, match=f"{opcode.name} of nothing must carry 0 payload bytes, not 4"):
            decode(literal(opcode=bytes([opcode]), length=u64(4)), 4)


class TestEncodeRefuses:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("sender", -1),
            ("sender", 2**32),
            ("root", 2**16),
            ("epoch", 2**32),
            ("job", 2**64),
            ("job", -1),
            ("incarnation", 2**64),
            ("key", 2**64),
            ("round", 2**64),
            ("step", -1),
            ("step", 2**64),
        ],
    )
    def test_what_does_not_fit(self, field: str, value: int) -> None:
        with pytest.raises(LocalProtocolError, match="out of range"):
            encode(msgspec.structs.replace(PULL, **{field: value}))

    @pytest.mark.parametrize(
        "fields",
        [
            {"flags": Flag.ABSENT},
            {"length": 4},
            {"round": 0},
            {"codec": 1},
            {"detail": 1},
            {"count": 2**49},
            {"opcode": Opcode.PUSH, "count": 1},
        ],
    )
    def test_what_decode_would_refuse(self, fields: dict[str, int]) -> None:
        with pytest.raises(LocalProtocolError):
            encode(msgspec.structs.replace(PULL, **fields))

    def test_the_message_shows_the_header(self) -> None:
        with pytest.raises(LocalProtocolError, match=r"PULL of round 0.*key=30064771075"):
            encode(
                Header(opcode=Opcode.PULL, sender=0, job=JOB, incarnation=WORKER, epoch=0, key=make_key(7, 3), round=0)
            )


class TestProtocolDocument:
    def test_fields_stand_at_their_offsets(self) -> None:
        section = PROTOCOL.partition("### Opcodes")[0]
        rows = re.findall(r"^\| (\d+) \| (\w+) \| ", section, re.MULTILINE)
        fields = [(int(offset), name) for offset, name in rows if name.islower()]
        assert [name for _, name in fields] == list(PLACES)
        offset = 0
        for documented, name in fields:
            assert documented == offset
            offset += len(PLACES[name])
        assert offset == HEADER_SIZE

    def test_opcodes(self) -> None:
        rows = re.findall(r"^\| (\d+) ([A-Z_]+) \| ", PROTOCOL, re.MULTILINE)
        assert rows == [(str(each.value), each.name) for each in Opcode]

    def test_tags(self) -> None:
        tables: list[list[DType | Operation | Flag]] = [list(DType), list(Operation), [each for each in Flag if each]]
        for tags in tables:
            text = ", ".join(f"{int(each)} {getattr(each, 'label', each.name)}" for each in tags)
            assert f"| {text} |" in PROTOCOL
