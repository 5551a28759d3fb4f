"""Words and numbers of the reports."""

from __future__ import annotations

import math
import shlex
import subprocess

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_py.tune import factors, wording
from byteps_py.tune.model import Factor
from byteps_py.tune.results import Analysis, Interval
from tests.helpers import experiments


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (4337.4, "4337"), (12.346, "12.35"), (0.0012346, "0.001235"), (123456.7, "123457"), (1e20, "1e+20")],
)
def test_numbers_have_four_digits(value: float, text: str) -> None:
    assert wording.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.9, "0.900"), (9.99, "9.99"), (12.34, "12.3"), (1234.5, "1234"), (0.00051, "0.0005"), (-2, "-2.00")],
)
def test_short_numbers_show_all_digits(value: float, text: str) -> None:
    assert wording.short(value) == text


@pytest.mark.parametrize(
    ("low", "high", "unit", "text"),
    [
        (1.1, 1.2, "steps/s", "faster"),
        (0.8, 0.9, "steps/s", "slower"),
        (0.8, 1.2, "samples/s", "no difference shown"),
        (1.0, 1.2, "samples/s", "no difference shown"),
        (1.1, 1.2, "metric", "more"),
        (0.8, 0.9, "metric", "less"),
        (None, None, "steps/s", "one pair: unknown"),
    ],
)
def test_verdicts(low: float | None, high: float | None, unit: str, text: str) -> None:
    assert wording.verdict_words(Interval(3, 1.0, low, high, 1.0, 1.1), unit) == text


@given(st.text("ab_= -+,.é", max_size=60), st.integers(5, 30))
def test_folding_loses_nothing_and_keeps_to_the_width(text: str, width: int) -> None:
    lines = wording.fold(text, width)
    assert all(len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_the_command_makes_the_same_design() -> None:
    plan = experiments.with_a_metric().design
    command = wording.command_line(plan, out="my folder")
    assert command.startswith("bps ab --vary 'MY_SWITCH=0,1,a\\,b' --num-workers 2 --repeats 5 --warmup-steps 20 ")
    words = shlex.split(command)
    assert words[words.index("--metric") + 1] == plan.metric
    assert words[words.index("--out") + 1] == "my folder"
    assert tuple(words[words.index("--") + 1 :]) == plan.command
    assert factors.factor(words[words.index("--vary") + 1]).levels == plan.factors[0].levels


def test_a_setting_with_one_level_is_an_option_of_its_own() -> None:
    plan = msgspec.structs.replace(
        experiments.founding().design, factors=(experiments.POLICY, Factor("num-servers", ("2",), "--num-servers"))
    )
    assert "--vary omp-wait-policy=active,passive --num-servers 2 --num-workers 2 " in wording.command_line(plan)


def test_runs_that_nobody_planned_have_no_command() -> None:
    assert wording.command_line(msgspec.structs.replace(experiments.founding().design, command=())) == ""


@given(st.lists(st.text("a ,\\'x=", max_size=6), min_size=2, max_size=4, unique=True))
def test_levels_are_typed_so_that_they_are_read_as_they_were(levels: list[str]) -> None:
    plan = msgspec.structs.replace(experiments.founding().design, factors=(Factor("SOME_NAME", tuple(levels)),))
    words = shlex.split(wording.command_line(plan))
    assert factors.factor(words[words.index("--vary") + 1]).levels == tuple(levels)


def test_the_environment_comes_before_the_command() -> None:
    plan = msgspec.structs.replace(experiments.founding().design, environment={"OMP_B": "x y", "OMP_A": "1"})
    assert wording.environment(plan) == "OMP_A=1 OMP_B='x y'"
    command = wording.command_line(plan)
    assert command.startswith("env OMP_A=1 'OMP_B=x y' bps ab --vary ")
    assert wording.environment(experiments.founding().design) == ""


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("a", "a"),
        ("a b", "'a b'"),
        ("a\n\tb", "'a\n\tb'"),
        ("\x1b[0m", r"$'\033[0m'"),
        ("é\x9b'\\", r"$'é\U0000009b\'\\'"),
    ],
)
def test_words_for_a_shell_can_be_shown_by_a_terminal(word: str, text: str) -> None:
    assert wording.shell_word(word) == text
    done = subprocess.run(
        ["bash", "-c", f"printf %s {text}"], stdout=subprocess.PIPE, check=True, env={"LC_ALL": "C.UTF-8"}, timeout=60
    )
    assert done.stdout.decode() == word


def test_where_runs_were_made() -> None:
    use = experiments.founding().runs[0].processes[0]
    uses = [msgspec.structs.replace(use, host=host, cores=cores) for host, cores in (("b", 8), ("a", 1), ("b", 4))]
    run = msgspec.structs.replace(experiments.founding().runs[0], processes=tuple(uses))
    assert wording.hosts([run]) == "a: 1 core; b: 4 or 8 cores"
    unknown = msgspec.structs.replace(run, processes=(msgspec.structs.replace(use, host="c", cores=0),))
    assert wording.hosts([unknown]) == "c"
    assert wording.hosts([msgspec.structs.replace(run, processes=())]) == ""


