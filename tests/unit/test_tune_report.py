"""The files of a report: what they hold, and that none is ever half there."""

from __future__ import annotations

import csv
import errno
import io
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from byteps_py.errors import SettingsError
from byteps_py.tune import plot, report
from byteps_py.tune.model import Factor
from byteps_py.tune.results import Analysis
from tests.helpers import experiments


@pytest.fixture(autouse=True)
def picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib is another test's business."""
    monkeypatch.setattr(plot, "as_png", lambda analysis: b"a picture")


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def rows(analysis: Analysis) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(report.as_csv(analysis))))


@pytest.mark.parametrize("example", experiments.EXAMPLES, ids=lambda each: each.__name__)
def test_what_was_written_is_read_again(example: Callable[[], Analysis], tmp_path: Path) -> None:
    written = report.write(example(), tmp_path)
    assert [each.name for each in written] == ["report.json", "report.csv", "report.png", "report.html"]
    assert names(tmp_path) == sorted(each.name for each in written)
    assert report.load(tmp_path / "report.json") == example()
    assert (tmp_path / "report.csv").read_text("utf-8") == report.as_csv(example())
    assert (tmp_path / "report.png").read_bytes() == b"a picture"
    assert "data:image/png;base64," in (tmp_path / "report.html").read_text("utf-8")


def test_the_json_names_its_version(tmp_path: Path) -> None:
    report.write(experiments.founding(), tmp_path)
    read = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert read["schema"] == report.SCHEMA == 1
    assert read["analysis"]["cells"][1]["cell"]["label"] == "+ omp-wait-policy=passive"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no report.json"),
        (b'{"schema": 1}', "no report.json"),
        (b'{"schema": 1, "analysis": {"design": 3}}', "no report.json"),
        (b'{"schema": 2, "analysis": {"new": 3}}', "report of version 2, and this byteps_py reads version 1"),
        (b"\xff\xfe", "no report.json"),
    ],
)
def test_what_is_no_report_is_refused_by_name(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=words) as caught:
        report.load(path)
    assert str(path) in str(caught.value)


def test_the_csv_has_a_line_for_each_run() -> None:
    read = rows(experiments.founding())
    assert len(read) == 20
    assert read[1] == {
        "block": "1",
        "cell": "+ omp-wait-policy=passive",
        "omp-wait-policy": "passive",
        "num-servers": "1",
        "value": str(experiments.founding().runs[1].value),
        "unit": "samples/s",
        "seconds": "12.5",
        "steps": "100",
        "problem": "",
        "worker_cpu_seconds": "10.1",
        "server_cpu_seconds": "9.0",
        "scheduler_cpu_seconds": "0.05",
        "started": "2026-09-21T14:14:20+00:00",
    }
    assert {each["block"] for each in read} == {"1", "2", "3", "4", "5"}


def test_a_failed_run_has_a_problem_and_no_value() -> None:
    read = rows(experiments.with_a_failed_cell())
    failed = [each for each in read if each["problem"]]
    assert len(failed) == 6
    assert failed[0]["problem"] == "server 1 exited with status 1"
    assert {each[name] for each in failed for name in ("value", "unit", "seconds", "server_cpu_seconds")} == {""}


def test_commas_quotes_and_lines_stay_within_their_field() -> None:
    whole = experiments.with_a_metric()
    made = (experiments.failed(whole.runs[2], 'said "no",\nthen left'), *whole.runs)
    read = rows(msgspec.structs.replace(whole, runs=made))
    assert read[0]["MY_SWITCH"] == "a,b"
    assert read[0]["problem"] == 'said "no",\nthen left'
    assert len(read) == len(made)


def test_without_matplotlib_everything_else_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "report.png").write_bytes(b"of an earlier report")
    monkeypatch.undo()
    for name in [each for each in sys.modules if each.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with caplog.at_level(logging.WARNING, "byteps_py.tune.report"):
        written = report.write(experiments.founding(), tmp_path)
    assert [each.name for each in written] == ["report.json", "report.csv", "report.html"]
    assert names(tmp_path) == ["report.csv", "report.html", "report.json"]
    assert "pip install 'byteps_py[plot]'" in caplog.text
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "pip install &#x27;byteps_py[plot]&#x27;" in page
    assert "<img" not in page
    assert report.load(tmp_path / "report.json") == experiments.founding()


def test_an_earlier_report_is_replaced(tmp_path: Path) -> None:
    report.write(experiments.unfinished(), tmp_path)
    report.write(experiments.founding(), tmp_path)
    assert report.load(tmp_path / "report.json") == experiments.founding()
    assert len(names(tmp_path)) == 4


def test_a_full_disk_leaves_the_earlier_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report.write(experiments.unfinished(), tmp_path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        report.write(experiments.founding(), tmp_path)
    assert caught.value.filename == str(tmp_path / "report.json")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        report.write(experiments.founding(), tmp_path / "nowhere")
    assert caught.value.filename == str(tmp_path / "nowhere" / "report.json")


def test_files_may_be_read_by_whom_the_mask_allows(tmp_path: Path) -> None:
    report.write(experiments.founding(), tmp_path)
    reference = tmp_path / "reference"
    reference.touch()
    assert (tmp_path / "report.html").stat().st_mode == reference.stat().st_mode


@pytest.mark.parametrize("started", [1e30, 1e300, -1e12, float("nan"), float("inf"), 0.0])
def test_a_time_that_is_none_is_an_empty_field(started: float, tmp_path: Path) -> None:
    whole = experiments.founding()
    odd = msgspec.structs.replace(
        whole, runs=tuple(msgspec.structs.replace(each, started=started) for each in whole.runs)
    )
    assert {each["started"] for each in rows(odd)} == {""}
    assert len(report.write(odd, tmp_path)) == 4


def test_no_two_columns_have_the_same_name() -> None:
    names = ("cell", "factor cell", "value", "worker_cpu_seconds", "omp-wait-policy")
    plan = experiments.design([Factor(name, (f"<{name}>",)) for name in names], ("baseline",))
    made = experiments.runs(plan, (4.0,))
    text = report.as_csv(experiments.analysis(plan, made))
    head = next(csv.reader(io.StringIO(text)))
    assert len(set(head)) == len(head)
    read = rows(experiments.analysis(plan, made))[0]
    assert read["cell"] == "baseline"
    assert read["factor cell"] == "<cell>"
    assert read["factor factor cell"] == "<factor cell>"
    assert read["factor value"] == "<value>"
    assert read["omp-wait-policy"] == "<omp-wait-policy>"
    assert float(read["value"]) > 0
