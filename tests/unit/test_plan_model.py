"""How long an exchange takes: the formulas, what was seen, and what can never be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_py.core.partition_size import choose_partition_bytes
from byteps_py.core.seating import effective, server_weights
from byteps_py.core.shares import Machine
from byteps_py.plan import Costs, predict
from byteps_py.plan.model import FILL, Placed, Prediction
from byteps_py.plan.pipe import idle_part

WORKER, SERVER, BOTH = Machine(1, 0), Machine(0, 1), Machine(1, 1)
M, B = 25_000_000, 23.9e6
FREE = Costs(sum_rate=math.inf, copy_rate=math.inf, wire_seconds=0.0, message_seconds=0.0)
"""Only links cost something."""


def terms(prediction: Prediction) -> dict[str, float]:
    return {each.name: each.seconds for each in prediction.terms}


@pytest.mark.parametrize(
    ("machines", "load"),
    [
        ([BOTH] * 4, 1.5),
        ([BOTH] * 4 + [SERVER] * 2, 1.2),
        ([BOTH] * 4 + [SERVER] * 4, 1.0),
        ([BOTH] * 8, 1.75),
        ([BOTH] * 8 + [SERVER] * 4, 14 / 11),
        ([BOTH] * 8 + [SERVER] * 8, 1.0),
        ([WORKER] * 4 + [SERVER], 4.0),
        ([WORKER] * 4 + [SERVER] * 2, 2.0),
        ([WORKER] * 4 + [SERVER] * 4, 1.0),
        ([WORKER] * 4 + [SERVER] * 9, 1.0),
    ],
)
def test_the_optimum_is_that_of_the_formulas(machines: list[Machine], load: float) -> None:
    found = predict(machines, M, B, costs=FREE)
    assert found.optimum == pytest.approx(load * M / B)
    assert found.seconds == pytest.approx(found.optimum + terms(found)[FILL])


@pytest.mark.parametrize(
    ("machines", "partitions", "seen"),
    [
        ([WORKER] * 4 + [SERVER] * 4, 381, 1.06),
        ([BOTH] * 4, 381, 1.5 * 1.05),
        ([WORKER] * 4 + [SERVER] * 2, 381, 2 * 1.05),
        ([BOTH] * 4 + [SERVER] * 2, 381, 1.2 * 1.16),
    ],
)
def test_what_was_measured_is_within_a_tenth(machines: list[Machine], partitions: int, seen: float) -> None:
    found = predict(machines, M, B, partition_bytes=M // partitions)
    assert found.seconds / (M / B) == pytest.approx(seen, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, "the links of the server machines"),
        ({"link": 1e10}, "the network thread of a server"),
        ({"link": 1e10, "costs": Costs(wire_seconds=0.0, sum_rate=1e9)}, "the cores of the server machines"),
        ({"link": 1e10, "costs": Costs(message_seconds=0.01)}, "the messages of a server"),
        ({"link": 1e10, "costs": Costs(wire_seconds=0.0, copy_rate=1e8), "server_cores": 64}, "the copies of a worker"),
        (
            {"link": 1e10, "costs": Costs(wire_seconds=0.0, copy_rate=1e8), "cores": 0.5},
            "the cores of the worker machines",
        ),
    ],
)
def test_the_limit_is_what_takes_longest(changes: dict[str, object], limit: str) -> None:
    asked = {"link": 1e8, "cores": 2, "server_cores": 2} | changes
    found = predict([WORKER] * 4 + [SERVER] * 2, 100e6, **asked)  # type: ignore[arg-type]
    assert found.limit == limit
    assert terms(found)[limit] == max(terms(found).values())


def test_each_term_of_a_server_on_a_machine_of_its_own() -> None:
    """Two workers send it 1 GB each, in 1000 partitions."""
    costs = Costs(sum_rate=4e9, copy_rate=8e9, wire_seconds=0.5e-9, message_seconds=1e-4)
    found = predict([WORKER, WORKER, SERVER], 1e9, 1e9, costs=costs, partition_bytes=10**6, cores=4, server_cores=2)
    got = terms(found)
    assert got["the links of the server machines"] == pytest.approx(2.0)
    assert got["the links of the worker machines"] == pytest.approx(1.0)
    assert got["the network thread of a server"] == pytest.approx(2 * 2e9 * 0.5e-9)
    assert got["the messages of a server"] == pytest.approx(2 * 1000 * 1e-4)
    assert got["the sums of a server"] == pytest.approx(2e9 / (2 * 4e9))
    assert got["the cores of the server machines"] == pytest.approx((2e9 / 4e9 + 2 * 2e9 * 0.5e-9 + 0.2) / 2)
    assert got["the network thread of a worker"] == pytest.approx(2 * 1e9 * 0.5e-9)
    assert got["the messages of a worker"] == pytest.approx(0.1)
    assert got["the copies of a worker"] == pytest.approx(1e9 / 8e9)  # of the result; a push goes as it lies there
    assert got["the cores of the worker machines"] == pytest.approx((1e9 / 8e9 + 1.0 + 0.1) / 4)
    assert found.limit == "the links of the server machines"


def test_on_one_machine_nothing_needs_a_link() -> None:
    costs = Costs(sum_rate=4e9, copy_rate=8e9, message_seconds=0.0)
    found = predict([Machine(2, 1)], 1e9, None, costs=costs, partition_bytes=10**6, cores=3)
    assert terms(found) == pytest.approx(
        {
            "the sums of a server": 2e9 / 4e9,
            "the copies of a worker": 2e9 / 8e9,
            "the cores of the host": (2 * 2e9 / 8e9 + 2e9 / 4e9) / 3,
            FILL: 2e6 / 8e9 + 2e6 / 4e9,
        }
    )
    assert found.optimum == pytest.approx(0.5)
    assert predict([Machine(2, 1)], 1e9, 1e3, costs=costs, partition_bytes=10**6, cores=3) == found


def test_workers_of_a_machine_sum_first() -> None:
    """Four on each of two machines send as much as one, but take cores."""
    machines = [WORKER, WORKER, SERVER]
    alone, four = (predict(machines, 1e9, 1e9, local_size=size, cores=8, partition_bytes=10**6) for size in (1, 4))
    for same in ("the links of the worker machines", "the links of the server machines", "the messages of a server"):
        assert terms(four)[same] == terms(alone)[same]
    assert terms(four)["the cores of the worker machines"] > 3 * terms(alone)["the cores of the worker machines"]
    assert terms(four)["the network thread of a worker"] == pytest.approx(
        terms(alone)["the network thread of a worker"] / 4
    )


def test_a_server_that_has_more_than_its_share_is_the_limit() -> None:
    machines = [WORKER] * 2 + [SERVER] * 2
    even = predict(machines, 100e6, 1e8, costs=FREE)
    uneven = predict(machines, 100e6, 1e8, costs=FREE, placed=[Placed(75e6, 10), Placed(25e6, 10)])
    assert uneven.shares == (0.75, 0.25)
    assert uneven.optimum == even.optimum == pytest.approx(1.0)
    assert terms(uneven)["the links of the server machines"] == pytest.approx(1.5)


def test_a_lone_worker_machine_with_a_server_has_no_use_for_others() -> None:
    found = predict([BOTH, SERVER], 1e8, 1e9)
    assert found.seconds / found.optimum < 1.1
    assert found.shares == pytest.approx((1.0, 0.0), abs=1e-6)


@pytest.mark.parametrize(
    ("machines", "senders", "servers", "partition_bytes"),
    [
        ([BOTH] * 4 + [SERVER] * 4, 4, 4.0, 65536),  # those beside workers have nothing to do
        ([BOTH] * 4 + [SERVER] * 2, 4, 4.55, 65536),
        ([BOTH] * 4 + [SERVER] * 8, 4, 8.0, 65536),
        ([Machine(2, 1)] * 2, 4, 2.0, 65536),
        ([WORKER] * 4 + [SERVER] * 9, 4, 9.0, 65536),
    ],
)
def test_partitions_are_those_that_the_scheduler_chooses(
    machines: list[Machine], senders: int, servers: float, partition_bytes: int
) -> None:
    hosts = [f"host{index}" for index in range(len(machines))]
    weights = server_weights(
        [(host, each.senders) for host, each in zip(hosts, machines, strict=True) if each.senders],
        [host for host, each in zip(hosts, machines, strict=True) for _ in range(each.servers)],
    )
    assert effective(weights) == pytest.approx(servers, abs=0.01)
    found = predict(machines, M, B, costs=FREE)
    assert found.partition_bytes == choose_partition_bytes(M, senders, effective(weights), B) == partition_bytes
    assert terms(found)[FILL] == pytest.approx(
        found.optimum * idle_part(partition_bytes, M, senders, servers), rel=0.01
    )


def test_small_partitions_leave_nothing_idle_and_large_ones_half() -> None:
    assert idle_part(1, 1e12, 4, 4) < 1e-9
    assert 0.9 < idle_part(1e9, 1e6, 4, 4) < 1.0


@pytest.mark.parametrize(
    ("machines", "nbytes", "link", "message"),
    [
        ([WORKER], 1, None, "shares need a server"),
        ([SERVER], 1, None, "shares need a server and a sender"),
        ([], 1, None, "shares need a server"),
        ([BOTH], 0, None, "model_bytes=0 must be above 0"),
        ([BOTH], -1, None, "model_bytes=-1"),
        ([BOTH], math.inf, None, "model_bytes=inf"),
        ([BOTH], math.nan, None, "model_bytes=nan"),
        ([WORKER, SERVER], 1, None, "link=None: 2 machines need a link"),
        ([WORKER, SERVER], 1, 0.0, "link=0.0"),
        ([WORKER, SERVER], 1, math.inf, "link=inf"),
    ],
)
def test_what_cannot_be_predicted(machines: list[Machine], nbytes: float, link: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict(machines, nbytes, link)


def test_placements_of_other_servers_are_refused() -> None:
    with pytest.raises(ValueError, match="must tell of 2 servers"):
        predict([WORKER, SERVER, SERVER], 1e6, 1e6, placed=[Placed(1e6, 1)])


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"sum_rate": 0.0}, "sum_rate=0.0 must be at least 1 byte"),
        ({"copy_rate": math.nan}, "copy_rate=nan"),
        ({"wire_seconds": -1.0}, "wire_seconds=-1.0 must be a number of seconds from 0 to 3600"),
        ({"message_seconds": math.nan}, "message_seconds=nan"),
    ],
)
def test_costs_that_cannot_be(costs: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Costs(**costs)


JOBS = st.lists(st.sampled_from((WORKER, SERVER, BOTH, Machine(0, 2), Machine(2, 1))), min_size=1, max_size=12).filter(
    lambda machines: any(each.senders for each in machines) and any(each.servers for each in machines)
)
SIZES, LINKS, PARTITIONS = st.floats(1e3, 1e10), st.floats(1e6, 1e11), st.integers(1 << 13, 1 << 22)


@given(machines=JOBS, nbytes=SIZES, link=LINKS, faster=st.floats(1.0, 1e3), partition=PARTITIONS)
def test_a_faster_link_never_makes_it_slower(
    machines: list[Machine], nbytes: float, link: float, faster: float, partition: int
) -> None:
    slow, fast = (predict(machines, nbytes, each, partition_bytes=partition) for each in (link, link * faster))
    assert fast.seconds <= slow.seconds * (1 + 1e-9)


@given(machines=JOBS, nbytes=SIZES, link=LINKS, cores=st.integers(1, 64), more=st.integers(0, 64))
def test_more_cores_never_make_it_slower(
    machines: list[Machine], nbytes: float, link: float, cores: int, more: int
) -> None:
    few, many = (predict(machines, nbytes, link, cores=each, server_cores=each) for each in (cores, cores + more))
    assert many.seconds <= few.seconds * (1 + 1e-9)


@given(machines=JOBS, nbytes=SIZES, link=LINKS, local_size=st.integers(1, 8))
def test_no_exchange_is_faster_than_its_resources(
    machines: list[Machine], nbytes: float, link: float, local_size: int
) -> None:
    found = predict(machines, nbytes, link, local_size=local_size)
    got = terms(found)
    assert found.seconds == pytest.approx(got[found.limit] + got.get(FILL, 0.0))
    assert found.seconds >= max(got.values())
    assert found.seconds >= found.optimum * (1 - 1e-6)
    assert sum(found.shares) == pytest.approx(1.0)
    assert math.isfinite(found.seconds)
