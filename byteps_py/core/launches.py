"""What launchers tell of the processes they started, as long as the job is not complete.

A launcher (``bpslaunch``) is the parent of its workers: it knows that one lives before the worker has said a word, and
that one has ended without ever saying one.  So nobody is given up who only takes long to start, and nobody is waited
for who will never come.

* It *vouches* for workers that live and have not joined.  That holds until it has been silent for the lost timeout.
* A worker that *ended with status 0* without joining is not waited for.  If all workers of all machines ended so, the
  programs simply do not use this package, and the job has ended as it should.  They do not end at the same moment, so
  the failure of the job is held back for :data:`HOLD_SECONDS`, unless somebody has joined and waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from byteps_py.core.job import Job
from byteps_py.core.places import NodeKey, Place, node_key
from byteps_py.core.roster import Roster, is_same_process
from byteps_py.core.strangers import Strangers
from byteps_py.wire.control import ChildEnded, ProcessInfo, Vouch, Vouched

__all__ = ["HOLD_SECONDS", "Launches", "Verdict", "ending"]

HOLD_SECONDS: Final = 5.0
_SIGNALLED: Final = 128
"""From this status on, a shell means that its command has died of a signal."""
_MOST: Final = 65536
"""Most launchers and processes that are remembered, so that nobody can fill the memory."""
_MENTIONED: Final = 1024
"""Most ended processes of which a line is written; none twice, since what is not answered in time is repeated."""


@dataclass
class _Launch:
    """What one launcher said last, without the processes that have ended since."""

    message: Vouch
    heard: float
    children: dict[int, ProcessInfo]

    @property
    def node(self) -> NodeKey:
        return node_key(self.message.worker_id, self.message.launch_id)


class Verdict(NamedTuple):
    """What the end of a process means.

    ``reason`` why the job is over, if it is; ``is_failure`` whether that is a failure; ``doubted`` is a member that has
    probably ended, too.
    """

    warning: str = ""
    reason: str = ""
    is_failure: bool = False
    doubted: bytes | None = None


class Launches:
    """Pure bookkeeping; ``now`` is seconds of a monotonic clock.

    Args:
        roster: who has joined; filled and emptied by the caller.
        strangers: who was refused; filled by the caller.
        lost_timeout: seconds for which the word of a launcher holds.
    """

    def __init__(self, roster: Roster, strangers: Strangers, lost_timeout: float) -> None:
        self._roster = roster
        self._strangers = strangers
        self._lost_timeout = lost_timeout
        self._launches: dict[bytes, _Launch] = {}  # by the peer that vouches
        self._ended: dict[NodeKey, set[int]] = {}
        self._sizes: dict[NodeKey, int] = {}
        self._absent: dict[tuple[NodeKey, int] | None, tuple[float, str]] = {}  # since when, and why; by place
        self._doubts: dict[bytes, str] = {}
        self._mentioned: set[ProcessInfo] = set()

    def vouch(self, now: float, peer: bytes, message: Vouch, *, is_waiting: bool) -> Vouched:
        """A launcher vouches for workers; returns the answer. ``is_waiting``: whether the job still needs members."""
        children = {each.local_rank: each.process for each in message.children}
        if not is_waiting:
            return Vouched((), tuple(children))
        known = sum(1 + len(each.children) for other, each in self._launches.items() if other != peer)
        if known + 1 + len(children) <= _MOST:
            self._launches[peer] = _Launch(message, now, children)
        node = node_key(message.worker_id, message.launch_id)
        joined = tuple(rank for rank in children if self._roster.is_taken(node, rank))
        return Vouched(tuple(rank for rank in children if rank not in joined), joined)

    def have_joined(self, message: Vouch) -> bool:
        """Whether all these workers of this very launch are members, even if they have left since."""
        return all(self._roster.find_child(message.launch_id, each.local_rank) for each in message.children)

    def peers(self) -> list[bytes]:
        """The launchers that have vouched."""
        return list(self._launches)

    def unjoined(self, now: float) -> list[Place]:
        """The workers that are known to live and have not joined, in the order of machines and local ranks."""
        self._launches = {peer: each for peer, each in self._launches.items() if now - each.heard < self._lost_timeout}
        places = [
            Place(each.node, each.message.worker_id, rank, each.message.local_size, process)
            for each in self._launches.values()
            for rank, process in each.children.items()
            if not self._roster.is_taken(each.node, rank)
        ]
        return sorted(places, key=lambda place: (place.worker_id or 0, str(place.node), place.local_rank))

    def ended(self, now: float, message: ChildEnded, job: Job | None) -> Verdict:
        """A process has ended.

        Args:
            now: seconds.
            message: which one, and with which status.
            job: the job, if it is complete.
        """
        verdict = self._judge(now, message, job)
        if not verdict.warning or verdict.reason:
            return verdict
        if message.process in self._mentioned or len(self._mentioned) >= _MENTIONED:
            return verdict._replace(warning="")
        self._mentioned.add(message.process)
        return verdict

    def _judge(self, now: float, message: ChildEnded, job: Job | None) -> Verdict:
        process = f"process {message.process.pid} on {message.process.host}"
        how = f"its {process} {ending(message.status)}"
        member = self._roster.find(message.process)
        is_command = member is None and message.local_rank is not None
        if is_command:
            # The process may be a shell: the worker is whoever registered from its place in the launch.
            member = self._roster.find_child(message.launch_id, message.local_rank or 0)
            how = f"the command that started it, {process}, {ending(message.status)}"
        if member is None:
            return self._outsider_ended(now, message, is_complete=job is not None)
        if job is not None and member.peer in job.left:
            # A process that says goodbye and then ends badly has failed.
            return Verdict(reason=job.failure_of(member.peer, how), is_failure=True) if message.status else Verdict()
        name = member.describe() if job is None else job.names[member.peer]
        if is_command and not 0 < message.status < _SIGNALLED:
            # It may live on: in the background of a shell that is through, or at work on what it saves before it
            # follows a shell that has died of a signal.
            self._doubts[member.peer] = how
            return Verdict(f"{how} before {name} left the job, which goes on", doubted=member.peer)
        without = "" if message.status else " without saying goodbye (is shutdown() called?)"
        return Verdict(reason=f"{name} is lost: {how}{without}", is_failure=True)

    def doubt(self, peer: bytes) -> str:
        """Why the member ``peer`` has probably ended; empty without a doubt."""
        return self._doubts.get(peer, "")

    def failure(self, now: float) -> str | None:
        """Why the job cannot become complete any more."""
        for place, (since, text) in self._absent.items():
            has_come = place is not None and self._roster.is_taken(*place)  # by another process than the one that ended
            if not has_come and (self._roster.has_workers or now - since >= HOLD_SECONDS):
                return text
        return None

    def _outsider_ended(self, now: float, message: ChildEnded, *, is_complete: bool) -> Verdict:
        """Before the start it would be waited for in vain; later, or if it was refused, nobody needs it."""
        what = f"{self._describe(message)} {ending(message.status)}"
        if is_complete or self._strangers.was_refused(message):
            return Verdict(f"{what}; it was no member of the job")
        if message.joined:
            return Verdict(f"{what}; it belongs to an earlier run of a job")
        what += " before it joined the job"
        if message.status:
            return Verdict(reason=what, is_failure=True)
        self._ended_well(message)
        if self._nobody_came():
            text = "every worker has ended with status 0 and none of them ever called init(): there is nothing to do"
            return Verdict(text, reason=text)
        place, why = None, what
        if message.local_rank is not None:
            place = (node_key(message.worker_id, message.launch_id), message.local_rank)
            why += ": does the script call init()?"
        if len(self._absent) < _MOST:
            self._absent.setdefault(place, (now, why))
        return Verdict(what)

    def _ended_well(self, message: ChildEnded) -> None:
        for launch in self._launches.values():
            children = launch.children.items()
            launch.children = {rank: each for rank, each in children if not is_same_process(each, message.process)}
        if message.local_rank is not None and sum(map(len, self._ended.values())) < _MOST:
            node = node_key(message.worker_id, message.launch_id)
            self._sizes[node] = message.local_size
            self._ended.setdefault(node, set()).add(message.local_rank)

    def _nobody_came(self) -> bool:
        """Whether every worker of every machine has ended with status 0, and none has joined."""
        complete = [node for node, ended in self._ended.items() if len(ended) >= self._sizes[node]]
        return len(complete) >= self._roster.num_worker and not self._roster.has_workers

    def _describe(self, message: ChildEnded) -> str:
        process = message.process
        if message.local_rank is None:
            return f"process {process.pid} on {process.host}"
        node = node_key(message.worker_id, message.launch_id)
        place = Place(node, message.worker_id, message.local_rank, message.local_size, process)
        return place.describe(self._roster.num_worker)


def ending(status: int) -> str:
    """``ended with status 3`` or ``was killed by signal 9``."""
    return f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
