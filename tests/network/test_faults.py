"""Jobs over several hosts, of which one fails, or what is between them: the job goes on, or ends with the name.

Most of each test is waiting, so jobs that differ in one thing run at the same time, each in a network of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

import pytest

from tests.helpers.namespaces import HostsJob, Network, wait_until

Hosts: TypeAlias = Callable[[int], Network]

# One after the other, where tests run side by side: each has a dozen processes.
pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("network")]

FOUR = {"scheduler": "host-a", "server0": "host-b", "worker0": "host-c", "worker1": "host-d"}
VICTIMS = ("worker1", "server0", "scheduler")
SHORT = {"BYTEPS_LOST_TIMEOUT": "6"}
"""Where somebody is lost; all must have ended a few seconds later."""
SOON = 60
"""Seconds within which a job ends that has to, on a machine that is busy with other things."""

CHECKED_ROUNDS = """
import itertools, pathlib
print('ready')
stop = pathlib.Path(os.environ['STOP_FILE'])
bases = [np.random.default_rng(rank).standard_normal(300_000, np.float32) for rank in range(2)]
for step in itertools.count(1):
    mine, other = (bases[rank] * np.float32(1 / step) for rank in (bps.rank(), 1 - bps.rank()))
    got = bps.push_pull(np.append(mine, np.float32(stop.exists())), f'x{step % 5}')
    assert got[:-1].tobytes() == (mine + other).tobytes(), step
    if step % 10 == 0: print('step', step)
    if got[-1]: break
print('done after', step)
"""
ROUNDS = """
print('ready')
while True:
    bps.push_pull(np.ones(1000), 'x')
    time.sleep(0.01)
