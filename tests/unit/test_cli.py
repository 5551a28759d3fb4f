"""The command ``bps``: which role it runs, and how it ends."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from byteps_py import cli
from byteps_py.errors import BytePSError, SettingsError
from byteps_py.roles import scheduler, server
from byteps_py.settings import SchedulerSettings, ServerSettings

JOB = {
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("byteps_py.telemetry.logs.configure", lambda settings, label: None)


@pytest.mark.parametrize(
    ("role", "module", "kind"), [("scheduler", scheduler, SchedulerSettings), ("server", server, ServerSettings)]
)
def test_a_role_gets_its_settings_and_gives_the_status(
    role: str, module: object, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def run(settings: object) -> int:
        seen.append(settings)
        return 5

    monkeypatch.setattr(module, "run", run)
    assert cli.main([role]) == 5
    assert type(seen[0]) is kind
    assert seen[0].root_port == 9000  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "status", "lines"),
    [
        (SettingsError(["first", "second"]), 2, ["bps server: first", "bps server: second"]),
        (BytePSError("no luck"), 1, ["bps server: no luck"]),
        (KeyboardInterrupt(), 130, []),
    ],
)
def test_how_errors_end(
    error: BaseException,
    status: int,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(settings: object) -> int:
        raise error

    monkeypatch.setattr(server, "run", run)
    assert cli.main(["server"]) == status
    assert capsys.readouterr().err.splitlines() == lines


def test_a_bad_variable_is_named_with_its_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DMLC_NUM_WORKER", "two")
    monkeypatch.delenv("DMLC_PS_ROOT_URI")
    assert cli.main(["scheduler"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("bps scheduler: DMLC_NUM_WORKER='two' must be a whole number from 1 to 65535")
    assert second.startswith("bps scheduler: DMLC_PS_ROOT_URI is not set")


@pytest.mark.parametrize("argv", [[], ["worker"], ["sched"], ["server", "extra"]])
def test_usage_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    assert "bps" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("byteps_py ")


@pytest.mark.timeout(60)
def test_python_m_byteps_py_is_the_command() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DMLC_")}
    done = subprocess.run(
        [sys.executable, "-m", "byteps_py", "server"], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert [line.split()[2] for line in done.stderr.splitlines()] == list(JOB)


def test_the_openmp_library_sees_the_policy_of_a_server() -> None:
    """It reads its environment when it is loaded, and tells what it has read."""
    variables = {"BYTEPS_SERVER_OMP_WAIT_POLICY": "active", "OMP_WAIT_POLICY": "passive", "OMP_DISPLAY_ENV": "true"}
    with subprocess.Popen(
        [sys.executable, "-m", "byteps_py", "server"],
        env={**os.environ, **JOB, "DMLC_PS_ROOT_URI": "127.0.0.1", **variables},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "OMP_WAIT_POLICY" in line)
        process.kill()
    assert "'ACTIVE'" in line


def test_a_role_tells_what_has_no_effect(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("BYTEPS_SERVER_ENABLE_SCHEDULE", "1")
    monkeypatch.setattr(scheduler, "run", lambda settings: 0)
    monkeypatch.setattr(logging.getLogger("byteps_py"), "propagate", True)
    assert cli.main(["scheduler"]) == 0
    assert "BYTEPS_SERVER_ENABLE_SCHEDULE=1 has no effect here: a round is summed as soon as" in caplog.text
    caplog.clear()
    monkeypatch.setenv("BYTEPS_LAUNCH_ID", "9a")
    assert cli.main(["scheduler"]) == 0
    assert not caplog.text


class TestEnv:
    def test_dmlc_role_chooses(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("DMLC_ROLE", "Server")
        assert cli.main(["env"]) == 0
        text = capsys.readouterr().out
        assert "\nServers\n" in text
        assert "\nWorkers\n" not in text
        assert cli.main(["env", "--role", "worker"]) == 0
        assert "\nWorkers\n" in capsys.readouterr().out

    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["env", "--json"]) == 0
        shown = {each["setting"]: each["from"] for each in json.loads(capsys.readouterr().out)["settings"]}
        assert shown["DMLC_NUM_WORKER"] == "DMLC_NUM_WORKER"

    @pytest.mark.parametrize(("name", "value"), [("BYTEPS_KERNELS", "fast"), ("DMLC_ROLE", "joint")])
    def test_a_bad_value(
        self, name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv(name, value)
        assert cli.main(["env"]) == 2
        assert f"{name}='{value}' must be one of" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("scheduler", "server", "env", "--role", "--json", "completion"))


def test_ab_gets_its_words_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    from byteps_py.tune import command

    seen: list[object] = []
    monkeypatch.setattr(command, "main", lambda words, environ: seen.append((words, environ is os.environ)) or 7)
    assert cli.main(["ab", "--out", "x", "train", "ab", "-h"]) == 7
    assert seen == [(["--out", "x", "train", "ab", "-h"], True)]


def test_ab_is_loaded_only_when_it_is_asked_for() -> None:
    code = (
        "import contextlib, sys; from byteps_py import cli\n"
        "with contextlib.suppress(SystemExit): cli.main(['--version'])\n"
        "cli.main(['env'])\n"
        "print([name for name in sys.modules if name.startswith(('byteps_py.tune', 'matplotlib'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
