"""``bpslaunch --compat`` and ``python -m byteps_py.compat``: scripts that know ``byteps`` only run to the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import byteps_py
from tests.helpers.compat import SCRIPTS
from tests.helpers.documents import run
from tests.helpers.jobs import free_port, job

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

LAUNCH = [sys.executable, "-m", "byteps_py.launcher", "--compat"]
COMPAT = [sys.executable, "-m", "byteps_py.compat"]
REAL = "__version__ = 'real'\nprint('the real one', flush=True)\n"
SEEN = """
import json, sys
print(json.dumps([sys.argv, sys.path, __name__, __file__ if "__file__" in globals() else None]))
"""


def launched(script: str, folder: Path, *words: str, **environ: str) -> str:
    """The output of two workers that must both come to the end of the script."""
    command = [*LAUNCH, "-n", "2", "-s", "1", "--", sys.executable, str(SCRIPTS / script), *words]
    output = run(command, folder, timeout=100, OMP_NUM_THREADS="1", **environ)
    assert sorted(re.findall(r"^\[worker \d\] done (\d) (\d)$", output, re.MULTILINE)) == [("0", "2"), ("1", "2")]
    return output


@needs_torch
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("synthetic_benchmark.py", ()),
        ("synthetic_benchmark.py", ("--fp16-pushpull", "--no-cuda")),
        ("mnist.py", ("--epochs", "2")),
        ("ddp.py", ()),
        ("cross_barrier.py", ()),
        ("cross_barrier.py", ("--optimizer", "Adam", "--fp16-pushpull")),
    ],
)
def test_a_script_runs_to_the_end(script: str, words: tuple[str, ...], tmp_path: Path) -> None:
    output = launched(script, tmp_path, *words, BYTEPS_LOG_LEVEL="info")
    told = re.findall(r"\[worker (\d)\] .*byteps resolves to byteps_py \S+$", output, re.MULTILINE)
    assert sorted(told) == ["0", "1"]  # once, by workers only


@needs_torch
def test_a_script_that_suspends_and_resumes(tmp_path: Path) -> None:
    with job(tmp_path) as made:
        made.scheduler()
        made.server()
        for index in range(2):
            made.launch(index, "--compat", sys.executable, str(SCRIPTS / "elastic.py"))
        assert set(made.wait(100).values()) == {0}, made.everything()
        for index in range(2):
            assert f"done {index} 2\n" in made.output(f"worker{index}")


@needs_torch
def test_a_script_that_resumes_with_its_number_of_machines_keeps_the_workers_of_its_launch(tmp_path: Path) -> None:
    launched("elastic.py", tmp_path)  # DMLC_NUM_WORKER is 1 there


@needs_torch
def test_training_goes_on_from_the_checkpoint_of_the_first_worker(tmp_path: Path) -> None:
    first = launched("imagenet.py", tmp_path, "--epochs", "1")
    assert len(re.findall("epoch 0 loss", first)) == 2
    second = launched("imagenet.py", tmp_path, "--epochs", "3", "--fp16-pushpull")
    losses = re.findall(r"epoch (\d) loss (\S+)", second)
    assert sorted(epoch for epoch, _ in losses) == ["1", "1", "2", "2"]
    assert len(set(losses)) == 2, losses  # averages


@needs_torch
def test_a_launch_line_of_byteps_starts_a_worker_for_each_device(tmp_path: Path) -> None:
    environ = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0", "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1"}
    environ |= {"DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "1234", "NVIDIA_VISIBLE_DEVICES": "0,1"}
    command = [*LAUNCH, sys.executable, str(SCRIPTS / "synthetic_benchmark.py"), "--num-iters", "1"]
    output = run(command, tmp_path, timeout=100, OMP_NUM_THREADS="1", **environ)
    assert sorted(re.findall(r"^\[worker \d\] done (\d) (\d)$", output, re.MULTILINE)) == [("0", "2"), ("1", "2")]


@needs_torch
@pytest.mark.parametrize("place", ["PYTHONPATH", "site-packages"])
def test_a_real_one_is_used(place: str, tmp_path: Path) -> None:
    python, environ = sys.executable, {}
    if place == "PYTHONPATH":
        folder, environ = tmp_path / "lib", {"PYTHONPATH": str(tmp_path / "lib")}
    else:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
        python = str(tmp_path / "venv" / "bin" / "python")
        (folder,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
        (folder / "byteps_py.pth").write_text(f"{Path(byteps_py.__file__).parents[1]}\n", encoding="utf-8")
    (folder / "byteps" / "torch").mkdir(parents=True)
    (folder / "byteps" / "__init__.py").write_text(REAL, encoding="utf-8")
    (folder / "byteps" / "torch" / "__init__.py").write_text("raise SystemExit(0)\n", encoding="utf-8")
    command = [*LAUNCH, "-n", "2", "-s", "1", "--", python, "-c", "import byteps.torch"]
    output = run(command, tmp_path, timeout=60, **environ)
    assert output.count("the real one") == 2
    real = folder / "byteps" / "__init__.py"
    assert output.count(f"there is a package byteps, which is used instead of byteps_py: {real}") == 2


def test_a_python_without_the_package_says_so(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    python = str(tmp_path / "venv" / "bin" / "python")
    output = run([*LAUNCH, "--", python, "-c", "import byteps.torch"], tmp_path, status=1, timeout=60)
    assert f"but {python} cannot import that: No module named 'byteps_py': install byteps_py there" in output
    assert run([*LAUNCH, "--", python, "-c", "import json; print('well')"], tmp_path).endswith("well\n")


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.of_the_user = __file__\n", encoding="utf-8")
    code = "import sys, sitecustomize, byteps; print(sys.of_the_user == sitecustomize.__file__, byteps.__version__)"
    command = [*LAUNCH, "--", sys.executable, "-c", code]
    assert "True 0.2.5\n" in run(command, tmp_path, PYTHONPATH=str(tmp_path))


@pytest.mark.parametrize("error", ["import missing_module", "raise ValueError('wrong')"])
def test_a_sitecustomize_that_fails_is_told_as_ever(error: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(error + "\n", encoding="utf-8")
    environ = {"PYTHONPATH": str(tmp_path)}
    plain = run([sys.executable, "-c", ""], tmp_path, **environ)
    assert "Error in sitecustomize" in plain
    code = "import byteps; print(byteps.__version__)"
    assert run([*COMPAT, "-c", code], tmp_path, **environ) == 2 * plain + "0.2.5\n"  # before and after it


def test_children_know_the_name(tmp_path: Path) -> None:
    """Through a shell, and through Python that starts Python."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import byteps.common as c; print(c)'])"
    (tmp_path / "train.sh").write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}"\n', encoding="utf-8")
    assert "module 'byteps.common' from" in run([*LAUNCH, "--", "sh", "train.sh"], tmp_path)
    assert "No module named 'byteps'" in run([*LAUNCH[:-1], "--", "sh", "train.sh"], tmp_path)


