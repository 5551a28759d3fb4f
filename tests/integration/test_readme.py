"""What README tells people to type works."""

from __future__ import annotations

import importlib
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from byteps_py.launcher import arguments
from tests.helpers.documents import run
from tests.helpers.jobs import free_port

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (.*)$", README, re.MULTILINE)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
LAUNCHES = [each for each in COMMANDS if each.startswith("bpslaunch ")]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the reader stands: the example is saved as ``train.py``, and the examples are there."""
    (tmp_path / "train.py").write_text(blocks("python")[0], encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@needs_torch
def test_the_first_job_trains(folder: Path) -> None:
    command = LAUNCHES[0]
    assert command == "bpslaunch -n 2 -s 1 -- python train.py"
    assert "bpslaunch: 2 workers, 1 server" in run(shlex.split(command), folder)


def test_the_one_line_job_prints_its_sum(folder: Path) -> None:
    (command,) = [each for each in LAUNCHES if "np.ones" in each]
    output = run(shlex.split(command), folder).splitlines()
    assert {"[worker 0] [2. 2. 2.]", "[worker 1] [2. 2. 2.]"} <= set(output)


def test_every_launch_is_understood() -> None:
    for command in LAUNCHES:
        options = arguments.parse(shlex.split(command)[1:])
        assert options.command[0] == "python"
        assert options.num_workers is not None
        assert options.num_servers is not None


def test_experiments_take_the_options_that_are_shown(folder: Path) -> None:
    """The options are real; what would train for a minute is replaced by a worker that joins and leaves."""
    experiments = [each for each in LAUNCHES if "torch_digits" in each]
    assert len(experiments) == 2
    for command in experiments:
        options, _, _ = command.partition(" -- ")
        output = run([*shlex.split(options), "--", "python", "-c", "import byteps_py; byteps_py.init()"], folder)
        policy = re.findall(r"--omp-wait-policy (\w+)", command)[0]
        assert f"OMP_WAIT_POLICY={policy}" in output


def four_processes() -> list[str]:
    (script,) = blocks("bash")
    assert script.count("DMLC_PS_ROOT_PORT=9000") == 1
    return ["bash", "-c", script.replace("DMLC_PS_ROOT_PORT=9000", f"DMLC_PS_ROOT_PORT={free_port()}")]


@needs_torch
def test_four_processes(folder: Path) -> None:
    run(four_processes(), folder)


def test_four_processes_fail(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import byteps_py as bps\n\nbps.init()\nassert bps.rank()\n", encoding="utf-8")
    run(four_processes(), tmp_path, status=1)


@pytest.mark.parametrize(
    ("name", "title"),
    [("byteps_py", "byteps_py as bps"), pytest.param("byteps_py.torch", "byteps_py.torch as", marks=needs_torch)],
)
def test_the_tables_list_what_is_exported(name: str, title: str) -> None:
    module = importlib.import_module(name)
    table = README.partition(f"`import {title}")[2].partition("\n\n|")[2].partition("\n\n")[0]
    listed = {
        name
        for row in table.splitlines()
        for code in re.findall(r"`([^`]+)`", row.split("|")[1])
        for name in re.findall(r"^(?:bps\.)?([A-Za-z_]+)", code)
    }
    exported = set(getattr(module, "__all__"))  # noqa: B009
    assert len(listed) > 5
    assert listed <= exported


def test_make_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for text in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        named = set(re.findall(r"(?:^\$ |`)make ([a-z]+)", text, re.MULTILINE))
        assert named
        assert named <= targets


@pytest.mark.parametrize("document", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")), ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", document.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target
