"""An analysis as one HTML page that needs nothing else: no network, no script, no other file.

Everything that comes from outside, such as labels, logs and commands, goes through :func:`html.escape`. The page
forbids itself to load anything (Content-Security-Policy), so even a mistake here could not make a browser do so.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from byteps_py.tune import drawing, gains, remarks, wording
from byteps_py.tune.model import BASELINE
from byteps_py.tune.results import Analysis, CellResult, Interval

__all__ = ["as_html"]

_NOTHING = "\u2013"
_PIECE = 32
"""Letters of a name that stay in one line: there is room for so many."""
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --quiet: #5d6670; --paper: #ffffff; --line: #d5dae0;
  --soft: #f3f5f7; --more: #0072b2; --less: #c04e00; --none: #6d747c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --quiet: #9fa8b2; --paper: #15181c; --line: #3a414a;
  --soft: #20252b; --more: #56b4e9; --less: #f08a4b; --none: #9fa8b2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p { margin: .3rem 0; }
.quiet, small { color: var(--quiet); font-size: .875rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; font-size: .9375rem; }
th, td { padding: .3rem .55rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
thead th { vertical-align: bottom; background: var(--soft); }
td { white-space: nowrap; }
tr.open > * { border-bottom: 0; padding-bottom: 0; }
.left { text-align: left; }
tbody th span { white-space: nowrap; }
tbody th { text-align: left; font-weight: 400; min-width: 14rem; max-width: 24rem; overflow-wrap: anywhere; }
small { display: block; white-space: normal; }
.more { color: var(--more); font-weight: 600; }
.less, .failed { color: var(--less); font-weight: 600; }
.key { display: block; width: .8em; height: .8em; margin: 0 0 .2em auto; border-radius: 2px; }
svg { display: block; }
svg .more { stroke: var(--more); fill: var(--more); }
svg .less { stroke: var(--less); fill: var(--less); }
svg .none, svg .unknown { stroke: var(--none); fill: var(--none); }
svg .zero { stroke: var(--ink); }
svg .block { fill: var(--quiet); opacity: .6; }
svg .part { stroke: var(--paper); }
pre { overflow-x: auto; padding: .7rem; background: var(--soft); border: 1px solid var(--line); border-radius: 4px;
  font: .8125rem/1.45 ui-monospace, monospace; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .5rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
figure { margin: .5rem 0; }
img { max-width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line); border-radius: 4px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dd { margin: 0; overflow-wrap: anywhere; }
@media print { body { max-width: none; } pre { white-space: pre-wrap; } }
"""


def as_html(analysis: Analysis, png: bytes | None) -> str:
    """The whole result as an HTML5 page.

    Args:
        analysis: what to show.
        png: the picture of it, which becomes a part of the page; None: there is none.
    """
    return "\n".join(_page(analysis, png)) + "\n"


def _page(analysis: Analysis, png: bytes | None) -> Iterator[str]:
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    headline = escape(wording.headline(analysis))
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>bps ab: {headline}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>"
    yield f"<h1>{headline}</h1>"
    yield f"<p>{escape(wording.state(analysis))}.</p>"
    when = "; ".join(each for each in (wording.plain(analysis.machine), _period(analysis)) if each)
    if when:
        yield f'<p class="quiet">{escape(when)}</p>'
    yield from _cells(analysis)
    yield from _effects(analysis)
    if png is not None:
        yield from _picture(analysis, png)
    yield from _stages(analysis)
    yield from _cpu(analysis)
    yield from _openmp(analysis)
    if analysis.notes:
        yield "<h2>Notes</h2>\n<ul>"
        yield from (f"<li>{escape(wording.plain(note))}</li>" for note in analysis.notes)
        yield "</ul>"
    yield from _failures(analysis)
    yield from _repeat(analysis)
    yield "</main>\n</body>\n</html>"


def _table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Sequence[int] = (),
    said: Sequence[Sequence[str]] = (),
) -> Iterator[str]:
    """A table; titles and cells are HTML already, the first of a row is its heading.

    The columns ``left`` are aligned to the left. ``said``, plain text, stand below the rows, as wide as the table.
    """
    yield '<div class="wide"><table>\n<thead><tr>'
    for column, title in enumerate(titles):
        yield f'<th scope="col"{_left(column in left or column == 0)}>{title}</th>'
    yield "</tr></thead>\n<tbody>"
    for number, row in enumerate(rows):
        below = said[number] if said else ()
        cells = "".join(f"<td{_left(column in left)}>{cell}</td>" for column, cell in enumerate(row) if column)
        yield f'<tr{_class("open") if below else ""}><th scope="row">{row[0]}</th>{cells}</tr>'
        if below:
            lines = "".join(f"<small>{escape(each)}</small>" for each in below)
            yield f'<tr><td class="left" colspan="{len(titles)}">{lines}</td></tr>'
    yield "</tbody>\n</table></div>"


