"""What ``docs/migrating.md`` shows runs, once the change is made."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from byteps_py.known_names import READ
from byteps_py.launcher import arguments
from tests.helpers.documents import run, scripts_after, scripts_before

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
SCRIPTS = scripts_after(DOCUMENT)
EACH = """
import hashlib, sys, torch
torch.set_num_threads(1)
dist = torch.distributed
found = []
for path in sys.argv[1:]:
    made = {}
    exec(compile(open(path).read(), path, "exec"), made)
    made["optimizer"].zero_grad()  # with CrossBarrier the last update may still be on its way
    for each in made["model"].parameters():
        assert torch.isfinite(each).all()
    bits = b"".join(each.detach().numpy().tobytes() for each in made["model"].state_dict().values())
    found.append(hashlib.sha256(bits).hexdigest()[:12])
    if dist.is_initialized():
        dist.destroy_process_group()
print("models", *found)
"""
"""Runs scripts one after the other, each on its own random inputs, and prints what their models have become."""


@pytest.mark.timeout(170)
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_scripts_train_one_model_on_all_workers(tmp_path: Path) -> None:
    (tmp_path / "each.py").write_text(EACH, encoding="utf-8")
    names = []
    for number, script in enumerate(each for each in SCRIPTS if "mxnet" not in each):
        names.append(f"{number}.py")
        (tmp_path / names[-1]).write_text(script, encoding="utf-8")
    assert len(names) == 6
    output = run(shlex.split("bpslaunch -n 2 -s 1 -- python each.py") + names, tmp_path, timeout=90)
    found = re.findall(r"^\[worker \d\] models (.*)", output, re.MULTILINE)
    assert len(found) == 2, output
    assert found[0] == found[1]
    assert len(set(found[0].split())) == len(names)
    # That of another backend finds the workers by itself too, not by what the one before it has set.
    (gloo,) = [name for name in names if 'init_process_group("gloo")' in (tmp_path / name).read_text(encoding="utf-8")]
    output = run(shlex.split(f"bpslaunch -n 2 -s 1 -- python each.py {gloo}"), tmp_path, timeout=60)
    first, second = re.findall(r"^\[worker \d\] models (.*)", output, re.MULTILINE)
    assert first == second


@pytest.mark.timeout(100)
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_scripts_for_byteps_train_the_same_model_without_an_edit(tmp_path: Path) -> None:
    """Only the random inputs must be the same."""
    (tmp_path / "each.py").write_text(EACH, encoding="utf-8")
    names = []
    seed = "import torch\ntorch.manual_seed(5)\n"
    for number, script in enumerate(scripts_before(DOCUMENT)):
        if "import byteps.torch" in script:
            names += [f"{number}-before.py", f"{number}-after.py"]
            (tmp_path / names[-2]).write_text(seed + script, encoding="utf-8")
            (tmp_path / names[-1]).write_text(seed + SCRIPTS[number], encoding="utf-8")
    assert len(names) == 4
    output = run(shlex.split("bpslaunch --compat -n 2 -s 1 -- python each.py") + names, tmp_path, timeout=90)
    found = re.findall(r"^\[worker \d\] models (.*)", output, re.MULTILINE)
    first, second, third, fourth = found[0].split()
    assert found == [found[0]] * 2, output
    assert first == second != third == fourth


def test_every_launch_is_understood() -> None:
    launches = [each for each in re.findall(r"`bpslaunch (-[^`]*)`", DOCUMENT) if "python" in each]
    assert len(launches) >= 3
    for words in launches:
        assert arguments.parse(shlex.split(words)).command[0] == "python"


def test_every_variable_is_known() -> None:
    assert set(re.findall(r"\b(?:DMLC|BYTEPS)_[A-Z_]+[A-Z]\b", DOCUMENT)) <= set(READ)
