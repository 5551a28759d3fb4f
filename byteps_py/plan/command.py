"""``bps plan``: from the words of the command line to the answer."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from byteps_py.errors import SettingsError
from byteps_py.plan import arguments, link, measuring, planning, plot, report
from byteps_py.plan.costs import Costs
from byteps_py.plan.layouts import MOST_SERVERS
from byteps_py.plan.planning import Job
from byteps_py.plan.tensors import Model, read_model
from byteps_py.plan.units import FASTEST, MOST_BYTES, say_speed
from byteps_py.standard_output import show
from byteps_py.types import DType

__all__ = ["Known", "read_costs", "run"]

_LINK: Final = "link"
_NO_MATPLOTLIB: Final = "--plot needs matplotlib: pip install 'byteps_py[plot]'"


@dataclass(frozen=True)
class Known:
    """What was measured, or read from a file.

    Attributes:
        costs: of the machines.
        link: bytes per second, None if nothing is known of it.
        origin: ``assumed``, ``measured here`` or ``from FILE``.
    """

    costs: Costs
    link: float | None
    origin: str


def run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Do what was asked for, and print it; returns the exit status.

    Args:
        asked: the options of :func:`arguments.add_options`.
        environ: of the job that ``--measure`` starts.

    Raises:
        SettingsError: the options do not fit together, a file cannot be read or written, or a job could not declare
            the tensors.
        BytePSError: something could not be measured.
    """
    arguments.check(asked)
    for path in (asked.save, asked.plot):
        _check_writable(path)
    if asked.plot is not None and not plot.can_draw():
        raise SettingsError(_NO_MATPLOTLIB)
    if asked.listen is not None:
        rate = link.listen(asked.listen, _say)
        show(json.dumps({_LINK: rate}) if asked.json else f"link: {say_speed(rate)} each way")
        return 0
    known = read_costs(asked.costs) if asked.costs is not None else Known(Costs(), None, "assumed")
    model = _model(asked)
    if asked.workers is not None and known.link is None and asked.link is None and asked.peer is None:
        _check_link(asked)
    known = _measured(asked, environ, known)
    if asked.save is not None:
        _write(asked.save, (_as_object(known) + "\n").encode())
    if asked.workers is None:
        show(_as_object(known) if asked.json else _in_words(known))
        return 0
    plan = planning.make(_job(asked, known, model))
    if asked.plot is not None:
        picture = plot.draw(plan, plot.format_of(asked.plot))
        if picture is None:
            raise SettingsError(_NO_MATPLOTLIB)
        _write(asked.plot, picture)
    show(report.as_json(plan) if asked.json else report.as_text(plan))
    return 0


def read_costs(path: Path) -> Known:
    """What ``--save`` has written.

    Raises:
        SettingsError: it cannot be read, or is something else.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"--costs {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"--costs {path} is no JSON: {error}") from None
    names = {each.name for each in dataclasses.fields(Costs)}
    if not isinstance(content, dict) or not content or not content.keys() <= names | {_LINK}:
        raise SettingsError(f"--costs {path} must be an object with some of {', '.join(sorted(names))} and {_LINK}")
    for name, value in content.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise SettingsError(f"--costs {path}: {name} must be a number from 0 on, not {value!r}")
        if name.endswith("_rate") and value > MOST_BYTES:
            raise SettingsError(
                f"--costs {path}: {name}={value} must be no more than {MOST_BYTES:.0e} bytes per second"
            )
    try:
        costs = Costs(**{name: float(value) for name, value in content.items() if name in names})
    except ValueError as error:
        raise SettingsError(f"--costs {path}: {error}") from None
    speed = content.get(_LINK)
    if speed is not None and not 1 <= speed <= FASTEST:
        raise SettingsError(f"--costs {path}: {_LINK}={speed} must be bytes per second, from 1 to {FASTEST:.0e}")
    return Known(costs, speed, f"from {path.name}")


def _check_link(asked: argparse.Namespace) -> None:
    if not asked.one_host:
        raise SettingsError(
            "how fast are the links of the machines? --link 25Gbit, --peer HOST to measure it, or --one-host if all "
            "processes run on one"
        )


def _measured(asked: argparse.Namespace, environ: Mapping[str, str], known: Known) -> Known:
    """What was asked to be measured, in place of what was assumed."""
    if asked.measure:
        known = dataclasses.replace(known, costs=measuring.measure_costs(environ, _say), origin="measured here")
    if asked.peer is not None:
        host, port = asked.peer
        _say(f"measuring the link to {host}")
        known = dataclasses.replace(known, link=link.measure(host, port))
    return known


def _job(asked: argparse.Namespace, known: Known, model: Model | int) -> Job:
    cores = asked.cores or len(os.sched_getaffinity(0))
    return Job(
        workers=asked.workers,
        most=asked.servers or min(2 * asked.workers, MOST_SERVERS),
        nbytes=model.nbytes if isinstance(model, Model) else model,
        link=None if asked.one_host else asked.link or known.link,
        one_host=asked.one_host,
        model=model.name if isinstance(model, Model) else "",
        specs=model.specs if isinstance(model, Model) else None,
        local_size=asked.local_size,
        cores=cores,
        server_cores=asked.server_cores or cores,
        partition_bytes=asked.partition_bytes,
        costs=known.costs,
        origin=known.origin,
        compute_seconds=asked.compute_seconds,
    )


def _model(asked: argparse.Namespace) -> Model | int:
    """The model, or its bytes; 0 if nothing is planned."""
    dtype = DType[(asked.dtype or "float32").upper()]
    if asked.model is not None:
        return read_model(asked.model, dtype)
    if asked.parameters is not None:
        return int(asked.parameters * dtype.itemsize)
    return asked.bytes or 0


def _as_object(known: Known) -> str:
    content = dataclasses.asdict(known.costs) if known.origin != "assumed" else {}
    if known.link is not None:
        content[_LINK] = known.link
    return json.dumps(content, indent=2)


def _in_words(known: Known) -> str:
    costs, lines = known.costs, []
    if known.origin != "assumed":
        lines += [
            f"sums     {say_speed(costs.sum_rate)} of contributions in float32, one core",
            f"copies   {say_speed(costs.copy_rate)}, one core",
            f"TCP      {costs.wire_seconds * 1e9:.2f} s of CPU time per GB, at each end",
            f"messages {costs.message_seconds * 1e6:.0f} us for each partition, in each process",
        ]
    if known.link is not None:
        lines.append(f"link     {say_speed(known.link)} each way, both ways at the same time")
    return "\n".join(lines)


def _say(line: str) -> None:
    print(f"bps plan: {line}", file=sys.stderr, flush=True)


def _check_writable(path: Path | None) -> None:
    """Before anything is measured, which takes time."""
    if path is None:
        return
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SettingsError(f"{path} cannot be written: name a file in a folder that is there")


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
