"""Words and numbers of the reports."""

from __future__ import annotations

import shlex
import subprocess

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_py.tune import factors, wording
from byteps_py.tune.model import Factor
from byteps_py.tune.results import Interval
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
    ("ratio", "text"),
    [(1.0, "+0.0 %"), (0.99999, "+0.0 %"), (1.397, "+39.7 %"), (0.5, "-50.0 %"), (2.0, "+100 %"), (13.3, "+1230 %")],
)
def test_a_ratio_as_a_gain(ratio: float, text: str) -> None:
    assert wording.percent(ratio) == text


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


def test_names_are_folded_behind_marks() -> None:
    assert wording.fold("+ LONG_NAME=1 + omp-wait-policy=passive", 18) == [
        "+ LONG_NAME=1 +",
        "  omp-wait-policy=",
        "  passive",
    ]
    assert wording.fold("", 5) == [""]


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


def test_a_run_that_was_made_again_has_not_failed() -> None:
    whole = experiments.founding()
    again = experiments.failed(whole.runs[-1], "it was Monday")
    assert wording.failures(msgspec.structs.replace(whole, runs=(again, *whole.runs)), 3) == []


def test_blocks_are_compared_only_where_both_ran_well() -> None:
    whole = experiments.with_a_failed_cell()
    assert len(wording.block_ratios(whole, 1)) == 5
    assert len(wording.block_ratios(whole, 2)) == 4
    assert wording.block_ratios(whole, 3) == ()


def test_an_interval_of_two_blocks_leaves_the_points_in_sight() -> None:
    whole = experiments.founding()
    wide = Interval(2, 1.4, 0.01, 300.0, 1.4, 90.0)
    cell = msgspec.structs.replace(whole.cells[1], against_baseline=wide)
    low, high = wording.gain_limits(msgspec.structs.replace(whole, cells=(whole.cells[0], cell, *whole.cells[2:])))
    assert low < 0
    assert 50 < high < 150


def test_the_headline() -> None:
    whole = experiments.founding()
    assert wording.headline(whole) == "+ both: 51.7 % faster than the baseline."
    assert wording.headline(experiments.with_a_metric()) == "Nothing was shown to give more than the baseline."
    slower = Interval(5, 0.8, 0.7, 0.9, 0.8, 1.1)
    cells = (whole.cells[0], msgspec.structs.replace(whole.cells[1], against_baseline=slower))
    expected = "Nothing was shown to be faster than the baseline; 1 of 1 are slower."
    assert wording.headline(msgspec.structs.replace(whole, cells=cells)) == expected


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
