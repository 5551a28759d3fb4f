"""What ``docs/migrating.md`` shows of MXNet runs, once the change is made."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.helpers.documents import run, scripts_after

pytest.importorskip("mxnet", reason="MXNet is not installed: make test-mxnet")

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
TELL = """
import numpy as np
print("weight", *np.frombuffer(net.weight.data().asnumpy().tobytes(), "<u4"))
"""


@pytest.mark.timeout(60)
def test_the_script_trains_one_model_on_all_workers(tmp_path: Path) -> None:
    (script,) = [each for each in scripts_after(DOCUMENT) if "mxnet" in each]
    by_rank = "import byteps_py.mxnet as bps, mxnet as mx\nbps.init()\nmx.random.seed(bps.rank())\n"
    (tmp_path / "train.py").write_text(by_rank + script + TELL, encoding="utf-8")
    command = [sys.executable, "-m", "byteps_py.launcher", "-n", "2", "-s", "1", "--", sys.executable, "train.py"]
    output = run(command, tmp_path, timeout=50)
    found = re.findall(r"^\[worker \d\] weight (.*)", output, re.MULTILINE)
    assert len(found) == 2, output
    assert found[0] == found[1]
