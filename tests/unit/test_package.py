"""The package itself: what it names, and that naming it loads next to nothing."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import byteps_py


@pytest.mark.parametrize("name", byteps_py.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(byteps_py, name) is not None
    assert name in dir(byteps_py)


def test_names_are_the_ones_that_are_defined_elsewhere() -> None:
    from byteps_py import errors, objects, operations, rows, session, suspension

    homes_of = (errors, objects, operations, rows, session, suspension)
    for name in set(byteps_py.__all__) - {"__version__"}:
        homes = [module for module in homes_of if name in module.__all__]
        assert [getattr(home, name) for home in homes] == [getattr(byteps_py, name)], name


def test_the_version_is_that_of_the_distribution() -> None:
    assert byteps_py.__version__ == version("byteps_py")


def test_no_other_name() -> None:
    with pytest.raises(AttributeError, match="module 'byteps_py' has no attribute 'push'"):
        byteps_py.push  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.timeout(60)
@pytest.mark.parametrize("module", ["byteps_py.launcher.main", "byteps_py.cli"])
def test_the_commands_load_little(module: str) -> None:
    code = (
        f"import sys, {module}, byteps_py; byteps_py.__version__; "
        "print(*sorted({'numpy', 'zmq', 'msgspec', 'psutil'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.split() == []


@pytest.mark.timeout(60)
def test_the_torch_plugin_without_torch_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import byteps_py.torch"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    last = result.stderr.splitlines()[-1]
    assert last == "ImportError: byteps_py.torch needs PyTorch: pip install 'byteps_py[torch]'"
    assert result.returncode == 1
