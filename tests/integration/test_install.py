"""A normal installation, used outside the source tree; and a source tree that was never built."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.helpers.trees import copy_sources

_PUSH_PULL = "import byteps_py as bps, numpy as np; bps.init(); print(bps.push_pull(np.ones(3), 'x'))"


def _run(*command: str | Path, cwd: Path, path: Path | None = None, **environment: str) -> tuple[str, str]:
    """Standard output and error of a command that must succeed, run with nothing of this tree in its environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if path is not None:
        inherited["PATH"] = f"{path}{os.pathsep}{inherited['PATH']}"
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of a new virtual environment with byteps_py in it, installed from a wheel.

    Nothing is downloaded: the dependencies are those of the environment that runs the tests.
    """
    folder = tmp_path_factory.mktemp("install")
    source = copy_sources(folder / "source")
    pip = (sys.executable, "-m", "pip")
    _run(*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    assert "-cp310-abi3-linux" in wheel.name
    _run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    _run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    site, _ = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    Path(site.strip(), "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python.parent


@pytest.mark.timeout(240)
class TestInstalled:
    def test_a_job_runs_outside_the_source_tree(self, installed: Path, tmp_path: Path) -> None:
        command = ("bpslaunch", "-n", "2", "-s", "1", "--", "python", "-c", _PUSH_PULL)
        output, errors = _run(*command, cwd=tmp_path, path=installed)
        assert sorted(output.splitlines()) == ["[worker 0] [2. 2. 2.]", "[worker 1] [2. 2. 2.]"]
        assert "2 workers, 1 server" in errors

    def test_it_is_the_installed_package_that_runs(self, installed: Path, tmp_path: Path) -> None:
        code = "import byteps_py, byteps_py.launcher, byteps_py.kernels as k; "
        code += "print(byteps_py.__file__, byteps_py.launcher.__file__, k.select('native').name)"
        output, errors = _run(installed / "python", "-c", code, cwd=tmp_path)
        package, launcher, kernels = output.split()
        assert Path(package).is_relative_to(installed.parent)
        assert Path(launcher).is_relative_to(installed.parent)
        assert (kernels, errors) == ("native", "")

    def test_only_the_package_is_installed(self, installed: Path, tmp_path: Path) -> None:
        code = "import importlib.metadata as m; print(*sorted({f.parts[0] for f in m.files('byteps_py')}))"
        output, _ = _run(installed / "python", "-c", code, cwd=tmp_path)
        assert [each for each in output.split() if ".dist-info" not in each and each != ".."] == ["byteps_py"]
        code = "import byteps_py, pathlib; print((pathlib.Path(byteps_py.__file__).parent / 'py.typed').exists())"
        assert _run(installed / "python", "-c", code, cwd=tmp_path)[0] == "True\n"

    @pytest.mark.parametrize("command", ["bps", "bpslaunch"])
    def test_commands_know_their_version(self, installed: Path, tmp_path: Path, command: str) -> None:
        assert " 0.1.0\n" in _run(installed / command, "--version", cwd=tmp_path)[0]


class TestNeverBuilt:
    def test_importing_it_says_so_in_one_sentence(self, tmp_path: Path) -> None:
        source = copy_sources(tmp_path / "source")
        _, errors = _run(sys.executable, "-c", "import byteps_py", cwd=source)
        (line,) = errors.splitlines()
        assert "whose C extension was never built: run `pip install -e .` in it" in line

    def test_it_runs_on_the_reference_kernels(self, tmp_path: Path) -> None:
        source = copy_sources(tmp_path / "source")
        launch = (sys.executable, "-m", "byteps_py.launcher", "-n", "2", "-s", "1", "--", sys.executable)
        output, errors = _run(*launch, "-c", _PUSH_PULL, cwd=source, BYTEPS_KERNELS="reference", PYTHONPATH=str(source))
        assert sorted(output.splitlines()) == ["[worker 0] [2. 2. 2.]", "[worker 1] [2. 2. 2.]"]
        assert "never built" not in errors
