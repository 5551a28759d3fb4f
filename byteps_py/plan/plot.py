"""A plan as a picture: seconds of an exchange by the number of servers, a line for each layout.

matplotlib is loaded here and nowhere else, when a picture is drawn, without pyplot; its settings are put back.
"""

from __future__ import annotations

import io
from typing import Final

from byteps_py.plan.layouts import COLOCATED, MIXED, ONE_HOST, SEPARATE
from byteps_py.plan.planning import Plan

__all__ = ["as_png"]

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


def as_png(plan: Plan) -> bytes | None:
    """A picture of 800 x 500 pixels; the same bytes for the same plan. For one thread at a time.

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
        matplotlib.rcParams.update({"font.size": 9.5, "font.family": "DejaVu Sans"})
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
        figure.savefig(out, format="png", dpi=100, metadata={"Software": None})
    return out.getvalue()
