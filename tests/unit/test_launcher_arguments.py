"""Our options end where the command begins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from byteps_py.launcher.arguments import Options, parse, usage_error
from byteps_py.settings import LaunchSettings, SchedulerSettings, ServerSettings, WorkerSettings, variables_of

USAGE = "usage: bpslaunch [options] [--] COMMAND ..."


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        (["python", "train.py"], Options(command=("python", "train.py"))),
        (["-n", "2", "-s", "1", "--", "python"], Options(("python",), num_workers=2, num_servers=1)),
        (["-n2", "--num-servers=3", "python"], Options(("python",), num_workers=2, num_servers=3)),
        (["--num-workers", "4", "true"], Options(("true",), num_workers=4)),
        (["-s", "0", "true"], Options(("true",), num_servers=0)),
        (["-s", "auto", "true"], Options(("true",), num_servers="auto")),
        (["-s", "AUTO", "true"], Options(("true",), num_servers="auto")),
        (["--num-servers=Auto", "true"], Options(("true",), num_servers="auto")),
        (["--no-prefix", "true"], Options(("true",), prefix=False)),
        (
            ["--omp-wait-policy", "ACTIVE", "--omp-num-threads", "3", "true"],
            Options(("true",), omp_wait_policy="active", omp_num_threads=3),
        ),
        (
            ["--worker-omp-wait-policy=passive", "--worker-omp-num-threads=8", "true"],
            Options(("true",), worker_omp_wait_policy="passive", worker_omp_num_threads=8),
        ),
        (["-n=2", "-s=0", "true"], Options(("true",), num_workers=2, num_servers=0)),
        (["-n", "2", "-n", "3", "true"], Options(("true",), num_workers=3)),
        (["--log-dir", "logs of today", "true"], Options(("true",), log_dir=Path("logs of today"))),
        (["--log-dir=a=b", "true"], Options(("true",), log_dir=Path("a=b"))),
        (["--start-timeout", "0.5", "true"], Options(("true",), start_timeout="0.5")),
        (["--dry-run", "true"], Options(("true",), dry_run=True)),
        (["--compat", "-n", "2", "true"], Options(("true",), num_workers=2, compat=True)),
        (["--numa-binding", "Core-Complex", "true"], Options(("true",), numa_binding="core-complex")),
        (["-n", "2"], Options(num_workers=2)),
        ([], Options()),
    ],
)
def test_options(argv: list[str], options: Options) -> None:
    assert parse(argv) == options


@pytest.mark.parametrize(
    "command",
    [
        ("python", "-n", "3", "--help"),
        ("python", "--", "-s", "1"),
        ("-", "x"),
        ("sh", "-c", "echo 'a  b' \"$HOME\"\n; exit 3"),
        ("", "empty", ""),
        ("--version",),
        ("--",),
        ("--", "--", "-n2"),
        ("\udcff\udcfe", "\n"),
    ],
)
def test_everything_after_two_dashes_is_the_command(command: tuple[str, ...]) -> None:
    assert parse(["-n", "2", "--", *command]) == Options(command, num_workers=2)


@pytest.mark.parametrize(
    "command",
    [
        ("python", "-n", "3", "--", "-h"),
        ("python", "t.py", "--num", "4", "--num-workers", "4", "--dry-run"),
        ("-",),
        ("", "x"),
        ("python", "--version"),
    ],
)
def test_the_first_word_that_is_no_option_begins_the_command(command: tuple[str, ...]) -> None:
    assert parse(["-s", "1", *command]) == Options(command, num_servers=1)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["-n", "python", "train.py"],
            "argument -n/--num-workers: 'python' must be a whole number from 1 to 65535 "
            "(is it missing before the command?)",
        ),
        (["-n", "0", "true"], "argument -n/--num-workers: '0' must be a whole number from 1 to 65535"),
        (["-n", "-1", "true"], "argument -n/--num-workers: '-1' must be a whole number from 1 to 65535"),
        (["-n", "2_0", "true"], "argument -n/--num-workers: '2_0' must be a whole number from 1 to 65535"),
        (["-n", "70000", "true"], "argument -n/--num-workers: '70000' must be a whole number from 1 to 65535"),
        (
            ["-n", "1" * 5000, "true"],
            f"argument -n/--num-workers: '{'1' * 5000}' must be a whole number from 1 to 65535",
        ),
        (["-s", "-1", "true"], "argument -s/--num-servers: '-1' must be a whole number from 0 to 65535 or auto"),
        (["-n"], "-n/--num-workers: the value N after it is missing"),
        (["-n", "--", "true"], "-n/--num-workers: the value N after it is missing"),
        (["--log-dir", "--no-prefix", "true"], "--log-dir: the value DIR after it is missing"),
        (["--log-dir=", "true"], "argument --log-dir: '' must be the path of a folder"),
        (["--no-prefix=yes", "true"], "--no-prefix takes no value: '--no-prefix=yes'"),
        (["--omp-wait-policy", "maybe", "true"], "argument --omp-wait-policy: 'maybe' must be one of passive, active"),
        (
            ["--worker-omp-num-threads", "0", "true"],
            "argument --worker-omp-num-threads: '0' must be a whole number from 1 to 1024",
        ),
        (
            ["--start-timeout", "nan", "true"],
            "argument --start-timeout: 'nan' must be a number of seconds from 0 to 1000000",
        ),
        (["--completion", "tcsh"], "argument --completion: 'tcsh' must be one of bash, zsh"),
    ],
)
def test_usage_errors(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines() == [USAGE, f"bpslaunch: error: {message}"]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--num", "did you mean --num-workers or --num-servers or --numa-binding?"),
        ("--num_workers", "did you mean --num-workers?"),
        ("--servers=2", "did you mean --num-servers?"),
        ("--dryrun", "did you mean --dry-run?"),
        ("-np", "did you mean -n?"),
        ("-hx", "did you mean -h?"),
        ("-v", "`bpslaunch -h` lists them"),
        ("--frobnicate=3", "`bpslaunch -h` lists them"),
    ],
)
def test_an_unknown_option_is_named_with_the_one_that_was_meant(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["-s", "1", word, "2", "true"])
    assert caught.value.code == 2
    name = word.partition("=")[0]
    error = f"there is no option {name!r} ({hint}); a command that begins with '-' needs -- before it"
    assert capsys.readouterr().err.splitlines() == [USAGE, f"bpslaunch: error: {error}"]


def test_a_usage_error_from_elsewhere_looks_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        usage_error("no luck")
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == "bpslaunch: error: no luck"


def test_help_explains_the_three_uses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as caught:
        parse(["-h"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    uses = ("bpslaunch [-n N] [-s S]", "DMLC_ROLE=worker ...", "DMLC_ROLE=scheduler ...", "DMLC_ROLE=server ...")
    variables = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "BYTEPS_LOCAL_SIZE")
    options = ("--log-dir DIR", "--start-timeout SECONDS", "--dry-run", "--no-prefix", "--completion {bash,zsh}")
    for each in (*uses, *variables, *options, "default: visible GPUs, else 1", "passive for servers"):
        assert each in text
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) <= 72
    by_role, of_every_use = text.partition("\nenvironment with DMLC_ROLE set ")[2].split("\nenvironment of every use ")
    assert "BYTEPS_START_TIMEOUT=120" in by_role
    assert "BYTEPS_START_TIMEOUT" not in of_every_use


def test_help_keeps_to_a_narrow_terminal_where_it_can(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse(["-h"])
    options = capsys.readouterr().out.partition("\noptions:\n")[2].partition("\n\n")[0]
    assert max(map(len, options.splitlines())) <= 80


def test_every_variable_that_help_names_is_one_that_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["-h"])
    named = set(re.findall(r"\b(?:DMLC|BYTEPS|NVIDIA|CUDA)_[A-Z_]*[A-Z]\b", capsys.readouterr().out)) - {
        "BYTEPS_WORKER_OMP"
    }
    tables = (LaunchSettings, SchedulerSettings, ServerSettings, WorkerSettings)
    assert named <= {name for table in tables for _, each in variables_of(table) for name in each.names}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--completion", shell])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert f"source <(bpslaunch --completion {shell})" in text
    assert "--start-timeout" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("bpslaunch ")
