"""Where servers can be, and which of these places is the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from byteps_py.core.shares import Machine
from byteps_py.plan.model import Prediction

__all__ = [
    "COLOCATED",
    "KINDS",
    "MIXED",
    "MOST_SERVERS",
    "ONE_HOST",
    "SEPARATE",
    "Layout",
    "Row",
    "best",
    "counts",
    "layouts",
]

SEPARATE: Final = "separate"
COLOCATED: Final = "colocated"
MIXED: Final = "mixed"
ONE_HOST: Final = "one host"
KINDS: Final = (SEPARATE, COLOCATED, MIXED)

MOST_SERVERS: Final = 512
"""That are looked at, without those that are on worker machines in any case."""

_ALL_UP_TO: Final = 16
_PER_DOUBLING: Final = 8
_AS_GOOD: Final = 0.02
"""A layout that needs fewer machines is better if it is slower by less than this part."""


@dataclass(frozen=True)
class Layout:
    """One way to place servers.

    Attributes:
        kind: separate: each server on a machine of its own; colocated: all of them on the machines of workers; mixed:
            one with each worker machine, the others on machines of their own; one host: everything on one machine.
        servers: processes, which is ``DMLC_NUM_SERVER``.
        extra: machines beside those of the workers.
        machines: all of the job, those of the workers first.
    """

    kind: str
    servers: int
    extra: int
    machines: tuple[Machine, ...]


@dataclass(frozen=True)
class Row:
    """A layout and what is expected of it."""

    layout: Layout
    prediction: Prediction


def counts(most: int, also: Sequence[int] = ()) -> list[int]:
    """Numbers of servers to look at: all up to 16, then eight of each doubling; ``most`` and those of ``also``."""
    found = set(range(1, min(most, _ALL_UP_TO) + 1)) | {each for each in (*also, most) if each <= most}
    step, number = _ALL_UP_TO // _PER_DOUBLING, _ALL_UP_TO
    while number < most:
        found |= {each for each in range(number, 2 * number, step) if each <= most}
        number, step = 2 * number, 2 * step
    return sorted(found)


def layouts(workers: int, most: int, *, one_host: bool = False) -> Iterator[Layout]:
    """All that is to be compared.

    Args:
        workers: machines with workers; with ``one_host`` their processes on it.
        most: servers, without those that are on worker machines in any case.
        one_host: whether there is one machine.
    """
    for kind in (ONE_HOST,) if one_host else KINDS:
        for servers in counts(most, (workers,)):
            yield _layout(kind, workers, servers)


def _layout(kind: str, workers: int, servers: int) -> Layout:
    if kind == ONE_HOST:
        return Layout(kind, servers, 0, (Machine(workers, servers),))
    if kind == COLOCATED:
        each, more = divmod(servers, workers)
        return Layout(kind, servers, 0, tuple(Machine(1, each + (index < more)) for index in range(workers)))
    own = 1 if kind == MIXED else 0
    machines = (*(Machine(1, own),) * workers, *(Machine(0, 1),) * servers)
    return Layout(kind, own * workers + servers, servers, machines)


def best(rows: Sequence[Row]) -> Row:
    """The fastest; among those that are hardly slower, that with the fewest machines, then with the fewest servers."""
    fastest = min(each.prediction.seconds for each in rows)
    near = [each for each in rows if each.prediction.seconds <= (1 + _AS_GOOD) * fastest]
    return min(near, key=lambda each: (each.layout.extra, each.layout.servers, each.prediction.seconds))
