"""The data side of a server: bundles, the memory of workers, and what is sent for both."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from byteps_py.errors import RemoteProtocolError
from byteps_py.roles.engine import INLINE_BYTES
from byteps_py.types import DType, Operation, make_key, make_tensor_id
from byteps_py.wire.bundle import BUNDLE_KEY
from byteps_py.wire.header import RANK_ENTRY, ROWS_HEAD, Flag, Opcode
from tests.helpers.rounds_stage import Item, RoundsStage, Stamp, floats

A, B, C, D = (make_key(tensor, 0) for tensor in range(4))


@pytest.fixture(params=["native", "reference"])
def stage(request: pytest.FixtureRequest) -> Iterator[RoundsStage]:
    made = RoundsStage(kernel=request.param)
    yield made
    made.close()


@pytest.fixture
def timed() -> Iterator[RoundsStage]:
    made = RoundsStage(timed=True)
    yield made
    made.close()


def items(round: int = 1, *keys: int, scale: float = 1.0) -> list[Item]:
    return [Item(key, floats(scale, scale * (1 + index)), round) for index, key in enumerate(keys or (A, B, C))]


def opcodes(stage: RoundsStage, rank: int) -> list[Opcode]:
    return [each.opcode for each in stage.received(rank)]


def results(stage: RoundsStage, rank: int) -> dict[tuple[int, int], tuple[list[float] | None, int]]:
    """By key and round: the elements, and the number of contributors."""
    found: dict[tuple[int, int], tuple[list[float] | None, int]] = {}
    for answer in stage.received(rank):
        if answer.opcode in (Opcode.RESULT, Opcode.RESULT_MANY):
            for key, round_, data, contributors in answer.results():
                assert (key, round_) not in found
                found[key, round_] = (None if data is None else np.frombuffer(data, np.float32).tolist(), contributors)
    return found


class TestMessages:
    """How many there are."""

    def test_equal_bundles_in_one_batch_take_one_message_each_way(self, stage: RoundsStage) -> None:
        for round_ in (1, 2, 3):
            stage.push_many(0, items(round_))
            stage.push_many(1, items(round_))
            stage.advance()
            for rank in (0, 1):
                assert opcodes(stage, rank) == [Opcode.RESULT_MANY]

    def test_with_patience_the_results_come_instead_of_an_acceptance(self, stage: RoundsStage) -> None:
        stage.rounds._answers._patience = 3600.0
        stage.push_many(0, items())
        assert stage.received(0) == []
        assert stage.rounds.next_due is not None
        stage.push_many(1, items())
        stage.advance()
        for rank in (0, 1):
            assert opcodes(stage, rank) == [Opcode.RESULT_MANY]
        assert stage.rounds.next_due is None

    def test_patience_ends(self, stage: RoundsStage) -> None:
        number = stage.push_many(0, items())
        due = stage.rounds.next_due
        assert due is not None
        assert due <= time.monotonic()
        (answer,) = stage.received(0)
        assert answer.accepted() == [(BUNDLE_KEY, number)]
        assert stage.rounds.next_due is None

    def test_who_waits_for_another_is_accepted_once_as_a_whole(self, stage: RoundsStage) -> None:
        number = stage.push_many(0, items())
        stage.advance()
        (answer,) = stage.received(0)
        assert answer.accepted() == [(BUNDLE_KEY, number)]
        stage.push_many(1, items())
        stage.advance()
        for rank in (0, 1):
            assert opcodes(stage, rank) == [Opcode.RESULT_MANY]

    def test_all_workers_are_sent_the_same_bytes(self, stage: RoundsStage) -> None:
        stage.push_many(0, items(scale=1))
        stage.push_many(1, items(scale=10))
        (one,), (two,) = stage.received(0), stage.received(1)
        assert [bytes(each) for each in one.frames] == [bytes(each) for each in two.frames]
        assert list(one.results()) == [
            (key, 1, floats(11, 11 * (1 + index)).tobytes(), 2) for index, key in enumerate((A, B, C))
        ]
        assert stage.endpoint.lies_in(one.frames[2]) == stage.endpoint.lies_in(two.frames[2]) == 0

    @pytest.mark.parametrize("order", [(C, A, B), (A, B, C)])
    def test_another_order_is_the_same_bundle(self, stage: RoundsStage, order: tuple[int, ...]) -> None:
        stage.push_many(0, items())
        stage.push_many(1, items(1, *order))
        stage.advance()
        assert opcodes(stage, 0) == opcodes(stage, 1) == [Opcode.RESULT_MANY]

    def test_a_bundle_that_is_answered_in_parts_within_a_batch_is_not_accepted(self, stage: RoundsStage) -> None:
        stage.push_many(0, items())
        stage.push_many(1, items()[:2])
        stage.push_many(1, items()[2:])
        stage.advance()
        assert opcodes(stage, 0) == opcodes(stage, 1) == [Opcode.RESULT_MANY]

    def test_results_of_bundles_that_came_together_share_a_message(self, stage: RoundsStage) -> None:
        for rank in (0, 1):
            for item in items():
                stage.push_many(rank, [item])
        for rank in (0, 1):
            (answer,) = stage.received(rank)
            assert [key for key, *_ in answer.results()] == [A, B, C]

    @pytest.mark.parametrize("between", ["push", "pull", "left", "irregular"])
    def test_what_is_complete_is_summed_before_anything_else_is_looked_at(
        self, stage: RoundsStage, between: str
    ) -> None:
        stage.push_many(0, items())
        stage.push_many(1, items())
        if between == "push":
            stage.push(0, items()[0])
        elif between == "pull":
            stage.send(0, Opcode.PULL, key=A)
        elif between == "left":
            stage.rounds.left(1)
        else:
            stage.push_many(0, items()[:1])
        first, *rest = stage.received(0)
        assert [key for key, *_ in first.results()] == [A, B, C]
        again = [] if between == "left" else [(A, 1, floats(2, 2).tobytes(), 2)]
        assert [found for each in rest for found in each.results() if each.opcode is Opcode.RESULT] == again

    def test_more_rows_than_a_table_holds_are_summed_in_between(
        self, stage: RoundsStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("byteps_py.roles.rounds.MAX_ENTRIES", 4)
        for group in (items()[:2], items()[2:]):
            for rank in (0, 1):
                stage.push_many(rank, group)
        for rank in (0, 1):
            stage.push_many(rank, items(1, D, make_key(4, 0)))
        sizes = [each.header.detail for each in stage.received(0)]
        assert sizes == [3, 2]

    def test_a_bundle_that_is_answered_in_part_is_accepted(self, stage: RoundsStage) -> None:
        number = stage.push_many(0, items())
        stage.push_many(1, items()[:2])
        stage.advance()
        result, accept = stage.received(0)
        assert result.opcode is Opcode.RESULT_MANY
        assert accept.accepted() == [(BUNDLE_KEY, number)]
        assert opcodes(stage, 1) == [Opcode.RESULT_MANY]

    def test_a_bundle_whose_rest_comes_by_single_results_is_not_accepted(self, stage: RoundsStage) -> None:
        stage.push(1, items()[0])
        stage.push_many(1, items()[1:])
        stage.advance()
        stage.received(1)
        stage.push_many(0, items())
        stage.advance()
        assert sorted(opcodes(stage, 0)) == [Opcode.RESULT, Opcode.RESULT_MANY]
        assert sorted(opcodes(stage, 1)) == [Opcode.RESULT, Opcode.RESULT_MANY]

    def test_messages_are_counted(self, stage: RoundsStage) -> None:
        stage.push_many(0, items())
        stage.advance()
        stage.push_many(1, items())
        stage.advance()
        assert (stage.rounds.received, stage.rounds.sent) == (2, 3)

    def test_who_is_not_connected_is_not_counted(self, stage: RoundsStage) -> None:
        stage.endpoint.unreachable = {b"worker-%016x" % 500}
        stage.push_many(0, items())
        stage.push_many(1, items())
        stage.advance()
        assert (stage.rounds.received, stage.rounds.sent) == (2, 1)


class TestBothWays:
    """A key goes from the ledger to the general machine and back."""

    def test_single_pushes_and_bundles_meet(self, stage: RoundsStage) -> None:
        for round_ in range(1, 7):
            whole = items(round_)
            if round_ % 2:
                stage.push_many(0, whole)
                stage.push(1, whole[1])
                stage.push_many(1, [whole[0], whole[2]])
            else:
                stage.push(0, whole[0])
                stage.push_many(1, whole)
                stage.push_many(0, whole[1:])
            stage.advance()
            for rank in (0, 1):
                expected = {(key, round_): ([2, 2 * (1 + index)], 2) for index, key in enumerate((A, B, C))}
                assert results(stage, rank) == expected

    def test_it_comes_back_with_the_next_bundle(self, stage: RoundsStage) -> None:
        for rank in (0, 1):
            stage.push(rank, items()[0])
        stage.advance()
        for rank in (0, 1):
            assert opcodes(stage, rank) == [Opcode.RESULT]
        for rank in (0, 1):
            stage.push_many(rank, items(2, A))
        stage.advance()
        assert opcodes(stage, 0) == opcodes(stage, 1) == [Opcode.RESULT_MANY]

    def test_the_result_before_comes_along(self, stage: RoundsStage) -> None:
        for rank in (0, 1):
            stage.push(rank, items()[0])
        stage.push_many(0, items(2, A))
        assert list(stage.pull(1, A).results()) == [(A, 1, floats(2, 2).tobytes(), 2)]
        stage.push(0, items(2, A)[0])  # once more, alone: it goes to the general machine
        assert list(stage.pull(1, A).results()) == [(A, 1, floats(2, 2).tobytes(), 2)]
        stage.push_many(1, items(2, A))
        assert b"no longer kept" in stage.pull(1, A).payload

    def test_a_repeated_bundle_is_answered_and_not_counted_again(self, stage: RoundsStage) -> None:
        stage.push_many(0, items())
        number = stage.push_many(0, items(scale=100))
        stage.advance()
        (accept,) = stage.received(0)
        assert accept.accepted()[-1] == (BUNDLE_KEY, number)
        stage.push_many(1, items())
        stage.advance()
        assert results(stage, 0) == {(key, 1): ([2, 2 * (1 + index)], 2) for index, key in enumerate((A, B, C))}
        stage.push_many(0, items())
        stage.advance()
        assert results(stage, 0) == {(key, 1): ([2, 2 * (1 + index)], 2) for index, key in enumerate((A, B, C))}

    def test_one_key_twice_in_a_bundle_counts_once(self, stage: RoundsStage) -> None:
        stage.push_many(0, items())
        stage.push_many(1, [*items(), *items(1, A, scale=100)])
        stage.advance()
        assert (A, 1) in results(stage, 0)
        assert stage.pull(1, A).opcode is Opcode.RESULT

    @pytest.mark.parametrize("single", [False, True])
    def test_disagreement_is_told_for_its_key_alone(self, stage: RoundsStage, single: bool) -> None:
        stage.push_many(0, items())
        other = Item(B, floats(1, 2, 3))
        stage.push_many(1, [items()[0], *([] if single else [other]), items()[2]])
        if single:
            stage.push(1, other)
        stage.advance()
        for rank in (0, 1):
            answers = stage.received(rank)
            (reject,) = [each for each in answers if each.opcode is Opcode.REJECT]
            assert reject.header.key == B
            assert b"worker 0 pushes SUM of 2 float32" in reject.payload
            assert b"worker 1 pushes SUM of 3 float32" in reject.payload
            many = [each for each in answers if each.opcode is Opcode.RESULT_MANY]
            assert {key for each in many for key, *_ in each.results()} == {A, C}
            assert not [each for each in answers if each.opcode is Opcode.ACCEPT]
        stage.push_many(0, items(2))
        stage.advance()
        assert sorted(opcodes(stage, 0)) == [Opcode.ACCEPT, Opcode.REJECT]

    def test_a_round_beyond_the_open_one(self, stage: RoundsStage) -> None:
        stage.push_many(0, items(2, A))
        stage.advance()
        (answer,) = stage.received(0)
        assert answer.opcode is Opcode.REJECT
        assert b"pushes round 2 while round 1 is open" in answer.payload

    def test_workers_of_a_node_that_are_not_listed_together(self) -> None:
        """The ledger could not group them; the general machine does."""
        stage = RoundsStage((1, 0, 1))
        values = [1e8, 1.0, -1e8]
        for rank, value in enumerate(values):
            stage.push_many(rank, [Item(A, floats(value))])
        assert results(stage, 0) == {(A, 1): ([1.0], 3)}
        stage.close()


class TestQuestions:
    """PULL of a key that the ledger has, which stays there."""

    def test_who_is_missing(self) -> None:
        stage = RoundsStage((0, 0, 1))
        stage.push_many(1, items())
        answer = stage.pull(1, B)
        assert answer.opcode is Opcode.WAITING
        assert list(RANK_ENTRY.iter_unpack(answer.payload)) == [(0,), (2,)]
        assert stage.pull(0, B).opcode is Opcode.MISSING
        assert stage.pull(1, B, 2).opcode is Opcode.MISSING
        for rank in (0, 2):
            stage.push_many(rank, items())
        assert opcodes(stage, 1) == [Opcode.RESULT_MANY]
        stage.close()

    def test_the_last_result_until_all_have_come_further(self, stage: RoundsStage) -> None:
        for rank in (0, 1):
            stage.push_many(rank, items())
        stage.push_many(0, items(2))
        answer = stage.pull(1, C)
        assert list(answer.results()) == [(C, 1, floats(2, 6).tobytes(), 2)]
        assert (answer.header.step, answer.header.offset, answer.header.count) == (3, 0, 2)
        stage.push_many(1, items(2))
        assert b"no longer kept" in stage.pull(1, C).payload
        assert list(stage.pull(1, C, 2).results()) == [(C, 2, floats(2, 6).tobytes(), 2)]
        for rank in (0, 1):
            stage.push_many(rank, items(3))
        assert Opcode.RESULT_MANY in opcodes(stage, 0)  # it has stayed in the ledger

    def test_a_result_of_nothing(self, stage: RoundsStage) -> None:
        absent = [Item(A, None, count=5), Item(B, None, count=0)]
        for rank in (0, 1):
            stage.push_many(rank, absent)
        assert results(stage, 1) == {(A, 1): (None, 0), (B, 1): (None, 0)}
        assert list(stage.pull(1, A).results()) == [(A, 1, None, 0)]

    def test_a_key_that_nobody_knows(self, stage: RoundsStage) -> None:
        assert stage.pull(0, A).opcode is Opcode.MISSING
        assert stage.pull(0, make_key(1 << 30, 7)).opcode is Opcode.MISSING


class TestLeaving:
    def test_what_lacks_the_leaver_is_rejected(self, stage: RoundsStage) -> None:
        stage.push_many(0, items())
        stage.push_many(1, items()[:1])
        stage.advance()
        stage.received(0)
        stage.rounds.left(1)
        answers = stage.received(0)
        assert {each.header.key for each in answers} == {B, C}
        assert {each.opcode for each in answers} == {Opcode.REJECT}
        assert all(b"worker 1 left" in each.payload and each.header.detail == 1 for each in answers)

    def test_what_has_its_contribution_goes_on(self, stage: RoundsStage) -> None:
        stage.push_many(1, items())
        stage.rounds.left(1)
        stage.push_many(0, items())
        assert results(stage, 0) == {(key, 1): ([2, 2 * (1 + index)], 2) for index, key in enumerate((A, B, C))}
        stage.advance()

    def test_later_bundles_are_rejected(self, stage: RoundsStage) -> None:
        for rank in (0, 1):
            stage.push_many(rank, items())
        stage.rounds.left(0)
        assert list(stage.pull(1, A).results()) == [(A, 1, floats(2, 2).tobytes(), 2)]
        stage.push_many(1, [*items(2), Item(D, floats(1))])
        stage.advance()
        answers = stage.received(1)
        assert [(each.opcode, each.header.key) for each in answers] == [(Opcode.REJECT, key) for key in (A, B, C, D)]


class TestGroups:
    """Keys of which not all workers are members; worker 2 is not in group 1."""

    KEY = make_key(make_tensor_id(1, 0), 0)

    @pytest.fixture(params=["native", "reference"])
    def stage(self, request: pytest.FixtureRequest) -> Iterator[RoundsStage]:
        made = RoundsStage((0, 1, 1), kernel=request.param, timed=True)
        made.rounds.form(1, (0, 1))
        made.rounds.form(1, (0, 1))
        yield made
        made.close()

    def test_among_bundles_of_all_and_in_memory_of_workers(self, stage: RoundsStage) -> None:
        places = []
        for round_ in (1, 2, 3):
            for rank in (2, 1, 0):
                stage.push_many(rank, items(round_))
                if rank < 2:
                    item = Item(self.KEY, floats(rank, 8), round_, operation=Operation.AVERAGE)
                    stage.push(rank, item, Stamp())
            for rank in (0, 1):
                answers = stage.received(rank)
                (alone,) = [each for each in answers if each.opcode is Opcode.RESULT]
                assert list(alone.results()) == [(self.KEY, round_, floats(0.5, 8).tobytes(), 2)]
                assert any(each.opcode is Opcode.RESULT_MANY for each in answers)
                places.append(stage.endpoint.lies_in(alone.frames[1]))
            assert set(results(stage, 2)) == {(key, round_) for key in (A, B, C)}
        assert places[0] == places[1] == places[4] == places[5] != places[2] == places[3]
        assert stage.rounds.stages()["wait for others"][0] == 3 * 2 + 3 * 3  # contributions alone, and bundles

    def test_who_asks_hears_which_members_are_missing(self, stage: RoundsStage) -> None:
        stage.push(1, Item(self.KEY, floats(1)))
        answer = stage.pull(1, self.KEY)
        assert (answer.opcode, list(RANK_ENTRY.iter_unpack(answer.payload))) == (Opcode.WAITING, [(0,)])
        assert stage.pull(0, self.KEY).opcode is Opcode.MISSING
        assert b"worker 2 is not one of those who contribute" in stage.pull(2, self.KEY).payload

    def test_in_a_bundle_it_is_taken_alone(self, stage: RoundsStage) -> None:
        for rank in (0, 1, 2):
            stage.push_many(rank, [Item(self.KEY, floats(rank + 1)), *items()])
        found = [stage.received(rank) for rank in (0, 1, 2)]
        for rank, answers in enumerate(found):
            (alone,) = [each for each in answers if each.header.key == self.KEY]
            assert alone.opcode is (Opcode.REJECT if rank == 2 else Opcode.RESULT)
            assert sum(len(list(each.results())) for each in answers if each.opcode is Opcode.RESULT_MANY) == 3

    def test_others_may_leave(self, stage: RoundsStage) -> None:
        stage.push(0, Item(self.KEY, floats(1)))
        stage.rounds.left(2)
        stage.push(1, Item(self.KEY, floats(2)))
        assert results(stage, 0) == {(self.KEY, 1): ([3], 2)}
        stage.push(0, Item(self.KEY, floats(1), 2))
        stage.received(0)
        stage.rounds.left(1)
        (answer,) = stage.received(0)
        assert (answer.opcode, answer.header.detail) == (Opcode.REJECT, 1)


class TestBadEntries:
    """The entry is complained about; the others of its message count."""

    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            ({"key": make_key(0, 1)}, "must not travel with others"),
            ({"root": 1}, "must not travel with others"),
            ({"operation": Operation.BROADCAST}, "must not travel with others"),
            ({"count": 16384}, "must not travel with others"),
            ({"padding": b"\1\0\0"}, "must not travel with others"),
            ({"round": 0}, "rounds are counted from 1"),
            ({"dtype": 9}, "9 is not a valid DType"),
            ({"operation": 0}, "0 is not a valid Operation"),
            ({"flags": 0}, "flags 0x00"),
            ({"flags": 6}, "flags 0x06"),
            ({"place": 4}, "its 8 bytes are not at 4 of 24"),
            ({"place": 24}, "its 8 bytes are not at 24 of 24"),
            ({"count": 7}, "its 28 bytes are not at 0 of 24"),
        ],
    )
    def test_rules(self, stage: RoundsStage, fields: dict[str, Any], problem: str) -> None:
        stage.push_many(1, items())
        with pytest.raises(RemoteProtocolError, match=f"entry 0 of a PUSH_MANY, for key [0-9]+: .*{problem}"):
            stage.push_many(0, items(), **fields)
        stage.advance()
        assert set(results(stage, 1)) == {(B, 1), (C, 1)}

    def test_results_are_not_for_servers(self, stage: RoundsStage) -> None:
        with pytest.raises(RemoteProtocolError, match="a worker must not send RESULT_MANY"):
            stage.send(0, Opcode.RESULT_MANY, memoryview(bytes(40)), memoryview(b""), detail=1)


class TestLent:
    """What lies in the memory of a worker is read there, and the result is written into memory of the server's own."""

    def test_two_buffers_for_each_key_in_turn(self, stage: RoundsStage) -> None:
        places = []
        for round_ in range(1, 6):
            for rank in (0, 1):
                stage.push(rank, Item(A, floats(round_, rank), round_), Stamp())
            (answer,) = stage.received(0)
            assert answer.payload == floats(2 * round_, 1).tobytes()
            places.append(stage.endpoint.lies_in(answer.frames[1]))
            assert stage.endpoint.lies_in(stage.received(1)[0].frames[1]) == places[-1]
        assert places == [0, 1, 0, 1, 0]
        assert stage.endpoint.renewed == [0, 1, 0]

    def test_another_size_takes_another_buffer(self, stage: RoundsStage) -> None:
        for round_, values in ((1, [1]), (2, [1]), (3, [1, 2])):
            for rank in (0, 1):
                stage.push(rank, Item(A, floats(*values), round_), Stamp())
        assert [each.nbytes for each in stage.endpoint.allocated] == [4, 4, 8]
        assert stage.endpoint.renewed == []

    def test_without_lent_memory_nothing_is_allocated(self, stage: RoundsStage) -> None:
        for rank in (0, 1):
            stage.push(rank, Item(A, floats(1, 2)))
        assert stage.received(0)[0].payload == floats(2, 4).tobytes()
        assert stage.endpoint.allocated == []

    @pytest.mark.parametrize("lender", [0, 1])
    def test_lent_and_own_together(self, stage: RoundsStage, lender: int) -> None:
        for rank in (0, 1):
            stage.push(rank, Item(A, floats(1 + rank, 2)), Stamp() if rank == lender else None)
        (answer,) = stage.received(0)
        assert answer.payload == floats(3, 4).tobytes()
        assert stage.endpoint.lies_in(answer.frames[1]) == 0

    @pytest.mark.parametrize("operation", [Operation.SUM, Operation.BROADCAST])
    def test_a_single_one_is_copied_with_all_its_bits(self, stage: RoundsStage, operation: Operation) -> None:
        nans = np.array([0x7FC00001, 0xFFA00000, 0x80000000], np.uint32).view(np.float32)
        stage.push(0, Item(A, nans, operation=operation), Stamp())
        stage.push(1, Item(A, None, count=3, operation=operation))
        (answer,) = stage.received(1)
        assert answer.payload == nans.tobytes()
        assert answer.header.detail == 1
        assert stage.endpoint.lies_in(answer.frames[1]) == 0

    def test_large_ones_are_summed_and_copied_by_the_threads(self, stage: RoundsStage) -> None:
        values = np.arange(INLINE_BYTES // 4, dtype=np.float32)
        for rank in (0, 1):
            stage.push(rank, Item(A, values), Stamp())
            stage.push(rank, Item(B, values if rank else None, count=len(values)), Stamp())
        found: dict[int, bytes] = {}
        while len(found) < 2:
            stage.advance(summed=True)
            found |= {each.header.key: each.payload for each in stage.received(0) if each.opcode is Opcode.RESULT}
        assert found == {A: (2 * values).tobytes(), B: values.tobytes()}

    def test_nothing_lent_gives_nothing(self, stage: RoundsStage) -> None:
        for rank in (0, 1):
            stage.push(rank, Item(A, floats()), Stamp())
        assert stage.received(0)[0].payload == b""

    def test_memory_that_changed_before_it_was_looked_at_is_asked_for_again(self, stage: RoundsStage) -> None:
        stage.push(0, Item(A, floats(1)), Stamp(looks=0))
        assert opcodes(stage, 0) == [Opcode.MISSING]
        for rank in (0, 1):
            stage.push(rank, Item(A, floats(1)), Stamp())
        stage.received(0)
        stage.push(0, Item(A, floats(9)), Stamp(looks=0))  # late, and of no use any more
        (answer,) = stage.received(0)
        assert list(answer.results()) == [(A, 1, floats(2).tobytes(), 2)]

    @pytest.mark.parametrize("bundled", [False, True])
    def test_memory_that_changed_while_it_was_summed_ends_the_key(self, stage: RoundsStage, bundled: bool) -> None:
        if bundled:
            stage.push_many(0, items(1, A, B), Stamp())
            stage.push_many(1, items(1, A, B), Stamp(looks=1))
        else:
            for key in (A, B):
                stage.push(0, Item(key, floats(1)), Stamp())
                stage.push(1, Item(key, floats(1)), Stamp(looks=1))
        stage.advance()
        for rank in (0, 1):
            answers = [each for each in stage.received(rank) if each.opcode is not Opcode.ACCEPT]
            assert [(each.opcode, each.header.key) for each in answers] == [(Opcode.REJECT, A), (Opcode.REJECT, B)]
            for each in answers:
                assert b"worker 1 changed its contribution to round 1 while it was being summed" in each.payload
        stage.push_many(0, items(2, A), Stamp())
        assert opcodes(stage, 0) == [Opcode.REJECT]
        assert stage.pull(1, B, 2).opcode is Opcode.REJECT

    def test_a_bundle_that_changed_before_it_was_looked_at_is_left_alone(self, stage: RoundsStage) -> None:
        stage.push_many(0, items(), Stamp(looks=0))
        stage.advance()
        assert stage.received(0) == []
        assert stage.pull(0, A).opcode is Opcode.MISSING

    def test_a_lent_bundle_that_goes_to_the_general_machine_stays_lent(self, stage: RoundsStage) -> None:
        stage.push_many(0, items(), Stamp())
        stage.push(1, Item(A, None, count=2))
        (answer,) = [each for each in stage.received(1) if each.opcode is Opcode.RESULT]
        assert answer.payload == floats(1, 1).tobytes()
        assert stage.endpoint.lies_in(answer.frames[1]) == 0
        stage.push_many(1, [Item(B, None, count=2), Item(C, None, count=2)], Stamp())
        assert results(stage, 1) == {(B, 1): ([1, 2], 1), (C, 1): ([1, 3], 1)}


class TestStages:
    def test_a_bundle_counts_as_one(self, timed: RoundsStage) -> None:
        timed.push_many(0, items())
        timed.advance()
        timed.push_many(1, items())
        timed.advance()
        assert {name: count for name, (count, _) in timed.rounds.stages().items()} == {
            "accept": 1,
            "wait for others": 2,
            "server queue": 1,
            "sum": 1,
            "held": 2,
            "direct": 1,
        }

    def test_what_is_looked_after_one_by_one_counts_so(self, timed: RoundsStage) -> None:
        timed.push(0, items()[0])
        timed.push(0, items()[1])
        timed.advance()
        timed.push_many(1, items())
        timed.advance()
        found = {name: count for name, (count, _) in timed.rounds.stages().items()}
        assert found == {"accept": 3, "wait for others": 4, "server queue": 2, "sum": 2, "held": 4, "direct": 2}


DTYPES = tuple(DType)
OPERATIONS = (Operation.SUM, Operation.AVERAGE)


class Job:
    """Random contributions of a few workers to a few tensors, round after round."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.nodes = sorted(self.chance.randrange(3) for _ in range(self.chance.randrange(1, 5)))
        self.bits = np.random.default_rng(seed)
        self.keys = [make_key(tensor, 0) for tensor in range(self.chance.randrange(1, 9))]

    def round(self, number: int) -> list[list[Item]]:
        """By rank, one contribution to each key."""
        found: list[list[Item]] = [[] for _ in self.nodes]
        for key in self.keys:
            dtype, operation = self.chance.choice(DTYPES), self.chance.choice(OPERATIONS)
            count = self.chance.randrange(40)
            for mine in found:
                elements: npt.NDArray[Any] | None = self.bits.integers(0, 256, count * dtype.itemsize, np.uint8).view(
                    dtype.storage
                )
                if self.chance.random() < 0.3:
                    elements = None
                mine.append(Item(key, elements, number, count, dtype, operation, number))
        return found


def run(job: Job, stage: RoundsStage, contributions: list[list[list[Item]]], *, bundled: bool) -> list[dict[Any, Any]]:
    """The results by rank, key and round, after messages in any order; some are repeated."""
    chance = job.chance
    found: list[dict[Any, Any]] = [{} for _ in job.nodes]
    for each in contributions:
        messages: list[tuple[int, list[Item]]] = []
        for rank, mine in enumerate(each):
            rest = chance.sample(mine, len(mine))
            while rest:
                size = chance.randrange(1, len(rest) + 1) if bundled else 1
                messages += [(rank, rest[:size])] * (1 + (chance.random() < 0.2))
                rest = rest[size:]
        for rank, group in chance.sample(messages, len(messages)):
            stamp = Stamp() if chance.random() < 0.5 else None
            if bundled and (len(group) > 1 or chance.random() < 0.5):
                stage.push_many(rank, group, stamp)
            else:
                stage.push(rank, group[0], stamp)
            if chance.random() < 0.2:
                stage.send(chance.randrange(len(each)), Opcode.PULL, key=group[0].key, round=group[0].round)
            if chance.random() < 0.3:
                stage.advance()
        stage.advance()
        for rank, results_ in enumerate(found):
            for answer in stage.received(rank):
                if answer.opcode in (Opcode.RESULT, Opcode.RESULT_MANY):
                    for key, number, data, contributors in answer.results():
                        assert results_.setdefault((key, number), (data, contributors)) == (data, contributors)
                else:
                    assert answer.opcode in (Opcode.ACCEPT, Opcode.WAITING, Opcode.MISSING)
    return found


@pytest.mark.parametrize("kernel", ["native", "reference"])
@pytest.mark.parametrize("seed", range(40))
def test_any_grouping_and_order_gives_the_bits_of_single_pushes(seed: int, kernel: str) -> None:
    job = Job(seed)
    contributions = [job.round(number) for number in range(1, 6)]
    alone, together = RoundsStage(job.nodes, kernel), RoundsStage(job.nodes, kernel)
    expected = run(job, alone, contributions, bundled=False)
    assert all(set(each) == {(key, number) for key in job.keys for number in range(1, 6)} for each in expected)
    assert run(job, together, contributions, bundled=True) == expected
    alone.close()
    together.close()


class TestRows:
    """A PUSH of rows is checked before it counts."""

    @staticmethod
    def payload(*indices: int) -> bytes:
        values = np.arange(2 * len(indices), dtype=np.float32)
        return ROWS_HEAD.pack(len(indices), 2) + np.array(indices, np.int64).tobytes() + values.tobytes()

    def push(self, stage: RoundsStage, rank: int, payload: bytes, stamp: Stamp | None = None) -> None:
        fields = {"flags": Flag.WANT_RESULT | Flag.ROWS, "count": 20}
        frame = memoryview(payload) if stamp is not None else memoryview(bytearray(payload))
        stage.send(rank, Opcode.PUSH, frame, stamp=stamp, key=D, round=1, **fields)

    @pytest.mark.parametrize("indices", [(1, 1), (2, 1), (-1,), (10,)], ids=str)
    def test_wrong_indices_change_nothing(self, stage: RoundsStage, indices: tuple[int, ...]) -> None:
        with pytest.raises(RemoteProtocolError, match="PUSH of rows"):
            self.push(stage, 0, self.payload(*indices))
        self.push(stage, 0, self.payload(0, 9))
        self.push(stage, 1, self.payload(0))
        (answer,) = [each for each in stage.received(1) if each.opcode is Opcode.RESULT]
        assert answer.payload == (ROWS_HEAD.pack(2, 2) + struct.pack("<2q", 0, 9) + struct.pack("<4f", 0, 2, 2, 3))

    def test_rows_that_are_not_as_long_as_they_say(self, stage: RoundsStage) -> None:
        for payload in (self.payload(1)[:-1], ROWS_HEAD.pack(2**60, 2), ROWS_HEAD.pack(0, 0)):
            with pytest.raises(RemoteProtocolError, match="rows"):
                self.push(stage, 0, payload)

    def test_rows_that_their_worker_has_changed_have_no_result(self, stage: RoundsStage) -> None:
        self.push(stage, 0, self.payload(0, 9), Stamp(looks=1))
        self.push(stage, 1, self.payload(0))
        assert opcodes(stage, 1)[-1] is Opcode.REJECT
