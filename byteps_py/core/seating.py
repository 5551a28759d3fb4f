"""Who is who in a complete job, and how much each server does because of where it is (:mod:`byteps_py.core.shares`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byteps_py.core.shares import Machine, balance
from byteps_py.types import Participant, ServerInfo

__all__ = ["Seating", "effective", "server_weights"]


@dataclass(frozen=True)
class Seating:
    """Everybody in the complete job; the ranks are by peer, in order of rank.

    ``weights`` are the shares of the servers, ``senders`` how often a gradient leaves a worker machine, in
    all, and ``has_links`` says whether not everybody is on one machine.
    """

    participants: tuple[Participant, ...]
    servers: tuple[ServerInfo, ...]
    worker_ranks: dict[bytes, int]
    server_ranks: dict[bytes, int]
    weights: tuple[float, ...] | None = None
    senders: int = 1
    has_links: bool = False


def server_weights(workers: Sequence[tuple[str, int]], servers: Sequence[str]) -> tuple[float, ...]:
    """How much of the gradient each server should sum.

    Args:
        workers: for each worker machine, the host that it is, and how often a gradient leaves it.
        servers: the host of each.

    Returns:
        For each server, in order; their sum is 1. Servers of one host have equal weights.

    Raises:
        ValueError: there is no worker or no server.
    """
    hosts = list(dict.fromkeys([*(host for host, _ in workers), *servers]))
    counts = [servers.count(host) for host in hosts]
    senders = [sum(count for each, count in workers if each == host) for host in hosts]
    found = balance([Machine(*each) for each in zip(senders, counts, strict=True)])
    each_of = {host: share / max(1, count) for host, share, count in zip(hosts, found.shares, counts, strict=True)}
    return tuple(each_of[host] for host in servers)


def effective(weights: Sequence[float]) -> float:
    """How many servers of equal weights spread the work as these do: two with weights 1 and 3 count as 1.6.

    Raises:
        ValueError: there is no weight above 0.
    """
    total = sum(weights)
    if not total:
        raise ValueError(f"no weight is above 0: {weights}")
    return 1.0 / sum((each / total) ** 2 for each in weights)
