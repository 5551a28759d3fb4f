"""The command line of ``bps plan``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from byteps_py.errors import SettingsError
from byteps_py.plan import plot, units
from byteps_py.plan.known_models import KNOWN
from byteps_py.plan.layouts import MOST_SERVERS
from byteps_py.settings import WorkerSettings, variables_of
from byteps_py.variables import integer, seconds

__all__ = ["DESCRIPTION", "EPILOG", "LISTEN_PORT", "add_options", "check"]

DESCRIPTION: Final = """\
Predict how long one exchange of gradients takes, from the first push to the last result, for every
number of servers and every place where they can be, and say which is the best, and why.

  bps plan --workers N --link SPEED (--bytes SIZE | --parameters N | --model MODEL) [options]
  bps plan --workers N --one-host (--bytes SIZE | ...) [options]
  bps plan --measure [--listen [PORT] | --peer HOST[:PORT]] [--save FILE]
"""

LEAST_BARE: Final = 1000
"""Bytes or parameters of a model that a number without a unit may mean: with 25, 25M is meant."""

EPILOG: Final = f"""\
MODEL is one of {", ".join(KNOWN)}, or a file: .json ({{"name": [shape]}}, or a
list of shapes), .npz, .safetensors, or a state dict of torch, .pt. SPEED is that of the line, as in
25Gbit or 200Mbit, of which TCP carries {units.LINE_SHARE:.0%}, or what was measured, as in 1.2GB/s; it needs
its unit. SIZE is 25MB, 1.5GiB or 100M; without a unit it is bytes, at least {LEAST_BARE} for a model.

examples:
  bps plan --workers 4 --link 25Gbit --model resnet50 --cores 16 --server-cores 8
  bps plan --workers 8 --one-host --bytes 400MB --measure
  bps plan --measure --listen                     on another host, and then here:
  bps plan --measure --peer 10.0.0.2 --save costs.json
  bps plan --workers 4 --costs costs.json --parameters 110M --dtype bfloat16
