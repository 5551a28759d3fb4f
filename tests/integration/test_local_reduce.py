"""Real worker processes of one node sum among themselves before the servers get anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.jobs import Job, job

SUMS = """
import hashlib
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec
session, digest, count = current(), hashlib.sha256(), 33001
for step in range(2):
    for dtype in DType:
        random = np.random.default_rng([session.rank, step, dtype])
        mine = np.frombuffer(random.bytes(count * dtype.itemsize), dtype.storage)
        for operation in (each for each in Operation if not each.is_asynchronous):
            for absent in ((), (0, 2), (1,), (0, 2, 3), (0, 1, 2, 3)):
                source = None if session.rank in absent else mine
                spec = TensorSpec(f'{dtype.label}.{operation.name}', dtype, (count,))
                pending = session.submit(spec, source, None, operation, root=1, step=step)
                digest.update(pending.wait().tobytes())
                digest.update(bytes([pending.absent]))
print('the bits are', digest.hexdigest())
"""
"""Any bits at all, in every dtype and operation, with some workers absent, or all but one, or all."""


def start(made: Job, sizes: tuple[int, ...], body: str, servers: int = 1, **environ: str) -> None:
    """Start all processes, with so many workers on each node; worker N has the rank N."""
    made.scheduler()
    for index in range(servers):
        made.server(index)
    rank = 0
    for node, size in enumerate(sizes):
        for local in range(size):
            place = {"DMLC_WORKER_ID": str(node), "BYTEPS_LOCAL_RANK": str(local), "BYTEPS_LOCAL_SIZE": str(size)}
            made.worker(rank, body, **place, **environ)
            rank += 1


def digest(folder: Path, sizes: tuple[int, ...], **environ: str) -> str:
    """The bits of ``SUMS``, which all workers agree on."""
    with job(folder, len(sizes), 2, BYTEPS_PARTITION_BYTES="32768", **environ) as made:
        start(made, sizes, SUMS, 2)
        assert set(made.wait(100).values()) == {0}, made.everything()
        outputs = [made.output(f"worker{rank}") for rank in range(4)]
        found = {re.findall(r"the bits are (\w+)", each)[0] for each in outputs}
        assert len(found) == 1, made.everything()
        return found.pop()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(4,), (2, 2), (3, 1), (1, 2, 1)], ids=str)
def test_the_bits_are_the_same_as_without(sizes: tuple[int, ...], tmp_path: Path) -> None:
    found = []
    for index, choice in enumerate(["on", "off"]):
        (tmp_path / str(index)).mkdir()
        found.append(digest(tmp_path / str(index), sizes, BYTEPS_LOCAL_REDUCE=choice))
    assert found[0] == found[1]


LARGE = "mine = np.full(200_000, bps.rank() + 1.0, np.float32)\n"
"""In several partitions, of which each worker of a node sums some."""
SMALL_PARTITIONS = {"BYTEPS_PARTITION_BYTES": "65536", "BYTEPS_LOCAL_REDUCE": "on"}


def test_a_worker_of_a_node_that_is_killed_ends_the_job(tmp_path: Path) -> None:
    body = LARGE + "print('ready', flush=True)\nwhile True: bps.push_pull(mine, 'x')\n"
    with job(tmp_path, 2, 1, **SMALL_PARTITIONS) as made:
        start(made, (2, 1), body)
        for rank in range(3):
            made.wait_for(f"worker{rank}", "ready")
        made.kill("worker1")
        statuses = made.wait(30)
        assert all(statuses.values()), made.everything()
        assert "worker 1" in made.output("worker0"), made.everything()
        assert "worker 1" in made.output("worker2"), made.everything()


@pytest.mark.parametrize("lazy", [0, 1, 2])
def test_a_stall_names_the_worker_that_is_missing(lazy: int, tmp_path: Path) -> None:
    body = (
        LARGE + f"print('pushes', flush=True)\nbps.push_pull(mine, 'x') if bps.rank() != {lazy} else time.sleep(60)\n"
    )
    with job(tmp_path, 2, 1, BYTEPS_STALL_TIMEOUT="5", **SMALL_PARTITIONS) as made:
        start(made, (2, 1), body)
        statuses = made.wait(60)
        assert all(statuses.values()), made.everything()
        said = "\n".join(made.output(f"worker{rank}") for rank in range(3) if rank != lazy)
        named = re.findall(r"waiting \d+ s for the result of 'x'.*missing (.*); giving up", said)
        assert named, made.everything()
        assert all(re.findall(r"worker (\d) \(pid", each) == [str(lazy)] for each in named), made.everything()


def test_who_leaves_with_results_to_come_serves_the_others_first(tmp_path: Path) -> None:
    """Worker 0 sums half of the partitions for worker 1, which is late."""
    body = LARGE + (
        "if bps.rank() == 1: time.sleep(6)\n"
        "pending = bps.push_pull_async(mine, 'x')\n"
        "if bps.rank(): assert (bps.synchronize(pending) == 6).all()\n"
        "bps.shutdown()\n"
        "print('left')\n"
    )
    with job(tmp_path, 2, 1, **SMALL_PARTITIONS) as made:
        start(made, (2, 1), body)
        assert set(made.wait(60).values()) == {0}, made.everything()
        assert "left" in made.output("worker0")


def test_who_pushes_to_one_that_has_left_is_told(tmp_path: Path) -> None:
    body = LARGE + (
        "bps.push_pull(mine, 'x')\n"
        "if bps.rank() == 0: bps.shutdown(); sys.exit()\n"
        "for pause in (0, 3):\n"
        "    time.sleep(pause)\n"
        "    try: bps.push_pull(mine, 'x')\n"
        "    except bps.ParticipantLeft as error: print('told:', error)\n"
    )
    with job(tmp_path, 2, 1, **SMALL_PARTITIONS) as made:
        start(made, (2, 1), body)
        assert set(made.wait(60).values()) == {0}, made.everything()
        for rank in (1, 2):
            told = re.findall("told: tensor 'x': worker 0.* left the job", made.output(f"worker{rank}"))
            assert len(told) == 2, made.everything()


def test_processes_of_a_node_must_have_the_same_settings(tmp_path: Path) -> None:
    with job(tmp_path, 1, 1, **SMALL_PARTITIONS) as made:
        made.scheduler()
        made.server()
        for rank, choice in enumerate(["on", "off"]):
            place = {"DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_RANK": str(rank), "BYTEPS_LOCAL_SIZE": "2"}
            made.worker(rank, LARGE + "bps.push_pull(mine, 'x')\n", **place, BYTEPS_LOCAL_REDUCE=choice)
        statuses = made.wait(60)
        assert (statuses["worker0"], statuses["worker1"]) == (2, 2), made.everything()
        for rank in (0, 1):
            said = made.output(f"worker{rank}")
            assert re.search("BYTEPS_LOCAL_REDUCE is '(on|off)' on worker .* and '(on|off)' on worker .*, which", said)
