"""The result of an experiment as one page that needs nothing else."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from html.parser import HTMLParser

import msgspec
import pytest

from byteps_py.tune.model import Factor
from byteps_py.tune.page import as_html
from byteps_py.tune.results import Analysis, Interval
from tests.helpers import experiments

EMPTY = {"meta", "img", "br", "wbr", "line", "circle", "polyline"}
"""Tags that have no end, or end themselves."""
PNG = b"\x89PNG\r\n\x1a\n and so on"
EVIL = "<script>alert(1)</script>\"'&<b>"


class Reader(HTMLParser):
    """Reads a page, and fails where tags do not balance."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in EMPTY
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def count(self, tag: str) -> int:
        return sum(each == tag for each, _ in self.tags)


@pytest.mark.parametrize("example", experiments.EXAMPLES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("png", [None, PNG], ids=["without", "with"])
def test_a_page_is_whole_and_loads_nothing(example: Callable[[], Analysis], png: bytes | None) -> None:
    page = as_html(example(), png)
    assert page.startswith("<!DOCTYPE html>\n")
    assert page.endswith("</html>\n")
    read = Reader(page)
    assert re.search(r"https?:|//|@import|url\(", page.replace(base64.b64encode(PNG).decode(), "")) is None
    assert read.count("script") == read.count("link") == 0
    for tag, attributes in read.tags:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("src", "href", "xlink:href", "data", "action"):
            assert (attributes.get(name) or "data:").startswith("data:")
    policies = [each["content"] for _, each in read.tags if each.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert read.count("img") == (png is not None)


@pytest.mark.parametrize("example", experiments.EXAMPLES, ids=lambda each: each.__name__)
def test_every_row_has_all_columns(example: Callable[[], Analysis]) -> None:
    page = as_html(example(), None)
    for table in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        head, *rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
        columns = head.count("<th ")
        for row in rows:
            assert (f'colspan="{columns}"' in row) or row.count("<th ") + row.count("<td") == columns


def test_the_page_says_what_the_table_says() -> None:
    text = Reader(as_html(experiments.founding(), None)).text
    for words in (
        "+ both: 51.7 % faster than the baseline; also faster: + omp-wait-policy=passive by 41.4 %, + num-servers=2",
        "4 cells, 20 runs in 5 blocks, 2 workers.",
        "+41.4 %",
        "+37.2 to +45.8 %",
        "omp-wait-policy: passive over active",
        "wait for others",
        "2 servers",
        "for comparison: the machine has 2 cores for all of them",
        "the share of the sum of the stages.\nWhat a script computes itself is in no stage.",
        "not the ratio of the medians",
        "5 comparisons: where there is no difference, one in twenty shows one by chance",
        "2026-09-21 14:13 to 2026-09-21 14:32 UTC",
        "100 steps after 20 of warm-up",
        "bps ab --vary omp-wait-policy=active,passive --vary num-servers=1,2 --num-workers 2 --repeats 5",
        "-- python train.py --name 'two words'",
    ):
        assert words in text


def test_the_environment_of_all_runs_is_told() -> None:
    whole = experiments.founding()
    plan = msgspec.structs.replace(whole.design, environment={"OMP_PLACES": "a & b", "OMP_A": "1"})
    page = as_html(msgspec.structs.replace(whole, design=plan), None)
    assert "<dt>environment</dt><dd>OMP_A=1 OMP_PLACES=&#x27;a &amp; b&#x27;</dd>" in page
    assert "env OMP_A=1 'OMP_PLACES=a & b' bps ab " in Reader(page).text
    assert "<dt>environment</dt>" not in as_html(whole, None)


def test_intervals_and_stages_are_drawn() -> None:
    read = Reader(as_html(experiments.founding(), None))
    labels = [each["aria-label"] for tag, each in read.tags if tag == "svg"]
    assert "+41.4 %, 95 % interval +37.2 to +45.8 %" in labels
    assert len(labels) == 3 + 2 + 4, "cells but the baseline, effects, stages"
    assert sum(tag == "circle" and each["class"] == "block" for tag, each in read.tags) == 3 * 5
    assert read.count("rect") == 4 * 8


def test_the_picture_is_a_part_of_the_page() -> None:
    read = Reader(as_html(experiments.founding(), PNG))
    (picture,) = (each for tag, each in read.tags if tag == "img")
    assert base64.b64decode((picture["src"] or "").partition("base64,")[2]) == PNG
    assert "+ both: +51.7 %" in (picture["alt"] or "")


def test_what_failed_is_told_with_its_log() -> None:
    page = as_html(experiments.with_a_failed_cell(), None)
    read = Reader(page)
    assert read.count("details") == 2
    assert [("open" in each) for tag, each in read.tags if tag == "details"] == [False, True]
    assert "failed in blocks 1, 2, 3, 4 and 5: server 1 exited with status 1" in read.text
    assert "[server 1] MemoryError: no room" in read.text
    assert "no step within 600 s" in read.text


def test_everything_from_outside_is_escaped() -> None:
    whole = experiments.with_a_failed_cell()
    plan = msgspec.structs.replace(
        whole.design,
        factors=(Factor(EVIL, (EVIL, "passive")), whole.design.factors[1]),
        command=("python", EVIL),
        metric=EVIL,
    )
    cells = tuple(
        msgspec.structs.replace(
            each,
            cell=msgspec.structs.replace(each.cell, label=f"{index} {EVIL}"),
            unit=EVIL,
            log=EVIL,
            problems=(EVIL,),
            server_policy=EVIL,
            worker_policy=EVIL,
            stages=tuple(msgspec.structs.replace(stage, name=EVIL) for stage in each.stages[:1]),
        )
        for index, each in enumerate(whole.cells)
    )
    effects = tuple(
        msgspec.structs.replace(each, factor=EVIL, level=EVIL, baseline=EVIL, inert=EVIL) for each in whole.effects
    )
    runs = tuple(experiments.failed(each, EVIL, EVIL) if each.problem else each for each in whole.runs)
    page = as_html(Analysis(plan, cells, effects, runs, (EVIL,), EVIL, True), PNG)
    read = Reader(page)
    assert read.count("script") == read.count("b") == 0
    assert "<script" not in page
    assert read.text.count("<script>alert(1)</script>") > 20


def test_terminal_sequences_of_a_log_are_not_in_the_page() -> None:
    whole = experiments.with_a_failed_cell()
    bad = msgspec.structs.replace(whole.cells[3], log="\x1b[31mred\x00\n")
    page = as_html(msgspec.structs.replace(whole, cells=(*whole.cells[:3], bad)), None)
    assert re.search(r"[\x00-\x08\x0b-\x1f]", page) is None
    assert "?[31mred?" in page


def test_an_end_that_is_far_out_is_drawn_at_the_edge() -> None:
    whole = experiments.founding()
    wide = Interval(2, 1.4, 0.01, 300.0, 1.4, 90.0)
    cell = msgspec.structs.replace(whole.cells[1], against_baseline=wide)
    page = as_html(msgspec.structs.replace(whole, cells=(whole.cells[0], cell, *whole.cells[2:])), None)
    numbers = [float(each) for each in re.findall(r'(?:x1|x2|cx)="([^"]*)"', page)]
    assert min(numbers) >= 0, "the box around them begins at -5"
    assert max(numbers) <= 190


def test_runs_that_count_and_those_that_failed_are_told_alike() -> None:
    text = Reader(as_html(experiments.with_a_failed_cell(), None)).text
    for words in (
        "2 workers; 6 of 20 runs failed.",
        "+ both: 5 of 5 runs failed",
        "+ num-servers=2: 1 of 5 runs failed",
    ):
        assert words in text
    assert "<td>5<small>1 failed</small></td>" in as_html(experiments.with_a_failed_cell(), None)


def test_names_are_broken_at_commas_and_blanks_only() -> None:
    page = as_html(experiments.founding(), None)
    assert page.count('<th scope="row"><span>+ num-servers=2</span>') == 4, "cells, stages, CPU, OpenMP"
    assert "tbody th span { white-space: nowrap; }" in page
    long = as_html(experiments.large(), None)
    assert "BYTEPS_<wbr>" not in long
    assert "<span>BYTEPS_</span><wbr><span>PARTITION_</span>" in long


def test_a_time_that_is_none_is_not_shown() -> None:
    whole = experiments.founding()
    for bad in (1e30, 1e300, -1e12, float("nan"), float("inf")):
        runs = tuple(msgspec.structs.replace(each, started=bad) for each in whole.runs)
        assert " UTC" not in as_html(msgspec.structs.replace(whole, runs=runs), None)
        assert "14:13 to " in as_html(msgspec.structs.replace(whole, runs=(*whole.runs, *runs)), None)


def test_what_all_rows_have_in_common_is_said_once() -> None:
    text = Reader(as_html(experiments.with_wide_intervals(), None)).text
    assert text.count("too few blocks") == 2, "below the cells and below the effects"
