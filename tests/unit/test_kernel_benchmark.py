"""benchmarks/kernels.py runs, and refuses to time a wrong result."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from byteps_py.kernels.native import NativeKernels
from byteps_py.types import DType


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "kernels.py"
    spec = importlib.util.spec_from_file_location("kernel_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("sources", ["1", "3"])
def test_it_prints_a_figure_for_every_type_and_thread_count(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str], kernels: str, sources: str
) -> None:
    tiny = ["--bytes", "4096", "--seconds", "0", "--threads", "1", "2", "--divisor", "3"]
    benchmark.main([*tiny, "--kernels", kernels, "--sources", sources])
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert f"{sources} sources of 4096 bytes" in title
    assert header.split() == ["1", "threads", "2", "threads", "numpy"]
    assert [row.split()[0] for row in rows] == [dtype.label for dtype in DType]
    figures = [figure for row in rows for figure in row.split()[1:]]
    assert figures.count("-") == 1, "NumPy has no bfloat16"
    assert all(float(figure) >= 0 for figure in figures if figure != "-")


def test_a_wrong_result_is_not_timed(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeKernels, "sum_groups", lambda *arguments: None)
    with pytest.raises(SystemExit, match="the result is wrong"):
        benchmark.main(["--bytes", "64", "--seconds", "0", "--threads", "1"])
