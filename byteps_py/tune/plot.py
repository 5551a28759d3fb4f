"""An analysis as a picture: what each cell gains, how sure that is, and where its time goes.

matplotlib is loaded here and nowhere else, when a picture is drawn. Nothing of its global state is changed for good:
figures are made without pyplot, and its settings are put back. Colours are those of Okabe and Ito (2008), which
people who are colour-blind can tell apart.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from byteps_py.tune import gains, wording
from byteps_py.tune.model import BASELINE
from byteps_py.tune.results import Analysis, Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "DPI", "FONT", "SMALL", "as_png"]

COLOURS = {
    "queue": "#999999",
    "copy in": "#56B4E9",
    "push": "#0072B2",
    "wait for others": "#F0E442",
    "server queue": "#E69F00",
    "sum": "#D55E00",
    "pull": "#009E73",
    "copy out": "#CC79A7",
}
"""Of the stages."""

_OTHER = "#333333"
_LESS, _MORE, _NONE, _DOT, _GRID = "#D55E00", "#0072B2", "#666666", "#999999", "#dddddd"
_WIDTH = 800
DPI = 100
FONT, SMALL = 9.5, 8.5
"""In points: at 100 dots an inch 13 and 12 pixels."""
_LINE, _ROW = 16, 20
"""Pixels: a line of a cell's name, and what a row has beyond its lines."""
_EDGE, _GAP, _RIGHT = 12, 14, 130
"""Pixels left of everything, between the names and the axes, and for the numbers right of them."""
_NAME_WIDTHS = range(40, 9, -2)
_NAME_ROOM = 240
"""How many characters a line of a name may have, so that it takes no more than so many pixels."""
_TITLE, _AXIS, _LEGEND_LINE = 40, 62, 22
_BAR, _DOTS = 20, 10
"""Pixels: how high a bar is, and how far below their interval the dots of the blocks are."""
_ARROWS = (4, 5)
"""matplotlib's numbers of marks that end at their point, to the left and to the right."""


