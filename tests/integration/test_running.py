"""What ``docs/running.md`` tells people to type works; other hosts and batch systems are played by this machine."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from byteps_py.known_names import READ
from byteps_py.launcher import arguments
from tests.helpers.documents import run
from tests.helpers.jobs import free_port

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
TRAIN = """
import numpy as np
import byteps_py as bps

bps.init()
print(f"worker {bps.rank()} of {bps.size()}: {bps.push_pull(np.ones(3), 'x')[0]:.0f}")
"""
ON_ALL = 'for each in $(jobs -p); do wait "$each" || exit 1; done\n'
"""Nobody else looks at the processes in the background."""

pytestmark = pytest.mark.timeout(100)


def block(word: str) -> str:
    """The first block of bash with ``word`` in it, with addresses and ports of this machine."""
    found = next(each for each in BLOCKS if word in each)
    return re.sub(r"\b10\.0\.0\.\d\b", "127.0.0.1", found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the reader stands: a script, and an environment."""
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    activate = f'PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"\n'
    (tmp_path / ".venv" / "bin" / "activate").write_text(activate, encoding="utf-8")
    return tmp_path


def bash(script: str, folder: Path, **environ: str) -> str:
    """Both output streams of a script that must succeed."""
    port = str(free_port())
    return run(
        ["bash", "-c", re.sub(r"\b9000\b", port, script)], folder, path=(folder / "programs",), timeout=90, **environ
    )


def program(folder: Path, name: str, body: str) -> None:
    """A program of a batch system."""
    path = folder / "programs" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}", encoding="utf-8")
    path.chmod(0o755)


def workers_in(output: str) -> set[str]:
    """What the workers of a job of two have printed."""
    return set(re.findall(r"worker \d of \d: \d", output))


BOTH = {"worker 0 of 2: 2", "worker 1 of 2: 2"}


def test_every_launch_is_understood() -> None:
    launches = re.findall(r"bpslaunch (-[^`\n]*?python [^`\n]*)", DOCUMENT)
    assert len(launches) >= 4
    for words in launches:
        assert arguments.parse(shlex.split(words)).command[0] == "python"


def test_every_variable_is_read() -> None:
    named = set(re.findall(r"\b(?:DMLC|BYTEPS|PS|OMP)_[A-Z_]+[A-Z]\b", DOCUMENT))
    assert len(named) > 15
    assert named <= set(READ)


def test_one_machine(folder: Path) -> None:
    assert workers_in(bash(block("-s 1 python"), folder)) == BOTH


def test_a_dry_run_starts_nothing(folder: Path) -> None:
    output = bash(block("--dry-run"), folder)
    assert "DMLC_ROLE=scheduler" in output
    assert not workers_in(output)


def test_two_hosts(folder: Path) -> None:
    first, second = block("# on 10.0.0.1\nDMLC_ROLE=scheduler"), block("# on 10.0.0.2\n")
    script = block("export DMLC_NUM_WORKER") + second.rstrip() + " &\n" + first + ON_ALL
    assert workers_in(bash(script, folder)) == BOTH


def test_ssh(folder: Path) -> None:
    script = block("ssh -tt")
    assert script.count("hosts=(127.0.0.1 127.0.0.1 127.0.0.1 127.0.0.1)") == 1
    program(folder, "ssh", 'test "$1" = -tt && test "$2" = 127.0.0.1 && exec bash -c "$3"\n')
    script = script.replace(" 127.0.0.1 127.0.0.1 127.0.0.1)", " 127.0.0.1)")
    assert workers_in(bash(script, folder)) == BOTH


def test_slurm(folder: Path) -> None:
    script = block("#SBATCH")
    (port,) = re.findall(r"DMLC_PS_ROOT_PORT=(\S+ \+ \S+ % \S+)", script)
    program(folder, "scontrol", 'test "$*" = "show hostnames ALL" && printf "127.0.0.1\\n127.0.0.1\\n"\n')
    program(
        folder,
        "srun",
        "tasks=$SLURM_JOB_NUM_NODES\n"
        "while [[ $1 == --* ]]; do [[ $1 == --ntasks=* ]] && tasks=${1#*=}; shift; done\n"
        'for ((id = 0; id < tasks; id++)); do SLURM_PROCID=$id "$@" & done\n' + ON_ALL,
    )
    slurm = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "ALL", "SLURM_JOB_ID": "17"}
    assert workers_in(bash(script.replace(port, "9000"), folder, **slurm)) == BOTH


def test_completion_can_be_sourced(folder: Path) -> None:
    bash(block("--completion") + "complete -p bpslaunch && complete -p bps\n", folder)
