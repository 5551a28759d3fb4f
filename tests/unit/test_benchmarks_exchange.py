"""benchmarks/exchange.py: the order of operations, and that a wrong sum is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import exchange, phases

WORK = {"driver": 1, "workers": 3, "tensors": 4, "count": 10, "dtype": "float32"}


class Alone:
    """Worker 1 of three, which adds the others' data by itself; ``spoil`` may change the result of a tensor."""

    rank = 1

    def __init__(self, seed: int, spoil: Callable[[int, np.ndarray], None]) -> None:
        self.tensors = [np.zeros(10, np.float32) for _ in range(4)]
        self.seed, self.spoil = seed, spoil
        self.sent = 0

    def barrier(self) -> None:
        pass

    def step(self, in_flight: int) -> None:
        for index, tensor in enumerate(self.tensors):
            for rank in (0, 2):
                np.add(tensor, exchange.random_values(self.seed, rank, index, 10, "float32"), out=tensor)
            self.spoil(index, tensor)
            self.sent += 3

    def fill(self, index: int, values: np.ndarray[Any, Any]) -> None:
        self.tensors[index][:] = values

    def result(self, index: int) -> np.ndarray[Any, Any]:
        return self.tensors[index]

    def clear(self) -> None:
        for each in self.tensors:
            each.fill(0)

    def counters(self) -> dict[str, float]:
        return {"messages": self.sent, "copy in": self.sent / 2}


def served(
    folder: Path, orders: list[dict[str, Any]], spoil: Callable[[int, np.ndarray], None]
) -> list[dict[str, Any]]:
    """What a worker reports in each phase."""
    phases.write(folder / "work.json", WORK)
    for number, order in enumerate([*orders, {"do": "end"}]):
        phases.write(folder / f"phase-{number}.json", order)
    exchange.serve(folder, lambda work: Alone(7, spoil))
    return [phases.read(folder / f"done-{number}-1.json") for number in range(len(orders))]


def test_right_sums_are_found_right(tmp_path: Path) -> None:
    (report,) = served(tmp_path, [{"do": "verify", "seed": 7, "in_flight": 0}], lambda index, result: None)
    assert report == {"wrong": [], "compared": 4}


def test_one_wrong_element_is_found(tmp_path: Path) -> None:
    def spoil(index: int, result: np.ndarray) -> None:
        result[9] += 1.0 * (index == 2)

    (report,) = served(tmp_path, [{"do": "verify", "seed": 7, "in_flight": 0}], spoil)
    assert report == {"wrong": [2], "compared": 4}


def test_results_of_the_last_check_do_not_pass_the_next_one(tmp_path: Path) -> None:
    orders = [{"do": "verify", "seed": seed, "in_flight": 0} for seed in (7, 8)]
    assert [len(each["wrong"]) for each in served(tmp_path, orders, lambda index, result: None)] == [0, 4]


def test_a_window_counts_what_happens_in_it(tmp_path: Path) -> None:
    runs = [{"do": "run", "steps": steps, "in_flight": 0} for steps in (2, 5)]
    reports = served(tmp_path, runs, lambda index, result: None)
    assert [each["counted"] for each in reports] == [{"messages": 24, "copy in": 12}, {"messages": 60, "copy in": 30}]
    assert all(0 < each["p50"] <= each["p99"] <= each["seconds"] for each in reports)


@pytest.mark.parametrize(
    ("in_flight", "expected"),
    [
        (1, "s0 f0 s1 f1 s2 f2 s3 f3"),
        (2, "s0 s1 f0 s2 f1 s3 f2 f3"),
        (3, "s0 s1 s2 f0 s3 f1 f2 f3"),
        (4, "s0 s1 s2 s3 f0 f1 f2 f3"),
        (9, "s0 s1 s2 s3 f0 f1 f2 f3"),
        (0, "s0 s1 s2 s3 f0 f1 f2 f3"),
    ],
)
def test_so_many_operations_are_open_at_a_time(in_flight: int, expected: str) -> None:
    order: list[str] = []

    def start(index: int) -> int:
        order.append(f"s{index}")
        return index

    exchange.windowed(4, in_flight, start, lambda index: order.append(f"f{index}"))
    assert " ".join(order) == expected


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_sums_of_sixteen_workers_are_exact_in_any_order(dtype: str) -> None:
    data = [exchange.random_values(1, rank, 0, 1000, dtype) for rank in range(16)]
    assert all(each.dtype == dtype for each in data)
    exact = sum(each.astype(np.float64) for each in data)
    np.testing.assert_array_equal(sum(data), exact)
    np.testing.assert_array_equal(sum(reversed(data)), exact)


def test_a_worker_ends_when_the_benchmark_is_gone(tmp_path: Path) -> None:
    phases.write(tmp_path / "work.json", {"driver": 2**22 + 1})  # larger than any process id
    with pytest.raises(SystemExit, match="the benchmark that started this process is gone"):
        phases.follow(tmp_path, 0, {})
