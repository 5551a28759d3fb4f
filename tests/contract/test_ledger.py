"""Both ledgers sum what is regular, and leave the rest alone.

That they do the same as Aggregation and the kernels is tested in test_ledger_traffic.py.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest

from byteps_py.errors import KernelError
from byteps_py.kernels import ledger as ledgers
from byteps_py.kernels._native import ffi, lib
from byteps_py.kernels.ledger import MAX_WORKERS, Ledger, Terms
from byteps_py.types import DType, Operation, make_key
from byteps_py.wire import bundle
from byteps_py.wire.bundle import ENTRY
from byteps_py.wire.header import MAX_ENTRIES, Flag
from tests.helpers.rows import shown

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

WANTED = int(Flag.WANT_RESULT)
LIMIT = 1000


class Make(Protocol):
    def __call__(self, *groups: int, limit: int = LIMIT) -> Ledger: ...


@pytest.fixture(params=["native", "reference"])
def make(request: pytest.FixtureRequest) -> Make:
    return lambda *groups, limit=LIMIT: ledgers.make(request.param, groups, limit)


def entry(tensor: int = 0, round: int = 1, **changes: Any) -> dict[str, Any]:
    """Fields of a regular entry of two float32."""
    return {
        "key": make_key(tensor, 0),
        "round": round,
        "count": 2,
        "dtype": DType.FLOAT32,
        "operation": Operation.SUM,
        "flags": WANTED,
        **changes,
    }


def table(*entries: dict[str, Any]) -> memoryview:
    made = np.zeros(len(entries), ENTRY)
    for index, fields in enumerate(entries):
        for name, value in fields.items():
            made[name][index] = value
    return memoryview(made.tobytes())


def floats(*values: float) -> memoryview:
    return memoryview(np.array(values, np.float32))


def buffer(nbytes: int) -> Bytes:
    return np.full(nbytes, 0xEE, np.uint8)


def results(ledger: Ledger, nbytes: int) -> dict[int, list[float] | None]:
    """Finish: the float32 result of each tensor."""
    out = buffer(nbytes)
    found = {}
    for each in ledger.finish(out)[0]:
        data = out[each["place"] :][: 4 * each["count"]].view(np.float32)
        found[int(each["key"]) >> 32] = None if each["flags"] & Flag.ABSENT else data.tolist()
    return found


class TestRounds:
    def test_the_sum_of_all_workers(self, make: Make) -> None:
        ledger = make(1, 1)
        first = ledger.take(0, table(entry(4), entry(2, place=8)), floats(1, 2, 3, 4), "a")
        assert (first.irregular, first.complete, first.nbytes) == ([], 0, 0)
        second = ledger.take(1, table(entry(2, place=8), entry(4)), floats(10, 20, 30, 40), "b")
        assert (second.irregular, second.complete, second.nbytes) == ([], 2, 16)
        out = buffer(20)
        entries, stamps = ledger.finish(out)
        assert entries.dtype == ENTRY
        assert entries.tolist() == [
            (make_key(2, 0), 1, 0, 0, 2, 2, DType.FLOAT32, Operation.SUM, 0, b"\0\0\0"),
            (make_key(4, 0), 1, 0, 8, 2, 2, DType.FLOAT32, Operation.SUM, 0, b"\0\0\0"),
        ]
        assert out[:16].view(np.float32).tolist() == [33, 44, 11, 22]
        assert out[16:].tolist() == [0xEE] * 4
        assert stamps == ["a", "b"]
        assert list(ledger.keys()) == [make_key(2, 0), make_key(4, 0)]

    def test_rounds_follow_one_another(self, make: Make) -> None:
        ledger = make(2)
        for round in range(1, 5):
            ledger.take(0, table(entry(round=round, step=round)), floats(round, 1), None)
            taken = ledger.take(1, table(entry(round=round, step=round)), floats(1, round), None)
            assert taken.complete == 1
            assert results(ledger, taken.nbytes) == {0: [round + 1, round + 1]}

    def test_each_result_begins_at_a_multiple_of_8(self, make: Make) -> None:
        ledger = make(1)
        counts = [3, 0, 1, 9]
        entries = [entry(tensor, count=count, dtype=DType.UINT8) for tensor, count in enumerate(counts)]
        taken = ledger.take(0, table(*entries), memoryview(b"abcdefghij"), None)
        assert taken.nbytes == 8 + 0 + 8 + 16
        out = buffer(taken.nbytes)
        found = ledger.finish(out)[0]
        assert found["place"].tolist() == [0, 8, 8, 16]
        assert bytes(out).replace(b"\xee", b".") == b"abc.....a.......abcdefghi......."

    def test_an_absent_contribution_is_left_out(self, make: Make) -> None:
        ledger = make(2, 1)
        absent = entry(flags=WANTED | Flag.ABSENT, place=0xFFFFFFFF)
        ledger.take(0, table(absent), floats(), "nothing")
        ledger.take(1, table(entry()), floats(-0.0, 3), "something")
        taken = ledger.take(2, table(absent), floats(), "nothing")
        out = buffer(taken.nbytes)
        entries, stamps = ledger.finish(out)
        assert entries["root"].tolist() == [1]
        assert out.tobytes() == np.array([-0.0, 3], np.float32).tobytes()
        assert stamps == ["something"]

    def test_all_absent_have_no_bytes(self, make: Make) -> None:
        ledger = make(2)
        absent = {"flags": WANTED | Flag.ABSENT, "operation": Operation.AVERAGE}
        ledger.take(0, table(entry(0, **absent), entry(1)), floats(1, 2), 0)
        taken = ledger.take(1, table(entry(0, **absent), entry(1)), floats(3, 4), 1)
        assert (taken.complete, taken.nbytes) == (2, 8)
        assert results(ledger, 8) == {0: None, 1: [4, 6]}
        row = ledger.row(make_key(0, 0))
        assert row is not None
        assert row.result is not None
        assert row.result.data is None
        assert row.result.entry["flags"].tolist() == [Flag.ABSENT]
        assert row.result.entry["root"].tolist() == [0]

    def test_an_average_divides_by_all_workers(self, make: Make) -> None:
        ledger = make(4)
        average = {"operation": Operation.AVERAGE}
        for rank in range(3):
            ledger.take(rank, table(entry(**average, flags=WANTED | Flag.ABSENT)), floats(), None)
        taken = ledger.take(3, table(entry(**average)), floats(1, 2), None)
        assert results(ledger, taken.nbytes) == {0: [0.25, 0.5]}

    def test_several_tables_may_wait_for_one_sum(self, make: Make) -> None:
        ledger = make(1)
        for tensor in range(3):
            taken = ledger.take(0, table(entry(tensor)), floats(tensor, 1), tensor)
        assert (taken.complete, taken.nbytes) == (3, 24)
        assert results(ledger, 24) == {0: [0, 1], 1: [1, 1], 2: [2, 1]}

    def test_nothing_is_complete(self, make: Make) -> None:
        ledger = make(2)
        ledger.take(0, table(entry()), floats(1, 2), None)
        for _ in range(2):
            entries, stamps = ledger.finish(buffer(0))
            assert (entries.tolist(), stamps) == ([], [])
        assert ledger.take(1, table(), floats(), None).complete == 0

    def test_a_worker_that_completes_a_row_cannot_begin_the_next_round_in_one_table(self, make: Make) -> None:
        ledger = make(1)
        taken = ledger.take(0, table(entry(round=1), entry(round=2)), floats(1, 2), None)
        assert (taken.irregular, taken.complete) == ([1], 1)


CHANGES: dict[str, dict[str, Any]] = {
    "another partition": {"key": make_key(3, 1)},
    "a tensor beyond the limit": {"key": make_key(LIMIT, 0)},
    "the highest key": {"key": bundle.BUNDLE_KEY},
    "round 0": {"round": 0},
    "a finished round": {"round": 1},
    "a round to come": {"round": 3},
    "no dtype": {"dtype": 0},
    "an unknown dtype": {"dtype": 9},
    "no operation": {"operation": 0},
    "a broadcast": {"operation": Operation.BROADCAST},
    "a result that is not wanted": {"flags": 0},
    "absent and not wanted": {"flags": Flag.ABSENT},
    "an unknown flag": {"flags": WANTED | 4},
    "a root": {"root": 1},
    "padding": {"padding": b"\0\0\1"},
    "a place that is no multiple of 8": {"place": 4},
    "elements that end beyond the payload": {"place": 16},
    "elements that begin beyond the payload": {"place": 24},
    "the highest place": {"place": 0xFFFFFFF8},
    "more elements than the payload has": {"count": 6},
    "elements whose bytes are 0 in 32 bits": {"count": 0x40000000},
    "the highest count": {"count": 0xFFFFFFFF},
    "the highest count, absent": {"count": 0xFFFFFFFF, "flags": WANTED | Flag.ABSENT},
    "another step": {"step": 8},
    "another count": {"count": 1},
    "another dtype": {"dtype": DType.INT32},
    "another operation": {"operation": Operation.AVERAGE},
    "another step, absent": {"step": 8, "flags": WANTED | Flag.ABSENT},
}


class TestIrregular:
    def base(self, make: Make) -> Ledger:
        """Tensor 3 has had round 1; in round 2 the contribution of worker 0 is here."""
        ledger = make(2)
        for rank in range(2):
            taken = ledger.take(rank, table(entry(3, step=6)), floats(1, 1), rank)
        assert results(ledger, taken.nbytes) == {3: [2, 2]}
        assert ledger.take(0, table(entry(3, 2, step=7)), floats(3, 4), "first").irregular == []
        return ledger

    @pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
    def test_it_is_left_alone_and_nothing_changes(self, make: Make, changes: dict[str, Any]) -> None:
        ledger = self.base(make)
        before = shown(ledger.row(make_key(3, 0)))
        right = entry(3, 2, step=7, place=8)
        payload = floats(0, 0, 5, 6, 0)
        taken = ledger.take(1, table(right | changes), payload, "odd")
        assert (taken.irregular, taken.complete, taken.nbytes) == ([0], 0, 0)
        assert shown(ledger.row(make_key(3, 0))) == before
        assert list(ledger.keys()) == [make_key(3, 0)]
        taken = ledger.take(1, table(right | changes, right, right | changes), payload, "second")
        assert (taken.irregular, taken.complete) == ([0, 2], 1)
        out = buffer(taken.nbytes)
        assert ledger.finish(out)[1] == ["first", "second"]
        assert out.view(np.float32).tolist() == [8, 10]

    def test_a_contribution_counts_once(self, make: Make) -> None:
        ledger = self.base(make)
        again = table(entry(3, 2, step=7))
        assert ledger.take(0, again, floats(30, 40), "again").irregular == [0]
        assert ledger.take(1, table(entry(3, 2, step=7), entry(3, 2, step=7)), floats(5, 6), None).irregular == [1]
        assert ledger.take(0, again, floats(30, 40), "again").irregular == [0]
        assert results(ledger, 8) == {3: [8, 10]}

    def test_an_absent_contribution_counts_once(self, make: Make) -> None:
        ledger = make(2)
        ledger.take(0, table(entry(flags=WANTED | Flag.ABSENT)), floats(), None)
        assert ledger.take(0, table(entry()), floats(1, 2), None).irregular == [0]
        row = ledger.row(0)
        assert row is not None
        assert row.payloads == {0: None}

    @pytest.mark.parametrize("changes", [{"round": 2}, {"dtype": 0}, {"place": 16}, {"flags": 0}, {"count": 16384}])
    def test_it_begins_no_row(self, make: Make, changes: dict[str, Any]) -> None:
        ledger = make(2)
        payload = memoryview(bytes(20) if "place" in changes else bytes(65536))
        assert ledger.take(0, table(entry() | changes), payload, None).irregular == [0]
        assert list(ledger.keys()) == []
        assert ledger.row(0) is None
        assert ledger.take(0, table(entry()), payload, None).irregular == []

    def test_a_light_tensor_has_less_than_64_kib(self, make: Make) -> None:
        ledger = make(2)
        payload = memoryview(bytes(65536))
        entries = [entry(0, count=16384), entry(1, count=16383), entry(2, count=16384, flags=WANTED | Flag.ABSENT)]
        assert ledger.take(0, table(*entries), payload, None).irregular == [0, 2]
        assert list(ledger.keys()) == [make_key(1, 0)]

    def test_the_payload_may_be_exactly_as_long_as_needed(self, make: Make) -> None:
        ledger = make(1)
        assert ledger.take(0, table(entry(place=8)), floats(0, 0, 1, 2), None).irregular == []
        assert results(ledger, 8) == {0: [1, 2]}
        assert ledger.take(0, table(entry(round=2, place=8)), floats(0, 0, 1), None).irregular == [0]
        assert ledger.take(0, table(entry(round=2, place=0, count=0)), floats(), None).irregular == []


class TestRows:
    def test_an_open_round(self, make: Make) -> None:
        ledger = make(3, 2)
        average = {"operation": Operation.AVERAGE, "step": 9}
        payload = floats(1, 2, 3, 4)
        ledger.take(4, table(entry(7, **average, place=8)), payload, "d")
        ledger.take(1, table(entry(7, **average, flags=WANTED | Flag.ABSENT)), payload, "a")
        row = ledger.row(make_key(7, 0))
        assert row is not None
        assert row.terms == Terms(DType.FLOAT32, Operation.AVERAGE, 9, 2)
        assert (row.key, row.round, row.arrived, row.stamps, row.result) == (7 << 32, 1, [1, 4], {4: "d"}, None)
        assert row.payloads[1] is None
        assert row.payloads[4] == payload.cast("B")[8:]
        for other in (make_key(6, 0), make_key(7, 1), make_key(LIMIT, 0), make_key(LIMIT - 1, 0)):
            assert ledger.row(other) is None

    def test_a_result_stays_until_all_have_contributed_to_the_next_round(self, make: Make) -> None:
        ledger = make(2)
        for rank in range(2):
            ledger.take(rank, table(entry(1, step=5), entry(2)), floats(rank, 4), None)
        out = buffer(40)
        entries, _ = ledger.finish(out)
        alive = weakref.ref(out)
        row = ledger.row(make_key(2, 0))
        assert row is not None
        assert (row.round, row.terms, row.arrived) == (2, None, [])
        assert row.result is not None
        assert row.result.round == 1
        assert row.result.data is not None
        assert row.result.data.view(np.float32).tolist() == [1, 8]
        assert np.shares_memory(row.result.data, out)
        expected = entries[1:2].copy()
        expected["place"] = 0
        assert row.result.entry.tolist() == expected.tolist()
        del row, out
        ledger.take(0, table(entry(1, 2), entry(2, 2)), floats(0, 0), None)
        ledger.take(1, table(entry(1, 2)), floats(0, 0), None)
        first, second = ledger.row(make_key(1, 0)), ledger.row(make_key(2, 0))
        assert first is not None
        assert first.result is None
        assert second is not None
        assert second.result is not None
        del first, second
        assert alive() is not None
        ledger.take(1, table(entry(2, 2)), floats(0, 0), None)
        assert alive() is None

    def test_a_result_without_bytes_needs_no_buffer(self, make: Make) -> None:
        ledger = make(1)
        ledger.take(0, table(entry(1, count=0)), floats(), None)
        out = buffer(0)
        ledger.finish(out)
        row = ledger.row(make_key(1, 0))
        assert row is not None
        assert row.result is not None
        assert row.result.data is not None
        assert row.result.data.tolist() == []
        assert row.result.entry["flags"].tolist() == [0]

    def test_a_payload_stays_until_all_of_it_is_summed(self, make: Make) -> None:
        ledger = make(2)
        memory = np.array([1, 2, 3, 4], np.float32)
        alive = weakref.ref(memory)
        ledger.take(0, table(entry(1), entry(2, place=8)), memoryview(memory), "early")
        del memory
        ledger.take(1, table(entry(1)), floats(1, 1), "late")
        assert ledger.finish(buffer(8))[1] == ["early", "late"]
        assert alive() is not None
        ledger.take(1, table(entry(2)), floats(1, 1), "later")
        out = buffer(8)
        assert ledger.finish(out)[1] == ["early", "later"]
        assert out.view(np.float32).tolist() == [4, 5]
        assert alive() is None

    def test_a_payload_of_which_nothing_was_taken_is_not_kept(self, make: Make) -> None:
        ledger = make(2)
        memory = np.zeros(4, np.float32)
        alive = weakref.ref(memory)
        entries = table(entry(1, flags=WANTED | Flag.ABSENT), entry(2, dtype=0))
        ledger.take(0, entries, memoryview(memory), None)
        del memory
        assert alive() is None

    def test_tensor_ids_may_come_in_any_order(self, make: Make) -> None:
        ledger = make(1, 1, limit=70_000)
        tensors = [1, 5000, 2, 69_999, 300]
        entries = [entry(tensor, place=8 * index) for index, tensor in enumerate(tensors)]
        values = np.arange(10, dtype=np.float32)
        ledger.take(0, table(entries[0], entry(255)), floats(0, 1), None)
        assert ledger.take(0, table(*entries[1:]), memoryview(values), None).irregular == []
        taken = ledger.take(1, table(*entries, entry(70_000)), memoryview(values), None)
        assert (taken.irregular, taken.complete) == ([5], 5)
        expected = {tensor: [4.0 * index, 4.0 * index + 2] for index, tensor in enumerate(tensors)}
        assert results(ledger, taken.nbytes) == expected
        assert list(ledger.keys()) == [make_key(tensor, 0) for tensor in sorted([*tensors, 255])]

    def test_the_first_tensor_may_have_a_high_id(self, make: Make) -> None:
        ledger = make(1)
        assert ledger.take(0, table(entry(LIMIT - 1), entry(LIMIT)), floats(1, 2), None).irregular == [1]
        assert results(ledger, 8) == {LIMIT - 1: [1, 2]}

    def test_many_workers_and_payloads(self, make: Make) -> None:
        ledger = make(100, 1, 199)
        for round in (1, 2):
            for rank in reversed(range(300)):
                taken = ledger.take(rank, table(entry(round=round)), floats(rank, 1), rank)
            assert taken.complete == 1
            out = buffer(8)
            entries, stamps = ledger.finish(out)
            assert stamps == list(range(300))
            assert entries["root"].tolist() == [300]
            assert out.view(np.float32).tolist() == [299 * 150, 300]

    def test_many_buffers_of_results(self, make: Make) -> None:
        ledger = make(1)
        for round in (1, 2):
            for tensor in range(200):
                taken = ledger.take(0, table(entry(tensor, round)), floats(tensor, round), None)
                assert results(ledger, taken.nbytes) == {tensor: [tensor, round]}
            for tensor in range(200):
                row = ledger.row(make_key(tensor, 0))
                assert row is not None
                assert row.result is not None
                assert row.result.data is not None
                assert row.result.data.view(np.float32).tolist() == [tensor, round]


class TestEviction:
    def test_in_the_middle_of_a_round(self, make: Make) -> None:
        ledger = make(3)
        for rank in range(3):
            taken = ledger.take(rank, table(entry(5)), floats(1, 2), rank)
        assert results(ledger, taken.nbytes) == {5: [3, 6]}
        memory = np.array([7, 8], np.float32)
        alive = weakref.ref(memory)
        ledger.take(1, table(entry(5, 2, step=3)), memoryview(memory), "mine")
        ledger.take(2, table(entry(5, 2, step=3, flags=WANTED | Flag.ABSENT)), floats(), None)
        before = ledger.row(make_key(5, 0))
        row = ledger.evict(make_key(5, 0))
        assert shown(row) == shown(before)
        assert row.payloads == {1: memoryview(memory).cast("B"), 2: None}
        assert row.result is not None
        assert list(ledger.keys()) == []
        assert ledger.row(make_key(5, 0)) is None
        assert ledger.take(0, table(entry(5, 2, step=3)), floats(0, 0), None).irregular == [0]
        assert ledger.take(0, table(entry(5)), floats(0, 0), None).irregular == [0]
        del before, row, memory
        assert alive() is None

    def test_the_last_result_is_let_go(self, make: Make) -> None:
        ledger = make(1)
        ledger.take(0, table(entry(5), entry(6)), floats(1, 2), None)
        out = buffer(16)
        ledger.finish(out)
        alive = weakref.ref(out)
        del out
        ledger.evict(make_key(5, 0))
        assert alive() is not None
        row = ledger.evict(make_key(6, 0))
        assert row.result is not None
        assert row.result.data is not None
        assert row.result.data.view(np.float32).tolist() == [1, 2]
        del row
        assert alive() is None

    def test_of_a_complete_row(self, make: Make) -> None:
        ledger = make(2)
        ledger.take(0, table(entry(1), entry(2), entry(3)), floats(1, 2), "a")
        taken = ledger.take(1, table(entry(1), entry(2), entry(3)), floats(3, 4), "b")
        assert (taken.complete, taken.nbytes) == (3, 24)
        row = ledger.evict(make_key(2, 0))
        assert (row.round, row.arrived, row.stamps) == (1, [0, 1], {0: "a", 1: "b"})
        taken = ledger.take(0, table(), floats(), None)
        assert (taken.complete, taken.nbytes) == (2, 16)
        assert results(ledger, 16) == {1: [4, 6], 3: [4, 6]}

    def test_of_a_key_that_was_never_seen(self, make: Make) -> None:
        ledger = make(1)
        for tensor in (1, 900):
            assert shown(ledger.evict(make_key(tensor, 0))) == (make_key(tensor, 0), 1, None, {}, {}, None)
        assert ledger.take(0, table(entry(1), entry(900), entry(2)), floats(1, 2), None).irregular == [0, 1]

    def test_of_a_key_that_can_have_no_row(self, make: Make) -> None:
        ledger = make(1)
        for key in (make_key(1, 1), make_key(LIMIT, 0)):
            for _ in range(2):
                assert shown(ledger.evict(key)) == (key, 1, None, {}, {}, None)

    def test_once_more(self, make: Make) -> None:
        ledger = make(1)
        ledger.evict(make_key(1, 0))
        with pytest.raises(KernelError, match=f"key {1 << 32} has been evicted before: it must be admitted first"):
            ledger.evict(make_key(1, 0))

    def test_an_evicted_key_is_admitted_again(self, make: Make) -> None:
        ledger = make(2)
        ledger.take(0, table(entry(5)), floats(1, 2), None)
        ledger.evict(make_key(5, 0))
        ledger.admit(make_key(5, 0), 7)
        assert shown(ledger.row(make_key(5, 0))) == (make_key(5, 0), 7, None, {}, {}, None)
        assert ledger.take(0, table(entry(5), entry(5, 8), entry(5, 7, step=2)), floats(1, 2), "a").irregular == [0, 1]
        taken = ledger.take(1, table(entry(5, 7, step=2)), floats(3, 4), None)
        assert results(ledger, taken.nbytes) == {5: [4, 6]}
        row = ledger.evict(make_key(5, 0))
        assert row.round == 8

    def test_a_new_key_is_admitted(self, make: Make) -> None:
        ledger = make(1)
        ledger.admit(make_key(800, 0), 3)
        assert list(ledger.keys()) == [make_key(800, 0)]
        taken = ledger.take(0, table(entry(800, 1), entry(800, 3)), floats(1, 2), None)
        assert (taken.irregular, taken.complete) == ([0], 1)

    @pytest.mark.parametrize(("key", "round"), [(1 << 32, 2), (1 << 32 | 1, 1), (LIMIT << 32, 1), (2 << 32, 0)])
    def test_a_key_that_cannot_be_admitted(self, make: Make, key: int, round: int) -> None:
        ledger = make(1)
        ledger.take(0, table(entry(1)), floats(1, 2), None)
        with pytest.raises(KernelError, match=f"key {key} cannot be admitted with round {round}"):
            ledger.admit(key, round)


class TestRefusals:
    def test_numbers_of_workers(self, make: Make) -> None:
        for groups in ((), (2, 0), (MAX_WORKERS, 1)):
            with pytest.raises(KernelError, match="are no parts of 1 to 65535 workers"):
                make(*groups)

    def test_a_name(self) -> None:
        with pytest.raises(KernelError, match="there is no ledger 'fast'; choose native or reference"):
            ledgers.make("fast", [1])

    def test_the_name_is_told(self) -> None:
        assert [ledgers.make(name, [1]).name for name in ("native", "reference")] == ["native", "reference"]

    @pytest.mark.parametrize("rank", [-1, 2])
    def test_a_rank(self, make: Make, rank: int) -> None:
        with pytest.raises(KernelError, match=f"there is no worker {rank}: this ledger has the workers 0 to 1"):
            make(2).take(rank, table(entry()), floats(1, 2), None)

    def test_a_part_of_an_entry(self, make: Make) -> None:
        with pytest.raises(KernelError, match="a table of 39 bytes is no whole number of entries of 40 bytes"):
            make(2).take(0, table(entry())[:39], floats(1, 2), None)

    def test_too_many_entries(self, make: Make) -> None:
        ledger = make(1)
        ledger.take(0, table(entry()), floats(1, 2), None)
        with pytest.raises(KernelError, match="65536 entries and 1 complete rows are more than 65536: finish those"):
            ledger.take(0, memoryview(bytes(40 * MAX_ENTRIES)), floats(), None)
        assert results(ledger, 8) == {0: [1, 2]}
        taken = ledger.take(0, memoryview(bytes(40 * MAX_ENTRIES)), floats(), None)
        assert taken.irregular == list(range(MAX_ENTRIES))

    def test_a_buffer_for_results(self, make: Make) -> None:
        ledger = make(2)
        memory = np.arange(8, dtype=np.float32)
        for rank in range(2):
            ledger.take(rank, table(entry(1), entry(2, place=8)), memoryview(memory), rank)
        fixed = buffer(16)
        fixed.flags.writeable = False
        for out, words in [
            (buffer(15), "out has 15 bytes, but 16 are needed"),
            (fixed, "out cannot be written to"),
            (memory.view(np.uint8)[4:], "out shares memory with a source"),
        ]:
            with pytest.raises(KernelError, match=words):
                ledger.finish(out)
        memory[:] = range(8)
        assert results(ledger, 16) == {1: [0, 2], 2: [4, 6]}


class TestNative:
    def test_subnormals_are_kept_where_the_caller_flushes_them(self) -> None:
        torch = pytest.importorskip("torch")
        ledger = ledgers.make("native", [2])
        for rank in range(2):
            ledger.take(rank, table(entry()), floats(1e-40, 1), None)
        out = buffer(8)
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor cannot flush subnormals")
        try:
            ledger.finish(out)
            still_flushed = (out.view(np.float32) / np.float32(2)).view(np.uint32)
        finally:
            torch.set_flush_denormal(False)
        assert still_flushed[0] == 0
        assert out.view(np.uint32)[0] == 2 * int(np.array(1e-40, np.float32).view(np.uint32))


class TestNumbersOfC:
    def test_entries(self) -> None:
        assert ffi.sizeof("struct byteps_entry") == ENTRY.itemsize == bundle.ENTRY_SIZE
        assert ENTRY.fields is not None
        for name, (_, offset, *_) in ENTRY.fields.items():
            assert ffi.offsetof("struct byteps_entry", name) == offset

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("LIGHT_BYTES", bundle.LIGHT_BYTES),
            ("PLACE_ALIGNMENT", bundle.PLACE_ALIGNMENT),
            ("MAX_ENTRIES", MAX_ENTRIES),
            ("MAX_WORKERS", MAX_WORKERS),
            ("SUM", Operation.SUM),
            ("AVERAGE", Operation.AVERAGE),
            ("ABSENT", Flag.ABSENT),
            ("WANT_RESULT", Flag.WANT_RESULT),
        ],
    )
    def test_constants(self, name: str, value: int) -> None:
        assert getattr(lib, f"BYTEPS_{name}") == value
