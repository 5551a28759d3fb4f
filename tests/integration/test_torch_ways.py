"""Every way to average gradients in torch, in real jobs: all end where one process ends on the joined batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.jobs import running

torch = pytest.importorskip("torch", reason="torch is not installed")

OURS = ("optimizer", "wrapper", "cross-barrier", "comm-hook")
"""Their arithmetic is one and the same: the sum in the order of ranks, divided."""
OTHERS = ("gloo", "backend")
"""torch divides before it sums, which is the same for two workers, and not for three."""


@pytest.mark.parametrize("workers", [2, 3])
def test_all_ways_lead_to_the_same_parameters(workers: int, tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("torch is built without torch.distributed")
    ways = ["alone", *OURS, *OTHERS]
    body = f"from pathlib import Path\nfrom tests.helpers.torch_ways import run\nrun({ways!r}, Path({str(tmp_path)!r}))"
    with running(tmp_path, body, workers=workers, servers=2) as made:
        assert set(made.wait(120).values()) == {0}, made.everything()

    def load(way: str, rank: int = 0) -> dict[str, np.ndarray]:
        with np.load(tmp_path / f"{way}-{rank}.npz") as saved:
            return dict(saved)

    alone, first = load("alone"), load(OURS[0])
    for way in (*OURS, *OTHERS):
        is_same = way in OURS or workers == 2
        for rank in range(workers):
            for name, each in load(way, rank).items():
                np.testing.assert_array_equal(each, load(way)[name], err_msg=f"{way}, {name}: worker {rank} and 0")
                np.testing.assert_allclose(each, alone[name], rtol=2e-5, atol=2e-6, err_msg=f"{way}, {name}: alone")
                if is_same:
                    np.testing.assert_array_equal(each, first[name], err_msg=f"{way}, {name}: and {OURS[0]}")
                else:
                    np.testing.assert_allclose(each, first[name], rtol=2e-5, atol=2e-6, err_msg=f"{way}, {name}")


def test_branches_and_many_layers_with_all_kinds_of_optimizers(tmp_path: Path) -> None:
    """Nobody waits for what another worker has skipped; see the helper for what is compared."""
    body = "from tests.helpers.torch_ways import compare\ncompare()"
    with running(tmp_path, body, workers=2, servers=2) as made:
        assert set(made.wait(120).values()) == {0}, made.everything()


TROUBLE = """
import torch
import byteps_py.torch as bps
from byteps_py.errors import BytePSError, JobAborted, NotInitializedError
from byteps_py.torch.cross_barrier import CrossBarrier
from byteps_py.torch.parallel import DistributedDataParallel
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(*[nn.Linear(60, 60) for _ in range(12)])
optimizer = CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.01))
wrapped = DistributedDataParallel(nn.Linear(3, 3))

def in_child(act):
    child = os.fork()
    if not child:
        try:
            act()
        except NotInitializedError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

def step():
    optimizer.zero_grad()
    model(torch.ones(4, 60)).sum().backward()
    optimizer.step()

for _ in range(3):
    step()
if {dies}:
    if bps.rank() == 1:
        optimizer.synchronize()
        os._exit(5)
    try:
        for _ in range(1000):
            step()
    except JobAborted as error:
        for act in (optimizer.step, model.state_dict):
            try:
                act()
                raise SystemExit('nothing was raised')
            except BytePSError as again:
                assert str(again) == str(error)
        print('told:', error)
        raise
else:
    bps.barrier()
    in_child(lambda: wrapped(torch.ones(1, 3)).sum().backward())
    step()
    in_child(optimizer.step)
    print('in flight', len(optimizer._updates._flying))
"""


def test_the_last_step_may_be_in_flight_when_workers_end(tmp_path: Path) -> None:
    """What others wait for is delivered; a forked child can neither train nor wait."""
    with running(tmp_path, TROUBLE.format(dies=False), servers=2) as made:
        assert set(made.wait(100).values()) == {0}, made.everything()
        assert all("in flight 24" in made.output(f"worker{rank}") for rank in range(2))


def test_the_death_of_a_worker_is_told_in_the_training_thread(tmp_path: Path) -> None:
    with running(tmp_path, TROUBLE.format(dies=True), servers=1) as made:
        made.processes["worker0"].wait(60)
        assert "told: " in made.output("worker0"), made.everything()
        assert "worker 1" in made.output("worker0").partition("told: ")[2].partition("\n")[0]
        assert made.processes["worker0"].returncode not in (0, None)
