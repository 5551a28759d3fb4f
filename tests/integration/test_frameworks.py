"""Frameworks on top of torch.distributed train through the backend, as their examples show."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.helpers.examples import launch

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn, which has the digits, is missing")


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_it_learns_and_the_workers_end_with_one_model(framework: str) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    result = launch(2, 1, f"{framework}_digits.py", "--epochs", "5")
    assert result["accuracy"] >= 0.95
    assert result["steps"] == 5 * 44
    assert result["models"] == 1
