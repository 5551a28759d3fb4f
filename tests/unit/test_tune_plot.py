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
@pytest.mark.parametrize("example", experiments.EXAMPLES, ids=lambda each: each.__name__)
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


def texts(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is written anywhere in the picture, but for the numbers at the axes."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    found: list[str] = []

    def look(figure: Figure, *args: object, **kwargs: object) -> None:
        figure.draw_without_rendering()
        ticks = {label for axes in figure.axes for label in axes.get_xticklabels()}
        found.extend(each.get_text() for each in figure.findobj(Text) if each not in ticks and each.get_text())

    monkeypatch.setattr(Figure, "savefig", look)
    plot.as_png(analysis)
    return found


@with_matplotlib
def test_the_numbers_are_beside_their_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    said = texts(experiments.founding(), monkeypatch)
    assert {"How much faster", "4195 samples/s", "+41.4 %\n37 to 46 %", "+51.7 %\n47 to 56 %"} <= set(said)
    assert "+508 %\n-100 to > 1000 %" in texts(experiments.with_wide_intervals(), monkeypatch)
    assert "+49.2 %\none block" in texts(experiments.unfinished(), monkeypatch)


@with_matplotlib
@pytest.mark.parametrize(
    ("example", "caption"),
    [
        (experiments.founding, "with 95 % interval; small dots: single blocks\nblue: faster"),
        (experiments.with_slower_cells, "with 95 % interval; small dots: single blocks\nred: slower"),
        (experiments.with_a_metric, "with 95 % interval; small dots: single blocks\ngrey: no difference shown"),
        (experiments.without_intervals, "in %; small dots: single blocks\ngrey: one block, nothing can be said"),
        (experiments.unfinished, "single blocks\nblue: faster, grey: no difference shown, or one block"),
    ],
)
def test_the_caption_speaks_of_what_is_there(
    example: Callable[[], Analysis], caption: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (said,) = (each for each in texts(example(), monkeypatch) if each.startswith("gain over"))
    assert said.endswith(caption)


@with_matplotlib
def test_where_nothing_is_compared_there_is_no_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    said = texts(experiments.with_only_failures(), monkeypatch)
    assert [each for each in said if each.startswith("gain")] == []
    assert said.count("failed") == 4
    assert texts(experiments.with_a_failed_cell(), monkeypatch).count("failed") == 1


@with_matplotlib
def test_the_title_of_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = experiments.with_a_metric().design
    made = [experiments.failed(each, "no match") for each in experiments.runs(plan, (1.0, 1.0, 1.0))]
    for whole in (experiments.with_a_metric(), experiments.analysis(plan, made)):
        assert "How the metric differs" in texts(whole, monkeypatch)


@with_matplotlib
def test_arrows_of_bars_that_are_cut_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: list[tuple[object, object]] = []
    original = Axes.plot

    def look(axes: Axes, *args: object, **kwargs: object) -> object:
        drawn.append((kwargs.get("marker"), kwargs.get("clip_on")))
        return original(axes, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Axes, "plot", look)
    plot.as_png(experiments.with_wide_intervals())
    assert [clipped for mark, clipped in drawn if mark == 5] == [False] * 3
