"""``bpslaunch --num-servers auto``: how many servers for a job on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from byteps_py.core.shares import Machine
from byteps_py.plan.model import Prediction, predict

__all__ = ["ASSUMED_BYTES", "Choice", "choose_servers"]

ASSUMED_BYTES: Final = 100_000_000
"""Of the model, which the launcher does not know: 25 million parameters in float32. What is chosen hardly depends on
it, since partitions have the same size for models of all sizes here, and so everything grows alike."""

_WORTH: Final = 0.05
"""A server more must save this part of the time: it is a process more, with memory of its own."""

_MOST: Final = 16


@dataclass(frozen=True)
class Choice:
    """How many servers, and a phrase that tells why."""

    servers: int
    reason: str


def choose_servers(workers: int, cores: int) -> Choice:
    """The fewest servers that are about as fast as any number; workers and servers get a core each if there are enough.

    Args:
        workers: processes on this machine, at least 1.
        cores: that they and the servers share, at least 1.
    """
    most = max(1, min(_MOST, cores - workers))
    found = {servers: _predict(workers, servers, cores) for servers in range(1, most + 1)}
    fastest = min(each.seconds for each in found.values())
    servers = min(number for number, each in found.items() if each.seconds <= fastest * (1 + _WORTH))
    chosen = found[servers]
    if servers > 1:
        slower = found[servers - 1].seconds / chosen.seconds - 1
        reason = f"with one less an exchange takes {slower:.0%} longer, limited by {found[servers - 1].limit}"
    elif most == 1:
        reason = f"{cores} {'core has' if cores == 1 else 'cores have'} no room for more beside the workers"
    else:
        reason = f"more would not be faster, limited by {chosen.limit}"
    return Choice(servers, reason)


def _predict(workers: int, servers: int, cores: int) -> Prediction:
    return predict([Machine(workers, servers)], ASSUMED_BYTES, None, cores=cores)
