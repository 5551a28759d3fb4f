"""How long one exchange takes: all tensors pushed by all workers, and all results back.

Every resource needs some time for what it has to carry, and the slowest of them is the limit:

* the link of each machine: ``load(x) M / B``, see :mod:`byteps_py.core.shares`;
* the cores of each machine: sums, copies, bytes through TCP and messages, over the number of cores;
* the threads of one process, which more cores do not help: the one that sends and receives, the one that handles
  messages, a server's team that sums, a worker's copies.

On top comes what the pipe loses: on links, see :mod:`byteps_py.plan.pipe`; within one machine, the way of one
partition through copy, sum and copy.

Workers of a machine sum among themselves before they send elsewhere, as they do by default, so a machine sends each
gradient once.  All machines of a kind are alike, and all links equally fast, both ways at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from byteps_py.core.partition_size import choose_partition_bytes
from byteps_py.core.shares import Machine, balance
from byteps_py.plan.costs import DEFAULT, Costs
from byteps_py.plan.pipe import idle_part

__all__ = ["FILL", "Placed", "Prediction", "Term", "predict", "server_shares"]

FILL: Final = "filling and draining the pipe"
"""The name of the term that is added to the longest of the others."""

_WORKER, _SERVER = "worker", "server"
"""Kinds of machines: those with workers, and those that have servers only."""
_NO_LOAD: Final = 1e-9
"""Of a link, in gradients: what is left of 0 by halving intervals."""


_balance = functools.lru_cache(maxsize=64)(balance)
"""The same machines are asked about several times, and with hundreds of them an answer takes some time."""


@dataclass(frozen=True)
class Placed:
    """What of the tensors one server has: bytes, and messages from each worker for them."""

    nbytes: float
    messages: float


@dataclass(frozen=True)
class Term:
    """How many seconds one resource is busy during an exchange."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Prediction:
    """What is expected of a layout.

    Attributes:
        seconds: of one exchange.
        optimum: seconds that its links take if the busiest is full all the time and servers get their best shares;
            where no byte needs a link, those of the busiest resource.
        limit: the name of the resource that is busy longest.
        terms: all resources and :data:`FILL`, the longest first, those of no time left out.
        partition_bytes: the size of partitions that was reckoned with.
        shares: of the bytes, for each server, in the order of the machines.
    """

    seconds: float
    optimum: float
    limit: str
    terms: tuple[Term, ...]
    partition_bytes: int
    shares: tuple[float, ...]


def server_shares(machines: Sequence[Machine]) -> tuple[float, ...]:
    """The best part of the bytes for each server, in the order of the machines; see :func:`balance`.

    Raises:
        ValueError: there is no server, or no sender.
    """
    parts = _balance(tuple(machines)).shares
    return tuple(part / each.servers for each, part in zip(machines, parts, strict=True) for _ in range(each.servers))


def predict(
    machines: Sequence[Machine],
    model_bytes: float,
    link: float | None,
    *,
    placed: Sequence[Placed] | None = None,
    partition_bytes: int | None = None,
    local_size: int = 1,
    cores: float = math.inf,
    server_cores: float = math.inf,
    costs: Costs = DEFAULT,
) -> Prediction:
    """How long one exchange takes. Pure.

    Args:
        machines: all of the job. On one machine alone everything goes through shared memory.
        model_bytes: of all tensors together, above 0.
        link: bytes per second of each machine's link, each way at the same time; None if there is one machine.
        placed: what each server has, in the order of the machines; by default its best share, in whole partitions.
        partition_bytes: by default what the scheduler chooses.
        local_size: worker processes for each sender of a machine, which sum among themselves first.
        cores: of each machine with workers; infinite if they are no matter.
        server_cores: of each machine that has servers only.
        costs: of those machines.

    Raises:
        ValueError: there is no server, no sender or no byte, or several machines and no link.
    """
    _check(machines, model_bytes, link)
    shares = server_shares(machines)
    senders = sum(each.senders for each in machines)
    over_link = link if len(machines) > 1 else None
    servers = _effective(shares) if over_link else float(len(shares))
    size = partition_bytes or choose_partition_bytes(int(model_bytes), senders, servers, over_link)
    if placed is None:
        placed = [Placed(share * model_bytes, math.ceil(share * model_bytes / size)) for share in shares]
    elif len(placed) != len(shares):
        raise ValueError(f"placed={placed} must tell of {len(shares)} servers")
    exchange = _Exchange(model_bytes, senders, local_size, over_link, costs, sum(each.messages for each in placed))
    terms = _busiest(exchange, machines, placed, cores, server_cores)
    limit = max(terms, key=terms.__getitem__)
    optimum = longest = terms[limit]
    if over_link:
        load = _balance(tuple(machines)).load
        # No byte needs a link where the only machine with workers has servers too.
        optimum = load * model_bytes / over_link if load > _NO_LOAD else longest
        busy = max(terms.get(_links(kind), 0.0) for kind in (_WORKER, _SERVER))
        terms[FILL] = busy * idle_part(size, model_bytes, senders, servers)
    else:
        terms[FILL] = exchange.one_way(min(size, model_bytes))
    ordered = sorted((Term(name, seconds) for name, seconds in terms.items()), key=lambda each: -each.seconds)
    return Prediction(
        seconds=longest + terms[FILL],
        optimum=optimum,
        limit=limit,
        terms=tuple(each for each in ordered if each.seconds > 0),
        partition_bytes=size,
        shares=tuple(each.nbytes / model_bytes for each in placed),
    )


