"""Servers beside workers and servers apart get the shares that suit their links; the size of partitions follows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.helpers.namespaces import HostsJob, Network

Hosts: TypeAlias = Callable[[int], Network]

pytestmark = pytest.mark.timeout(240)

PLACES = {
    "scheduler": "host-a",
    **{f"worker{index}": host for index, host in enumerate(("host-b", "host-c", "host-d"))},
    **{f"server{index}": host for index, host in enumerate(("host-b", "host-c", "host-e"))},
}
SUM = """
import json
from byteps_py.session import current
mine = np.arange(2_000_000, dtype=np.float32) % 1000 + bps.rank()
assert np.array_equal(bps.push_pull(mine, 'x'), 3 * (np.arange(2_000_000, dtype=np.float32) % 1000) + 3)
counts = [0, 0, 0]
for each in current()._worker._calls._book.find('x').placement.partitions:
    counts[each.server] += each.count
print('counts', json.dumps(counts), 'ways', json.dumps(bps.stats()['transport']))
"""


@pytest.mark.parametrize(("mixed", "shares"), [("1", (2 / 7, 2 / 7, 3 / 7)), ("0", (1 / 3, 1 / 3, 1 / 3))])
def test_shares_by_machine(hosts: Hosts, mixed: str, shares: tuple[float, ...]) -> None:
    job = HostsJob(hosts(5), PLACES, BYTEPS_ENABLE_MIXED_MODE=mixed)
    job.all_but_workers()
    for index in range(3):
        job.worker(index, SUM)
    assert set(job.wait(80).values()) == {0}, job.everything()
    found = [re.search(r"counts (\[.*?\]) ways (\{.*?\})", job.output(f"worker{index}")) for index in range(3)]
    assert all(found), job.everything()
    counts, ways = zip(*(map(json.loads, each.groups()) for each in found if each is not None), strict=True)
    assert counts[0] == counts[1] == counts[2]
    # Servers are ranked by host: those beside workers come first.
    assert [each / sum(counts[0]) for each in counts[0]] == pytest.approx(shares, abs=0.05)
    assert ways == ({"shm": 1, "tcp": 2}, {"shm": 1, "tcp": 2}, {"shm": 0, "tcp": 3})
    text = job.output("scheduler")
    assert ("28.6 % each: server 0 on " in text and "; 42.9 %: server 2 on " in text) == (mixed == "1"), text
    assert re.search(
        r"partitions of up to \d+ bytes: 8 MB of tensors, [0-9.e+]+ MB/s between workers and servers", text
    )
