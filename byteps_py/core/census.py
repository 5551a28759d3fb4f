"""How a job stands, for one who asks from outside: counts, who is missing, and what its members run with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from byteps_py.core.absence import describe_missing
from byteps_py.core.places import Place
from byteps_py.core.roster import Member, Roster
from byteps_py.wire.inquiry import MAX_SOFTWARE, MAX_SOFTWARE_TEXT, Software

__all__ = ["Census", "take_census"]


@dataclass(frozen=True)
class Census:
    """The part of a :class:`~byteps_py.wire.inquiry.Status` that is known here; the fields are explained there."""

    state: str
    software: tuple[Software, ...]
    num_worker: int
    num_server: int
    machines: int
    workers: int
    servers: int
    missing: str


def take_census(state: str, roster: Roster, unjoined: Sequence[Place]) -> Census:
    """Count the members.

    Args:
        state: of the job.
        roster: who has registered.
        unjoined: the workers that are known to live and have not registered.
    """
    return Census(
        state,
        _software(list(roster)),
        roster.num_worker,
        roster.num_server,
        roster.complete_nodes,
        len(roster) - roster.servers,
        roster.servers,
        "" if roster.is_complete else describe_missing(roster, unjoined),
    )


def _software(members: Sequence[Member]) -> tuple[Software, ...]:
    """What they run with, the most common first; kinds that exceed the bound are left out."""
    kinds = Counter((each.register.role, each.register.version, each.register.software) for each in members)
    hosts = {(each.register.role, each.register.version, each.register.software): each.process.host for each in members}
    return tuple(
        Software(role, version[:MAX_SOFTWARE_TEXT], others, count, hosts[role, version, others][:MAX_SOFTWARE_TEXT])
        for (role, version, others), count in kinds.most_common(MAX_SOFTWARE)
    )
