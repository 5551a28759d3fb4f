"""Who a job that is not complete still waits for, in words.

Workers are counted as people think of them: processes where all run on one machine, machines where there are several;
those are called "worker machines" once one of them is known to run more than one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from byteps_py.core.places import Place
from byteps_py.core.roster import Node, Roster, any_of, listed

__all__ = ["counts", "describe_missing", "is_vouched_for"]


def counts(roster: Roster) -> str:
    """``workers 1/2, servers 2/2``."""
    return f"{_worker_counts(roster, ())}, servers {roster.servers}/{roster.num_server}"


def describe_missing(roster: Roster, unjoined: Sequence[Place]) -> str:
    """Who is waited for: ``1 of 2 workers: missing DMLC_WORKER_ID=1; servers 2/2``.

    Args:
        roster: who has registered.
        unjoined: the workers that are known to live and have not registered.
    """
    servers = f"servers {roster.servers}/{roster.num_server}"
    if roster.complete_nodes == roster.num_worker:
        absent = roster.num_server - roster.servers
        noun = "server" if roster.num_server == 1 else "servers"
        return f"{absent} of {roster.num_server} {noun}; {_worker_counts(roster, unjoined)}"
    return f"{_missing_workers(roster, unjoined)}; {servers}{_living(unjoined, roster.num_worker)}"


def is_vouched_for(roster: Roster, unjoined: Sequence[Place]) -> bool:
    """Whether everyone who is missing is a worker that is known to live."""
    if roster.servers < roster.num_server:
        return False
    expected = {key: any_of(node).register.local_size for key, node in roster.nodes.items()}
    expected |= {place.node: place.local_size for place in unjoined if place.node not in expected}
    if len(expected) < roster.num_worker:
        return False
    there = {(key, local_rank) for key, node in roster.nodes.items() for local_rank in node}
    there |= {(place.node, place.local_rank) for place in unjoined}
    return all((key, local_rank) in there for key, size in expected.items() for local_rank in range(size))


def _worker_counts(roster: Roster, unjoined: Sequence[Place]) -> str:
    if roster.num_worker > 1:
        return f"{_unit(roster, unjoined)} {roster.complete_nodes}/{roster.num_worker}"
    size = _size_of_the_only_node(roster, unjoined)
    return "workers 0" if size is None else f"workers {len(_only_node(roster))}/{size}"


def _missing_workers(roster: Roster, unjoined: Sequence[Place]) -> str:
    if roster.num_worker > 1:
        absent = roster.num_worker - roster.complete_nodes
        names = [*_missing_nodes(roster, unjoined), *_missing_of_nodes(roster)]
        which = f": missing {listed(names, len(names))}" if names else ""
        return f"{absent} of {roster.num_worker} {_unit(roster, unjoined)}{which}"
    size = _size_of_the_only_node(roster, unjoined)
    if size is None:
        return "the first worker: none has called init() yet"
    node = _only_node(roster)
    if roster.is_later:
        return f"{size - len(node)} of {size} workers"
    missing = (f"worker {local_rank}" for local_rank in range(size) if local_rank not in node)
    absent = size - len(node)
    return f"{absent} of {size} {'worker' if size == 1 else 'workers'}: missing {listed(missing, absent)}"


def _unit(roster: Roster, unjoined: Sequence[Place]) -> str:
    sizes = [place.local_size for place in unjoined]
    sizes += [any_of(node).register.local_size for node in roster.nodes.values()]
    return "worker machines" if max(sizes, default=1) > 1 else "workers"


def _only_node(roster: Roster) -> Node:
    """The processes of the machine in a job that has one; none if nobody has registered."""
    return next(iter(roster.nodes.values()), {})


def _size_of_the_only_node(roster: Roster, unjoined: Sequence[Place]) -> int | None:
    node = _only_node(roster)
    if node:
        return any_of(node).register.local_size
    return unjoined[0].local_size if unjoined else None


def _missing_nodes(roster: Roster, unjoined: Sequence[Place]) -> Iterator[str]:
    """The ids of machines of which nobody has registered, where machines have ids at all."""
    ids = {any_of(node).register.worker_id for node in roster.nodes.values()}
    if roster.is_later:  # which may have any ids
        return
    if (ids or unjoined) and None not in ids | {place.worker_id for place in unjoined}:
        yield from (f"DMLC_WORKER_ID={each}" for each in range(roster.num_worker) if each not in ids)


def _missing_of_nodes(roster: Roster) -> Iterator[str]:
    """The missing processes of machines that have begun: ``BYTEPS_LOCAL_RANK=1, 2 of DMLC_WORKER_ID=0``."""
    for node in roster.nodes.values():
        register = any_of(node).register
        absent = register.local_size - len(node)
        if absent and not roster.is_later:
            ranks = (str(each) for each in range(register.local_size) if each not in node)
            place = register.process.host if register.worker_id is None else f"DMLC_WORKER_ID={register.worker_id}"
            yield f"BYTEPS_LOCAL_RANK={listed(ranks, absent)} of {place}"


def _living(unjoined: Sequence[Place], num_worker: int) -> str:
    """What is said of workers that live and have not registered; empty if there are none."""
    if not unjoined:
        return ""
    if len(unjoined) == 1:
        (place,) = unjoined
        process = place.process
        return f"; {place.name(num_worker)} runs on {process.host} (pid {process.pid}) but has not called init() yet"
    names = listed((place.describe(num_worker) for place in unjoined), len(unjoined))
    return f"; these run but have not called init() yet: {names}"
