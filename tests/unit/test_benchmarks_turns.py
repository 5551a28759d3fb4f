"""benchmarks/turns.py and systems.py: formulas, the warm-up, and that nothing wrong is timed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import systems, turns
from benchmarks.side import SideError
from benchmarks.systems import Work
from benchmarks.turns import Measured, Turn

WORK = Work(workers=2, servers=1, tensors=5, count=25_000_000, dtype="float32")  # half a GB a step


class FakeSide:
    """A side whose step takes half a second, and 3 CPU seconds."""

    name = "fake"

    def __init__(self, wrong: int = -1, compared: int = 5) -> None:
        self.orders: list[dict[str, Any]] = []
        self.peaks = {"worker-0": 12.0}
        self.cpu: dict[str, tuple[float, float]] = {}
        self._wrong, self._compared = wrong, compared

    def __enter__(self) -> FakeSide:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def note_memory(self) -> None:
        self.peaks["worker-0"] += 1

    def phase(self, do: str, *, limit: float, watch_memory: bool = False, **order: Any) -> list[dict[str, Any]]:
        self.orders.append({"do": do, **order})
        if do == "verify":
            checks = sum(each["do"] == "verify" for each in self.orders)
            return [{"wrong": [], "compared": 5}, {"wrong": [3] * (checks == self._wrong), "compared": self._compared}]
        self.cpu = {"worker": (1.5 * order["steps"], 0.5 * order["steps"]), "server": (1.0 * order["steps"], 0.0)}
        seconds = 0.5 * order["steps"]
        return [
            {"seconds": seconds / 2, "p50": 0.1, "p99": 0.2, "counted": {"messages": 4 * order["steps"], "sum": 1.0}},
            {"seconds": seconds, "p50": 0.3, "p99": 0.4, "counted": {"messages": 8 * order["steps"], "sum": 3.0}},
        ]


def take(side: FakeSide, in_flights: tuple[int, ...] = (0,)) -> Turn:
    return turns.take(side, WORK, in_flights, seconds=10.0, warmup=2.0)  # type: ignore[arg-type]


def test_the_formulas() -> None:
    turn = take(FakeSide())
    roles = {"worker": (1.5, 0.5), "server": (1.0, 0.0)}
    expected = Measured(1.0, 3.0, pytest.approx(3e5), pytest.approx(4e5), 6.0, 20, roles, {"sum": 0.2})
    assert turn.windows == {0: expected}
    assert turn.verified
    assert turn.peaks == {"worker-0": 13.0}


def test_each_window_is_checked_before_and_after_and_warmed_up() -> None:
    side = FakeSide()
    take(side, (1, 10))
    for in_flight, orders in ((1, side.orders[: len(side.orders) // 2]), (10, side.orders[len(side.orders) // 2 :])):
        assert {each["in_flight"] for each in orders} == {in_flight}
        assert [each["do"] for each in orders] == ["verify", "run", "run", "run", "verify"]
        assert [each.get("steps") for each in orders] == [None, 1, 3, 20, None]
        assert orders[0]["seed"] != orders[-1]["seed"]


@pytest.mark.parametrize("check", [1, 2])
def test_a_wrong_result_ends_it(check: int) -> None:
    with pytest.raises(SideError, match="the result is wrong on worker 1, for 1 of 5 tensors, first tensor 3"):
        take(FakeSide(wrong=check))


def test_a_check_that_left_tensors_out_is_none() -> None:
    with pytest.raises(SideError, match="worker 1 has compared 4 of 5 tensors"):
        take(FakeSide(compared=4))


def turn_of(**rates: float) -> Turn:
    return Turn({int(key[1:]): Measured(rate, 0.0, 0.0, 0.0, None, 1) for key, rate in rates.items()})


def test_the_peer_counts_with_its_better_median() -> None:
    assert turns.best([turn_of(_1=1.0, _10=2.0), turn_of(_1=9.0, _10=2.0), turn_of(_1=1.0, _10=2.0)]) == 10
    assert turns.best([turn_of(_1=3.0, _10=2.0)]) == 1


def test_ratios_are_of_pairs() -> None:
    assert turns.median_ratio([1.0, 10.0, 6.0], [1.0, 5.0, 2.0]) == 2.0


def test_bytes_of_a_step() -> None:
    assert WORK.step_bytes == WORK.fused().step_bytes == 500_000_000
    assert WORK.fused().tensors == 1
    assert systems.elements(1024, "float16") == 512


def test_what_is_measured_with_how_many_in_flight() -> None:
    assert systems.in_flights("gloo", WORK, 0) == (1, 10)
    assert systems.in_flights("mxnet", WORK, 4) == (4,)
    assert systems.in_flights("gloo", WORK.fused(), 0) == (1,)


def test_openmp_has_one_thread_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    chosen = {"OMP_NUM_THREADS": "1", "BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_TRANSPORT": "auto"}
    assert systems.ours_environment("auto") == chosen
    assert systems.gloo_environment()["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert systems.ours_environment("tcp")["OMP_NUM_THREADS"] == "3"
    assert systems.ours_environment("tcp")["BYTEPS_TRANSPORT"] == "tcp"
