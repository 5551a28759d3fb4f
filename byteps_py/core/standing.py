"""Who is in one generation of a job, and what they are called: what is asked of it, without deciding anything."""

from __future__ import annotations

import enum

from byteps_py.core.job import Job
from byteps_py.core.roster import Member, Roster
from byteps_py.core.senders import OF_WORKERS, may_send
from byteps_py.core.strangers import shown
from byteps_py.types import Role
from byteps_py.wire.control import ControlMessage, ProcessInfo

__all__ = ["Standing", "State"]


class State(enum.Enum):
    """See :mod:`byteps_py.core.membership`."""

    GATHERING = enum.auto()
    RUNNING = enum.auto()
    SUSPENDED = enum.auto()
    ENDING = enum.auto()


class Standing:
    """The members of a generation; changed by the class that inherits from it. Not thread-safe.

    Args:
        roster: empty.

    Attributes:
        state: how far the generation is.
        roster: who has registered; not to be changed from outside.
    """

    def __init__(self, roster: Roster) -> None:
        self.state = State.GATHERING
        self.roster = roster
        self._job: Job | None = None  # from RUNNING on

    def knows(self, peer: bytes) -> bool:
        """Whether ``peer`` is registered, present or left."""
        return self.roster.get(peer) is not None

    def members(self) -> list[tuple[bytes, ProcessInfo, str]]:
        """``(peer, process, description)`` of everyone who is registered and has not left."""
        return [
            (member.peer, member.process, self._name(member.peer))
            for member in self.roster
            if not self._has_left(member.peer)
        ]

    @property
    def is_closing(self) -> bool:
        """Whether some workers have suspended this generation, and others have not."""
        return self.state is State.RUNNING and bool(self._running.suspended)

    def survivors(self) -> tuple[list[Member], list[Member]]:
        """Of a generation that is over: the workers that have suspended, and the servers."""
        servers = [each for each in self.roster if each.register.role is Role.SERVER]
        return [each for each in self.roster if each.peer in self._running.suspended], servers

    def cast(self) -> list[tuple[Member, str]]:
        """Everybody who was ever in a complete generation, and what they are called."""
        return [(each, self._name(each.peer)) for each in self.roster]

    def ranks(self) -> dict[bytes, int]:
        """Those of the workers of a complete generation, by peer."""
        return self._running.seating.worker_ranks

    @property
    def _running(self) -> Job:
        assert self._job is not None, "the job has not started"
        return self._job

    def _may_send(self, peer: bytes, message: ControlMessage) -> bool:
        member = self.roster.get(peer)
        if member is not None and not may_send(member.register.role, message):
            return False
        return not (isinstance(message, OF_WORKERS) and self._has_left(peer))

    def _has_left(self, peer: bytes) -> bool:
        return self._job is not None and peer in self._job.left

    def _name(self, peer: bytes) -> str:
        if self._job is not None and peer in self._job.names:
            return self._job.names[peer]
        member = self.roster.get(peer)
        return shown(peer) if member is None else member.describe()
