"""Declared tensors: agreement, partitions, and balanced placement."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_py.core import tensor_table
from byteps_py.core.tensor_table import MAX_PARTITIONS, TensorTable
from byteps_py.types import DType, Partition, TensorSpec, make_key, make_tensor_id, split_key
from byteps_py.wire.control import (
    MAX_CONTROL_BYTES,
    MAX_NAME,
    Conflict,
    Declared,
    Placement,
    decode_control,
    encode_control,
)
from byteps_py.wire.header import MAX_ELEMENTS


def spec(name: str, *shape: int, dtype: DType = DType.FLOAT32) -> TensorSpec:
    return TensorSpec(name, dtype, shape)


def declare_one(table: TensorTable, each: TensorSpec, rank: int = 0) -> Placement:
    (placement,), conflicts = table.declare(rank, [each])
    assert conflicts == ()
    return placement


def conflict_of(table: TensorTable, each: TensorSpec, rank: int = 0) -> Conflict:
    placements, (conflict,) = table.declare(rank, [each])
    assert placements == ()
    return conflict


class TestGroups:
    def test_each_group_counts_its_own_tensors(self) -> None:
        table = TensorTable(1, partition_bytes=8)
        tensors = [("a", 0), ("b", 3), ("c", 3), ("d", 0), ("e", 8191)]
        placements, _ = table.declare(0, [TensorSpec(name, DType.FLOAT32, (3,), group) for name, group in tensors])
        ids = [make_tensor_id(*each) for each in ((0, 0), (3, 0), (3, 1), (0, 1), (8191, 0))]
        assert [each.tensor_id for each in placements] == ids
        assert [p.key for each in placements for p in each.partitions] == [make_key(i, n) for i in ids for n in (0, 1)]

    def test_groups_must_agree(self) -> None:
        table = TensorTable(1, partition_bytes=8)
        declare_one(table, TensorSpec("w", DType.FLOAT32, (3,), 2))
        text = conflict_of(table, spec("w", 3), 1).text
        assert "float32 (3,) of group 2 on worker 0 but float32 (3,) on worker 1" in text
        assert "one group" in text

    def test_a_group_has_only_so_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tensor_table, "GROUP_TENSORS", 3)
        table = TensorTable(1, partition_bytes=8)
        specs = [TensorSpec(str(index), DType.FLOAT32, (3,), 1 + index % 2) for index in range(8)]
        placements, conflicts = table.declare(0, specs)
        assert [each.name for each in placements] == ["0", "1", "2", "3", "4", "5"]
        assert [each.name for each in conflicts] == ["6", "7"]
        assert "'6' is float32 (3,) of group 1, which has 3 tensors already" in conflicts[0].text
        assert table.declare(1, specs[:6]) == (placements, ())
        last = TensorSpec("last", DType.FLOAT32, (3,), 3)
        (first, again), conflicts = TensorTable(1, partition_bytes=8).declare(0, [last, last])
        assert (first, conflicts) == (again, ())
        monkeypatch.setattr(tensor_table, "GROUP_TENSORS", 1)
        assert TensorTable(1, partition_bytes=8).declare(0, [last, last]) == ((first, again), ())
        declare_one(table, spec("v", 3))


class TestPartitions:
    def test_whole_elements(self) -> None:
        placement = declare_one(TensorTable(1, partition_bytes=10), spec("w", 5))
        assert placement == Placement("w", 0, (Partition(0, 0, 2, 0), Partition(1, 2, 2, 0), Partition(2, 4, 1, 0)))

    def test_an_exact_multiple_has_no_empty_rest(self) -> None:
        placement = declare_one(TensorTable(1, partition_bytes=8), spec("w", 2, 2))
        assert [(p.offset, p.count) for p in placement.partitions] == [(0, 2), (2, 2)]

    @pytest.mark.parametrize(
        ("elements", "partition_bytes", "counts"),
        [
            (1 << 20, 4_096_000, [1 << 19] * 2),
            (3 << 20, 4_096_000, [786_432] * 4),
            (1_024_000, 4_096_000, [1_024_000]),
            (1_024_001, 4_096_000, [513_024, 510_977]),  # 501 and 500 grains, of which the last one is not full
            (2_500_000, 4_096_000, [833_536, 833_536, 832_928]),
            (1 << 18, 400_000, [88_064, 87_040, 87_040]),
        ],
    )
    def test_of_equal_size(self, elements: int, partition_bytes: int, counts: list[int]) -> None:
        placement = declare_one(TensorTable(2, partition_bytes), spec("w", elements))
        assert [p.count for p in placement.partitions] == counts
        assert {p.offset % 1024 for p in placement.partitions} == {0}

    def test_the_grain_is_halved_where_the_setting_asks_for_it(self) -> None:
        placement = declare_one(TensorTable(2, 4000), spec("w", 1 << 20))
        counts = [p.count for p in placement.partitions]
        assert len(counts) == 1049
        assert max(counts) == 1000
        assert {p.offset % 8 for p in placement.partitions} == {0}

    def test_at_least_one_element(self) -> None:
        placement = declare_one(TensorTable(1, partition_bytes=3), spec("w", 2, dtype=DType.INT64))
        assert [(p.offset, p.count) for p in placement.partitions] == [(0, 1), (1, 1)]

    @pytest.mark.parametrize("shape", [(0,), (0, 7), (3, 0)])
    def test_no_elements_is_one_partition(self, shape: tuple[int, ...]) -> None:
        placement = declare_one(TensorTable(2, 64), spec("w", *shape))
        assert [(p.offset, p.count) for p in placement.partitions] == [(0, 0)]

    def test_no_dimensions_is_one_element(self) -> None:
        placement = declare_one(TensorTable(2, 64), spec("w"))
        assert [(p.offset, p.count) for p in placement.partitions] == [(0, 1)]

    def test_ids_and_keys_follow_the_first_declaration(self) -> None:
        table = TensorTable(2, 4)
        placements, _ = table.declare(1, [spec("small", 1), spec("large", 3)])
        again, _ = table.declare(0, [spec("other", 2), spec("large", 3)])
        assert [(p.name, p.tensor_id) for p in placements] == [("small", 0), ("large", 1)]
        assert [(p.name, p.tensor_id) for p in again] == [("other", 2), ("large", 1)]
        assert [p.key for p in again[1].partitions] == [make_key(1, 0), make_key(1, 1), make_key(1, 2)]

    def test_repeating_a_batch_gives_the_same_answer(self) -> None:
        table = TensorTable(3, 8)
        batch = [spec("a", 5), spec("b", 9), spec("a", 5)]
        first = table.declare(0, batch)
        assert [p.name for p in first[0]] == ["a", "b", "a"]
        assert table.declare(0, batch) == first
        assert table.declare(1, batch) == first

    @pytest.mark.parametrize(("num_servers", "partition_bytes"), [(0, 64), (1, 0)])
    def test_impossible_arguments(self, num_servers: int, partition_bytes: int) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            TensorTable(num_servers, partition_bytes)


class TestPlacement:
    def test_largest_first_on_the_least_loaded(self) -> None:
        placements, _ = TensorTable(2, 1 << 30).declare(
            0, [spec("a", 10_000), spec("b", 50_000), spec("c", 30_000), spec("d", 30_000)]
        )
        # b to 0; c and d (in order of declaration) to 1, where the load stays below that of 0 after c only; a to 0.
        assert {p.name: p.partitions[0].server for p in placements} == {"b": 0, "c": 1, "d": 1, "a": 0}

    def test_ties_go_to_the_lowest_rank(self) -> None:
        placements, _ = TensorTable(3, 4).declare(0, [spec("w", 5)])
        assert [p.server for p in placements[0].partitions] == [0, 1, 2, 0, 1]

    def test_later_declarations_go_to_the_least_loaded(self) -> None:
        table = TensorTable(2, 1 << 30)
        assert declare_one(table, spec("a", 100_000)).partitions[0].server == 0
        assert declare_one(table, spec("b", 10)).partitions[0].server == 1
        assert declare_one(table, spec("c", 10)).partitions[0].server == 1

    def test_empty_tensors_are_spread_too(self) -> None:
        placements, _ = TensorTable(2, 64).declare(0, [spec(f"empty {i}", 0) for i in range(6)])
        assert Counter(p.partitions[0].server for p in placements) == {0: 3, 1: 3}

    def test_small_tensors_do_not_all_follow_a_large_one(self) -> None:
        placements, _ = TensorTable(2, 1 << 30).declare(
            0, [spec("matrix", 1 << 20), *(spec(f"bias {i}", 16) for i in range(1000))]
        )
        biases = Counter(p.partitions[0].server for p in placements[1:])
        assert biases[0] > 300


class TestConflicts:
    def test_both_sides_are_named(self) -> None:
        table = TensorTable(1, 64)
        declare_one(table, spec("w", 3, 4), rank=0)
        conflict = conflict_of(table, spec("w", 4, 3), rank=1)
        assert conflict.name == "w"
        assert conflict.text.startswith("tensor 'w' is float32 (3, 4) on worker 0 but float32 (4, 3) on worker 1: ")

    def test_dtypes_must_agree(self) -> None:
        table = TensorTable(1, 64)
        declare_one(table, spec("w", 3), rank=2)
        conflict = conflict_of(table, spec("w", 3, dtype=DType.FLOAT16), rank=1)
        assert "float32 (3,) on worker 2 but float16 (3,) on worker 1" in conflict.text

    def test_a_conflict_stays(self) -> None:
        table = TensorTable(1, 64)
        declare_one(table, spec("w", 3), rank=0)
        conflict = conflict_of(table, spec("w", 4), rank=1)
        assert conflict_of(table, spec("w", 3), rank=0) == conflict
        assert conflict_of(table, spec("w", 5), rank=2) == conflict

    def test_the_others_of_the_batch_are_placed(self) -> None:
        table = TensorTable(1, 64)
        declare_one(table, spec("w", 3), rank=0)
        placements, conflicts = table.declare(1, [spec("a", 1), spec("w", 4), spec("b", 1)])
        assert [(p.name, p.tensor_id) for p in placements] == [("a", 1), ("b", 2)]
        assert [c.name for c in conflicts] == ["w"]

    @pytest.mark.parametrize("order", [[(3,), (4,)], [(3,), (4,), (3,)]])
    def test_within_one_batch(self, order: list[tuple[int, ...]]) -> None:
        table = TensorTable(1, 64)
        placements, conflicts = table.declare(0, [spec("a", 1), *(spec("w", *shape) for shape in order)])
        assert [p.name for p in placements] == ["a"]
        assert "float32 (3,) on worker 0 but float32 (4,) on worker 0" in conflicts[0].text
        assert len(conflicts) == 1
        assert conflict_of(table, spec("w", 3), rank=1) == conflicts[0]
        assert declare_one(table, spec("next", 1)).tensor_id == 1

    def test_the_longest_name_is_carried(self) -> None:
        table = TensorTable(1, 64)
        declare_one(table, spec("w" * MAX_NAME, 1))
        conflict = conflict_of(table, spec("w" * MAX_NAME, 2), rank=1)
        received = decode_control(encode_control(conflict))
        assert isinstance(received, Conflict)
        assert received.name == "w" * MAX_NAME


class TestTooLarge:
    @pytest.mark.parametrize("elements", [MAX_PARTITIONS + 1, MAX_ELEMENTS])
    def test_nothing_is_allocated(self, elements: int) -> None:
        conflict = conflict_of(TensorTable(1, 4), spec("w", elements), rank=3)
        assert "on worker 3" in conflict.text
        assert "BYTEPS_PARTITION_BYTES=4" in conflict.text

    def test_the_limit_is_for_the_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tensor_table, "MAX_PARTITIONS", 5)
        placements, conflicts = TensorTable(1, 4).declare(0, [spec("a", 2), spec("b", 3), spec("c", 1)])
        assert [p.name for p in placements] == ["a", "b"]
        assert [c.name for c in conflicts] == ["c"]

    def test_the_largest_answer_fits_into_a_frame(self) -> None:
        table = TensorTable(3, 8)
        sizes = []
        for name, count in (("a", 20_000), ("b", 40_000)):
            placements, _ = table.declare(0, [spec(name, count)])
            sizes.append(len(encode_control(Declared(1, placements))))
        bytes_per_partition = (sizes[1] - sizes[0]) / 10_000
        assert (bytes_per_partition + 12) * MAX_PARTITIONS < MAX_CONTROL_BYTES  # 12: larger ids, offsets and ranks


SHAPES = st.lists(st.integers(0, 40), max_size=2).map(tuple)
BATCHES = st.lists(st.lists(st.tuples(SHAPES, st.sampled_from(DType)), max_size=12), min_size=1, max_size=3)


@given(BATCHES, st.integers(1, 5), st.integers(1, 300))
def test_partitions_cover_every_element_once(
    batches: list[list[tuple[tuple[int, ...], DType]]], num_servers: int, partition_bytes: int
) -> None:
    table = TensorTable(num_servers, partition_bytes)
    seen: set[int] = set()
    for number, batch in enumerate(batches):
        specs = [TensorSpec(f"{number}.{i}", dtype, shape) for i, (shape, dtype) in enumerate(batch)]
        placements, conflicts = table.declare(0, specs)
        assert conflicts == ()
        for each, placement in zip(specs, placements, strict=True):
            assert placement.name == each.name
            end = 0
            for index, partition in enumerate(placement.partitions):
                assert split_key(partition.key) == (placement.tensor_id, index)
                assert partition.offset == end
                assert partition.count >= (1 if each.count else 0)
                assert partition.count * each.dtype.itemsize <= max(partition_bytes, each.dtype.itemsize)
                assert 0 <= partition.server < num_servers
                end += partition.count
                seen.add(partition.key)
            assert end == each.count
            most = max(1, partition_bytes // each.dtype.itemsize)
            assert len(placement.partitions) == max(1, -(-each.count // most))
    assert len({split_key(key)[0] for key in seen}) == sum(len(batch) for batch in batches)


@given(st.integers(1, 1 << 22), st.sampled_from(DType), st.integers(1024, 1 << 22))
def test_partitions_of_a_tensor_differ_by_little(elements: int, dtype: DType, partition_bytes: int) -> None:
    (placement,), _ = TensorTable(2, partition_bytes).declare(0, [spec("w", elements, dtype=dtype)])
    counts = [p.count for p in placement.partitions]
    assert sum(counts) == elements
    assert max(counts) * dtype.itemsize <= partition_bytes
    assert counts[:-1] == sorted(counts[:-1], reverse=True)
    assert max(counts) - min(counts) < 2 * tensor_table._GRAIN


@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=60), st.integers(1, 8), st.integers(64, 4_096_000))
def test_no_server_exceeds_the_even_share_by_a_partition(
    sizes: list[int], num_servers: int, partition_bytes: int
) -> None:
    specs = [TensorSpec(str(i), DType.INT8, (size,)) for i, size in enumerate(sizes)]
    placements, _ = TensorTable(num_servers, max(partition_bytes, 20_000)).declare(0, specs)
    cost = tensor_table._PARTITION_COST
    loads = [0] * num_servers
    for placement in placements:
        for partition in placement.partitions:
            loads[partition.server] += partition.count + cost
    largest = max(p.count for placement in placements for p in placement.partitions) + cost
    # The bound of list scheduling; largest-first only betters it.
    assert max(loads) * num_servers <= sum(loads) + (num_servers - 1) * largest


@given(BATCHES, st.integers(1, 5), st.integers(1, 300))
def test_equal_calls_give_equal_tables(
    batches: list[list[tuple[tuple[int, ...], DType]]], num_servers: int, partition_bytes: int
) -> None:
    tables = [TensorTable(num_servers, partition_bytes) for _ in range(2)]
    for batch in batches:
        specs = [TensorSpec(str(i), dtype, shape) for i, (shape, dtype) in enumerate(batch)]
        assert tables[0].declare(0, specs) == tables[1].declare(0, specs)


def test_a_real_model_is_balanced() -> None:
    """The layer sizes of a ResNet-50, cut at the default size, on eight servers: within 2 % of an even share."""
    table = TensorTable(8, 4_096_000)
    sizes = [
        2_048_000,
        *[2_359_296] * 3,
        *[1_048_576] * 9,
        *[589_824] * 6,
        *[262_144] * 12,
        *[65_536] * 10,
        *[2048] * 60,
    ]
    placements, _ = table.declare(0, [spec(str(i), size) for i, size in enumerate(sizes)])
    loads = Counter[int]()
    for placement in placements:
        for partition in placement.partitions:
            loads[partition.server] += partition.count
    assert max(loads.values()) < 1.02 * sum(sizes) / 8


class TestShares:
    def test_bytes_go_by_weight(self) -> None:
        table = TensorTable(3, 1 << 16, weights=(0.1, 0.3, 0.6))
        placement = declare_one(table, spec("w", 25 << 20))
        total = [0, 0, 0]
        for partition in placement.partitions:
            total[partition.server] += partition.count
        assert [each / sum(total) for each in total] == pytest.approx([0.1, 0.3, 0.6], abs=0.002)

    def test_the_first_partitions_are_spread_already(self) -> None:
        table = TensorTable(2, 1 << 16, weights=(0.25, 0.75))
        servers = [each.server for each in declare_one(table, spec("w", 4 << 20)).partitions]
        for begin in range(0, len(servers) - 8, 8):
            assert servers[begin : begin + 8].count(0) == 2

    def test_a_server_without_a_share_gets_nothing(self) -> None:
        table = TensorTable(3, 1024, weights=(1.0, 0.0, 1.0))
        placements, _ = table.declare(0, [spec(f"w{index}", 1000) for index in range(9)])
        assert {each.server for placement in placements for each in placement.partitions} == {0, 2}

    @pytest.mark.parametrize("weights", [(1.0,), (1.0, -1.0), (0.0, 0.0), ()])
    def test_impossible_weights(self, weights: tuple[float, ...]) -> None:
        with pytest.raises(ValueError, match="as many weights"):
            TensorTable(2, 1024, weights=weights)


class TestChosenSizes:
    def test_by_the_batch_and_the_link(self) -> None:
        table = TensorTable(4, None, workers=4)
        (placement,), _ = table.declare(0, [spec("w", 6_250_000)], 24_000_000)
        assert (table.partition_bytes, table.window_bytes) == (65536, 65536)
        assert max(each.count for each in placement.partitions) * 4 <= 65536
        assert len(placement.partitions) == -(-25_000_000 // 65536)

    def test_a_worker_that_has_no_link_does_not_speak_for_the_others(self) -> None:
        table = TensorTable(4, None, workers=4)
        table.declare(0, [spec("w", 6_250_000)], 0)
        assert (table.partition_bytes, table.window_bytes) == (131072, 131072)
        table.declare(1, [spec("v", 6_250_000)], 1_000_000)
        table.declare(2, [spec("u", 6_250_000)], 0)
        assert "75 MB of tensors, 1 MB/s" in table.take_news()[-1]

    def test_what_is_refused_does_not_count(self) -> None:
        table = TensorTable(4, None, workers=4)
        for _ in range(3):
            table.declare(0, [spec("w", 3), spec("big", 100_000_000)], 24_000_000)
            table.declare(1, [spec("big", 100_000_001)], 24_000_000)
        table.declare(0, [spec("v", 6_250_000)], 1_000_000)
        assert "425 MB of tensors" in table.take_news()[-1]

    def test_without_a_link(self) -> None:
        table = TensorTable(4, None, workers=4, has_links=False)
        placement = declare_one(table, spec("w", 4 << 20))
        assert (table.partition_bytes, len(placement.partitions)) == (4 << 20, 4)
        assert table.window_bytes == 16 << 20
        assert table.take_news() == []

    def test_what_is_declared_later_counts_with_what_is_there(self) -> None:
        table = TensorTable(4, None, workers=4)
        sizes = []
        for index in range(3):
            table.declare(0, [spec(f"w{index}", 2_000_000 * 4**index)], 24_000_000)
            sizes.append(table.partition_bytes)
        assert sizes == [32768, 131072, 262144]
        assert table.declare(1, [spec("w0", 2_000_000)], 10) == TensorTable(4, None, workers=4).declare(
            0, [spec("w0", 2_000_000)], 24_000_000
        )

    def test_what_was_chosen_is_told_once(self) -> None:
        table = TensorTable(4, None, workers=4)
        table.declare(0, [spec("w", 6_250_000)], 24_000_000)
        assert table.take_news() == [
            "partitions of up to 65536 bytes: 25 MB of tensors, 24 MB/s between workers and servers"
        ]
        table.declare(0, [spec("v", 1000)], 24_000_000)
        assert table.take_news() == []

    def test_a_given_size_is_not_changed(self) -> None:
        table = TensorTable(4, 1 << 20, workers=4)
        table.declare(0, [spec("w", 6_250_000)], 24_000_000)
        assert (table.partition_bytes, table.window_bytes) == (1 << 20, 0)
