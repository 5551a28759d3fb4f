"""What sparse gradients save, as `benchmarks.sparse` measures it."""

from __future__ import annotations

import pytest

from benchmarks import sparse


@pytest.mark.slow
def test_an_embedding_of_a_million_rows_takes_three_percent_of_the_bytes_at_most() -> None:
    found = sparse.measure(1_000_000, 64, 0.01, 1, "auto")  # which compares the results bit by bit, too
    assert found["bytes_ratio"] <= 0.03
    for direction in ("sent", "received"):
        assert found["rows"][direction] <= 0.03 * found["dense"][direction]
    assert found["rows"]["sent"] >= 10_000 * (64 * 4 + 8), "all rows were counted"
    assert found["dense"]["sent"] >= 256_000_000, "all elements were counted"
