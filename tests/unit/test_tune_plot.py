"""The result of an experiment as a picture."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from byteps_py.tune import plot
from byteps_py.tune.results import Analysis, Interval, StageShare
from tests.helpers import experiments

with_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed: pip install 'byteps_py[plot]'"
)
EXAMPLES: tuple[Callable[[], Analysis], ...] = (
    experiments.founding,
    experiments.with_a_failed_cell,
    experiments.unfinished,
    experiments.without_intervals,
    experiments.with_a_metric,
    experiments.with_an_inert_factor,
    experiments.large,
)


def draw(analysis: Analysis) -> bytes:
    png = plot.as_png(analysis)
    assert png is not None
    return png


def size(png: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    assert png[:16] == b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@with_matplotlib
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.__name__)
def test_a_picture_is_800_pixels_wide(example: Callable[[], Analysis]) -> None:
    width, height = size(draw(example()))
    assert width == 800
    assert 100 < height < 3000


@with_matplotlib
def test_the_same_analysis_gives_the_same_bytes() -> None:
    first = draw(experiments.founding())
    assert first == draw(experiments.founding())
    assert b"Software" not in first


@with_matplotlib
def test_the_height_follows_the_number_of_cells() -> None:
    heights = [size(draw(experiments.large(cells)))[1] for cells in (2, 4, 8)]
    assert heights == sorted(set(heights))


@with_matplotlib
def test_settings_of_matplotlib_are_put_back_and_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    expected = draw(experiments.founding())
    with matplotlib.rc_context({"font.size": 30.0, "axes.grid": True, "figure.facecolor": "red"}):
        assert draw(experiments.founding()) == expected
        assert matplotlib.rcParams["font.size"] == 30.0


@with_matplotlib
@pytest.mark.parametrize("label", ["$x^$ _{}", "日本 \x1b[31m ☃", "x" * 300, ""])
def test_any_label_can_be_drawn(label: str) -> None:
    whole = experiments.founding()
    named = msgspec.structs.replace(whole.cells[1].cell, label=label)
    cells = (whole.cells[0], msgspec.structs.replace(whole.cells[1], cell=named), *whole.cells[2:])
    assert size(draw(msgspec.structs.replace(whole, cells=cells)))[0] == 800


@with_matplotlib
def test_extremes_can_be_drawn() -> None:
    whole = experiments.founding()
    wide = Interval(2, 1.4, 1e-9, 1e9, 1.4, 1e12)
    exact = Interval(5, 1.0, 1.0, 1.0, 1.0, 1.0)
    cells = (
        whole.cells[0],
        msgspec.structs.replace(whole.cells[1], against_baseline=wide, stages=(StageShare("new", 1e-9, 1.0),)),
        msgspec.structs.replace(whole.cells[2], against_baseline=exact, stages=(StageShare("sum", 0.0, 0.0),)),
        msgspec.structs.replace(whole.cells[3], median=None, values=(), failed=0, against_baseline=None, stages=()),
    )
    assert draw(msgspec.structs.replace(whole, cells=cells, runs=()))


@with_matplotlib
def test_a_single_cell_can_be_drawn() -> None:
    plan = experiments.design((), ("baseline",))
    assert draw(experiments.analysis(plan, experiments.runs(plan, (10.0,))))


@with_matplotlib
def test_letters_have_at_least_eleven_pixels() -> None:
    points = 72 / plot.DPI
    assert min(plot.FONT, plot.SMALL) >= 11 * points


def test_every_stage_has_a_colour_of_its_own() -> None:
    names = {stage.name for stage in experiments.founding().cells[0].stages}
    assert names == plot.COLOURS.keys()
    assert len(set(plot.COLOURS.values())) == len(names)


def test_there_is_no_picture_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert plot.as_png(experiments.founding()) is None


def test_matplotlib_is_loaded_only_when_something_is_drawn() -> None:
    code = (
        "import sys; from byteps_py.tune import report; assert not [m for m in sys.modules if m.startswith('matplot')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
