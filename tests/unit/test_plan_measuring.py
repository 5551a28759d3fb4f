"""What sums, copies, bytes and messages cost: by a clock that a test turns, and once by a real job."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence

import pytest

from byteps_py.errors import BytePSError
from byteps_py.kernels import select
from byteps_py.plan import measuring, message_probe

MiB = 1 << 20


def ticking(seconds: Sequence[float]) -> Callable[[], float]:
    """A clock by which the first turn takes the first time, and so on."""
    times = [0.0]
    for each in seconds:
        times += [times[-1] + each, times[-1] + each + 10]
    return iter(times).__next__


def test_the_best_turn_counts_and_the_first_call_does_not() -> None:
    calls = itertools.count()
    assert measuring.best_seconds(lambda: next(calls), ticking([3, 2, 4, 2.5, 9])) == 2
    assert next(calls) == 6


def test_a_turn_that_takes_no_time_is_no_division_by_zero() -> None:
    assert measuring.best_seconds(lambda: None, lambda: 1.0) > 0


def test_rates_are_those_of_one_core() -> None:
    kernels = select("reference")
    assert measuring.sum_rate(kernels, 2, ticking([1] * 5)) == 4 * 4 * 4 * MiB
    assert measuring.copy_rate(kernels, 2, ticking([0.5] * 5)) == 2 * 4 * 4 * 4 * MiB


def test_bytes_through_tcp_cost_half_of_what_both_ends_take() -> None:
    assert measuring.wire_seconds(2 * MiB, ticking([0.5])) == 0.5 / (2 * 2 * MiB)


@pytest.mark.timeout(90)
def test_a_job_tells_what_messages_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    foreign = {"DMLC_ROLE": "server", "BYTEPS_PARTITION_BYTES": "nonsense"}
    monkeypatch.setattr(measuring, "_WIRE_BYTES", MiB)
    found = measuring.measure_costs({**os.environ, **foreign}, said.append)
    assert 1e-6 <= found.message_seconds < 1.0
    assert found.sum_rate > 1e6
    assert found.copy_rate > 1e6
    assert 0 < found.wire_seconds < 1e-6
    assert [line[:17] for line in said] == [f"measuring {part} of 4:" for part in (1, 2, 3, 4)]


@pytest.mark.timeout(90)
def test_a_job_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_probe, "PARTITION_BYTES", -1)
    with pytest.raises(
        BytePSError, match=r"the job that measures messages ended with status 2: .*BYTEPS_PARTITION_BYTES"
    ):
        measuring.message_seconds(os.environ, 1e9, 1e9)


@pytest.mark.timeout(90)
def test_a_job_that_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_JOB_SECONDS", 0.01)
    with pytest.raises(BytePSError, match=r"it was ended after 0 s"):
        measuring.message_seconds(os.environ, 1e9, 1e9)
