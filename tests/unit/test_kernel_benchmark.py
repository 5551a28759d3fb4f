"""benchmarks/kernels.py runs, says what its figures are shares of, and refuses to time a wrong result."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import kernels
from byteps_py.kernels.native import NativeKernels
from byteps_py.types import DType

TINY = ["--bytes", "4096", "--seconds", "0.001"]


def test_it_prints_a_figure_for_every_kernel_type_and_number_of_sources_and_threads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    kernels.main([*TINY, "--sources", "1", "4", "--threads", "1", "2", "--divisor", "3", "--level", "baseline"])
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("kernels: baseline; divisor 3;")
    assert header.split() == ["kernel", "dtype", "sources", "bytes", "threads", "GB/s", "share", "of"]
    figures, accepted = rows[:-3], rows[-3:]
    measured = [("copy", "bytes"), *(("sum", dtype.label) for dtype in DType)]
    assert [tuple(row.split()[:2]) for row in figures] == measured * 4
    sums = {(row.split()[2], row.split()[4]) for row in figures if row.startswith("sum")}
    assert sums == {("1", "1"), ("1", "2"), ("4", "1"), ("4", "2")}
    assert all(float(row.split()[5]) > 0 and float(row.split()[6]) > 0 for row in figures)
    assert [row.partition(":")[0] for row in accepted] == [
        f"{label}, 4 sources of 4096 bytes, 1 thread" for label in ("float32", "float16", "bfloat16")
    ]
    assert [row.rpartition(" of the ")[2] for row in accepted] == [
        "STREAM-like add",
        "float32 rate",
        "float32 rate",
    ]


def test_the_figures_and_the_environment_go_to_a_file(tmp_path: Path) -> None:
    found = tmp_path / "kernels.json"
    kernels.main([*TINY, "--sources", "4", "--dtypes", "float32", "float16", "--json", str(found)])
    report = json.loads(found.read_text(encoding="utf-8"))
    assert report["environment"]["level"] == NativeKernels().level
    assert {"cpu", "cores", "numpy", "python", "byteps_py"} <= report["environment"].keys()
    assert report["settings"]["sources"] == [4]
    assert [(row["kernel"], row["dtype"], row["sources"]) for row in report["rows"]] == [
        ("copy", "bytes", 1),
        ("sum", "float32", 4),
        ("sum", "float16", 4),
    ]
    assert all(row["verified"] and row["bytes"] == 4096 and row["rounds"] >= 1 for row in report["rows"])
    float16 = report["rows"][2]
    assert report["acceptance"]["float16"]["share"] == float16["share_of_float32"]


def test_variables_of_openmp_go_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    found = tmp_path / "kernels.json"
    kernels.main([*TINY, "--sources", "1", "--dtypes", "float32", "--json", str(found)])
    settings = json.loads(found.read_text(encoding="utf-8"))["settings"]
    assert settings["variables"]["OMP_WAIT_POLICY"] == "passive"


def test_the_share_is_the_median_of_rounds() -> None:
    assert kernels._median_ratio([1.0, 8.0, 9.0], [2.0, 4.0, 3.0]) == 2.0


@pytest.mark.parametrize("name", ["sum_groups", "copy"])
def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(NativeKernels, name, lambda *arguments: None)
    with pytest.raises(SystemExit, match="the result is wrong"):
        kernels.main([*TINY, "--sources", "2"])
