"""Jobs over several hosts: the same results as on one, whatever the addresses are like."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from tests.helpers.namespaces import HAS_IPV6, HostsJob, Network, wait_until

Hosts: TypeAlias = Callable[[int], Network]

pytestmark = pytest.mark.timeout(240)
NEEDS_IPV6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")

EXAMPLE = Path(__file__).parents[2] / "examples/torch_digits.py"
FOUR = {"scheduler": "host-a", "server0": "host-b", "worker0": "host-c", "worker1": "host-d"}

ROUNDS = 20
SUMS = f"""
import hashlib
digest = hashlib.sha256()
for step in range({ROUNDS}):
    mine = np.random.default_rng([bps.rank(), step]).standard_normal(50_000, np.float32)
    digest.update(bps.push_pull(mine, 'x'))
print('rank', bps.rank(), 'of', bps.size(), 'local', bps.local_rank(), 'of', bps.local_size(), digest.hexdigest())
"""


def digest(*machines: int) -> str:
    """What ``SUMS`` prints at the end, with so many workers on each machine: a sum of sums."""
    made = hashlib.sha256()
    for step in range(ROUNDS):
        workers = (
            np.random.default_rng([rank, step]).standard_normal(50_000, np.float32) for rank in itertools.count()
        )
        sums = [functools.reduce(np.add, itertools.islice(workers, size)) for size in machines]
        made.update(functools.reduce(np.add, sums))
    return made.hexdigest()


def run_sums(job: HostsJob) -> None:
    """Run ``SUMS`` on two machines with one worker each, and compare."""
    job.all_but_workers()
    for index in range(2):
        job.worker(index, SUMS)
    finish(job)


def finish(job: HostsJob) -> None:
    """Wait for the end, and compare the sums."""
    assert set(job.wait(80).values()) == {0}, job.everything()
    for index in range(2):
        assert f"rank {index} of 2 local 0 of 1 {digest(1, 1)}" in job.output(f"worker{index}"), job.everything()


@pytest.mark.slow
def test_four_hosts_end_with_the_parameters_of_the_local_job(hosts: Hosts) -> None:
    pytest.importorskip("torch")
    words = [str(EXAMPLE), "--epochs", "5", "--seed", "1"]
    job = HostsJob(hosts(4), FOUR)
    job.all_but_workers()
    for index in range(2):
        job.script(index, *words)
    assert set(job.wait(100).values()) == {0}, job.everything()
    local = [sys.executable, "-m", "byteps_py.launcher", "-n", "2", "-s", "1", "--", sys.executable, *words]
    done = subprocess.run(local, env=os.environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert parameters(job.output("worker0")) == parameters(done.stdout)


def parameters(output: str) -> str:
    """The SHA-256 of all parameters, in the last line of worker 0."""
    (last,) = (line for line in output.splitlines() if '"params_sha256"' in line)
    return str(json.loads(last[last.index("{") :])["params_sha256"])


@pytest.mark.parametrize("address", [pytest.param("fd00::1", marks=NEEDS_IPV6), "host-a"])
def test_the_scheduler_has_an_ipv6_address_or_a_name(address: str, hosts: Hosts) -> None:
    run_sums(HostsJob(hosts(4), FOUR, DMLC_PS_ROOT_URI=address))


def test_two_workers_on_each_of_two_hosts_with_the_servers_beside_them(hosts: Hosts) -> None:
    places = {"scheduler": "host-a", "server0": "host-a", "server1": "host-b", "worker0": "host-a", "worker1": "host-b"}
    job = HostsJob(hosts(2), places, BYTEPS_LOCAL_SIZE="2")
    job.worker(1, SUMS)
    job.all_but_workers()
    job.worker(0, SUMS)
    assert set(job.wait(80).values()) == {0}, job.everything()
    for rank in range(4):
        machine, local = divmod(rank, 2)
        line = f"[worker {machine}.{local}] rank {rank} of 4 local {local} of 2 {digest(2, 2)}"
        assert line in job.output(f"worker{machine}"), job.everything()


FORWARDER = """
import asyncio, sys

async def copy(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()

async def main():
    async def forward(reader, writer):
        far_reader, far_writer = await asyncio.open_connection(target, int(target_port))
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer), return_exceptions=True)

    own, own_port, target, target_port = sys.argv[1:]
    async with await asyncio.start_server(forward, own, int(own_port)) as server:
        print("ready", flush=True)
        await server.serve_forever()

asyncio.run(main())
"""


def forward(network: Network, host: str, own: tuple[str, int], target: tuple[str, int]) -> None:
    """Let ``host`` forward connections to one of its addresses, as a container's host does."""
    output = network.folder / f"forwarder-{own[1]}"
    words = [str(each) for each in (*own, *target)]
    network.run(host, [sys.executable, "-S", "-c", FORWARDER, *words], os.environ, output)
    wait_until(lambda: "ready" in output.read_text(), output.read_text)


def test_a_server_behind_a_forwarded_port(hosts: Hosts) -> None:
    """host-b is alone in a network that only host-e, which forwards, has a cable to."""
    network = hosts(5)
    network.add_interface("inner", 99)
    network.link_down("host-b")
    forward(network, "host-e", ("10.99.0.5", 9000), ("10.77.0.1", 9000))
    forward(network, "host-e", ("10.77.0.5", 7000), ("10.99.0.2", 7000))
    job = HostsJob(network, FOUR)
    job.server(DMLC_PS_ROOT_URI="10.99.0.5", DMLC_NODE_HOST="10.77.0.5", DMLC_PORT="7000")
    job.scheduler()
    for index in range(2):
        job.worker(index, SUMS)
    finish(job)
    said = job.output("server0")
    assert "the own address is 10.77.0.5, as DMLC_NODE_HOST says" in said
    assert "10.77.0.5 is not an address of this machine (NAT or a container?): listening on all addresses" in said


@NEEDS_IPV6
def test_the_first_address_of_the_schedulers_name_is_dead(hosts: Hosts) -> None:
    network = hosts(4)
    network.add_name("chief", "fd00::dead", network["host-a"].ipv4)
    for host in network.hosts:
        addresses = network.ask(host, ["getent", "ahosts", "chief"]).split()
        assert addresses[0] == "fd00::dead"
    run_sums(HostsJob(network, FOUR, DMLC_PS_ROOT_URI="chief"))


def test_the_interface_is_chosen_by_name(hosts: Hosts) -> None:
    network = hosts(4)
    network.add_interface("data0", 88)
    job = HostsJob(network, FOUR, DMLC_INTERFACE="data0")
    run_sums(job)
    said = job.output("server0")
    assert "the own address is 10.88.0.2, the address of interface data0 (DMLC_INTERFACE)" in said
    assert "listening at tcp://10.88.0.2:" in said


def test_an_interface_that_does_not_exist(hosts: Hosts) -> None:
    """Whatever the role, since a job in which one has a wrong address would never begin."""
    network = hosts(4)
    network.add_interface("data0", 88)
    job = HostsJob(network, FOUR, DMLC_INTERFACE="data")
    job.all_but_workers()
    job.worker(0, SUMS)
    assert set(job.wait(30).values()) == {2}, job.everything()
    for name in job.processes:
        for word in ("DMLC_INTERFACE=data is no network interface of this machine", "data0 (10.88.0.", "eth0", "lo ("):
            assert word in job.output(name), job.everything()
