"""The examples do what their README says, in real jobs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.examples import EXAMPLES, launch
from tests.helpers.jobs import job

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn, which has the digits, is missing")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
BOTH = [pytest.param("torch_digits.py", marks=needs_torch), "numpy_digits.py"]


@pytest.mark.parametrize("example", BOTH)
def test_it_learns_and_the_bits_do_not_depend_on_the_servers(example: str) -> None:
    results = [launch(2, servers, example, "--epochs", "5") for servers in (1, 3)]
    assert len({each["params_sha256"] for each in results}) == 1
    for each in results:
        assert each["accuracy"] >= 0.95
        assert each["steps"] == 5 * 44
        assert each["images_per_s"] > 0


@needs_torch
def test_the_bits_do_not_depend_on_the_transport_nor_on_where_gradients_live() -> None:
    results = [
        launch(2, 2, "torch_digits.py", "--epochs", "1", arena, transport=transport)
        for transport, arena in (("tcp", "--no-arena"), ("shm", "--arena"))
    ]
    assert len({each["params_sha256"] for each in results}) == 1


@needs_torch
def test_an_ordinary_script_for_torch_distributed_learns_too() -> None:
    result = launch(2, 2, "torch_ddp.py", "--epochs", "5")
    assert result["accuracy"] >= 0.95
    assert result["steps"] == 5 * 44


@needs_torch
def test_a_script_for_byteps_learns_too() -> None:
    result, again = (launch(2, servers, "byteps_digits.py", "--epochs", "3", compat=True) for servers in (1, 2))
    assert result["accuracy"] >= 0.9
    assert result["steps"] == 3 * 44
    assert result["params_sha256"] == again["params_sha256"]


@pytest.mark.parametrize("example", BOTH)
def test_a_resumed_run_ends_with_the_same_parameters(example: str, tmp_path: Path) -> None:
    whole = launch(2, 1, example, "--epochs", "2")
    saving = ("--checkpoint", str(tmp_path / "checkpoint"))
    launch(2, 1, example, "--epochs", "1", *saving)
    resumed = launch(2, 1, example, "--epochs", "2", *saving, "--resume")
    assert resumed["params_sha256"] == whole["params_sha256"]
    assert resumed["steps"] == 44
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("example", BOTH)
def test_it_runs_alone_without_a_server(example: str) -> None:
    assert launch(1, 0, example, "--epochs", "2")["accuracy"] > 0.8


@needs_torch
def test_four_separate_processes_give_the_bits_of_the_local_job(tmp_path: Path) -> None:
    local = launch(2, 1, "torch_digits.py", "--epochs", "1")
    body = (
        f"sys.argv[1:] = ['--epochs', '1', '--seed', '1']\nexec(open({str(EXAMPLES / 'torch_digits.py')!r}).read())\n"
    )
    with job(tmp_path) as made:
        made.worker(1, body)
        made.server()
        made.worker(0, body)
        made.scheduler()
        assert set(made.wait(150).values()) == {0}, made.everything()
        separate = json.loads(made.output("worker0").splitlines()[-1])
    assert separate["params_sha256"] == local["params_sha256"]