def _effective(shares: Sequence[float]) -> float:
    """The number of servers as the scheduler counts it: one that has little to do hardly spreads the work."""
    # Loads NumPy, which the launcher does without: on one machine all servers have equal shares.
    from byteps_py.core.seating import effective

    return effective(shares)


def _links(kind: str) -> str:
    return f"the links of the {kind} machines"


def _check(machines: Sequence[Machine], model_bytes: float, link: float | None) -> None:
    if not 0 < model_bytes < math.inf:
        raise ValueError(f"model_bytes={model_bytes} must be above 0")
    if len(machines) > 1 and (link is None or not 0 < link < math.inf):
        raise ValueError(f"link={link}: {len(machines)} machines need a link of some bytes per second")


def _busiest(
    exchange: _Exchange, machines: Sequence[Machine], placed: Sequence[Placed], cores: float, server_cores: float
) -> dict[str, float]:
    """The seconds of each resource, on the machine where they are most."""
    terms: dict[str, float] = {}
    first = 0
    for each in machines:
        own = placed[first : first + each.servers]
        first += each.servers
        for term in exchange.terms(each, own, cores if each.senders else server_cores):
            terms[term.name] = max(term.seconds, terms.get(term.name, 0.0))
    return terms


@dataclass(frozen=True)
class _Exchange:
    """What all machines have in common.

    Attributes:
        model_bytes: see :func:`predict`, as are ``local_size``, ``link`` and ``costs``.
        senders: of all machines.
        messages: from each worker, to all servers.
    """

    model_bytes: float
    senders: int
    local_size: int
    link: float | None
    costs: Costs
    messages: float

    def terms(self, machine: Machine, placed: Sequence[Placed], cores: float) -> list[Term]:
        """The resources of a machine that has these servers and so many cores."""
        costs, here = self.costs, sum(each.nbytes for each in placed)
        kind = _WORKER if machine.senders else _SERVER
        # Each way: what its senders send elsewhere, and what its servers get from elsewhere.
        sent = machine.senders * (self.model_bytes - here)
        moved = (sent + here * (self.senders - machine.senders)) if self.link else 0.0
        processes = machine.senders * self.local_size + machine.servers
        # As the launcher shares cores out.
        team = max(1.0, cores // processes) if cores < math.inf else cores
        found = [
            Term(_links(kind), moved / self.link if self.link else 0.0),
            Term(
                f"the cores of the {kind} machines" if self.link else "the cores of the host",
                self._cpu_seconds(machine, placed, moved) / cores,
            ),
        ]
        for each in placed:
            remote = each.nbytes * (self.senders - machine.senders) if self.link else 0.0
            found += [
                Term("the network thread of a server", 2 * remote * costs.wire_seconds),
                Term("the messages of a server", each.messages * self.senders * costs.message_seconds),
                Term("the sums of a server", each.nbytes * self.senders / (costs.sum_rate * team)),
            ]
        if machine.senders:
            remote = (self.model_bytes - here) / self.local_size if self.link else 0.0
            found += [
                Term("the network thread of a worker", 2 * remote * costs.wire_seconds),
                Term("the messages of a worker", self.messages * costs.message_seconds),
                Term("the copies of a worker", self._copied(here) / costs.copy_rate),
            ]
        return found

    def one_way(self, nbytes: float) -> float:
        """Seconds of one partition on its way through shared memory: copied in, summed, and copied out."""
        return 2 * nbytes / self.costs.copy_rate + nbytes * self.senders / self.costs.sum_rate

    def _copied(self, here: float) -> float:
        """Bytes that a worker copies: results, and what it pushes into shared memory."""
        shared = self.model_bytes if self.local_size > 1 or not self.link else min(here, self.model_bytes)
        return self.model_bytes + shared

    def _cpu_seconds(self, machine: Machine, placed: Sequence[Placed], moved: float) -> float:
        """Of everything that an exchange costs one machine."""
        costs, here = self.costs, sum(each.nbytes for each in placed)
        workers = machine.senders * self.local_size
        copied = workers * self._copied(here)
        summed = here * self.senders
        handled = workers * self.messages + sum(each.messages for each in placed) * self.senders
        if self.local_size > 1:  # their own sums, and the messages to and from the process that makes each
            summed += workers * self.model_bytes
            handled += (workers + machine.senders) * self.messages
        return (
            copied / costs.copy_rate
            + summed / costs.sum_rate
            + 2 * moved * costs.wire_seconds
            + handled * costs.message_seconds
        )
