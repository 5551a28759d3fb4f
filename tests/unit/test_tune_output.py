"""What is read from the output of a run: a number, the end, and what OpenMP says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteps_py.tune import output as output_of_runs
from byteps_py.tune.output import find_metric


def logs(folder: Path, **outputs: str | bytes) -> Path:
    """What each process has printed, by its name with ``_`` for ``-``."""
    for name, output in outputs.items():
        (folder / f"{name.replace('_', '-')}.log").write_bytes(output if isinstance(output, bytes) else output.encode())
    return folder


@pytest.mark.parametrize(
    ("output", "value"),
    [
        ("speed 3\n[worker 0] speed 41.5\n", 41.5),
        ("speed 1\rspeed 2\rspeed 3", 3.0),
        ("x speed 1 speed 1e3 y\n", 1000.0),
        ("speed .5\n", 0.5),
        ("speed +5.\n", 5.0),
        ("speed 2E-1\n", 0.2),
    ],
)
def test_the_last_match_of_the_metric_counts(tmp_path: Path, output: str, value: float) -> None:
    assert find_metric(logs(tmp_path, worker_0=output), r"speed ([-+0-9.eE]+)") == (value, "")


def test_the_label_of_a_line_is_no_part_of_it(tmp_path: Path) -> None:
    folder = logs(tmp_path, worker_0="[worker 1] 12 images\n[server 0] 13 images\n")
    assert find_metric(folder, r"^(\d+) images$") == (13.0, "")


def test_what_worker_0_says_counts(tmp_path: Path) -> None:
    folder = logs(tmp_path, worker_0="speed 1\n", worker_1="speed 2\n", server_0="speed nonsense\n")
    assert find_metric(folder, "speed (.*)") == (1.0, "")


@pytest.mark.parametrize(
    ("outputs", "value", "problem"),
    [
        ({"worker_1": "speed 2\n", "worker_2": ""}, 2.0, ""),
        ({"worker_1": "speed 2\n", "worker_2": "speed 2.0\n"}, 2.0, ""),
        (
            {"worker_1": "speed 2", "worker_10": "speed 4", "worker_2": "speed 3", "server_0": "speed 5"},
            0.0,
            "--metric 'speed (.*)' found no number of worker 0, and different ones of others: "
            "2 of worker 1, 3 of worker 2, 4 of worker 10, 5 of server 0",
        ),
        ({"worker_1": "speed 2", "worker_2": "speed x"}, 0.0, "--metric 'speed (.*)' found 'x' in 'speed x'"),
        ({"worker_1": "nothing"}, 0.0, "nothing in the output matches --metric 'speed (.*)'"),
        ({}, 0.0, "nothing in the output matches"),
    ],
)
def test_without_one_of_worker_0_the_others_must_agree(
    tmp_path: Path, outputs: dict[str, str], value: float, problem: str
) -> None:
    found = find_metric(logs(tmp_path, worker_0="loss 1\n", **outputs), "speed (.*)")
    assert found[0] == value
    assert found[1].startswith(problem)
    assert bool(found[1]) is bool(problem)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", "nothing in the output matches --metric 'loss=(.*)'"),
        ("loss=nan", "found 'nan' in 'loss=nan': a number above 0 is needed"),
        ("loss=-1", "found '-1'"),
        ("loss=0", "found '0'"),
        ("loss=1e999", "found '1e999'"),
        ("loss=inf", "found 'inf'"),
        ("loss=much", "found 'much'"),
        ("loss=1_000", "found '1_000'"),
        ("loss=1,000", "found '1,000'"),
        ("loss=\u0663\u0664", "found '\u0663\u0664'"),
        ("loss=\uff11", "found '\uff11'"),
        ("loss=\xff".encode("latin-1"), "found '\ufffd'"),
    ],
)
def test_what_is_no_number_is_told(tmp_path: Path, output: str | bytes, words: str) -> None:
    value, problem = find_metric(logs(tmp_path, worker_0=output), "loss=(.*)")
    assert value == 0.0
    assert words in problem


def test_a_group_that_did_not_take_part_is_no_number(tmp_path: Path) -> None:
    assert "found None in 'loss'" in find_metric(logs(tmp_path, worker_0="loss"), "loss(=.*)?")[1]


def test_a_search_without_an_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = logs(tmp_path, worker_0="a" * 40 + "\n")
    monkeypatch.setattr(output_of_runs, "_SEARCH_SECONDS", 0.5)
    value, problem = find_metric(folder, "(a+)+b")
    assert (value, problem[:55]) == (0.0, "--metric '(a+)+b' was given up after 1 s in the output "[:55])
    monkeypatch.setattr(output_of_runs, "_SEARCH_SECONDS", 1000.0)
    assert find_metric(folder, "(a+)+b", lambda: True) == (0.0, "interrupted")


def test_a_search_that_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").mkdir()
    problem = find_metric(tmp_path, "(.)")[1]
    assert "could not be searched for in the output of worker-0: IsADirectoryError" in problem


BLOCK = """\

OPENMP DISPLAY ENVIRONMENT BEGIN
  _OPENMP = '201511'
  [host] OMP_DYNAMIC = 'FALSE'
  OMP_WAIT_POLICY = 'PASSIVE'
  OMP_AFFINITY_FORMAT = 'level %L thread %i affinity %A'
OPENMP DISPLAY ENVIRONMENT END
"""


def test_the_end_of_the_output_leaves_out_what_openmp_says(tmp_path: Path) -> None:
    first = [f"[worker 0] {line}" for line in BLOCK.splitlines()]
    second = [f"[server 0] {line}" for line in BLOCK.splitlines()]
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    lines = ["bpslaunch: begins", *mixed, "[worker 0] ", "[worker 0] x = 'y'", *first, "[worker 0] Traceback"]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    assert output_of_runs.tail(tmp_path / "log").splitlines() == [
        "bpslaunch: begins",
        "[worker 0] ",
        "[worker 0] x = 'y'",
        "[worker 0] Traceback",
    ]


def test_the_output_is_rewritten_without_what_openmp_says(tmp_path: Path) -> None:
    path = tmp_path / "log"
    block = "".join(f"[worker 0] {line}\n" for line in BLOCK.splitlines()).encode()
    path.write_bytes(b"a\r50%\r\n\n" + block + b"\n[worker 1] \xff\n" + block + b"[worker 1] \n[worker 0] end")
    output_of_runs.leave_out_displays(path)
    assert path.read_bytes() == b"a\r50%\r\n\n\n[worker 1] \xff\n[worker 1] \n[worker 0] end"
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
    with pytest.raises(FileNotFoundError):
        output_of_runs.leave_out_displays(tmp_path / "none")
    assert [each.name for each in tmp_path.iterdir()] == ["log"]


def test_the_end_of_the_output_is_short(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {number} {'x' * 1000}\n" for number in range(1000)))
    text = output_of_runs.tail(tmp_path / "log")
    assert len(text.splitlines()) == 40
    assert len(text) < 40 * 501
    assert "No such file" in output_of_runs.tail(tmp_path / "none")


@pytest.mark.parametrize(
    ("said", "told", "policy"),
    [
        (BLOCK, "active", "passive"),
        (BLOCK.replace("PASSIVE", "ACTIVE"), "", "active"),
        (BLOCK, "passive", "passive"),
        (BLOCK, "", ""),
        ("nothing", "active", "active"),
    ],
)
def test_the_policy_is_what_the_runtime_says(tmp_path: Path, said: str, told: str, policy: str) -> None:
    (tmp_path / "log").write_text(said)
    assert output_of_runs.read_policy(tmp_path / "log", told=told) == policy
    assert output_of_runs.read_policy(tmp_path / "none", told=told) == told
