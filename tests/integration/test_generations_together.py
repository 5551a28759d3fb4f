"""Jobs that are suspended in the middle of everything else: differences that are held back, rows, groups, bundles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.jobs import job, running

pytestmark = pytest.mark.timeout(120)

HELD = """
import time
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec
specs = [TensorSpec('small', DType.INT64, (3,)), TensorSpec('large', DType.INT64, (200000,))]
def start(operation, fill):
    return [current().submit(each, np.full(each.shape, fill), None, operation) for each in specs]
def seed(fill):
    for each in start(Operation.SEED, fill + bps.rank()):
        assert (each.wait() == fill).all()
seed(10)
pending = []
if bps.rank() == 0:
    for _ in range(6):  # worker 1 never pushes any, so that the third is held back until it has called suspend()
        pending.append(start(Operation.DIFFERENCE, 1))
else:
    time.sleep(1)
bps.suspend()
for index, both in enumerate(pending):
    assert all((each.wait() == 11 + index).all() for each in both)
bps.resume(2, 1)
seed(20)
for each in start(Operation.DIFFERENCE, 1):
    each.wait()
bps.barrier()
assert all((current().submit(each, None, None, Operation.DIFFERENCE).wait() == 22).all() for each in specs)
print('done')
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_differences_that_are_held_back_end_when_the_others_have_suspended(transport: str, tmp_path: Path) -> None:
    environ = {
        "BYTEPS_ENABLE_ASYNC": "1",
        "BYTEPS_ASYNC_MAX_STALENESS": "1",
        "BYTEPS_LOG_LEVEL": "info",
        "BYTEPS_PARTITION_BYTES": "1048576",
        "BYTEPS_TRANSPORT": transport,
    }
    with running(tmp_path, HELD, **environ) as made:
        assert set(made.wait(60).values()) == {0}, made.everything()
        assert all("done" in made.output(f"worker{rank}") for rank in range(2)), made.everything()
        # Each generation has its own.
        assert made.output("worker0").count("staleness of 18 differences") == 1, made.everything()
        assert made.output("worker0").count("staleness of 3 differences") == 1, made.everything()


MIXED = """
from byteps_py.roles.rows import Rows
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec
spec = TensorSpec('table', DType.FLOAT32, (40, 3))
size = bps.size()
for generation in range(3):
    rank, rows, absent, light = bps.rank(), [], [], []
    for step in range(4):
        if rank == step % size:
            absent.append((step, current().submit(spec, None, None, Operation.SUM, step=step)))
        else:
            ones = np.ones((2, 3), np.float32)
            rows.append((step, bps.push_pull_rows_async([rank, 39], ones, 40, 'table', version=step)))
        light.append(bps.push_pull_async(np.full(5, rank, np.float32), f'light{step}'))
    group = current().form_group([0, 1]) if rank < 2 else 0
    if group:
        of_group = TensorSpec('of a group', DType.FLOAT32, (40, 3), group)
        own = Rows(np.array([rank + 1]), np.ones((1, 3), np.float32))
        both = current().submit(of_group, own, np.empty(0, np.float32), Operation.AVERAGE)
    bps.suspend()
    found = [(step, *each.rows) for step, each in absent if each.wait() is not None]
    found += [(step, *bps.synchronize(each)) for step, each in rows]
    for step, indices, values in found:
        assert indices.tolist() == [each for each in range(size) if each != step % size] + [39], (step, indices)
        assert values[:, 0].tolist() == [1.0] * (size - 1) + [size - 1.0], (step, values)
    assert all((bps.synchronize(each) == sum(range(size))).all() for each in light)
    if group:
        both.wait()
        assert both.rows.indices.tolist() == [1, 2] and (both.rows.values == 0.5).all(), both.rows
    bps.resume(size, 2)
    bps.barrier()
print('done')
"""


@pytest.mark.parametrize(
    "environ",
    [{}, {"BYTEPS_TRANSPORT": "tcp"}, {"BYTEPS_PARTITION_BYTES": "64"}, {"BYTEPS_ENABLE_ASYNC": "1"}],
    ids=str,
)
def test_rows_groups_and_bundles_are_over_before_a_generation_is(environ: dict[str, str], tmp_path: Path) -> None:
    with running(tmp_path, MIXED, workers=3, servers=2, **environ) as made:
        assert set(made.wait(60).values()) == {0}, made.everything()
        assert all("done" in made.output(f"worker{rank}") for rank in range(3)), made.everything()


def test_so_are_those_that_are_summed_within_a_node(tmp_path: Path) -> None:
    environ = {"BYTEPS_LOCAL_REDUCE": "on", "BYTEPS_LOCAL_SIZE": "3", "BYTEPS_PARTITION_BYTES": "64"}
    with job(tmp_path, 1, 2, **environ) as made:
        made.scheduler()
        for index in range(2):
            made.server(index)
        for index in range(3):
            made.worker(index, MIXED, DMLC_WORKER_ID="0", BYTEPS_LOCAL_RANK=str(index))
        assert set(made.wait(60).values()) == {0}, made.everything()
        assert all("done" in made.output(f"worker{index}") for index in range(3)), made.everything()


MEMORY = """
import gc, os
gc.disable()
def shared():
    folder = '/proc/self/fd/'
    found = [os.readlink(folder + each) for each in os.listdir(folder) if os.path.lexists(folder + each)]
    return [each for each in found if 'memfd:byteps' in each]
for generation in range(3):
    bps.push_pull(np.ones(500000, np.float32), 'dense')
    bps.push_pull(np.ones(50, np.float32), 'light')
    bps.push_pull_rows([1, 2], np.ones((2, 64), np.float32), 100000, 'rows')
    assert shared()
    bps.suspend()
    assert not shared(), shared()
    bps.resume(2, 1)
print('done')
"""


def test_nothing_of_a_generation_stays_in_memory(tmp_path: Path) -> None:
    with running(tmp_path, MEMORY, BYTEPS_TRANSPORT="shm") as made:
        assert set(made.wait(60).values()) == {0}, made.everything()
        assert all("done" in made.output(f"worker{rank}") for rank in range(2)), made.everything()
