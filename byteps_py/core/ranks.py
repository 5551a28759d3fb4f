"""Which rank each process of a complete job has.

Ranks follow from what the processes are, never from the order in which they arrived: nodes with an id by that id, then
the others by host and process id; within a node by local rank; servers by host and address.  In a later generation of a
job workers that were in it before come first, so that worker 0 has what was trained so far.

A worker that wishes for a rank (``BYTEPS_GLOBAL_RANK``) has it, and the others fill what is left in their order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import count

from byteps_py.core.places import Member, Node, any_of, node_sums
from byteps_py.core.seating import Seating, server_weights
from byteps_py.types import Participant, ServerInfo

__all__ = ["range_problem", "seat"]


def seat(nodes: Collection[Node], servers: Iterable[Member], *, by_machine: bool) -> Seating:
    """Ranks for everyone.

    Args:
        nodes: complete, with wishes that :func:`range_problem` has passed and that are no rank twice.
        servers: all.
        by_machine: see :class:`~byteps_py.core.roster.Roster`.
    """
    in_order = sorted(nodes, key=_node_order)
    workers = _participants(in_order)
    ordered = sorted(servers, key=_server_order)
    senders = [(any_of(node).process.host_id, _senders(node)) for node in in_order]
    everyone = [*(member for member, _ in workers), *ordered]
    return Seating(
        tuple(participant for _, participant in workers),
        tuple(_server_info(rank, member) for rank, member in enumerate(ordered)),
        {member.peer: rank for rank, (member, _) in enumerate(workers)},
        {member.peer: rank for rank, member in enumerate(ordered)},
        server_weights(senders, [each.process.host_id for each in ordered])
        if by_machine and ordered and senders
        else None,
        sum(times for _, times in senders),
        len({each.process.host_id for each in everyone}) > 1,
    )


def range_problem(nodes: Iterable[Node]) -> str | None:
    """Which worker of a complete job wishes for a rank that there is not."""
    members = [member for node in nodes for member in node.values()]
    for each in members:
        wish = each.register.global_rank
        if wish is not None and wish >= len(members):
            return (
                f"global_rank={wish} of {each.describe()} (BYTEPS_GLOBAL_RANK, or the argument of resume()) is no rank "
                f"of this job: it has {len(members)} workers, with the ranks 0 to {len(members) - 1}"
            )
    return None


def _participants(nodes: Iterable[Node]) -> list[tuple[Member, Participant]]:
    """The workers by rank. Local ranks have no gaps, also where some processes of a machine are gone since."""
    seats = [
        (member, node, local_rank, len(members))
        for node, members in enumerate(nodes)
        for local_rank, member in enumerate(sorted(members.values(), key=_local_order))
    ]
    taken = {member.register.global_rank for member, *_ in seats}
    free = (rank for rank in count() if rank not in taken)
    found = []
    for member, node, local_rank, size in seats:
        register, process = member.register, member.process
        rank = next(free) if register.global_rank is None else register.global_rank
        place = (rank, node, local_rank, size, process.host, process.pid, register.incarnation)
        found.append((member, Participant(*place)))
    return sorted(found, key=lambda each: each[1].rank)


def _node_order(node: Node) -> tuple[bool, bool, int, str, str, int, int]:
    worker_id = any_of(node).register.worker_id
    is_new = not any(each.register.resumes for each in node.values())
    first = min(
        (each.process.host, each.process.host_id, each.process.pid, each.register.incarnation) for each in node.values()
    )
    return (is_new, worker_id is None, worker_id or 0, *first)


def _local_order(member: Member) -> tuple[bool, int]:
    return (not member.register.resumes, member.register.local_rank)


def _server_order(member: Member) -> tuple[str, str, int, str]:
    """By host and address, the port as a number: 9999 comes before 10000."""
    address = member.register.address
    place, _, port = address.rpartition(":")
    return (member.process.host, place, int(port) if port.isdecimal() else 0, address)


def _server_info(rank: int, member: Member) -> ServerInfo:
    register, process = member.register, member.process
    return ServerInfo(rank, register.address, process.host, process.pid, register.incarnation)


def _senders(node: Node) -> int:
    """How often a gradient leaves a worker machine."""
    sums = node_sums(any_of(node).register) != "off" and len({each.process.host for each in node.values()}) == 1
    return 1 if sums else len(node)
