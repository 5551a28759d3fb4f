"""What ``import byteps_py.mxnet`` says where MXNet is missing or cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ADVICE = "pip install 'byteps_py[mxnet]'"
NO_MXNET = (
    f"ImportError: byteps_py.mxnet needs MXNet 1.9.1, and with it NumPy below 1.24 and Python 3.10 or 3.11: {ADVICE}"
)
NO_PYTHON = (
    "ImportError: byteps_py.mxnet needs MXNet 1.9.1, which needs Python 3.10 or 3.11, and this is Python {}: "
    "make an environment with one of those"
)
NEW_NUMPY = (
    "ImportError: byteps_py.mxnet needs NumPy below 1.24, since MXNet 1.9.1 cannot be imported with NumPy {}: " + ADVICE
)
MISSING = "import marker_that_is_not_installed"
USES_BOOL = "import types; types.ModuleType('numpy').bool"  # as MXNet does, which NumPy 1.24 and newer have not
CASES = {
    "no MXNet": (MISSING, "sys.version_info = (3, 11, 0)", NO_MXNET),
    "Python 3.12": (MISSING, "sys.version_info = Version(3, 12)", NO_PYTHON.format("3.12")),
    "NumPy 1.24": (USES_BOOL, "numpy.__version__ = '1.24.0'", NEW_NUMPY.format("1.24.0")),
    "NumPy 2.3": (USES_BOOL, "numpy.__version__ = '2.3.1'", NEW_NUMPY.format("2.3.1")),
    "something else": (
        USES_BOOL,
        "numpy.__version__ = '1.23.5'",
        "AttributeError: module 'numpy' has no attribute 'bool'",
    ),
    "MXNet 1.9.0": (
        "__version__ = '1.9.0'",
        "",
        f"ImportError: byteps_py.mxnet needs MXNet 1.9.1, whose engine it knows, and this is 1.9.0: {ADVICE}",
    ),
}
SCRIPT = """
import collections, sys
import byteps_py, numpy
Version = collections.namedtuple("Version", "major minor")
sys.path.insert(0, {folder!r})
{change}
import byteps_py.mxnet
"""


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_says_what_to_install(tmp_path: Path, case: str) -> None:
    source, change, words = CASES[case]
    (tmp_path / "mxnet.py").write_text(source, encoding="utf-8")
    script = SCRIPT.format(folder=str(tmp_path), change=change)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == words