"""


def start(jobs: Iterable[HostsJob], body: str) -> None:
    """Start all processes, and wait until the workers are in their jobs."""
    jobs = list(jobs)
    for job in jobs:
        job.all_but_workers()
        for index in range(2):
            job.worker(index, body, STOP_FILE=str(job.folder / "stop"))
    for job in jobs:
        for index in range(2):
            job.wait_for(f"worker{index}", "ready", 90)


def check_end(job: HostsJob, victim: str, status: int) -> None:
    """Everybody has ended, and names the victim; the victim, if it could speak, names the scheduler that it lost."""
    statuses = job.wait(SOON)
    assert statuses.pop(victim) == status, job.everything()
    assert set(statuses.values()) == {1}, job.everything()
    named = {
        "worker1": "worker 1 (pid {} on host-d) is lost",
        "server0": "server 0 (pid {} on host-b) is lost",
        "scheduler": "the scheduler at 10.77.0.1:9000 was lost",
    }
    for name in statuses:
        for word in named[victim].split("{}"):
            assert word in job.output(name), job.everything()
    if status == 1:
        assert named["scheduler"] in job.output(victim) or victim == "scheduler", job.everything()


def check_reason(job: HostsJob, name: str, reject: bool) -> None:
    """What is said of a firewall. Linux answers each host only once a second, so one that rejects may seem silent."""
    silence, rejection = "no answer at all (a firewall?", "it cannot be reached (No route to host)"
    output = job.output(name)
    assert silence in output or (reject and rejection in output), job.everything()


@pytest.mark.slow
def test_a_link_that_is_down_for_5_s_does_no_harm(hosts: Hosts) -> None:
    jobs = {victim: HostsJob(hosts(4), FOUR) for victim in VICTIMS}
    start(jobs.values(), CHECKED_ROUNDS)
    for victim, job in jobs.items():
        job.wait_for("worker0", "step 10")
        job.network.link_down(FOUR[victim])
    time.sleep(5)  # nothing is waited for here: this is what is tested
    for victim, job in jobs.items():
        job.network.link_up(FOUR[victim])
    for job in jobs.values():
        steps = job.output("worker0").count("step")
        wait_until(lambda job=job, steps=steps: job.output("worker0").count("step") > steps + 1, job.everything, SOON)
        (job.folder / "stop").touch()
        assert set(job.wait(SOON).values()) == {0}, job.everything()
        last = [job.output(name).partition("done after")[2] for name in ("worker0", "worker1")]
        assert last[0] == last[1] != "", job.everything()


@pytest.mark.slow
def test_a_link_that_is_down_for_ever_ends_the_job_with_the_name(hosts: Hosts) -> None:
    jobs = {victim: HostsJob(hosts(4), FOUR, **SHORT) for victim in VICTIMS}
    start(jobs.values(), ROUNDS)
    for victim, job in jobs.items():
        job.network.link_down(FOUR[victim])
    for victim, job in jobs.items():
        check_end(job, victim, 1)
    # A scheduler that is cut off cannot know that it is: it names the one whose silence was the longest.
    assert "is lost: it has not been heard from for" in jobs["scheduler"].output("scheduler")


@pytest.mark.slow
def test_kill_9_on_another_host_ends_the_job_with_the_name(hosts: Hosts) -> None:
    """Its death cannot be proven from elsewhere, so only the silence tells."""
    jobs = {victim: HostsJob(hosts(4), FOUR, launch=victim != "worker1", **SHORT) for victim in VICTIMS}
    start(jobs.values(), ROUNDS)
    for victim, job in jobs.items():
        job.kill(victim)
    for victim, job in jobs.items():
        check_end(job, victim, -9)


def test_a_launcher_tells_at_once_that_its_worker_was_killed(hosts: Hosts) -> None:
    """The silence would be noticed after an hour."""
    body = "print('ready')\nif bps.rank(): os.kill(os.getpid(), signal.SIGKILL)\n" + ROUNDS
    job = HostsJob(hosts(4), FOUR, BYTEPS_LOST_TIMEOUT="3600")
    start([job], body)
    statuses = job.wait(SOON)
    assert statuses == {"scheduler": 1, "server0": 1, "worker0": 1, "worker1": 137}, job.everything()
    for name in ("scheduler", "server0", "worker0"):
        for word in ("worker 1 (pid", "on host-d) is lost: its process", "was killed by signal 9"):
            assert word in job.output(name), job.everything()


def test_a_firewall_before_the_scheduler(hosts: Hosts) -> None:
    jobs = {}
    for reject in (False, True):
        network = hosts(4)
        network.block_port("host-a", 9000, reject=reject)
        jobs[reject] = job = HostsJob(network, FOUR, BYTEPS_START_TIMEOUT="5")
        job.all_but_workers()
        for index in range(2):
            job.worker(index, ROUNDS)
    for reject, job in jobs.items():
        for name in ("server0", "worker0", "worker1"):
            job.wait_for(name, "no scheduler answered at 10.77.0.1:9000", SOON)
            for word in ("BYTEPS_START_TIMEOUT", "and the firewall"):
                assert word in job.output(name), job.everything()
            check_reason(job, name, reject)
        job.kill("scheduler")
        assert job.wait(SOON) == {"scheduler": -9, "server0": 1, "worker0": 1, "worker1": 1}, job.everything()


@pytest.mark.slow
def test_a_firewall_before_a_server(hosts: Hosts) -> None:
    """Its own connection to the scheduler works, so that everybody lives and nothing goes on."""
    jobs = {}
    for reject in (False, True):
        network = hosts(4)
        network.block_port("host-b", 7000, reject=reject)
        jobs[reject] = HostsJob(network, FOUR, DMLC_PORT="7000", **SHORT)
    start(jobs.values(), ROUNDS)
    for reject, job in jobs.items():
        assert set(job.wait(SOON).values()) == {1}, job.everything()
        for name in FOUR:
            for word in ("server 0 (pid", "on host-b) cannot be reached at tcp://10.77.0.2:7000", "DMLC_PORT"):
                assert word in job.output(name), job.everything()
            check_reason(job, name, reject)
