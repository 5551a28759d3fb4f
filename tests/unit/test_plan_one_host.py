"""How many servers ``bpslaunch -s auto`` takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from byteps_py.plan.one_host import choose_servers


@pytest.mark.parametrize(("workers", "cores"), [(1, 1), (2, 2), (8, 4), (1, 2), (4, 5)])
def test_where_there_is_no_core_for_more_there_is_one(workers: int, cores: int) -> None:
    found = choose_servers(workers, cores)
    assert found.servers == 1
    assert "no room for more" in found.reason


def test_one_that_keeps_up_is_enough() -> None:
    found = choose_servers(2, 16)
    assert found.servers == 1
    assert found.reason.startswith("more would not be faster, limited by the ")


def test_many_workers_get_more_and_are_told_why() -> None:
    found = choose_servers(8, 16)
    assert 1 < found.servers <= 8
    assert found.reason.startswith("with one less an exchange takes ")


@pytest.mark.parametrize("workers", [1, 2, 7, 32, 256])
def test_workers_and_servers_have_a_core_each_if_there_are_enough(workers: int) -> None:
    for cores in (1, 2, 3, 8, 33, 64, 512):
        assert 1 <= choose_servers(workers, cores).servers <= max(1, cores - workers)


@pytest.mark.timeout(60)
def test_it_loads_little() -> None:
    code = (
        "import sys; from byteps_py.plan.one_host import choose_servers; choose_servers(8, 16); "
        "print(*sorted({'numpy', 'zmq', 'msgspec', 'psutil'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == []
