"""What is read from the output of a run: a number, the end, and what OpenMP says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteps_py.tune import output as output_of_runs


@pytest.mark.parametrize(
    ("output", "value"),
    [
        ("speed 3\n[worker 0] speed 41.5\n", 41.5),
        ("speed 1\rspeed 2\rspeed 3", 3.0),
        ("x speed 1 speed 1e3 y\n", 1000.0),
    ],
)
def test_the_last_match_of_the_metric_counts(tmp_path: Path, output: str, value: float) -> None:
    (tmp_path / "log").write_bytes(output.encode())
    assert output_of_runs.find_metric(tmp_path / "log", r"speed ([0-9.e]+)") == (value, "")


def test_the_label_of_a_line_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("[worker 1] 12 images\n[server 0] 13 images\n")
    assert output_of_runs.find_metric(tmp_path / "log", r"^(\d+) images$") == (13.0, "")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", "nothing in the output matches --metric 'loss=(.*)'"),
        ("loss=nan", "found 'nan' in 'loss=nan': a number above 0 is needed"),
        ("loss=-1", "found '-1'"),
        ("loss=0", "found '0'"),
        ("loss=much", "found 'much'"),
        ("loss=\xff".encode("latin-1"), "found '\ufffd'"),
    ],
)
def test_what_is_no_number_is_told(tmp_path: Path, output: str | bytes, words: str) -> None:
    (tmp_path / "log").write_bytes(output if isinstance(output, bytes) else output.encode())
    value, problem = output_of_runs.find_metric(tmp_path / "log", "loss=(.*)")
    assert value == 0.0
    assert words in problem


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
    # Where two blocks alternate from their first line on, the blank line before the first stays.
    assert output_of_runs.tail(tmp_path / "log").splitlines() == [
        "bpslaunch: begins",
        "[worker 0] ",
        "[worker 0] ",
        "[worker 0] x = 'y'",
        "[worker 0] Traceback",
    ]


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
