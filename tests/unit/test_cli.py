"""The command ``bps``: which role it runs, and how it ends."""

from __future__ import annotations

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
