"""Workers of one machine sum before they send: what a server across the network gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.helpers.namespaces import HostsJob, Network

Hosts: TypeAlias = Callable[[int], Network]

pytestmark = pytest.mark.timeout(240)

PLACES = {"scheduler": "host-a", "server0": "host-a", "worker0": "host-b", "worker1": "host-c"}
ROUNDS, COUNT = 3, 1_000_000
NBYTES = ROUNDS * COUNT * 4
"""What one worker contributes."""
SUMS = f"""
import hashlib
digest = hashlib.sha256()
for step in range({ROUNDS}):
    mine = np.random.default_rng([bps.rank(), step]).standard_normal({COUNT}, np.float32)
    digest.update(bps.push_pull(mine, 'x'))
print('the bits are', digest.hexdigest())
"""


def run(network: Network, choice: str) -> tuple[set[str], int]:
    """The bits that the workers got, two on each of two machines, and the bytes that came to the server's machine."""

    def received() -> int:
        (link,) = json.loads(network.ask("host-a", ["ip", "-s", "-j", "link", "show", "dev", "eth0"]))
        return int(link["stats64"]["rx"]["bytes"])

    before = received()
    job = HostsJob(network, PLACES, BYTEPS_LOCAL_SIZE="2", BYTEPS_LOCAL_REDUCE=choice)
    job.all_but_workers()
    for index in range(2):
        job.worker(index, SUMS)
    assert set(job.wait(100).values()) == {0}, job.everything()
    lines = [line for index in range(2) for line in job.output(f"worker{index}").splitlines()]
    found = [line.rpartition(" ")[2] for line in lines if "the bits are" in line]
    assert len(found) == 4, job.everything()
    return set(found), received() - before


def test_a_server_gets_one_contribution_of_each_machine(hosts: Hosts) -> None:
    bits, nbytes = run(hosts(3), "auto")
    assert 2 * NBYTES < nbytes < 2.5 * NBYTES
    bits_without, nbytes_without = run(hosts(3), "off")
    assert 4 * NBYTES < nbytes_without < 5 * NBYTES
    assert len(bits) == 1
    assert bits == bits_without
