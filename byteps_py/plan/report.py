"""A plan as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import Any, Final

from byteps_py.plan.layouts import MIXED, ONE_HOST, Row
from byteps_py.plan.planning import Job, Plan, gain, step_bounds
from byteps_py.plan.units import say_bytes, say_count, say_ratio, say_seconds, say_speed

__all__ = ["as_json", "as_text", "costs_line"]

_WIDTH: Final = 100


def as_text(plan: Plan) -> str:
    """A table with a row for each layout, and why one is the best."""
    job = plan.job
    table = [_heads(job)] + [_cells(plan, row) for row in plan.rows]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = [*_question(job), ""]
    kind = plan.rows[0].layout.kind
    for index, line in enumerate(table):
        if index and plan.rows[index - 1].layout.kind != kind:
            kind = plan.rows[index - 1].layout.kind
            lines.append("")
        cells = [
            word.ljust(width) if column in (0, len(line) - 1) else word.rjust(width)
            for column, (word, width) in enumerate(zip(line, widths, strict=True))
        ]
        mark = "*" if index and plan.rows[index - 1] is plan.best else " "
        lines.append(f"{mark} {'  '.join(cells)}".rstrip())
    lines += ["", *textwrap.wrap(" ".join(plan.why), _WIDTH)]
    bounds = step_bounds(job, plan.best)
    if bounds is not None:
        step = (
            f"A step that computes for {say_seconds(job.compute_seconds or 0.0)} takes {say_seconds(bounds[0])} if the "
            f"exchange is hidden behind it as far as that goes, {say_seconds(bounds[1])} if it is not."
        )
        lines += textwrap.wrap(step, _WIDTH)
    return "\n".join(lines)


def costs_line(job: Job) -> str:
    """What was reckoned with, in one line."""
    costs = job.costs
    return (
        f"Costs, {job.origin}: a core sums {say_speed(costs.sum_rate)} and copies {say_speed(costs.copy_rate)}; "
        f"TCP takes {costs.wire_seconds * 1e9:.2f} s of CPU time per GB at each end, a partition "
        f"{say_seconds(costs.message_seconds)} in each process."
    )


def _question(job: Job) -> list[str]:
    what = f"{job.model}: " if job.model else ""
    gradients = f"{what}{say_bytes(job.nbytes)} of gradients"
    if job.specs is not None:
        gradients += f" in {say_count(len(job.specs), 'tensor')}"
    if job.one_host or job.link is None:
        where = f"{say_count(job.workers, 'worker')} on one host of {say_count(job.cores, 'core')}"
    else:
        where = f"{say_count(job.workers, 'worker machine')} of {say_count(job.cores, 'core')}"
        if job.local_size > 1:
            where += f" and {job.local_size} workers each"
        where += f", server machines of {job.server_cores}, links of {say_speed(job.link)} each way"
    return textwrap.wrap(f"{gradients}; {where}.", _WIDTH) + textwrap.wrap(costs_line(job), _WIDTH)


def _heads(job: Job) -> list[str]:
    heads = ["layout", "servers", "machines", "partition", "exchange", "over optimum", "gain", "limited by"]
    if job.compute_seconds is not None:
        heads.insert(-1, "step")
    if job.one_host:
        heads.remove("machines")
    return heads


def _cells(plan: Plan, row: Row) -> list[str]:
    job, layout, prediction = plan.job, row.layout, row.prediction
    saved = gain(plan.rows, row)
    servers = f"{job.workers} + {layout.extra}" if layout.kind == MIXED else str(layout.servers)
    cells = [layout.kind, servers]
    if layout.kind != ONE_HOST:
        cells.append(str(len(layout.machines)))
    cells += [
        say_bytes(prediction.partition_bytes),
        say_seconds(prediction.seconds),
        say_ratio(prediction.seconds / prediction.optimum),
        "" if saved is None else f"{saved + 0.0:.0%}".replace("-0%", "0%"),
    ]
    bounds = step_bounds(job, row)
    if bounds is not None:
        cells.append(f"{say_seconds(bounds[0])} to {say_seconds(bounds[1])}")
    return [*cells, prediction.limit]


def as_json(plan: Plan) -> str:
    """The same as a JSON object: ``job``, ``rows``, ``best`` (one of them) and ``why``; seconds and bytes."""
    job = dataclasses.asdict(plan.job)
    specs = job.pop("specs")
    job["tensors"] = None if specs is None else len(specs)
    content = {
        "job": job,
        "rows": [_row(plan, each) for each in plan.rows],
        "best": _row(plan, plan.best),
        "why": list(plan.why),
    }
    return json.dumps(content, indent=2)


def _row(plan: Plan, row: Row) -> dict[str, Any]:
    layout, prediction = row.layout, row.prediction
    bounds = step_bounds(plan.job, row)
    found = {
        "layout": layout.kind,
        "servers": layout.servers,
        "extra_machines": layout.extra,
        "seconds": prediction.seconds,
        "optimum_seconds": prediction.optimum,
        "over_optimum": prediction.seconds / prediction.optimum,
        "gain": gain(plan.rows, row),
        "limit": prediction.limit,
        "partition_bytes": prediction.partition_bytes,
        "terms": {each.name: each.seconds for each in prediction.terms},
        "shares": list(prediction.shares),
    }
    if bounds is not None:
        found["step_seconds"] = {"overlapped": bounds[0], "not_overlapped": bounds[1]}
    return found
