"""A plan as a picture: seconds of an exchange by the number of servers, a line for each layout.

matplotlib is loaded here and nowhere else, when a picture is drawn, without pyplot; its settings are put back.
"""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any, Final

from byteps_py.plan.layouts import COLOCATED, MIXED, ONE_HOST, SEPARATE
from byteps_py.plan.planning import Plan

__all__ = ["FORMATS", "can_draw", "draw", "format_of"]

FORMATS: Final = ("png", "svg", "pdf")
"""What a picture can be, by the end of its file's name."""
_METADATA: Final[dict[str, dict[str, Any]]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
"""Without what changes from day to day: the same plan gives the same file."""

_COLOURS: Final = {SEPARATE: "#0072B2", COLOCATED: "#D55E00", MIXED: "#009E73", ONE_HOST: "#0072B2"}
"""Of Okabe and Ito (2008), which people who are colour-blind can tell apart."""
_MARKERS: Final = {SEPARATE: "o", COLOCATED: "s", MIXED: "^", ONE_HOST: "o"}
_WIDE: Final = 8
"""Of times that differ by more, a linear axis would show only the longest."""
_NAMES: Final = {
    SEPARATE: "servers on machines of their own",
    COLOCATED: "servers on the worker machines",
    MIXED: "one on each worker machine, and these",
    ONE_HOST: "everything on one host",
}


def format_of(path: Path) -> str:
    """One of :data:`FORMATS`; empty for a name that ends otherwise."""
    end = path.suffix.lower().removeprefix(".")
    return end if end in FORMATS else ""


def can_draw() -> bool:
    """Whether matplotlib is installed; it is not loaded."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(plan: Plan, form: str = "png") -> bytes | None:
    """A picture of 800 x 500 pixels; the same bytes for the same plan. For one thread at a time.

    Args:
        plan: what is drawn.
        form: one of :data:`FORMATS`.

    Returns:
        None if matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.size": 9.5, "font.family": "DejaVu Sans", "svg.hashsalt": "byteps_py"})
        figure = Figure(figsize=(8, 5), dpi=100, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.1, 0.11, 0.86, 0.8))
        for kind in dict.fromkeys(row.layout.kind for row in plan.rows):
            rows = [each for each in plan.rows if each.layout.kind == kind]
            own = plan.job.workers if kind == MIXED else 0
            counts = [each.layout.servers - own for each in rows]
            seconds = [each.prediction.seconds for each in rows]
            axes.plot(counts, seconds, color=_COLOURS[kind], marker=_MARKERS[kind], label=_NAMES[kind], linewidth=1.5)
            if plan.best in rows:
                axes.plot(
                    [plan.best.layout.servers - own],
                    [plan.best.prediction.seconds],
                    color=_COLOURS[kind],
                    marker=_MARKERS[kind],
                    markersize=13,
                    fillstyle="none",
                )
        slowest = max(each.prediction.seconds for each in plan.rows)
        if slowest > _WIDE * plan.best.prediction.seconds:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel("servers")
        axes.set_ylabel("seconds of an exchange")
        axes.set_title("Exchange of gradients by the number of servers", loc="left", fontweight="bold")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
        axes.legend(frameon=False)
        out = io.BytesIO()
        figure.savefig(out, format=form, dpi=100, metadata=_METADATA[form])
    return out.getvalue()
