"""The command line of ``bps ab``: what is asked for, and all that is wrong with it at once."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from byteps_py.errors import SettingsError
from byteps_py.tune import arguments
from byteps_py.tune.arguments import AskedReport, parse, parse_report

VARY = ("--vary", "omp-wait-policy=active,passive")
ENOUGH = (*VARY, "--out", "out", "--", "train")


def problems(*words: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse(words)
    return list(caught.value.problems)


def test_the_defaults() -> None:
    asked = parse(ENOUGH)
    assert asked is not None
    assert (asked.out, asked.has_seed, asked.dry_run) == (Path("out"), False, False)
    design = asked.design
    assert (design.repeats, design.num_workers, design.warmup_steps, design.steps) == (5, 2, 20, 100)
    assert (design.metric, design.timeout, design.command) == ("", 600.0, ("train",))
    assert [each.levels for each in design.factors] == [("active", "passive")]


def test_everything_can_be_said() -> None:
    words = "--vary A=1,2 --vary num-servers=1,2 --num-workers 3 --repeats=7 --warmup-steps 0 --steps 9 --timeout 1.5"
    asked = parse([*words.split(), "--metric", "(.*)", "--seed", "0", "--dry-run", "--out=x y", "train", "--out", "z"])
    assert asked is not None
    assert (asked.out, asked.has_seed, asked.dry_run) == (Path("x y"), True, True)
    design = asked.design
    assert (design.repeats, design.num_workers, design.warmup_steps, design.steps) == (7, 3, 0, 9)
    assert (design.metric, design.timeout, design.command) == ("(.*)", 1.5, ("train", "--out", "z"))
    assert [each.name for each in design.factors] == ["A", "num-servers"]


def test_what_all_cells_have_in_common_is_part_of_each() -> None:
    asked = parse(["--num-servers", "2", "--worker-omp-wait-policy=PASSIVE", *ENOUGH])
    assert asked is not None
    assert [(each.name, each.levels, each.option) for each in asked.design.factors] == [
        ("omp-wait-policy", ("active", "passive"), "--omp-wait-policy"),
        ("num-servers", ("2",), "--num-servers"),
        ("worker-omp-wait-policy", ("passive",), "--worker-omp-wait-policy"),
    ]
    assert [each.levels for each in asked.design.cells] == [("active", "2", "passive"), ("passive", "2", "passive")]
    assert [each.label for each in asked.design.cells] == [
        "baseline (omp-wait-policy=active)",
        "+ omp-wait-policy=passive",
    ]


def test_a_run_with_a_metric_goes_to_its_own_end() -> None:
    asked = parse(["--metric", "x=(.)", *ENOUGH])
    assert asked is not None
    assert asked.design.steps == 0


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("python", "t.py", "--steps", "5", "--", "-h"), ("python", "t.py", "--steps", "5", "--", "-h")),
        (("--", "--strange", "report"), ("--strange", "report")),
        (("-", "x"), ("-", "x")),
    ],
)
def test_the_command_gets_its_words_unchanged(words: tuple[str, ...], command: tuple[str, ...]) -> None:
    asked = parse([*VARY, "--out", "o", *words])
    assert asked is not None
    assert asked.design.command == command


@pytest.mark.parametrize(
    ("command", "launches"),
    [
        ("bpslaunch -n 2 -- python x.py", True),
        ("/opt/v/bin/bpslaunch x", True),
        ("./bpslaunch", True),
        ("python -m byteps_py.launcher -n 2 x", True),
        ("/usr/bin/python3.11 -u -mbyteps_py.launcher x", True),
        ("python -m byteps_py.launcher.main x", True),
        ("python3 /opt/v/bin/bpslaunch x", True),
        ("env A=1 bpslaunch x", True),
        ("nice -n 5 python -m byteps_py.launcher x", True),
        ("python x.py bpslaunch", False),
        ("python -m byteps_py.launchers", False),
        ("python x.py -m byteps_py.launcher", False),
        ("sh bpslaunch.sh", False),
        ("env A=1 python x.py bpslaunch", False),
        ("env", False),
    ],
)
def test_a_command_that_starts_bpslaunch_is_known(command: str, launches: bool) -> None:
    assert arguments.launches_itself(command.split()) is launches


def test_help_is_asked_for_only_before_the_command() -> None:
    assert parse(["-h"]) is None
    assert parse(["--repeats", "x", "--help"]) is None
    assert parse([*ENOUGH, "-h"]) is not None
    assert parse_report(["d", "-h"]) is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--repeat", "3", *ENOUGH), "there is no option '--repeat' (did you mean --repeats?)"),
        (("--zzz", *ENOUGH), "there is no option '--zzz' (-h lists them)"),
        (("--repeats", "--steps", "3", *ENOUGH), "--repeats: the value R after it is missing"),
        ((*VARY, "--out", "--", "train"), "--out: the value DIR after it is missing"),
        ((*VARY, "--out=", "--", "train"), "--out '' must be the path of a folder"),
        (("--dry-run=1", *ENOUGH), "--dry-run takes no value: '--dry-run=1'"),
        (("--seed", "1", "--seed", "2", *ENOUGH), "--seed is given 2 times"),
        (("--repeats", "0", *ENOUGH), "--repeats '0' must be a whole number from 1 to 10000"),
        (("--steps", "1e3", *ENOUGH), "--steps '1e3' must be a whole number"),
        (("--timeout", "nan", *ENOUGH), "--timeout 'nan' must be a number of seconds"),
        (("--steps", "0", *ENOUGH), "--steps 0 leaves nothing to measure"),
        (("--metric", "(", *ENOUGH), "--metric '(' is no regular expression"),
        (("--metric", "x", *ENOUGH), "--metric 'x' has no group"),
        (
            ("--num-servers", "2", "--vary", "num-servers=1,2", *ENOUGH),
            "num-servers is varied, and set for all runs by --num-servers as well: leave one of them out",
        ),
        (("--num-workers", "2", "--vary", "num-workers=1,2", *ENOUGH), "num-workers is varied, and set for all runs"),
        (("--vary", "num-servers=1,2", "--vary", "num-servers=1,3", *ENOUGH), "--vary num-servers is given 2 times"),
        (("--num-servers", "0", *ENOUGH), "num-servers=0 with 2 workers: without a server nobody sums; use 1 to 65535"),
        (("--num-servers", "x", *ENOUGH), "'x' must be a whole number from 1 to 65535, or 0 for a single worker"),
        (("--out", "o", "train"), "nothing is varied: --vary NAME=VALUE,VALUE"),
        ((*VARY, "--out", "o"), "the training command is missing"),
        ((*VARY, "train"), "--out DIR is missing"),
    ],
)
def test_what_is_wrong_is_named(words: tuple[str, ...], text: str) -> None:
    found = problems(*words)
    assert [each for each in found if text in each], found
    assert found[-1] == "`bps ab -h` shows examples"
    assert len(found) == 2


def test_all_that_is_wrong_is_told_together() -> None:
    found = problems("--vary", "x", "--stesp", "4", "--repeats", "0", "--metric", "(", "--num-workers", "none")
    assert len(found) == 8, found


@pytest.mark.parametrize(
    "words",
    [
        (*ENOUGH, "--save=\udcff"),
        (*VARY, "--out", "out\udcff", "--", "train"),
        ("--metric", "(\udcff)", *ENOUGH),
        ("--vary", "A=1,\udcff", *ENOUGH),
    ],
)
def test_words_that_are_no_text_are_refused(words: tuple[str, ...]) -> None:
    found = problems(*words)
    assert len(found) == 2
    assert r"\udcff" in found[0]
    assert found[0].endswith("' is not UTF-8")
    assert "rename the file" in found[1]


def test_folders_of_a_report_that_are_no_text_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"'/tmp/.udcff' is not UTF-8"):
        parse_report(["/tmp/\udcff"])


def test_what_a_report_is_made_of() -> None:
    assert parse_report(["/tmp", "--out", "x", "/"]) == AskedReport((Path("/tmp"), Path("/")), Path("x"))
    assert parse_report(["/"]) == AskedReport((Path("/"),), None)
    with pytest.raises(SettingsError) as caught:
        parse_report(["--ot", "x", "/no-such-folder"])
    assert len(caught.value.problems) == 2


def test_the_shells_learn_all_options() -> None:
    parser = argparse.ArgumentParser(prog="bps ab")
    arguments.add_options(parser)
    text = parser.format_help()
    shown = [
        word for line in arguments.help_text().splitlines() if line.startswith("  --") for word in line.split()[:1]
    ]
    assert len(shown) == 15
    assert all(word in text for word in shown)