def test_no_server_is_not_an_unknown_one() -> None:
    cell = experiments.founding().cells[0]
    alone = msgspec.structs.replace(cell, cpu=cell.cpu[:1], server_team=0, server_engines=0, server_policy="")
    assert wording.openmp_facts(alone) == ("-", "-", "-", "1", "passive")
    unknown = msgspec.structs.replace(alone, cpu=(), worker_team=0, worker_policy="")
    assert wording.openmp_facts(unknown) == ("?", "?", "?", "?", "?")


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (40, ["+ LONG_NAME=1 + omp-wait-policy=passive"]),
        (30, ["+ LONG_NAME=1", "  + omp-wait-policy=passive"]),
        (18, ["+ LONG_NAME=1 +", "  omp-wait-policy=", "  passive"]),
        (14, ["+ LONG_NAME=1", "  + omp-wait-", "  policy=", "  passive"]),
    ],
)
def test_names_are_folded_at_blanks_then_behind_equal_signs(width: int, lines: list[str]) -> None:
    assert wording.fold("+ LONG_NAME=1 + omp-wait-policy=passive", width) == lines
    assert wording.fold("", 5) == [""]


def test_names_are_folded_behind_commas_and_not_at_hyphens() -> None:
    assert wording.fold("num-workers=2,num-servers=1", 20) == ["num-workers=2,", "  num-servers=1"]


def compared(*ratios: float, metric: bool = False) -> Analysis:
    """A baseline and cells A, B ... of which each is sure to have its ratio."""
    whole = experiments.with_a_metric() if metric else experiments.founding()
    cells = [whole.cells[0]]
    for name, ratio in zip("ABCDEF", ratios, strict=False):
        interval = Interval(5, ratio, ratio * 0.99, ratio * 1.01, ratio, 1.01)
        cell = msgspec.structs.replace(whole.cells[1].cell, label=name)
        cells.append(msgspec.structs.replace(whole.cells[1], cell=cell, against_baseline=interval))
    return msgspec.structs.replace(whole, cells=tuple(cells))


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ((1.5,), "A: 50.0 % faster than the baseline."),
        ((1.1, 1.5, 1.2), "B: 50.0 % faster than the baseline; also faster: C by 20.0 %, A by 10.0 %."),
        ((1.1, 0.9, 1.0), "A: 10.0 % faster than the baseline; slower: B by 10.0 %."),
        ((20.0,), "A: > 1000 % faster than the baseline."),
        ((1.0,), "Nothing was shown to be faster than the baseline."),
        ((0.814,), "Nothing was shown to be faster than the baseline; A is slower by 18.6 %."),
        ((0.9, 0.8), "Nothing was shown to be faster than the baseline; B is slower by 20.0 %, A by 10.0 %."),
        (
            (1.6, 1.5, 1.4, 1.3, 1.2, 1.1),
            "A: 60.0 % faster than the baseline; also faster: B by 50.0 %, C by 40.0 %, D by 30.0 % and 2 others.",
        ),
    ],
)
def test_the_headline_says_which_and_by_how_much(ratios: tuple[float, ...], text: str) -> None:
    assert wording.headline(compared(*ratios)) == text


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ((1.5, 1.2), "A: the metric is 50.0 % more than the baseline's; also more: B by 20.0 %."),
        ((1.0,), "Nothing was shown to give more of the metric than the baseline."),
        ((0.9,), "Nothing was shown to give more of the metric than the baseline; A is less by 10.0 %."),
    ],
)
def test_the_headline_of_a_metric(ratios: tuple[float, ...], text: str) -> None:
    assert wording.headline(compared(*ratios, metric=True)) == text


def test_times_that_are_none() -> None:
    assert str(wording.moment(1_790_000_000.0)) == "2026-09-21 14:13:20+00:00"
    assert [wording.moment(each) for each in (0.0, 1e30, 1e300, -1e12, math.nan, math.inf)] == [None] * 6


@pytest.mark.parametrize(
    ("uses", "text"),
    [
        ([("a", 2), ("a", 2)], "the machine has 2 cores for all of them"),
        ([("a", 1), ("a", 0)], "the machine has 1 core for all of them"),
        ([("a", 2), ("a", 4)], "a process may use 2 or 4 cores of the machine, which are there for all of them"),
        ([("a", 8), ("b", 8)], "each of the 2 machines has 8 cores for all its processes"),
        ([("a", 8), ("b", 4)], "cores for all processes of a machine: a: 8 cores; b: 4 cores"),
        ([("a", 0)], ""),
    ],
)
def test_the_cores_that_all_processes_share(uses: list[tuple[str, int]], text: str) -> None:
    whole = experiments.founding()
    one = whole.runs[0].processes[0]
    processes = tuple(msgspec.structs.replace(one, host=host, cores=cores) for host, cores in uses)
    runs = (msgspec.structs.replace(whole.runs[0], processes=processes),)
    assert wording.cores(msgspec.structs.replace(whole, runs=runs)) == text


def test_runs_that_count_are_told_with_those_that_failed() -> None:
    whole = experiments.with_a_failed_cell()
    assert wording.state(whole) == "4 cells, 20 runs in 5 blocks, 2 workers; 6 of 20 runs failed"
    part = experiments.analysis(whole.design, [experiments.failed(whole.runs[0], "x"), *whole.runs[:2]])
    assert wording.state(part) == "4 cells, 2 of 20 runs in 5 blocks, 2 workers; not finished", (
        "made again with success"
    )
