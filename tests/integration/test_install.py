"""A normal installation and an editable one, used outside the source tree; and a source tree that was never built."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.helpers.trees import ROOT, copy_sources

_PIP = (sys.executable, "-m", "pip")
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
        timeout=300,
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
    _run(sys.executable, "-W", "ignore", "setup.py", "-q", "sdist", "--dist-dir", folder, cwd=source)
    (archive,) = folder.glob("*.tar.gz")
    _run(*_PIP, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, archive, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    assert "-cp310-abi3-linux" in wheel.name
    python = _environment(folder / "venv")
    # What that environment has of byteps_py is not what is meant.
    _run(*_PIP, "--python", python, "install", "--ignore-installed", "--no-deps", "--no-index", wheel, cwd=folder)
    return python.parent


def _environment(folder: Path) -> Path:
    """The interpreter of a new virtual environment that has all but byteps_py."""
    _run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    site, _ = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    Path(site.strip(), "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


@pytest.mark.timeout(600)
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

    def test_every_module_is_installed(self, installed: Path, tmp_path: Path) -> None:
        code = "import importlib.metadata as m; print(*m.files('byteps_py'))"
        output, _ = _run(installed / "python", "-c", code, cwd=tmp_path)
        modules = {each for each in output.split() if each.endswith((".py", ".pyi"))}
        folders = (ROOT / "byteps_py", ROOT / "byteps_py" / "launcher")
        sources = {str(each.relative_to(ROOT)) for folder in folders for each in folder.rglob("*.py*")}
        assert modules == {each for each in sources if each.endswith((".py", ".pyi"))}

    def test_extras_and_their_requirements(self, installed: Path, tmp_path: Path) -> None:
        code = "import importlib.metadata as m; print('\\n'.join(m.requires('byteps_py')))"
        output, _ = _run(installed / "python", "-c", code, cwd=tmp_path)
        requirements = [each.replace("'", '"') for each in output.splitlines()]
        assert 'torch>=2.6; extra == "torch"' in requirements
        assert 'mxnet==1.9.1; python_version < "3.12" and extra == "mxnet"' in requirements
        assert [each.partition(">")[0] for each in requirements if "extra" not in each] == [
            *("numpy", "pyzmq", "cffi", "psutil", "msgspec")
        ]

    @pytest.mark.parametrize("command", ["bps", "bpslaunch"])
    def test_commands_know_their_version(self, installed: Path, tmp_path: Path, command: str) -> None:
        assert " 0.1.0\n" in _run(installed / command, "--version", cwd=tmp_path)[0]


@pytest.mark.timeout(600)
class TestEditable:
    def test_a_folder_of_the_same_name_is_not_taken_for_the_package(self, tmp_path: Path) -> None:
        """The reader stands beside the clone, and setuptools' own way would find its folder first."""
        clone = copy_sources(tmp_path / "byteps_py")
        (clone / "tests").mkdir()
        (clone / "tests" / "__init__.py").touch()
        compiler = tmp_path / "cc"
        compiler.write_text('#!/bin/bash\nexec gcc "${@/#-O3/-O0}"\n', encoding="utf-8")
        compiler.chmod(0o755)
        python = _environment(tmp_path / "venv")
        pip = (*_PIP, "--python", python, "install", "--ignore-installed", "--no-deps", "--no-index")
        _run(*pip, "--no-build-isolation", "--editable", clone, cwd=tmp_path, CC=str(compiler))
        (tmp_path / "train.py").write_text(_PUSH_PULL, encoding="utf-8")
        command = (python.parent / "bpslaunch", "-n", "1", "-s", "1", "python", "train.py")
        assert _run(*command, cwd=tmp_path, path=python.parent)[0] == "[worker 0] [1. 1. 1.]\n"
        for folder in (tmp_path, tmp_path / "venv", clone):
            code = "import byteps_py, importlib.util as u; print(byteps_py.__file__, u.find_spec('launcher'))"
            found, launcher = _run(python, "-c", code, cwd=folder)[0].split(maxsplit=1)
            assert Path(found).resolve() == clone / "byteps_py" / "__init__.py"
            assert (launcher == "None\n") == (folder != clone)


class TestNeverBuilt:
    def test_importing_it_says_so_in_one_sentence(self, tmp_path: Path) -> None:
        source = copy_sources(tmp_path / "source")
        _, errors = _run(sys.executable, "-c", "import byteps_py", cwd=source)
        line, *source_line = errors.splitlines()
        assert source_line in ([], ["  import byteps_py"])  # which Python 3.13 shows of -c, too
        assert "whose C extension was never built: run `pip install -e .` in it" in line

    def test_it_runs_on_the_reference_kernels(self, tmp_path: Path) -> None:
        source = copy_sources(tmp_path / "source")
        launch = (sys.executable, "-m", "byteps_py.launcher", "-n", "2", "-s", "1", "--", sys.executable)
        output, errors = _run(*launch, "-c", _PUSH_PULL, cwd=source, BYTEPS_KERNELS="reference", PYTHONPATH=str(source))
        assert sorted(output.splitlines()) == ["[worker 0] [2. 2. 2.]", "[worker 1] [2. 2. 2.]"]
        assert "never built" not in errors
