"""The shares of servers against the formulas, and against what must hold for any job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_py.core.seating import effective, server_weights
from byteps_py.core.shares import Machine, balance

WORKER, SERVER, BOTH = Machine(1, 0), Machine(0, 1), Machine(1, 1)


def load(machine: Machine, share: float, total: int) -> float:
    """Bytes that a machine sends, in gradients, counted message by message."""
    pushed = machine.senders * (1 - share)
    returned = share * (total - machine.senders)
    return pushed + returned


class TestFormulas:
    @pytest.mark.parametrize(("workers", "servers"), [(4, 4), (4, 2), (4, 1), (8, 3), (2, 5)])
    def test_servers_apart(self, workers: int, servers: int) -> None:
        found = balance([WORKER] * workers + [SERVER] * servers)
        assert found.load == pytest.approx(max(1.0, workers / servers))
        assert found.shares == pytest.approx([0.0] * workers + [1 / servers] * servers)

    @pytest.mark.parametrize("count", [2, 3, 4, 8, 64])
    def test_colocated_is_as_good_as_all_reduce(self, count: int) -> None:
        found = balance([BOTH] * count)
        assert found.load == pytest.approx(2 * (count - 1) / count)
        assert found.shares == pytest.approx([1 / count] * count)

    @pytest.mark.parametrize(("n", "k", "known"), [(4, 2, 1.2), (4, 4, 1.0), (8, 4, 1.27), (8, 1, None), (5, 3, None)])
    def test_mixed(self, n: int, k: int, known: float | None) -> None:
        found = balance([BOTH] * n + [SERVER] * k)
        whole = n * n + k * n - 2 * k
        assert found.load == pytest.approx(2 * n * (n - 1) / whole)
        assert found.shares[0] == pytest.approx((n - k) / whole * 1.0)
        assert found.shares[-1] == pytest.approx(2 * (n - 1) / whole)
        if known is not None:
            assert found.load == pytest.approx(known, abs=0.005)

    def test_more_machines_of_servers_than_workers(self) -> None:
        found = balance([BOTH] * 4 + [SERVER] * 6)
        assert found.load == 1.0
        assert found.shares == pytest.approx([0.0] * 4 + [1 / 6] * 6)

    def test_one_worker_machine_sums_at_home(self) -> None:
        found = balance([Machine(1, 2), SERVER])
        assert (found.load, found.shares) == (0.0, (1.0, 0.0))

    def test_machines_of_unequal_traffic(self) -> None:
        """Two processes of one machine that do not sum first send twice as much."""
        found = balance([Machine(2, 1), BOTH])
        assert found.load == pytest.approx(1.0)
        assert found.shares == pytest.approx((1.0, 0.0))


class TestArguments:
    @pytest.mark.parametrize("machines", [[], [WORKER], [SERVER], [Machine(0, 0)]])
    def test_somebody_is_missing(self, machines: list[Machine]) -> None:
        with pytest.raises(ValueError, match="need a server and a sender"):
            balance(machines)


machines = st.lists(st.builds(Machine, st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=6).filter(
    lambda found: any(each.senders for each in found) and any(each.servers for each in found)
)


@given(machines)
def test_no_link_carries_more_than_the_load(found: list[Machine]) -> None:
    total = sum(each.senders for each in found)
    result = balance(found)
    assert sum(result.shares) == pytest.approx(1.0)
    for machine, share in zip(found, result.shares, strict=True):
        assert share >= 0
        assert machine.servers or share == 0
        assert load(machine, share, total) <= result.load + 1e-6


@given(machines, st.data())
def test_no_other_shares_are_better(found: list[Machine], data: st.DataObject) -> None:
    raw = [data.draw(st.floats(0, 1)) if each.servers else 0.0 for each in found]
    if not sum(raw):
        raw = [float(bool(each.servers)) for each in found]
    total = sum(each.senders for each in found)
    worst = max(load(machine, share / sum(raw), total) for machine, share in zip(found, raw, strict=True))
    assert balance(found).load <= worst + 1e-6


class TestWeights:
    def test_servers_of_one_host_share_what_it_gets(self) -> None:
        workers = [(f"w{index}", 1) for index in range(4)]
        found = server_weights(workers, ["x", "w0", "w1", "w2", "w3", "x", "y"])
        assert sum(found) == pytest.approx(1.0)
        assert found[0] == found[5] == pytest.approx(found[6] / 2)
        assert found[1] == found[2] == found[3] == found[4]
        assert found[6] == pytest.approx(0.3)

    def test_everything_on_one_host(self) -> None:
        assert server_weights([("a", 1), ("a", 2)], ["a", "a"]) == (0.5, 0.5)

    def test_nodes_of_one_host_count_together(self) -> None:
        assert server_weights([("a", 1), ("a", 1), ("b", 1)], ["a", "b"]) == pytest.approx((1.0, 0.0))


def test_how_many_servers_spread_the_work() -> None:
    assert effective([1.0] * 4) == pytest.approx(4.0)
    assert effective([0.3, 0.3, 0.1, 0.1, 0.1, 0.1]) == pytest.approx(1 / 0.22)
    assert effective([5.0, 0.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no weight"):
        effective([0.0, 0.0])