def as_png(analysis: Analysis) -> bytes | None:
    """A picture, 800 pixels wide and as high as the cells need; the same bytes for the same analysis.

    For one thread at a time, since matplotlib's settings are exchanged for its defaults meanwhile.

    Returns:
        None if matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    stages = wording.stage_names(analysis)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.size": FONT, "font.family": "DejaVu Sans", "axes.unicode_minus": False})
        figure = Figure(dpi=DPI, facecolor="white")
        canvas: Any = FigureCanvasAgg(figure)
        _draw(figure, analysis, _layout(analysis, stages, partial(_pixels, canvas.get_renderer())))
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return out.getvalue()


@dataclass(frozen=True)
class _Layout:
    """Where things are, in pixels from the upper left.

    Attributes:
        names: of the cells, in lines.
        heights: of their rows.
        left: where the axes begin.
        stages: names of the stages; without any there is no lower panel.
    """

    names: tuple[list[str], ...]
    heights: tuple[int, ...]
    left: int
    stages: list[str]

    @property
    def panel(self) -> int:
        """Height of a panel."""
        return sum(self.heights)

    @property
    def lower(self) -> int:
        """Top of what is below the first panel."""
        return _TITLE + self.panel + _AXIS

    @property
    def lower_panel(self) -> int:
        """Top of the second panel."""
        return self.lower + _TITLE + _LEGEND_LINE * -(-len(self.stages) // 4)

    @property
    def whole(self) -> int:
        """Height of the picture."""
        return self.lower_panel + self.panel + _AXIS if self.stages else self.lower

    @property
    def middles(self) -> list[float]:
        """Where the rows of a panel have their middle, from its top."""
        return [sum(self.heights[:index]) + height / 2 for index, height in enumerate(self.heights)]


def _layout(analysis: Analysis, stages: list[str], pixels: Callable[[str], float]) -> _Layout:
    """The longest lines of names that the room allows; the axes get what short names leave."""
    names: tuple[list[str], ...] = ()
    widest = 0.0
    for width in _NAME_WIDTHS:
        names = tuple(wording.fold(_text(cell.cell.label), width) for cell in analysis.cells)
        widest = max(pixels(line) for name in names for line in name)
        if widest <= _NAME_ROOM:
            break
    heights = tuple(_LINE * len(name) + _ROW for name in names)
    return _Layout(names, heights, _EDGE + _GAP + int(min(widest, _NAME_ROOM)), stages)


def _pixels(renderer: Any, line: str) -> float:
    from matplotlib.font_manager import FontProperties

    width, _, _ = renderer.get_text_width_height_descent(line, FontProperties(size=FONT), False)
    return float(width)


def _draw(figure: Figure, analysis: Analysis, layout: _Layout) -> None:
    figure.set_size_inches(_WIDTH / DPI, layout.whole / DPI)
    axes = _panel(figure, layout, _TITLE)
    _gains(axes, analysis, layout)
    what = "How the metric differs" if wording.is_metric(analysis) else "How much faster"
    _heading(figure, layout, 0, what, wording.state(analysis))
    if layout.stages:
        axes = _panel(figure, layout, layout.lower_panel)
        _bars(axes, analysis, layout)
        _heading(figure, layout, layout.lower, "Where the time goes")
        _legend(figure, layout)


def _panel(figure: Figure, layout: _Layout, top: int) -> Axes:
    """Axes whose vertical unit is a pixel, from the top; the names of the cells stand left of them."""
    bottom, width = layout.whole - top - layout.panel, _WIDTH - layout.left - _RIGHT
    axes = figure.add_axes((layout.left / _WIDTH, bottom / layout.whole, width / _WIDTH, layout.panel / layout.whole))
    axes.set_ylim(layout.panel, 0)
    axes.set_yticks([])
    axes.tick_params(axis="x", labelsize=SMALL)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for name, middle in zip(layout.names, layout.middles, strict=True):
        height = 1.0 - (top + middle) / layout.whole
        figure.text(_EDGE / _WIDTH, height, "\n".join(name), va="center", linespacing=1.05)
    return axes


def _gains(axes: Axes, analysis: Analysis, layout: _Layout) -> None:
    """Points with intervals, a dot for each block, and the numbers right of them."""
    limits = gains.gain_limits(analysis)
    axes.set_xlim(*limits)
    compared = [cell.against_baseline for cell in analysis.cells if cell.against_baseline is not None]
    text_at = max(limits[0], 0.0) if compared else limits[0]
    for index, (cell, middle) in enumerate(zip(analysis.cells, layout.middles, strict=True)):
        interval = cell.against_baseline
        if cell.median is None:
            _say(axes, text_at, middle, wording.without_value(cell), _LESS if cell.failed else _NONE)
        elif index == BASELINE:
            axes.plot([0.0], [middle], "D", color="black", markersize=6, clip_on=False)
            unit = "" if cell.unit == "metric" else f" {cell.unit}"
            _beside(axes, middle, _text(f"{wording.number(cell.median)}{unit}"))
        elif interval is None:
            _say(axes, text_at, middle, "nothing to compare", _NONE)
        else:
            _interval(axes, interval, middle, limits)
            dots = [_within(ratio, limits) for ratio in gains.block_ratios(analysis, index)]
            at = [middle + _DOTS] * len(dots)
            axes.plot(dots, at, "o", color=_DOT, markersize=3.5, markeredgewidth=0, alpha=0.8, clip_on=False)
            _beside(axes, middle, f"{gains.percent(interval.ratio)}\n{gains.short_range(interval)}")
    if compared:
        axes.axvline(0.0, color="black", linewidth=1.0)
        axes.ticklabel_format(axis="x", style="plain", useOffset=False)
        axes.set_xlabel(_caption(analysis, compared), fontsize=SMALL)
    else:
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)


def _interval(axes: Axes, interval: Interval, middle: float, limits: tuple[float, float]) -> None:
    """A bar with its middle; what is beyond the limits is an arrow at the edge, where nothing cuts it."""
    colour = {"more": _MORE, "less": _LESS}.get(interval.verdict, _NONE)
    if interval.low is not None and interval.high is not None:
        ends = _within(interval.low, limits), _within(interval.high, limits)
        axes.plot(ends, [middle, middle], color=colour, linewidth=2.4, solid_capstyle="butt")
        for ratio, end, arrow in zip((interval.low, interval.high), ends, _ARROWS, strict=True):
            mark = "|" if end == gains.gain(ratio) else arrow
            style: dict[str, Any] = {"marker": mark, "markersize": 9, "markeredgewidth": 2.0, "clip_on": False}
            axes.plot([end], [middle], linestyle="", color=colour, **style)
    axes.plot([_within(interval.ratio, limits)], [middle], "o", color=colour, markersize=7.5, clip_on=False)


def _within(ratio: float, limits: tuple[float, float]) -> float:
    return min(max(gains.gain(ratio), limits[0]), limits[1])


def _caption(analysis: Analysis, compared: Sequence[Interval]) -> str:
    """What the marks mean: those that there are."""
    verdicts = {each.verdict for each in compared}
    better, worse = ("more", "less") if wording.is_metric(analysis) else ("faster", "slower")
    meanings = {
        "more": f"blue: {better}",
        "less": f"red: {worse}",
        "none": "grey: no difference shown",
        "unknown": "grey: one block, nothing can be said",
    }
    if {"none", "unknown"} <= verdicts:
        meanings["none"] = "grey: no difference shown, or one block"
        verdicts.remove("unknown")
    intervals = ", with 95 % interval" if any(each.low is not None for each in compared) else ""
    colours = ", ".join(meaning for verdict, meaning in meanings.items() if verdict in verdicts)
    return f"gain over the baseline in %{intervals}; small dots: single blocks\n{colours}"


def _bars(axes: Axes, analysis: Analysis, layout: _Layout) -> None:
    """Stacked bars: milliseconds of each stage."""
    sums = [0.0]
    for cell, middle in zip(analysis.cells, layout.middles, strict=True):
        times = {each.name: 1000.0 * each.seconds_per_step for each in cell.stages}
        left = 0.0
        for name in layout.stages:
            if (time := times.get(name, 0.0)) > 0:
                colour = COLOURS.get(name, _OTHER)
                axes.barh(middle, time, _BAR, left=left, color=colour, edgecolor="white", linewidth=0.6)
                left += time
        sums.append(left)
        if not times:
            # That it failed is said in the panel above.
            _say(axes, 0.0, middle, "not recorded" if cell.values else "-", _NONE)
    axes.set_xlim(0.0, 1.02 * max(sums) or 1.0)
    for total, middle in zip(sums[1:], layout.middles, strict=True):
        if total > 0:
            _beside(axes, middle, f"{wording.short(total)} ms")
    axes.set_xlabel(
        "ms per step of each worker, without what the script computes itself; partitions side by side count each",
        fontsize=SMALL,
    )


def _legend(figure: Figure, layout: _Layout) -> None:
    """Above the lower panel."""
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=COLOURS.get(name, _OTHER), label=_text(name)) for name in layout.stages]
    figure.legend(
        handles=patches,
        loc="upper left",
        bbox_to_anchor=(_EDGE / _WIDTH, 1.0 - (layout.lower + _TITLE) / layout.whole),
        ncol=4,
        frameon=False,
        fontsize=SMALL,
        borderpad=0.0,
        borderaxespad=0.0,
        handlelength=1.2,
        columnspacing=2.0,
    )


def _heading(figure: Figure, layout: _Layout, top: int, text: str, more: str = "") -> None:
    height = 1.0 - (top + _TITLE * 0.7) / layout.whole
    figure.text(_EDGE / _WIDTH, height, text, fontsize=FONT + 2, fontweight="bold")
    figure.text(1.0 - _EDGE / _WIDTH, height, more, fontsize=SMALL, color=_NONE, ha="right")


def _beside(axes: Axes, middle: float, text: str) -> None:
    """Text right of the axes."""
    axes.annotate(
        text,
        (1.0, middle),
        xycoords=("axes fraction", "data"),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        linespacing=1.25,
        annotation_clip=False,
    )


def _say(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    axes.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center", color=colour, fontweight="bold")


def _text(text: str) -> str:
    """What matplotlib would take for a formula is none; signs that its font may lack are replaced."""
    return wording.plain(text).encode("latin-1", "replace").decode("latin-1").replace("$", r"\$")