"""

LISTEN_PORT: Final = 9753
"""Where ``--listen`` listens, and ``--peer`` looks, if no port is given."""

_COUNT: Final = integer(1, MOST_SERVERS)
_CORES: Final = integer(1, 4096)
_MOST_PARAMETERS: Final = 1e14
"""Of which none is larger than eight bytes: less than :data:`units.MOST_BYTES`."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options to the parser of the command, which reads them."""
    job = parser.add_argument_group("the job")
    job.add_argument("--workers", metavar="N", type=_typed(_COUNT), help="machines with workers")
    job.add_argument(
        "--servers",
        metavar="MAX",
        type=_typed(_COUNT),
        help=f"most servers (default: twice the workers, up to {MOST_SERVERS})",
    )
    job.add_argument(
        "--local-size",
        "--gpus-per-machine",
        metavar="L",
        type=_typed(_CORES),
        default=1,
        help="worker processes on each machine, which sum among themselves first (default: 1)",
    )
    job.add_argument("--one-host", action="store_true", help="everything is on one machine: N worker processes")
    model = job.add_mutually_exclusive_group()
    model.add_argument("--bytes", metavar="SIZE", type=_read(_model_bytes), help="of all gradients: 100MB, 1.5GiB")
    model.add_argument("--parameters", metavar="N", type=_read(_parameters), help="how many there are: 25.6M, 110e6")
    model.add_argument("--model", metavar="MODEL", help="its tensors: a name or a file, see below")
    job.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16", "float64"),
        help="of the gradients on the wire (default: float32, or what the file says)",
    )
    job.add_argument(
        "--compute-seconds",
        metavar="S",
        type=_typed(seconds(0, 1e6)),
        help="of a step without exchange: then the time of a step is told too",
    )
    machines = parser.add_argument_group("the machines")
    machines.add_argument(
        "--link", metavar="SPEED", type=_read(units.parse_speed), help="of each machine, each way: 25Gbit, 1.2GB/s"
    )
    machines.add_argument("--cores", metavar="C", type=_typed(_CORES), help="of a worker machine (default: as here)")
    machines.add_argument("--server-cores", metavar="C", type=_typed(_CORES), help="of a server machine (as --cores)")
    machines.add_argument(
        "--partition-bytes",
        metavar="SIZE",
        type=_read(_partition_bytes),
        help="as in 4MiB or 4194304, instead of what the scheduler chooses",
    )
    _add_measuring(parser)
    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="as a JSON object")
    out.add_argument(
        "--plot", metavar="FILE", type=Path, help=f"also draw it, as {_listed(plot.FORMATS)} (needs matplotlib)"
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    costs = parser.add_argument_group("what was measured")
    costs.add_argument("--measure", action="store_true", help="measure what sums, copies and messages cost here")
    costs.add_argument("--costs", metavar="FILE", type=Path, help="use what --save has written")
    costs.add_argument("--save", metavar="FILE", type=Path, help="write what was measured to FILE")
    costs.add_argument("--peer", metavar="HOST[:PORT]", type=_read(_peer), help="measure the link to that host")
    costs.add_argument(
        "--listen",
        metavar="PORT",
        nargs="?",
        const=LISTEN_PORT,
        type=_typed(integer(1, 65535)),
        help=f"wait for one that does so (default: port {LISTEN_PORT})",
    )


def check(asked: argparse.Namespace) -> None:
    """Whether the options fit together.

    Raises:
        SettingsError: they do not; all problems at once.
    """
    problems = []
    plans = asked.workers is not None
    measures = asked.measure or asked.peer is not None
    if asked.listen is not None:
        others = [name for name in ("workers", "peer", "save", "costs", "plot") if getattr(asked, name) is not None]
        if others:
            problems.append(f"--listen only helps another host to measure: leave out {_options(others)}")
    elif not plans and not measures:
        problems.append("--workers is missing: how many machines have workers?")
    elif plans:
        if asked.bytes is None and asked.parameters is None and asked.model is None:
            problems.append("how large is the model? --bytes 100MB, --parameters 25M or --model resnet50")
        if asked.one_host and (asked.link is not None or asked.peer is not None):
            problems.append("--one-host has no link: leave --link and --peer out")
        if asked.one_host and asked.local_size > 1:
            problems.append("--one-host counts processes by --workers: leave --local-size out")
        if asked.bytes is not None and asked.dtype is not None:
            problems.append("--bytes needs no --dtype")
    else:
        others = [name for name in ("bytes", "parameters", "model", "plot", "compute_seconds") if _given(asked, name)]
        if others:
            problems.append(f"{_options(others)} without --workers: how many machines have workers?")
    if asked.link is not None and asked.peer is not None:
        problems.append("--link says what --peer measures: leave one of them out")
    if asked.measure and asked.costs is not None:
        problems.append("--costs says what --measure measures: leave one of them out")
    if asked.plot is not None and not plot.format_of(asked.plot):
        problems.append(f"--plot {asked.plot}: the name must end in {_listed(plot.FORMATS)}, which says what is drawn")
    if asked.save is not None and not measures:
        problems.append("--save has nothing to write without --measure or --peer")
    if problems:
        raise SettingsError(problems)


def _given(asked: argparse.Namespace, name: str) -> bool:
    return getattr(asked, name) is not None


def _options(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _typed(kind: tuple[str, Callable[[str], Any]]) -> Callable[[str], Any]:
    """A type for argparse of a kind of values that variables have."""
    form, parse = kind

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must be {form}") from None

    return read


def _read(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type for argparse of a function whose errors tell what is wrong."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _listed(ends: tuple[str, ...]) -> str:
    """``.png, .svg or .pdf``."""
    *some, last = (f".{each}" for each in ends)
    return f"{', '.join(some)} or {last}"


def _model_bytes(text: str) -> int:
    """A size; a small number without a unit is one that lacks it."""
    size, number = units.parse_bytes(text), text.strip()
    if size < LEAST_BARE and not number[-1].isalpha():
        raise ValueError(
            f"{text!r} without a unit is {units.say_bytes(size)}, less than any model: write {number}MB, {number}kB, "
            f"or {number}B if it is meant"
        )
    return size


def _partition_bytes(text: str) -> int:
    """A size as of ``--bytes``, in the range of ``BYTEPS_PARTITION_BYTES``."""
    size, variable = units.parse_bytes(text), dict(variables_of(WorkerSettings))["partition_bytes"]
    try:
        variable.parse(str(size))
    except ValueError:
        raise ValueError(f"{text!r} must be {variable.form}, as {variable.name} must") from None
    return size


def _parameters(text: str) -> int:
    """``25557032``, ``25.6M``, ``110e6``."""
    word = text.strip().lower()
    scale = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}.get(word[-1:], 1.0)
    try:
        value = float(word.rstrip("kmgb") if scale > 1 else word) * scale if word.isascii() and "_" not in word else 0.0
    except ValueError:
        value = 0.0
    if not 1 <= value <= _MOST_PARAMETERS:
        raise ValueError(
            f"{text!r} must be a number of parameters, as in 25557032, 25.6M or 110e6, and no more than "
            f"{_MOST_PARAMETERS:.0e}"
        )
    if value < LEAST_BARE and word.replace(".", "").isdigit():
        raise ValueError(
            f"{text!r} is {units.say_count(round(value), 'parameter')}, fewer than any model has: write {word}M for "
            f"millions, {word}k for thousands, or the exact size as --bytes {4 * round(value)}B"
        )
    return round(value)


def _peer(text: str) -> tuple[str, int]:
    """``host``, ``host:port``, ``[address]:port``; an IPv6 address alone needs no brackets."""
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        number = integer(1, 65535)[1](port) if port else LISTEN_PORT
    except ValueError:
        number = 0
    if not host or not number:
        raise ValueError(f"{text!r} must be a host and a port, as in 10.0.0.2:{LISTEN_PORT}")
    return host, number
