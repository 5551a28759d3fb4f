"""The result of an experiment as text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest

from byteps_py.tune.results import Analysis
from byteps_py.tune.table import as_text
from tests.helpers import experiments

ESCAPE = re.compile(r"\x1b\[\d+m")


def row(text: str, label: str) -> str:
    """The first line that begins with ``label``."""
    return next(line for line in text.splitlines() if re.match(re.escape(label) + r"( {2}|$)", line))


def test_the_founding_table() -> None:
    text = as_text(experiments.founding())
    assert text.startswith("+ both: 51.7 % faster than the baseline; also faster: ")
    assert "\n4 cells, 20 runs in 5 blocks, 2 workers.\n" in text
    assert row(text, "baseline").split() == ["baseline", "4195", "-", "-", "5"]
    words = row(text, "+ omp-wait-policy=passive").split()
    assert words[2:] == ["6031", "+41.4", "%", "+37.2", "to", "+45.8", "%", "faster", "5"]
    labels = [line.split("  ")[0] for line in text.splitlines()[4:] if line.startswith(("baseline", "+ "))][:4]
    assert labels == ["baseline", "+ omp-wait-policy=passive", "+ num-servers=2", "+ both"]
    assert "samples/s" in text
    assert "the median of the runs" in text


@pytest.mark.parametrize("example", experiments.EXAMPLES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("width", [80, 100, 137])
def test_no_line_is_longer_than_the_width(example: Callable[[], Analysis], width: int) -> None:
    text = as_text(example(), width)
    assert [line for line in text.splitlines() if len(line) > width] == []
    assert text.isascii()
    assert text.endswith("\n")
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("example", experiments.EXAMPLES, ids=lambda each: each.__name__)
def test_colours_change_nothing_else(example: Callable[[], Analysis]) -> None:
    plain, coloured = as_text(example(), 80), as_text(example(), 80, colour=True)
    assert ESCAPE.search(plain) is None
    assert ESCAPE.search(coloured) is not None
    without = [line.rstrip() for line in ESCAPE.sub("", coloured).splitlines()]
    assert without == plain.splitlines()


def test_a_narrow_terminal_is_taken_for_80_columns() -> None:
    assert as_text(experiments.founding(), 7) == as_text(experiments.founding(), 80)


def test_no_difference_is_told_with_what_would_have_been_seen() -> None:
    lines = as_text(experiments.with_a_metric()).splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith("+ MY_SWITCH=1"))
    assert "no difference shown" in lines[place]
    assert lines[place + 1] == "    5.3 % or more would have been seen 9 times in 10"


def test_what_is_inert_is_said_of_the_cell_and_of_the_factor() -> None:
    text = as_text(experiments.with_an_inert_factor())
    reason = "    inert: the team of every server is one thread, which never waits for another"
    assert text.splitlines().count(reason) == 2
    assert text.index(reason) < text.index("+ num-servers=2  "), "the other cells change something that matters"


def test_effects_are_shown_for_two_factors_only() -> None:
    title = "Each factor by itself"
    text = as_text(experiments.founding())
    assert title in text
    assert row(text, "omp-wait-policy: passive over active").split()[-2:] == ["faster", "5"]
    assert title not in as_text(experiments.with_a_metric())


def test_where_the_time_goes() -> None:
    text = as_text(experiments.founding())
    part = text[text.index("Where the time goes") :].split("\n\n")[0]
    assert row(part, "baseline").split()[1:] == ["0.900", "1.30", "4.20", "6.50", "2.10", "8.80", "5.00", "1.20"]
    share = part.splitlines()[part.splitlines().index(row(part, "baseline")) + 1]
    assert share.replace(" %", "").split() == ["3", "4", "14", "22", "7", "29", "17", "4"]
    assert "the share of the sum of the stages\nWhat a script computes itself is in no stage." in part
    assert "Where the time goes" not in as_text(experiments.with_a_metric())


def test_cpu_and_openmp_as_the_processes_had_them() -> None:
    text = as_text(experiments.founding())
    cpu = text[text.index("CPU of all processes") :].split("\n\n")[0]
    assert "For comparison: the machine has 2 cores for all of them.\n" in cpu
    assert row(cpu, "+ both").split()[2:] == ["0.81", "101", "1.44", "180", "0.00", "0.500"]
    openmp = text[text.index("OpenMP as the processes") :].split("\n\n")[0]
    assert row(openmp, "+ both").split()[2:] == ["1", "2", "passive", "1", "passive"]
    without = as_text(experiments.with_a_metric())
    assert "CPU of" not in without
    assert "OpenMP" not in without


def test_a_failed_cell_hides_no_other_and_shows_the_end_of_its_log() -> None:
    text = as_text(experiments.with_a_failed_cell())
    assert row(text, "+ both").split()[2:] == ["-", "-", "-", "failed", "5", "5"]
    assert "    failed in blocks 1, 2, 3, 4 and 5: server 1 exited with status 1\n" in text
    assert row(text, "+ num-servers=2").endswith("faster     5       1")
    assert "    failed in block 4: no step within 600 s; the run was ended\n" in text
    end = text[text.index("+ both: 5 of 5 runs failed") :]
    assert "  | [server 1] line 17\n" in end
    assert "line 16\n" not in end
    assert end.endswith("  | [server 1] MemoryError: no room\n")
    assert "6031" in text


def test_the_environment_of_all_runs_is_told() -> None:
    whole = experiments.founding()
    plan = msgspec.structs.replace(whole.design, environment={"OMP_PLACES": "a\nb", "OMP_A": "1"})
    text = as_text(msgspec.structs.replace(whole, design=plan))
    assert f"{experiments.MACHINE}\nEnvironment of all runs: OMP_A=1 OMP_PLACES='a b'\n" in text
    assert "Environment" not in as_text(whole)


def test_an_unfinished_experiment_says_so() -> None:
    text = as_text(experiments.unfinished())
    assert "4 cells, 7 of 20 runs in 5 blocks, 2 workers; not finished.\n" in text
    assert row(text, "+ both").split()[-4:] == ["one", "pair:", "unknown", "1"]


def test_one_block_gives_no_interval_and_no_answer() -> None:
    text = as_text(experiments.without_intervals())
    assert text.startswith("Nothing can be said yet")
    assert "one pair: unknown" in row(text, "+ both")


def test_cells_of_different_units_are_shown_with_theirs() -> None:
    whole = experiments.founding()
    other = msgspec.structs.replace(whole.cells[3], unit="steps/s", against_baseline=None)
    text = as_text(msgspec.structs.replace(whole, cells=(*whole.cells[:3], other)))
    assert "4195 samples/s" in row(text, "baseline")
    assert "6503 steps/s" in row(text, "+ both")
    assert "nothing to compare" in row(text, "+ both")


def test_a_log_cannot_move_the_cursor() -> None:
    whole = experiments.with_a_failed_cell()
    bad = msgspec.structs.replace(whole.cells[3], log="\x1b[2J\x1b[Hgone\r\x07\n" + "x" * 500 + "\n")
    text = as_text(msgspec.structs.replace(whole, cells=(*whole.cells[:3], bad), notes=("a\x1b[31mb",)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "  | ?[2J?[Hgone" in text
    assert max(map(len, text.splitlines())) <= 100


def test_an_experiment_in_which_nothing_worked() -> None:
    plan = experiments.founding().design
    made = [experiments.failed(each, "exit status 1") for each in experiments.runs(plan, experiments.FOUNDING)]
    text = as_text(experiments.analysis(plan, made))
    assert text.startswith("Nothing can be said yet")
    assert text.count("failed in blocks 1, 2, 3, 4 and 5: exit status 1") == 8


def test_what_all_rows_have_in_common_is_said_once() -> None:
    text = as_text(experiments.with_wide_intervals())
    said = "Every row: too few blocks, or too noisy: 100 % might not have been seen; use --repeats 5 or more.\n"
    assert text.count(said) == text.count("too few blocks") == 2, "below the cells and below the effects"
    assert "-100 to > 1000 %" in row(text, "+ both")


def test_why_the_gain_is_not_the_ratio_of_the_medians() -> None:
    said = "averaged; not the ratio of the medians, which mix slow and fast blocks."
    assert said in as_text(experiments.founding()).replace("\n", " ")
    assert "Gain:" not in as_text(experiments.with_only_failures()), "there is none"


def test_a_metric_without_a_value_is_called_one() -> None:
    plan = experiments.with_a_metric().design
    made = [experiments.failed(each, "no match") for each in experiments.runs(plan, (1.0, 1.0, 1.0))]
    text = as_text(experiments.analysis(plan, made))
    assert re.search(r"^ +metric +gain ", text, re.MULTILINE)
    assert "15 of 15 runs failed." in text


def test_no_name_is_broken_at_a_hyphen() -> None:
    text = as_text(experiments.with_slower_cells(), 80)
    assert [line for line in text.splitlines() if line.split("  ")[0].endswith(("-", " +"))] == []
    assert text.replace("\n", " ").count("+ omp-wait-policy=passive by 17.6 %") == 1
