"""Our options end where the command begins."""

from __future__ import annotations

import pytest

from byteps_py.launcher.arguments import Options, parse, usage_error


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        (["python", "train.py"], Options(command=("python", "train.py"))),
        (["-n", "2", "-s", "1", "--", "python"], Options(("python",), num_workers=2, num_servers=1)),
        (["-n2", "--num-servers=3", "python"], Options(("python",), num_workers=2, num_servers=3)),
        (["--num-workers", "4", "true"], Options(("true",), num_workers=4)),
        (["-s", "0", "true"], Options(("true",), num_servers=0)),
        (["--no-prefix", "true"], Options(("true",), prefix=False)),
        (
            ["--omp-wait-policy", "ACTIVE", "--omp-num-threads", "3", "true"],
            Options(("true",), omp_wait_policy="active", omp_num_threads=3),
        ),
        (
            ["--worker-omp-wait-policy=passive", "--worker-omp-num-threads=8", "true"],
            Options(("true",), worker_omp_wait_policy="passive", worker_omp_num_threads=8),
        ),
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
    ],
)
def test_everything_after_two_dashes_is_the_command(command: tuple[str, ...]) -> None:
    assert parse(["-n", "2", "--", *command]) == Options(command, num_workers=2)


@pytest.mark.parametrize("command", [("python", "-n", "3", "--", "-h"), ("-",), ("", "x"), ("python", "--version")])
def test_the_first_word_that_is_no_option_begins_the_command(command: tuple[str, ...]) -> None:
    assert parse(["-s", "1", *command]) == Options(command, num_servers=1)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-n", "two", "true"], "-n/--num-workers: 'two' must be a whole number from 1 up"),
        (["-n", "0", "true"], "'0' must be a whole number from 1 up"),
        (["-n", "-1", "true"], "'-1' must be a whole number from 1 up"),
        (["-s", "-1", "true"], "'-1' must be a whole number from 0 up"),
        (["-n"], "expected one argument"),
        (["--num", "2", "true"], "unrecognized arguments: --num"),
        (["--servers=2", "true"], "unrecognized arguments: --servers=2"),
        (["--omp-wait-policy", "maybe", "true"], "--omp-wait-policy: invalid choice: 'maybe'"),
        (["--worker-omp-num-threads", "0", "true"], "--worker-omp-num-threads: '0'"),
    ],
)
def test_usage_errors(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(argv)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_usage_error_from_elsewhere_looks_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        usage_error("no luck")
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == "bpslaunch: error: no luck"


def test_help_explains_the_three_uses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["-h"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    uses = ("bpslaunch [-n N] [-s S]", "DMLC_ROLE=worker ...", "DMLC_ROLE=scheduler ...", "DMLC_ROLE=server ...")
    variables = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "BYTEPS_LOCAL_SIZE")
    for each in (*uses, *variables, "default: visible GPUs, else 1", "OMP_WAIT_POLICY    passive for servers"):
        assert each in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("bpslaunch ")
