"""Processes that are no members of the job: refused ones, forgotten ones, and those of another run or of no job at all.

Nobody is answered or mentioned twice, so that a flood of messages does not become a flood of answers or of lines.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from byteps_py.core.actions import Action, Log, Send
from byteps_py.core.roster import Member, is_same_process
from byteps_py.wire.control import Abort, ChildEnded, ControlMessage, Heartbeat, ProcessInfo, Refused

__all__ = ["Strangers", "shown"]

_REMEMBERED: Final = 1024
"""Most of each kind that are remembered, so that nobody can fill the memory."""


class Strangers:
    """Remembers who was refused and who was mentioned.

    Args:
        job_id: the name of the job.
        job_nonce: the number of this run.
        scheduler: the process that schedules it.
    """

    def __init__(self, job_id: str, job_nonce: int, scheduler: ProcessInfo) -> None:
        self._job_id = job_id
        self._job_nonce = job_nonce
        self._scheduler = scheduler
        self._muted: set[bytes] = set()
        self._sent_away: set[bytes] = set()
        self._refused: deque[Member] = deque(maxlen=_REMEMBERED)

    def job_problem(self, who: str, theirs: str) -> str | None:
        """Why ``who``, of the job ``theirs``, does not belong here; None if it does."""
        if theirs == self._job_id:
            return None
        return (
            f"{who} belongs to job {theirs!r}, this scheduler to job {self._job_id!r}: "
            "set the same BYTEPS_JOB_ID everywhere, or another DMLC_PS_ROOT_PORT for the other job"
        )

    def identity_problem(self, member: Member, known: Member | None, name: str) -> str | None:
        """Whether a process is who it must be: of this job, and no other than the one its peer name stands for.

        Args:
            member: who wants to join.
            known: the member with that peer name, if there is one.
            name: its name, for messages.
        """
        problem = self.job_problem(member.describe(), member.register.job_id)
        if problem is None and known is not None and known.register.incarnation != member.register.incarnation:
            return f"{member.describe()} uses the identity of {name}"
        return problem

    def refuse(self, member: Member, reason: str, *, settings: bool = False) -> list[Action]:
        """Do not let a process in; ``settings``: because of settings that do not agree."""
        self._refused.append(member)
        self.mute(member.peer)
        return [Log("warning", f"refused: {reason}"), Send(member.peer, Refused(reason, settings))]

    def was_refused(self, message: ChildEnded) -> bool:
        """Whether the process that has ended, or one that it started, was refused before."""
        return any(
            is_same_process(message.process, each.process)
            or (
                bool(message.launch_id)
                and (message.launch_id, message.local_rank) == (each.register.launch_id, each.register.local_rank)
            )
            for each in self._refused
        )

    def mute(self, peer: bytes) -> bool:
        """Do not mention what else this one sends; whether it could have been mentioned so far."""
        return _note(self._muted, peer)

    def heard(self, peer: bytes, message: ControlMessage) -> list[Action]:
        """A stranger has said something."""
        if isinstance(message, Heartbeat) and message.job not in (0, self._job_nonce):
            return self._send_away(peer)
        if not self.mute(peer):
            return []
        if isinstance(message, ChildEnded):
            return [Log("warning", f"ignored the end of a process of job {message.job_id!r}")]
        kind = type(message).__name__
        return [Log("warning", f"ignored a {kind} of {shown(peer)}, which is not registered")]

    def _send_away(self, peer: bytes) -> list[Action]:
        """A member of an earlier run at this address, whose scheduler is gone, need not find that out by itself.

        It is certain that it is none of ours: the number in its heartbeats is that of another run.  A member that has
        just reconnected is no stranger, and one that has not been welcomed yet has no number.
        """
        if not _note(self._sent_away, peer):
            return []
        self.mute(peer)
        name = f"pid {self._scheduler.pid} on {self._scheduler.host}"
        text = f"the scheduler at this address ({name}) runs another job by now, or another run of the same one"
        log = Log("warning", f"{shown(peer)} belongs to an earlier run of a job and is told to end")
        return [log, Send(peer, Abort(f"{text}: this process belongs to an earlier run, whose scheduler is gone"))]


def shown(peer: bytes) -> str:
    """The name of a connection, for messages."""
    return repr(peer)[2:-1]


def _note(peers: set[bytes], peer: bytes) -> bool:
    """Remember ``peer``; whether it was new and there was room."""
    if peer in peers or len(peers) >= _REMEMBERED:
        return False
    peers.add(peer)
    return True
