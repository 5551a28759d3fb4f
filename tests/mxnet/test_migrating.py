"""What ``docs/migrating.md`` shows of MXNet runs, once the change is made."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.helpers.documents import run, scripts_after

pytest.importorskip("mxnet", reason="MXNet is not installed: make test-mxnet")

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
EACH = """
import sys
import byteps_py.mxnet as bps, mxnet as mx, numpy as np

bps.init()
mx.random.seed(bps.rank())
np.random.seed(bps.rank())
found = []
for path in sys.argv[1:]:
    made = {}
    exec(compile(open(path).read(), path, "exec"), made)
    weight = made["net"].weight.data() if "net" in made else made["module"].get_params()[0]["layer_weight"]
    found.append(weight.asnumpy().tobytes().hex())
assert bps.stats()["steps"] == 3 * len(found), bps.stats()
print("weights", *found)
"""
"""Runs scripts one after the other, each on its own random inputs, and prints what their weights have become."""


@pytest.mark.timeout(60)
def test_the_scripts_train_one_model_on_all_workers(tmp_path: Path) -> None:
    (tmp_path / "each.py").write_text(EACH, encoding="utf-8")
    names = []
    for number, script in enumerate(each for each in scripts_after(DOCUMENT) if "mxnet" in each):
        names.append(f"{number}.py")
        (tmp_path / names[-1]).write_text(script, encoding="utf-8")
    assert len(names) == 2
    command = [sys.executable, "-m", "byteps_py.launcher", "-n", "2", "-s", "1", "--", sys.executable, "each.py"]
    output = run(command + names, tmp_path, timeout=50)
    found = re.findall(r"^\[worker \d\] weights (.*)", output, re.MULTILINE)
    assert len(found) == 2, output
    assert found[0] == found[1]
