"""What ``import byteps_py.mxnet`` says where MXNet is missing or cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

CASES = {
    "import marker_that_is_not_installed": (
        "byteps_py.mxnet needs MXNet 1.9.1, and with it NumPy below 1.24 and Python 3.10 or 3.11: "
        "pip install 'byteps_py[mxnet]'"
    ),
    # What MXNet meets with NumPy 1.24 and newer.
    "import types; types.ModuleType('numpy').bool": (
        f"byteps_py.mxnet needs NumPy below 1.24, since MXNet 1.9.1 cannot be imported with NumPy {np.__version__}: "
        "pip install 'numpy<1.24'"
    ),
}


@pytest.mark.parametrize("source", CASES)
def test_one_sentence_says_what_to_install(tmp_path: Path, source: str) -> None:
    (tmp_path / "mxnet.py").write_text(source, encoding="utf-8")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport byteps_py.mxnet"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: {CASES[source]}"
