"""What data messages of both sides share."""

from __future__ import annotations

import logging

import pytest

from byteps_py.errors import RemoteProtocolError
from byteps_py.roles.envelope import Complaints, Envelope, asks_to_join, is_bundle, open_bundle, open_frames
from byteps_py.types import DType, Role
from byteps_py.wire.control import Heartbeat, Inquiry, ProcessInfo, Register, encode_control
from byteps_py.wire.header import Opcode, encode

ENVELOPE = Envelope(sender=3, job=7, incarnation=9, epoch=1)


def test_a_header_carries_who_and_which_run() -> None:
    header = ENVELOPE.header(Opcode.PUSH, 5, 2, dtype=DType.INT8, count=4, length=4)
    assert (header.sender, header.job, header.incarnation, header.epoch) == (3, 7, 9, 1)
    assert (header.key, header.round, header.dtype, header.count) == (5, 2, DType.INT8, 4)


@pytest.mark.parametrize("other", [{"job": 8}, {"epoch": 2}])
def test_another_run_is_refused(other: dict[str, int]) -> None:
    fields = {"sender": 0, "job": 7, "incarnation": 1, "epoch": 1, **other}
    header = Envelope(**fields).header(Opcode.PULL, 1, 1)
    with pytest.raises(RemoteProtocolError, match="another job"):
        ENVELOPE.check_run(header)
    ENVELOPE.check_run(Envelope(0, 7, 1, 1).header(Opcode.PULL, 1, 1))


def test_frames_open_to_header_and_payload() -> None:
    header = ENVELOPE.header(Opcode.PUSH, 5, 2, count=1, length=4)
    assert open_frames([memoryview(encode(header)), memoryview(b"abcd")]) == (header, b"abcd")
    bare = ENVELOPE.header(Opcode.PULL, 5, 2)
    assert open_frames([memoryview(encode(bare))]) == (bare, None)


@pytest.mark.parametrize("count", [0, 3])
def test_other_numbers_of_frames_are_refused(count: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"has {count}"):
        open_frames([memoryview(b"")] * count)


MANY = ENVELOPE.header(Opcode.PUSH_MANY, 0, 3, detail=1, length=8)
TABLE = memoryview(bytes(40))


def test_a_bundle_opens_to_header_table_and_payload() -> None:
    frames = [memoryview(encode(MANY)), TABLE, memoryview(b"abcdefgh")]
    assert is_bundle(frames)
    assert open_bundle(frames) == (MANY, TABLE, b"abcdefgh")
    bare = ENVELOPE.header(Opcode.RESULT_MANY, 0, 1, detail=1)
    assert is_bundle([memoryview(encode(bare)), TABLE])
    assert open_bundle([memoryview(encode(bare)), TABLE]) == (bare, TABLE, b"")


def test_a_bundle_without_its_table_is_refused() -> None:
    frames = [memoryview(encode(ENVELOPE.header(Opcode.PUSH_MANY, 0, 3, detail=1)))]
    assert not is_bundle(frames)
    with pytest.raises(RemoteProtocolError, match="PUSH_MANY without its table"):
        open_frames(frames)


def test_other_messages_are_no_bundles() -> None:
    push = memoryview(encode(ENVELOPE.header(Opcode.PUSH, 5, 2, count=1, length=4)))
    assert not is_bundle([push, memoryview(b"abcd")])
    assert not is_bundle([push, TABLE, memoryview(b"abcd")])
    assert not is_bundle([memoryview(b"short"), TABLE])
    assert not is_bundle([memoryview(encode(MANY)), TABLE, TABLE, TABLE])
    assert not is_bundle([])


@pytest.mark.parametrize("payload", [b"", b"1234567", b"123456789"])
def test_a_bundle_of_another_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"announces 8 payload bytes and carries {len(payload)}"):
        open_bundle([memoryview(encode(MANY)), TABLE, memoryview(payload)])


def test_who_takes_a_server_for_a_scheduler() -> None:
    process = ProcessInfo("host", "id", 1, 2)
    register = encode_control(
        Register(version="1", job_id="j", role=Role.WORKER, process=process, incarnation=5, num_worker=1, num_server=1)
    )
    assert asks_to_join([memoryview(register)])
    assert asks_to_join([memoryview(encode_control(Inquiry(1)))])
    assert not asks_to_join([memoryview(encode_control(Heartbeat()))])
    assert not asks_to_join([memoryview(encode(ENVELOPE.header(Opcode.PULL, 5, 2)))])
    assert not asks_to_join([memoryview(register)] * 2)
    assert not asks_to_join([])


def test_a_peer_is_complained_about_once(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("byteps_py.test"))
    with caplog.at_level("WARNING", "byteps_py.test"):
        complaints.add(b"\xffpeer", "first")
        complaints.add(b"\xffpeer", "second")
        complaints.add(b"other", "third")
    assert [each.getMessage() for each in caplog.records] == [
        "ignored from \\xffpeer: first",
        "ignored from other: third",
    ]
