"""Which share of the gradient each server sums, from where servers and workers are.

Every worker machine sends its gradient once and receives the sum once.  A server receives its share from every sender
and returns it to each, except within its own machine, where bytes take no link.  So a machine with ``p`` senders whose
servers sum the share ``x`` sends, and receives, this many times the gradient's bytes, ``N`` being all senders::

    load(x) = p (1 - x)  +  x (N - p)  =  p + x (N - 2 p)

Without servers of its own a worker machine carries ``p``, a machine of servers only ``x N``.  All links are taken to be
equally fast, and full duplex.  The best shares are those of the least largest load; of those, the most even ones, since
a server has to sum as well.

With one sender on each of ``n`` machines this gives: servers apart, ``max(1, n / k)``; one on each worker machine and
nothing else, ``2 (n - 1) / n``, as all-reduce has; ``k <= n`` machines of servers beside those,
``2 n (n - 1) / (n^2 + k n - 2 k)``, the optimum of Jiang et al., "A Unified Architecture for Accelerating Distributed
DNN Training in Heterogeneous GPU/CPU Clusters" (OSDI 2020).  Here ``k`` has no limit, and machines may have any number
of processes.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Balance", "Machine", "balance"]

_HALVINGS: Final = 60
"""Bisections of an interval, after which its ends are neighbours as far as floats can tell."""
_DIGITS: Final = 12
"""Of results, behind the point: what is smaller comes from rounding."""


@dataclass(frozen=True)
class Machine:
    """What of a job is on one machine.

    Attributes:
        senders: how often a gradient leaves it: 1 if its workers sum among themselves first, else their number.
        servers: how many servers.
    """

    senders: int
    servers: int


@dataclass(frozen=True)
class Balance:
    """The best shares.

    Attributes:
        load: bytes over the busiest link, each way, in gradients: times the gradient's bytes over the speed of a link
            this is the least time of an exchange.
        shares: of the servers of each machine together, in the order given; their sum is 1.
    """

    load: float
    shares: tuple[float, ...]


def balance(machines: Sequence[Machine]) -> Balance:
    """The shares that let all links end at the same time, as far as that is possible.

    Args:
        machines: all of a job. One with neither senders nor servers gets nothing.

    Raises:
        ValueError: there is no server, or no sender.
    """
    kinds = collections.Counter(machines)
    total = sum(each.senders for each in machines)
    if not total or not any(each.servers for each in machines):
        raise ValueError(f"shares need a server and a sender: {list(machines)}")
    load = _bisect(lambda t: _fits(kinds, total, t), 0.0, 2.0 * total)
    bounds = {each: _bounds(each, total, load) for each in kinds}
    # The most even: the same for every server, within what its machine's link can take in that time.
    even = _bisect(lambda level: _sum(kinds, _shares(bounds, level)) >= 1.0, 0.0, 1.0)
    shares = _shares(bounds, even)
    whole = _sum(kinds, shares)
    return Balance(round(load, _DIGITS), tuple(round(shares[each] / whole, _DIGITS) for each in machines))


def _shares(bounds: Mapping[Machine, tuple[float, float]], level: float) -> dict[Machine, float]:
    """What a machine of each kind takes if each of its servers would take ``level``."""
    return {each: min(max(level * each.servers, least), most) for each, (least, most) in bounds.items()}


def _sum(kinds: Mapping[Machine, int], values: Mapping[Machine, float]) -> float:
    """Over all machines."""
    return sum(count * values[each] for each, count in kinds.items())


def _bounds(machine: Machine, total: int, load: float) -> tuple[float, float]:
    """The least and the largest share with which this machine's link carries no more than ``load``.

    The least is above the largest if there is none.
    """
    own, slope = machine.senders, total - 2 * machine.senders
    if not machine.servers:
        return (0.0, 0.0) if own <= load else (1.0, 0.0)
    if slope > 0:
        return 0.0, min(1.0, (load - own) / slope)
    if slope == 0:
        return (0.0, 1.0) if own <= load else (1.0, 0.0)
    return max(0.0, (own - load) / -slope), 1.0


def _fits(kinds: Mapping[Machine, int], total: int, load: float) -> bool:
    """Whether shares exist with which no link carries more than ``load``."""
    bounds = {each: _bounds(each, total, load) for each in kinds}
    if any(least > most for least, most in bounds.values()):
        return False
    lows, highs = ({each: ends[side] for each, ends in bounds.items()} for side in (0, 1))
    return _sum(kinds, lows) <= 1.0 <= _sum(kinds, highs)


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The least number at which a condition holds that holds above it, between one where it may not and one where it
    does."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