def _name(cell: CellResult) -> str:
    return _breakable(wording.plain(cell.cell.label))


def _breakable(text: str) -> str:
    """Long names are broken where they are in a terminal; a browser would break them at hyphens."""
    return "<wbr>".join(f"<span>{escape(each)}</span>" for each in wording.pieces(text, _PIECE))


def _left(is_left: bool) -> str:
    return _class("left") if is_left else ""


def _class(name: str) -> str:
    return f' class="{name}"'


def _cells(analysis: Analysis) -> Iterator[str]:
    units = wording.units(analysis)
    unit = units[0] if len(units) == 1 else "value"
    limits = gains.gain_limits(analysis)
    rows = []
    for index, cell in enumerate(analysis.cells):
        interval = cell.against_baseline
        if cell.median is None:
            median, verdict = _NOTHING, f'<span class="failed">{wording.without_value(cell)}</span>'
        else:
            median = escape(wording.number(cell.median) + (f" {cell.unit}" if len(units) > 1 else ""))
            verdict = "" if index == BASELINE else _verdict(interval, cell.unit)
        drawn = drawing.interval_bar(interval, gains.block_ratios(analysis, index), limits) if interval else ""
        runs = str(cell.done + cell.failed) + (f"<small>{cell.failed} failed</small>" if cell.failed else "")
        rows.append([_name(cell), median, *_gain(interval), verdict, drawn, runs])
    said = remarks.of_cells(analysis)
    yield "<h2>The combinations</h2>"
    yield from _table(["", f"{escape(unit)}, median", "gain", "95 % interval", "", "", "runs"], rows, (4, 5), said.rows)
    yield from (f"<p>{escape(each)}</p>" for each in said.below)
    yield f'<p class="quiet">{escape(remarks.MEANING)} Bars: the 95 % interval; dots: single blocks; upright line: no'
    yield "gain.</p>"


def _gain(interval: Interval | None) -> Iterator[str]:
    return map(escape, wording.gain_words(interval, _NOTHING))


def _verdict(interval: Interval | None, unit: str) -> str:
    kind = interval.verdict if interval is not None else "unknown"
    return f'<span class="{kind}">{escape(wording.verdict_words(interval, unit))}</span>'


def _effects(analysis: Analysis) -> Iterator[str]:
    if not wording.has_effects(analysis):
        return
    unit = wording.units(analysis)[0]
    limits = gains.gain_limits(analysis)
    rows = []
    for effect in analysis.effects:
        drawn = drawing.interval_bar(effect.interval, (), limits) if effect.interval else ""
        blocks = str(effect.interval.blocks) if effect.interval else _NOTHING
        rows.append(
            [
                _breakable(wording.effect_name(effect)),
                *_gain(effect.interval),
                _verdict(effect.interval, unit),
                drawn,
                blocks,
            ]
        )
    said = remarks.of_effects(analysis.effects)
    yield "<h2>Each factor by itself, averaged over the levels of the others</h2>"
    yield from _table(["", "gain", "95 % interval", "", "", "blocks"], rows, (3, 4), said.rows)
    yield from (f"<p>{escape(each)}</p>" for each in said.below)


def _picture(analysis: Analysis, png: bytes) -> Iterator[str]:
    parts = [
        f"{cell.cell.label}: {gains.percent(cell.against_baseline.ratio)}"
        for cell in analysis.cells
        if cell.against_baseline is not None
    ]
    text = wording.plain(f"Gain of each combination over the baseline. {'; '.join(parts)}")
    data = base64.b64encode(png).decode("ascii")
    yield "<h2>In a picture</h2>"
    yield f'<figure><img alt="{escape(text)}" src="data:image/png;base64,{data}"></figure>'


def _stages(analysis: Analysis) -> Iterator[str]:
    names = wording.stage_names(analysis)
    if not names:
        return
    longest = max(sum(each.seconds_per_step for each in cell.stages) for cell in analysis.cells)
    rows = []
    for cell in analysis.cells:
        stages = {each.name: each for each in cell.stages}
        texts = [
            f"{wording.short(1000 * stages[name].seconds_per_step)}<small>{100 * stages[name].share:.0f} %</small>"
            if name in stages
            else _NOTHING
            for name in names
        ]
        drawn = drawing.stage_bar(cell.stages, longest)
        rows.append([_name(cell) + drawn, *texts])
    titles = [
        f'<span class="key" style="background:{drawing.colour(name)}"></span>{escape(wording.plain(name))}'
        for name in names
    ]
    yield "<h2>Where the time goes</h2>"
    yield '<p class="quiet">Milliseconds per step of each worker, and the share of the sum of the stages.'
    yield f"{wording.ABOUT_STAGES}</p>"
    yield from _table(["", *titles], rows)


