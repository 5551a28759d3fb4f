"""The size of partitions: known points, and its way with each of what it depends on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_py.core.partition_size import (
    LARGEST_PARTITION,
    SMALLEST_PARTITION,
    choose_partition_bytes,
    choose_window_bytes,
)

MB = 10**6


@pytest.mark.parametrize(
    ("model", "workers", "servers", "link", "size"),
    [
        (25 * MB, 4, 4, 24 * MB, 65536),
        (25 * MB, 4, 4, 12 * MB, 65536),
        (25 * MB, 4, 2, 24 * MB, 65536),
        (25 * MB, 4, 4.5, 14 * MB, 65536),
        (25 * MB, 4, 4, 6 * MB, 32768),
        (100 * MB, 4, 4, 1200 * MB, 1 << 20),
        (1000, 2, 2, 1200 * MB, 131072),
        (25 * MB, 64, 64, MB, SMALLEST_PARTITION),
        (10**12, 1, 1, 10**11, LARGEST_PARTITION),
    ],
)
def test_known_points(model: int, workers: int, servers: float, link: float, size: int) -> None:
    assert choose_partition_bytes(model, workers, servers, link) == size


def test_without_a_link() -> None:
    assert choose_partition_bytes(25 * MB, 4, 4, None) == LARGEST_PARTITION


sizes = st.integers(0, 10**13)
counts = st.integers(1, 1000)
links = st.floats(1.0, 1e12)


@given(sizes, counts, counts, links)
def test_any_job(model: int, workers: int, servers: int, link: float) -> None:
    size = choose_partition_bytes(model, workers, servers, link)
    assert SMALLEST_PARTITION <= size <= LARGEST_PARTITION
    assert size & (size - 1) == 0
    assert choose_partition_bytes(2 * model, workers, servers, link) >= size
    assert choose_partition_bytes(model, workers, servers, 2 * link) >= size
    assert choose_partition_bytes(model, workers + 1, servers, link) <= size
    assert choose_partition_bytes(model, workers, servers + 1, link) <= size


@pytest.mark.parametrize(
    ("workers", "servers", "link", "partitions"),
    [
        (4, 4, 1.0, 1),
        (4, 2, 1.0, 1),
        (2, 8, 1.0, 1),
        (2, 2, 1.0, 2),
        (3, 1, 1.0, 2),
        (1, 1, 1.0, 4),
        (2, 1, None, 4),
        (2, 6, None, 6),
    ],
)
def test_windows(workers: int, servers: int, link: float | None, partitions: int) -> None:
    assert choose_window_bytes(1000, workers, servers, link) == 1000 * partitions
