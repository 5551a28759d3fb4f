"""Small drawings within the page, as SVG: an interval, and a bar of stages. Their colours follow those of the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from byteps_py.tune import gains, wording
from byteps_py.tune.plot import COLOURS
from byteps_py.tune.results import Interval, StageShare

__all__ = ["colour", "interval_bar", "stage_bar"]

_WIDTH, _HEIGHT = 190, 24
_MARGIN = 5
"""Beyond the limits, so that no mark there is cut."""
_MIDDLE, _DOTS = 9, 19
_STAGE_WIDTH, _STAGE_HEIGHT = 240, 12
_OTHER = "#777777"


def colour(stage: str) -> str:
    """Of a stage, the same as in the picture."""
    return COLOURS.get(stage, _OTHER)


def interval_bar(interval: Interval, ratios: Sequence[float], limits: tuple[float, float]) -> str:
    """The interval as a bar with its middle, and a dot below it for each block.

    Args:
        interval: what to draw; an end beyond the limits is drawn as an arrow.
        ratios: of the single blocks.
        limits: gains in per cent at the left and the right edge; there is a line at 0.
    """

    def place(ratio: float) -> float:
        low, high = limits
        return _WIDTH * min(1.0, max(0.0, (gains.gain(ratio) - low) / (high - low)))

    kind = interval.verdict
    words = gains.range_words(interval)
    said = gains.percent(interval.ratio) + (f", 95 % interval {words}" if words else "")
    parts = [f'<line class="zero" x1="{place(1.0):.1f}" x2="{place(1.0):.1f}" y1="0" y2="{_HEIGHT}"/>']
    if interval.low is not None and interval.high is not None:
        left, right = place(interval.low), place(interval.high)
        parts.append(
            f'<line class="{kind}" stroke-width="2.5" x1="{left:.1f}" x2="{right:.1f}" y1="{_MIDDLE}" y2="{_MIDDLE}"/>'
        )
        for ratio, at, inwards in ((interval.low, left, 1), (interval.high, right, -1)):
            beyond = not limits[0] <= gains.gain(ratio) <= limits[1]
            lean = 6 * inwards if beyond else 0
            points = f"{at + lean:.1f},{_MIDDLE - 5} {at:.1f},{_MIDDLE} {at + lean:.1f},{_MIDDLE + 5}"
            parts.append(f'<polyline class="{kind}" stroke-width="2" style="fill:none" points="{points}"/>')
    parts.append(f'<circle class="{kind}" r="3.5" cx="{place(interval.ratio):.1f}" cy="{_MIDDLE}"/>')
    parts += [f'<circle class="block" r="2" cx="{place(ratio):.1f}" cy="{_DOTS}"/>' for ratio in ratios]
    return _svg(_WIDTH, _HEIGHT, said, parts, _MARGIN)


def stage_bar(stages: Sequence[StageShare], longest: float) -> str:
    """The stages side by side, each as long as it takes; ``longest`` seconds have the whole width."""
    parts = []
    left = 0.0
    for stage in stages:
        width = _STAGE_WIDTH * stage.seconds_per_step / longest if longest > 0 else 0.0
        if width > 0:
            text = escape(f"{stage.name}: {wording.short(1000 * stage.seconds_per_step)} ms")
            parts.append(
                f'<rect class="part" fill="{colour(stage.name)}" x="{left:.1f}" y="0" width="{width:.1f}" '
                f'height="{_STAGE_HEIGHT}"><title>{text}</title></rect>'
            )
        left += width
    return _svg(_STAGE_WIDTH, _STAGE_HEIGHT, "the stages as a bar", parts) if parts else ""


def _svg(width: int, height: int, said: str, parts: Sequence[str], margin: int = 0) -> str:
    whole = width + 2 * margin
    head = (
        f'<svg role="img" aria-label="{escape(said)}" width="{whole}" height="{height}" '
        f'viewBox="{-margin} 0 {whole} {height}">'
    )
    return head + "".join(parts) + "</svg>"