def _cpu(analysis: Analysis) -> Iterator[str]:
    roles = [role for role in wording.ROLES if any(use.role == role for cell in analysis.cells for use in cell.cpu)]
    if not roles:
        return
    rows = []
    for cell in analysis.cells:
        row = [_name(cell)]
        for role in roles:
            use = next((each for each in cell.cpu if each.role == role), None)
            if use is None:
                row += [_NOTHING, _NOTHING]
            else:
                number = wording.count(use.processes, role)
                row += [f"{use.cores:.2f}<small>{number}</small>", wording.short(1000 * use.seconds_per_step)]
        rows.append(row)
    known = wording.cores(analysis)
    yield "<h2>CPU by role</h2>"
    known = f"; for comparison: {known}" if known else ""
    yield f'<p class="quiet">Cores kept busy by all processes of a role, and CPU in ms per step{escape(known)}.</p>'
    titles = [title for role in roles for title in (f"{role}<br>cores", f"{role}<br>ms/step")]
    yield from _table(["", *titles], rows)


def _openmp(analysis: Analysis) -> Iterator[str]:
    if not any(wording.knows_openmp(cell) for cell in analysis.cells):
        return
    rows = [[_name(cell), *map(escape, wording.openmp_facts(cell))] for cell in analysis.cells]
    titles = ["", "server<br>engines", "server<br>team", "server<br>policy", "worker<br>team", "worker<br>policy"]
    yield "<h2>OpenMP as the processes really had it</h2>"
    yield '<p class="quiet">Engine threads of a server, OpenMP threads of a team, and how idle ones wait.</p>'
    yield from _table(titles, rows, left=(3, 5))


def _failures(analysis: Analysis) -> Iterator[str]:
    failed = [(index, cell) for index, cell in enumerate(analysis.cells) if cell.failed]
    if failed:
        yield "<h2>What failed</h2>"
    for index, cell in failed:
        yield from _failure(analysis, index, cell)


def _failure(analysis: Analysis, index: int, cell: CellResult) -> Iterator[str]:
    label = escape(wording.plain(cell.cell.label))
    summary = f"{label}: {wording.failed_words(cell.failed, cell.failed + cell.done)}"
    yield f"<details{'' if cell.values else ' open'}><summary>{summary}</summary>"
    yield "<ul>"
    yield from (f"<li>{escape(each)}</li>" for each in remarks.failures(analysis, index))
    yield "</ul>"
    end = wording.log_end(cell.log, lines=200)
    if end:
        yield "<p>The first of them ended its output so:</p>"
        yield f"<pre>{escape(chr(10).join(end))}</pre>"
    yield "</details>"


def _repeat(analysis: Analysis) -> Iterator[str]:
    design = analysis.design
    yield "<h2>How it was made</h2>\n<dl>"
    for factor in design.factors:
        levels = ", ".join(level or "(empty)" for level in factor.levels)
        yield f"<dt>{escape(wording.plain(factor.name))}</dt><dd>{escape(wording.plain(levels))}</dd>"
    ends = f"{design.steps} steps after {design.warmup_steps} of warm-up" if design.steps else "until the run ended"
    yield f"<dt>measured</dt><dd>{ends}</dd>"
    if design.metric:
        yield f"<dt>metric</dt><dd>{escape(wording.plain(design.metric))}</dd>"
    if environment := wording.environment(design):
        yield f"<dt>environment</dt><dd>{escape(wording.plain(environment))}</dd>"
    command = wording.command_line(design)
    if command:
        yield "<dt>order</dt><dd>each block has one run of each combination, in random order</dd>"
    yield "</dl>"
    if command:
        yield "<p>To make the same experiment again, give a new folder for DIR:</p>"
        yield f'<pre class="command">{escape(command)}</pre>'


def _period(analysis: Analysis) -> str:
    """When the runs were made, in UTC; empty if they do not say."""
    times = [when for run in analysis.runs if (when := wording.moment(run.started))]
    if not times:
        return ""
    first, last = (each.strftime("%Y-%m-%d %H:%M") for each in (min(times), max(times)))
    return f"{first} UTC" if first == last else f"{first} to {last} UTC"