def test_servers_and_the_scheduler_go_without(tmp_path: Path) -> None:
    output = run([*LAUNCH, "-n", "2", "-s", "1", "--dry-run", "--", "python", "x.py"], tmp_path, PYTHONPATH="/a")
    named = {part.splitlines()[0]: "python-path" in part for part in output.split("\n# ")[1:]}
    assert named == {"scheduler": False, "server 0": False, "worker 0": True, "worker 1": True}
    assert output.count("python-path:/a") == 2


class TestModule:
    """``python -m byteps_py.compat``: all is as with plain ``python``."""

    @pytest.mark.parametrize("options", [(), ("-P",)])
    @pytest.mark.parametrize(
        "words", [("sub/seen.py", "-x", "--help"), ("-m", "seen", "-c"), ("-c", SEEN, "-m"), ("sub",)]
    )
    def test_what_the_program_sees(self, options: tuple[str, ...], words: tuple[str, ...], tmp_path: Path) -> None:
        if options and sys.version_info < (3, 11):
            pytest.skip("Python 3.10 has no -P")
        (tmp_path / "sub").mkdir()
        for path in (tmp_path / "seen.py", tmp_path / "sub" / "seen.py", tmp_path / "sub" / "__main__.py"):
            path.write_text(SEEN, encoding="utf-8")
        plain = [sys.executable, *options, *words]
        under = [sys.executable, *options, "-m", "byteps_py.compat", *words]
        status = 1 if options and words[0] == "-m" else 0  # seen is not in the path then
        assert run(under, tmp_path, status=status) == run(plain, tmp_path, status=status)

    def test_a_traceback_shows_the_script_alone(self, tmp_path: Path) -> None:
        (tmp_path / "x.py").write_text("import byteps.common\nbyteps.common.rank()\n", encoding="utf-8")
        output = run([*COMPAT, "x.py"], tmp_path, status=1)
        assert "byteps_py/compat" not in output
        assert output.startswith('Traceback (most recent call last):\n  File "' + str(tmp_path / "x.py"))

    def test_the_exit_status_is_that_of_the_script(self, tmp_path: Path) -> None:
        run([*COMPAT, "-c", "import sys; sys.exit(7)"], tmp_path, status=7)

    def test_options_of_the_interpreter_stay(self, tmp_path: Path) -> None:
        command = [sys.executable, "-u", "-W", "error", "-X", "utf8", "-m", "byteps_py.compat", "-c"]
        code = "import sys; print(sys.stdout.write_through, sys.warnoptions, sys.flags.utf8_mode)"
        assert run([*command, code], tmp_path) == "True ['error'] 1\n"

    @pytest.mark.parametrize("option", ["-I", "-E", "-S"])
    def test_options_that_hide_the_name_are_refused(self, option: str, tmp_path: Path) -> None:
        # -S leaves site-packages out, and with it this package.
        command = [
            sys.executable,
            option,
            "-c",
            "import sys; sys.path[:] = eval(sys.argv.pop(1)); import runpy; "
            "runpy.run_module('byteps_py.compat', run_name='__main__')",
            repr(sys.path),
            "x.py",
        ]
        output = run(command, tmp_path, status=2)
        assert f"python {option} does not look at PYTHONPATH, by which byteps is known: leave {option} out" in output

    @pytest.mark.parametrize("framework", ["torch", "mxnet"])
    def test_a_missing_framework_is_told_in_its_sentence(self, framework: str, tmp_path: Path) -> None:
        code = f"import sys; sys.modules['{framework}'] = None; import byteps.{framework}"
        last = run([*COMPAT, "-c", code], tmp_path, status=1).splitlines()[-1]
        title = {"torch": "PyTorch", "mxnet": "MXNet 1.9.1"}[framework]
        assert last.startswith(f"ImportError: byteps_py.{framework} needs {title}")

    def test_help(self, tmp_path: Path) -> None:
        assert run([*COMPAT, "--help"], tmp_path).startswith("usage: python -m byteps_py.compat SCRIPT.py")


