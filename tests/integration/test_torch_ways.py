"""Every way to average gradients in torch, in real jobs: all end where one process ends on the joined batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.jobs import running

torch = pytest.importorskip("torch", reason="torch is not installed")

OURS = ("optimizer", "wrapper", "cross-barrier")
"""Their arithmetic is one and the same: the sum in the order of ranks, divided."""
OTHERS = ("gloo",)
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
