"""How close push_pull comes to what links allow: hosts of network namespaces, with links of a chosen speed.

    python -m benchmarks.network --layout separate --workers 4 --servers 4 --mbit 200 --bytes 25000000 \
        --peer gloo --json FILE

Each host has one link to a switch, with a token bucket at both ends (see ``Network.limit_rate``).  Every role is
started there by bpslaunch, with the DMLC variables and nothing else, so that what is measured is what users get.

*B* = the TCP goodput of a link, bytes per second each way, with traffic both ways for 3 s; measured before and after
each job, the mean counts.

*optimum* = the busiest link's bytes / B, with the best shares of the servers (:mod:`byteps_py.core.shares`): M / B for
as many servers as workers, apart; twice that for half as many; 1.5 M / B for four of both, side by side.

*Time of a push_pull* = from the first worker that begins it to the last that has its result, of all tensors; between
two, all workers meet.  The first of a job is dropped; the median counts.

With a peer the sides go in turn, A B A B ..., `--pairs` times.  `gloo` is torch's all_reduce of one buffer of the same
bytes, on the hosts of the workers; it needs no servers.

*planned* = what `bps plan` says of the same layout, with B.

Every result of every step is compared, exactly; one that differs ends the benchmark with status 1.  Needs root and
iproute2; without them the benchmark says what is missing, and its status is 0.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import arguments, environment, figures, network_job
from benchmarks.network_job import Hosts, Plan
from benchmarks.side import perform
from benchmarks.turns import say
from byteps_py import plan as planner
from byteps_py.core.shares import balance
from tests.helpers.namespaces import why_not

PEERS = ("none", "gloo")
_ITEM_BYTES = 4
_GOODPUT_SECONDS = 3.0


@dataclass
class Measured:
    """What was measured, in the order of the turns.

    Attributes:
        goodputs: bytes per second.
        ours, peer: seconds of each push_pull, by turn.
    """

    goodputs: list[float] = field(default_factory=list)
    ours: list[list[float]] = field(default_factory=list)
    peer: list[list[float]] = field(default_factory=list)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print the figures, write the JSON file; returns the exit status."""
    options = parse(words)
    reason = why_not()
    if reason is not None:
        print(f"network: skipped: {reason}")
        return 0

    def body() -> None:
        found = measure(options)
        print(as_text(found))
        figures.write(options.json, found)

    return perform("network", body, RuntimeError)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All turns; returns what goes into the JSON file.

    Raises:
        SideError: a process has failed, or a result was wrong.
        RuntimeError: the hosts cannot be made.
    """
    plan = Plan(options.layout, options.workers, options.servers)
    sizes = _sizes(options.bytes, options.tensors)
    about = environment.describe()
    measured = Measured()
    with network_job.made(plan, options.mbit) as hosts:
        for pair in range(options.pairs):
            _take(hosts, measured, sizes, options)
            line = f"turn {pair + 1} of {options.pairs}: {statistics.median(measured.ours[-1]):.3f} s"
            if measured.peer:
                line += f"; {options.peer} {statistics.median(measured.peer[-1]):.3f} s"
            say(f"{line}; link {statistics.mean(measured.goodputs) / 1e6:.2f} MB/s")
    found = summary(plan, measured, _ITEM_BYTES * sum(sizes))
    return found | {"settings": figures.settings(options, {}), "environment": about}


def _take(hosts: Hosts, measured: Measured, sizes: Sequence[int], options: argparse.Namespace) -> None:
    """One turn of each side, and the goodput around it."""
    if not measured.goodputs:
        measured.goodputs.append(hosts.goodput(_GOODPUT_SECONDS))
    measured.ours.append(hosts.ours(sizes, options.steps + 1))
    if options.peer == "gloo":
        measured.peer.append(hosts.gloo(sizes, options.steps + 1))
    measured.goodputs.append(hosts.goodput(_GOODPUT_SECONDS))


def summary(plan: Plan, measured: Measured, nbytes: int) -> dict[str, Any]:
    """The figures.

    Args:
        plan: who was where.
        measured: at least one turn.
        nbytes: of the gradient.
    """
    goodput = statistics.mean(measured.goodputs)
    machines = plan.machines()
    optimum = balance(machines).load * nbytes / goodput
    seconds = statistics.median(each for turn in measured.ours for each in turn)
    peer = statistics.median(each for turn in measured.peer for each in turn) if measured.peer else None
    planned = planner.predict(machines, nbytes, goodput).seconds
    pairs = zip(measured.ours, measured.peer, strict=False)
    return {
        "seconds": seconds,
        "goodput_bytes_per_s": goodput,
        "optimum_s": optimum,
        "over_optimum": seconds / optimum,
        "peer_seconds": peer,
        "peer_over_ours": statistics.median(statistics.median(b) / statistics.median(a) for a, b in pairs)
        if measured.peer
        else None,
        "planned_s": planned,
        "planned_over_measured": planned / seconds,
        "verified": True,  # else there would be no figures
        "all_seconds": measured.ours,
        "all_peer_seconds": measured.peer,
        "all_goodputs": measured.goodputs,
    }


def as_text(found: dict[str, Any]) -> str:
    """A few lines."""
    options = found["settings"]
    lines = [
        f"{options['layout']}: {options['workers']} workers, {options['servers']} servers, links of "
        f"{options['mbit']:g} Mbit/s, {options['bytes'] / 1e6:g} MB, {options['tensors']} tensors; results compared",
        f"one link carries {found['goodput_bytes_per_s'] / 1e6:.2f} MB/s each way",
        f"push_pull {found['seconds']:.3f} s, {found['over_optimum']:.3f} x the optimum of {found['optimum_s']:.3f} s",
        f"planned {found['planned_s']:.3f} s, {found['planned_over_measured']:.3f} x what was measured",
    ]
    if found["peer_seconds"] is not None:
        lines.append(
            f"{options['peer']} {found['peer_seconds']:.3f} s, {found['peer_over_ours']:.3f} x ours (median of pairs)"
        )
    return "\n".join(lines)


def _sizes(nbytes: int, tensors: int) -> list[int]:
    """Elements of each tensor."""
    elements = max(tensors, nbytes // _ITEM_BYTES)
    return [elements // tensors + (index < elements % tensors) for index in range(tensors)]


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options.

    Raises:
        SystemExit: they do not fit together.
    """
    found = arguments.parser("network", "Measure push_pull over links of a chosen speed, against the optimum.")
    add = found.add_argument
    few = arguments.whole(1, 12)
    add("--layout", choices=network_job.LAYOUTS, default="separate", help="where servers are (default: %(default)s)")
    add("--workers", type=arguments.whole(2, 12), default=4, metavar="N", help="machines (default: %(default)s)")
    add(
        "--servers",
        type=few,
        default=4,
        metavar="N",
        help="with mixed: those beside the one that each worker machine has (default: %(default)s)",
    )
    add("--mbit", type=arguments.rate, default=200.0, metavar="N", help="of a link, each way (default: %(default)s)")
    add("--bytes", type=arguments.natural, default=25_000_000, metavar="N", help="of the model (default: %(default)s)")
    add("--tensors", type=arguments.whole(1, 1000), default=1, metavar="N", help="it has (default: %(default)s)")
    add("--steps", type=arguments.whole(1, 1000), default=11, metavar="N", help="push_pulls of a turn that count")
    add("--pairs", type=arguments.natural, default=2, metavar="N", help="turns of each side (default: %(default)s)")
    add("--peer", choices=PEERS, default="none", help="default: %(default)s")
    add("--json", type=arguments.json_file, metavar="FILE", help="write the figures there as well (default: nowhere)")
    options = found.parse_args(words)
    if options.peer == "gloo":
        arguments.check_torch(found, "--peer gloo")
    return options


if __name__ == "__main__":
    sys.exit(main())