class TestServer:
    """``import byteps.server`` is the role."""

    def test_a_job_in_the_manner_of_byteps(self, tmp_path: Path) -> None:
        environ = {
            "DMLC_NUM_WORKER": "1",
            "DMLC_NUM_SERVER": "1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "BYTEPS_FORCE_DISTRIBUTED": "1",
        }
        work = (
            "import byteps.common as c, byteps_py, numpy as np; c.init(); "
            "print('sum', byteps_py.push_pull(np.ones(3), 'x'), byteps_py.stats()['messages']['sent'] > 0)"
        )
        codes = {"scheduler": "import byteps.server", "server": "import byteps.server; print('over')", "worker": work}
        processes = {
            role: subprocess.Popen(
                [*COMPAT, "-c", code],
                env={**os.environ, **environ, "DMLC_ROLE": role},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for role, code in codes.items()
        }
        try:
            outputs = {role: each.communicate(timeout=60)[0] for role, each in processes.items()}
        finally:
            for each in processes.values():
                each.kill()
                each.wait(10)
        assert {role: each.returncode for role, each in processes.items()} == dict.fromkeys(codes, 0), outputs
        assert outputs["worker"] == "sum [1. 1. 1.] True\n"
        assert outputs["server"].endswith("over\n")

    @pytest.mark.parametrize(
        ("role", "status", "words"),
        [
            ("server", 2, "bps server: DMLC_NUM_WORKER"),
            ("", 2, "bps server: DMLC_NUM_WORKER"),
            ("scheduler", 2, "bps scheduler: DMLC_NUM_WORKER"),
            (
                "servre",
                2,
                "byteps.server: DMLC_ROLE='servre' must be one of scheduler, server, worker: did you mean server?",
            ),
            ("worker", 1, "ImportError: `import byteps.server` runs a server or a scheduler"),
        ],
    )
    def test_it_fails_as_the_role_does(self, role: str, status: int, words: str, tmp_path: Path) -> None:
        assert words in run([*COMPAT, "-c", "import byteps.server"], tmp_path, status=status, DMLC_ROLE=role)
