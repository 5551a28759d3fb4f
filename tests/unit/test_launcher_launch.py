"""Planned processes as commands for a shell, and what is checked before anything is started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from byteps_py.errors import SettingsError
from byteps_py.launcher import launch as module
from byteps_py.launcher.arguments import Options
from byteps_py.launcher.launch import as_commands, launch, setting
from byteps_py.launcher.processes import CommandError, ProcessSpec
from byteps_py.types import Role

PATH = os.environ["PATH"]


def spec(*argv: str, label: str = "worker 0", cores: frozenset[int] | None = None, **environ: str) -> ProcessSpec:
    return ProcessSpec(Role.WORKER, label, argv, environ, cores=cores)


def test_what_differs_from_the_present_environment_is_shown() -> None:
    present = {"HOME": "/root", "DMLC_PORT": "1", "DMLC_NUM_WORKER": "7", "A": "1"}
    made = spec("python", "train.py", HOME="/root", DMLC_NUM_WORKER="1", Z="two words", A="", B="it's")
    assert as_commands([made], present) == (
        "# worker 0\n"
        "env -u DMLC_PORT \\\n"
        "    A='' \\\n"
        "    B='it'\"'\"'s' \\\n"
        "    DMLC_NUM_WORKER=1 \\\n"
        "    Z='two words' \\\n"
        "    python train.py\n"
    )


@pytest.mark.parametrize(
    "name",
    ["DMLC_ROLE", "BYTEPS_LOCAL_SIZE", "PS_VERBOSE", "OMP_NUM_THREADS", *sorted(module._JOB_NAMES), "HOME", "XPS_A"],
)
def test_what_makes_up_a_job_is_shown_although_the_launcher_has_it_too(name: str) -> None:
    shown = "" if name in ("HOME", "XPS_A") else f"    {name}=1 \\\n"
    assert as_commands([spec("a", **{name: "1"})], {name: "1"}) == f"# worker 0\nenv \\\n{shown}    a\n"


def test_one_block_for_each_process() -> None:
    text = as_commands([spec("a", label="scheduler"), spec("b", label="worker 1.0")], {})
    assert text == "# scheduler\nenv \\\n    a\n\n# worker 1.0\nenv \\\n    b\n"


def test_bound_workers() -> None:
    assert as_commands([spec("a", cores=frozenset({0, 1, 2, 8}))], {}).splitlines()[1] == "taskset -c 0-2,8 env \\"


@pytest.mark.parametrize("name", ["-x", "a=b", "--", "it's", "two words", "#x"])
def test_any_command_is_one_that_a_shell_runs(name: str, tmp_path: Path) -> None:
    command = tmp_path / name
    command.write_text('#!/bin/sh\nprintf "<%s>" "$VALUE" "$@"\n')
    command.chmod(0o755)
    words = ("", "a b", "new\nline", 'quo"te', "$HOME", "-u", "A=B", "\udcff")
    value = "first\nsecond 'third'"
    text = as_commands([spec(name, *words, PATH=f"{tmp_path}:{PATH}", VALUE=value)], {"PATH": PATH, "GONE": "1"})
    done = subprocess.run(
        [b"sh", b"-c", os.fsencode(text)], env={"PATH": PATH, "GONE": "1"}, stdout=subprocess.PIPE, check=True
    )
    assert os.fsdecode(done.stdout) == "".join(f"<{each}>" for each in (value, *words))


def test_a_dry_run_prints_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(module, "Supervisor", None)
    made = spec("true", "\udcff", PATH=PATH)
    assert launch([made], ["1 worker"], Options(dry_run=True), report_failures=True) == 0
    seen = capfdbinary.readouterr()
    assert seen.out.startswith(b"# worker 0\nenv ")
    assert b"true '\xff'\n" in seen.out
    assert seen.err.splitlines() == [
        b"bpslaunch: 1 worker",
        b"bpslaunch: dry run: nothing is started; these commands do the same, each in a shell of its own",
    ]


def test_a_dry_run_whose_output_cannot_be_written() -> None:
    made = spec("true", PATH=PATH)
    kept = os.dup(1)
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), 1)
    try:
        with pytest.raises(CommandError, match="standard output cannot be written: No space left on device") as caught:
            launch([made], [], Options(dry_run=True), report_failures=True)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert caught.value.status == 1


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (spec("no-such-command", PATH=PATH), CommandError, "there is no command 'no-such-command'"),
        (spec("true", PATH=PATH, BYTEPS_GRACE_PERIOD="long"), SettingsError, "BYTEPS_GRACE_PERIOD='long' must be a"),
    ],
)
def test_the_checks_are_the_same(
    made: ProcessSpec, error: type[Exception], message: str, dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Supervisor", None)
    with pytest.raises(error, match=message):
        launch([made], [], Options(dry_run=dry_run), report_failures=True)


def test_what_the_supervisor_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: dict[str, object] = {}

    class Supervisor:
        def __init__(self, specs: object, **others: object) -> None:
            told.update(others, specs=specs, said=[])

        def say(self, text: str) -> None:
            told["said"] += [text]  # type: ignore[operator]

        def run(self) -> int:
            return 5

    monkeypatch.setattr(module, "Supervisor", Supervisor)
    specs = [spec("true", PATH=PATH, BYTEPS_GRACE_PERIOD="3.5")]
    herald: Mapping[str, str] = {"A": "1"}
    options = Options(prefix=False, log_dir=tmp_path)
    assert launch(specs, ["one", "two"], options, report_failures=True, herald_environment=herald) == 5
    assert told == {
        "specs": specs,
        "label_lines": False,
        "report_failures": True,
        "log_dir": tmp_path,
        "grace_period": 3.5,
        "herald_environment": herald,
        "said": ["one", "two"],
    }


def test_one_setting_where_others_are_missing() -> None:
    assert setting({}, "force_distributed") is False
    assert setting({"BYTEPS_PORT_RANGE": "20000-20010"}, "port_range") == (20000, 20010)
    assert setting({"BYTEPS_GRACE_PERIOD": " "}, "grace_period") == 20.0
    with pytest.raises(SettingsError, match="BYTEPS_FORCE_DISTRIBUTED='perhaps' must be 0 or 1"):
        setting({"BYTEPS_FORCE_DISTRIBUTED": "perhaps"}, "force_distributed")
