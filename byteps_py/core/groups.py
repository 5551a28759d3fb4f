"""The groups of workers of a job, as the scheduler gives them out.

A set of ranks has one id, whoever asks for it and however often.  A worker that asks is answered when every server
knows the group: no contribution to one of its tensors can arrive before.

======================  ==============================================================  ==============================
event                   the group is new, or servers have not confirmed it              all servers know the group
======================  ==============================================================  ==============================
a worker asks           the servers are told (if it is new, or the question a           answer
                        repetition, since word may have been lost with a connection)
a server confirms       nothing; the last one: an answer to all who have asked          nothing
======================  ==============================================================  ==============================
"""

from __future__ import annotations

from collections.abc import Collection

from byteps_py.core.actions import Send
from byteps_py.types import MAX_GROUP
from byteps_py.wire.declarations import FormGroup, Group, GroupFormed

__all__ = ["Groups"]


class _Entry:
    """One group: the word of it, the servers that have not confirmed it, and the questions that are open."""

    def __init__(self, group: Group, servers: Collection[bytes]) -> None:
        self.group = group
        self.unaware = dict.fromkeys(servers)
        self.asking: dict[tuple[bytes, int], None] = {}


class Groups:
    """All groups of one job.  Not thread-safe.

    Args:
        size: number of workers.
        servers: all of them.
    """

    def __init__(self, size: int, servers: Collection[bytes]) -> None:
        self._size = size
        self._servers = servers
        self._entries: list[_Entry] = []
        self._by_ranks: dict[tuple[int, ...], _Entry] = {}

    def form(self, peer: bytes, rank: int, message: FormGroup) -> list[Send]:
        """Worker ``rank``, which is ``peer``, asks for the group of some ranks."""
        entry = self._by_ranks.get(message.ranks)
        problem = self._problem(rank, message.ranks) or (self._full() if entry is None else None)
        if problem is not None:
            return [Send(peer, GroupFormed(message.request, 0, problem))]
        question = peer, message.request
        is_due = entry is None or question in entry.asking
        if entry is None:
            entry = _Entry(Group(len(self._entries) + 1, message.ranks), self._servers)
            self._by_ranks[message.ranks] = entry
            self._entries.append(entry)
        if not entry.unaware:
            return [Send(peer, GroupFormed(message.request, entry.group.group))]
        entry.asking[question] = None
        return [Send(server, entry.group) for server in entry.unaware] if is_due else []

    def known(self, server: bytes, group: int) -> list[Send]:
        """A server has confirmed that it knows a group; one that was not given out means nothing."""
        if not 1 <= group <= len(self._entries):
            return []
        entry = self._entries[group - 1]
        entry.unaware.pop(server, None)
        if entry.unaware:
            return []
        asking, entry.asking = entry.asking, {}
        return [Send(peer, GroupFormed(request, group)) for peer, request in asking]

    def _problem(self, rank: int, ranks: tuple[int, ...]) -> str | None:
        """What is wrong with the ranks of a group that worker ``rank`` wants; they are rising."""
        if ranks[-1] >= self._size:
            return f"there is no worker {ranks[-1]}: ranks are 0 to {self._size - 1}"
        return None if rank in ranks else f"worker {rank} is not one of the ranks {ranks}"

    def _full(self) -> str | None:
        """Why no group can be added."""
        if len(self._entries) < MAX_GROUP:
            return None
        return f"the job has {MAX_GROUP} groups of workers, which is the most: form groups once, and use them again"
