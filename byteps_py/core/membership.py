"""The scheduler's decisions: who is in the job, and when it is over.

Theory of operation.  The job passes through three states and never goes back:

=========  ==================================================  ==========================================
state      what it means                                       it ends when
=========  ==================================================  ==========================================
GATHERING  processes register; nobody has a rank               all are here (each is told who all are), or
                                                               the start timeout is over, or the processes
                                                               contradict each other
RUNNING    the list of members is fixed; tensors are declared  every worker has said goodbye, or a member
           and barriers are kept                               is lost, or a barrier cannot complete
ENDING     a :class:`Stop` has been given out; whoever still   the runner closes
           speaks hears the end once more
=========  ==================================================  ==========================================

Which message is understood in which state is the table ``_HANDLERS``; any other one is logged and ignored, because a
message that was delayed or repeated must do no harm.  So every request may be repeated, and gets the same answer.

A process that is gone before the job is complete leaves its place to another one.  Afterwards its place cannot be
filled: a lost member ends the job for everyone, with the same reason everywhere.  Workers that have left are of no
concern any more.  Registered processes must show a sign of life, by any message, within the lost timeout.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final

from byteps_py.core.actions import Action, Log, Send, Stop
from byteps_py.core.gathering import Gathering
from byteps_py.core.job import Job
from byteps_py.core.liveness import Liveness, Silence
from byteps_py.core.roster import Member, Roster, is_same_process
from byteps_py.types import Role
from byteps_py.wire.control import (
    Abort,
    Barrier,
    Bye,
    ChildEnded,
    ControlMessage,
    Declare,
    Finished,
    Heartbeat,
    HeartbeatReply,
    Left,
    ProcessInfo,
    Refused,
    Register,
)

__all__ = ["Action", "Log", "Membership", "Send", "State", "Stop"]

_OF_ANYONE: Final = (Register, ChildEnded)
_OF_WORKERS: Final = (Declare, Barrier, Bye)
_REMEMBERED: Final = 1024
"""Most strangers and refused processes that are remembered, so that nobody can fill the memory."""


class State(enum.Enum):
    """See the theory of operation above."""

    GATHERING = enum.auto()
    RUNNING = enum.auto()
    ENDING = enum.auto()


class Membership:
    """The state machine of one job. Not thread-safe.

    Times are seconds on any clock that does not go back.

    Args:
        job_id: processes of another one are refused.
        num_worker, num_server: worker machines and server processes of the complete job; at least one server.
        job_nonce: 64-bit number that tells this run of the job from all others.
        scheduler: the process that this runs in, for the proof of its own loss.
        start_timeout: seconds from the first registration until the job must be complete.
        lost_timeout: seconds without a sign of life after which a process counts as lost.
    """

    def __init__(
        self,
        job_id: str,
        num_worker: int,
        num_server: int,
        *,
        job_nonce: int,
        scheduler: ProcessInfo,
        start_timeout: float,
        lost_timeout: float,
    ) -> None:
        if num_worker < 1 or num_server < 1:
            raise ValueError(f"num_worker={num_worker} and num_server={num_server} must be at least 1")
        self.state = State.GATHERING
        self._job_id = job_id
        self._job_nonce = job_nonce
        self._scheduler = scheduler
        self._lost_timeout = lost_timeout
        self._roster = Roster(num_worker, num_server)
        self._gathering = Gathering(self._roster, start_timeout)
        self._liveness = Liveness(lost_timeout)
        self._job: Job | None = None  # from RUNNING on
        self._end: Abort | Finished | None = None  # in ENDING
        self._strangers: set[bytes] = set()
        self._refused: deque[ProcessInfo] = deque(maxlen=_REMEMBERED)

    # What the runner calls.

    def receive(self, now: float, peer: bytes, message: ControlMessage) -> list[Action]:
        """Decide about one message."""
        if self._roster.get(peer) is None and not isinstance(message, _OF_ANYONE):
            return self._stranger(peer, message)
        actions = self._note_life(now, peer)
        handler = self._HANDLERS[self.state].get(type(message))
        if handler is None or not self._may_send(peer, message):
            situation = "it has left" if self._has_left(peer) else f"the job is {self.state.name}"
            ignored = f"ignored a {_kind(message)} of {self._name(peer)}: {situation}"
            return [*actions, Log("warning", ignored)]
        return actions + handler(self, now, peer, message)

    def tick(self, now: float) -> list[Action]:
        """Decide about the time that has passed; call it every second."""
        actions: list[Action] = []
        if self.state is not State.ENDING:
            for silence in self._liveness.check(now):
                actions += self._silent(now, silence)
        if self.state is State.GATHERING:
            failure = self._gathering.failure(now)
            actions += self._gathering.remind(now) if failure is None else self._abort(failure)
        elif self.state is State.RUNNING:
            actions += self._running.remind(now) + self._tell_departures(now)
        return actions

    def proven_lost(self, now: float, peer: bytes, how: str) -> list[Action]:
        """The process of ``peer`` is gone; ``how`` that is known, such as ``its process 4242 on host-a is gone``."""
        if self._roster.get(peer) is None or self._has_left(peer) or self.state is State.ENDING:
            return []
        if self.state is State.RUNNING:
            return self._abort(f"{self._name(peer)} is lost: {how}")
        return self._vacate(peer, f"{self._name(peer)} is lost: {how}")

    def abort(self, reason: str) -> list[Action]:
        """End the job for a reason that only the runner knows; nothing if it has ended already."""
        return [] if self.state is State.ENDING else self._abort(reason)

    def knows(self, peer: bytes) -> bool:
        """Whether ``peer`` is registered, present or left."""
        return self._roster.get(peer) is not None

    def members(self) -> list[tuple[bytes, ProcessInfo, str]]:
        """``(peer, process, description)`` of everyone who is registered and has not left."""
        return [
            (member.peer, member.process, self._name(member.peer))
            for member in self._roster
            if not self._has_left(member.peer)
        ]

    # GATHERING

    def _join(self, now: float, peer: bytes, message: Register) -> list[Action]:
        member = Member(peer, message)
        objection = self._identity_problem(member)
        if objection is not None:
            return self._refuse(member, objection)
        if self._roster.get(peer) is not None:
            return []
        problem = self._roster.add(member)
        if problem is not None:
            everyone = self._abort(problem.text) if problem.for_all else []
            return self._refuse(member, problem.text) + everyone
        self._liveness.seen(peer, now)
        return self._gathering.joined(now, member) + (self._start() if self._roster.is_complete else [])

    def _identity_problem(self, member: Member) -> str | None:
        """Whether the process is who it must be: of this job, and no other than the one its peer name stands for."""
        theirs = member.register.job_id
        if theirs != self._job_id:
            return (
                f"{member.describe()} belongs to job {theirs!r}, this scheduler to job {self._job_id!r}: "
                "set the same BYTEPS_JOB_ID everywhere, or another DMLC_PS_ROOT_PORT for the other job"
            )
        known = self._roster.get(member.peer)
        if known is not None and known.register.incarnation != member.register.incarnation:
            return f"{member.describe()} uses the identity of {self._name(member.peer)}"
        return None

    def _start(self) -> list[Action]:
        self.state = State.RUNNING
        self._job = job = Job(self._roster.seating(), self._roster.partition_bytes, self._job_nonce)
        actions: list[Action] = [Log("info", f"the job is complete: {self._roster.counts()}")]
        return actions + [job.welcome(member.peer) for member in self._roster]

    def _withdraw(self, now: float, peer: bytes, message: Bye) -> list[Action]:
        return self._vacate(peer, f"{self._name(peer)} has left{message.reason and ': ' + message.reason}")

    def _vacate(self, peer: bytes, what: str) -> list[Action]:
        """A process is gone before the job is complete: its place is free again."""
        self._roster.remove(peer)
        self._liveness.forget(peer)
        self._gathering.removed()
        self._mute(peer)
        text = f"{what}; the job was not complete, so another process may take its place: {self._roster.counts()}"
        return [Log("warning", text), Send(peer, Refused(text))]

    # RUNNING

    @property
    def _running(self) -> Job:
        assert self._job is not None, "the job has not started"
        return self._job

    def _late(self, now: float, peer: bytes, message: Register) -> list[Action]:
        """The answer to a registration may have been lost; anyone else is too late."""
        member = Member(peer, message)
        objection = self._identity_problem(member)
        if objection is None and self._roster.get(peer) is None:
            objection = f"{member.describe()} is too late: the job is complete and runs already"
        return [self._running.welcome(peer)] if objection is None else self._refuse(member, objection)

    def _declare(self, now: float, peer: bytes, message: Declare) -> list[Action]:
        return self._running.declare(peer, message)

    def _barrier(self, now: float, peer: bytes, message: Barrier) -> list[Action]:
        return self._running.barrier(now, peer, message.number) + self._check_barrier()

    def _leave(self, now: float, peer: bytes, message: Bye) -> list[Action]:
        job = self._running
        actions = job.leave(now, peer, message.reason)
        self._liveness.forget(peer)
        if not job.is_done:
            return actions
        failure = job.failure()
        if failure is not None:
            return actions + self._abort(failure)
        return actions + self._finish(Finished(), Stop(0, "every worker has said goodbye"))

    def _tell_departures(self, now: float) -> list[Action]:
        actions, failure = self._running.tell_departures(now)
        return actions + (self._check_barrier() if failure is None else self._abort(failure))

    def _check_barrier(self) -> list[Action]:
        """A barrier that lacks a worker which has left can never complete."""
        problem = self._running.impossible_barrier()
        return [] if problem is None else self._abort(problem)

    # Any state

    def _heartbeat(self, now: float, peer: bytes, message: Heartbeat) -> list[Action]:
        return [Send(peer, HeartbeatReply(self._scheduler))]

    def _child_ended(self, now: float, peer: bytes, message: ChildEnded) -> list[Action]:
        """A launcher reaped a process: the only news of one that ends before it registers.

        The launcher does not care what becomes of it, but has to know that the report has arrived.
        """
        return [Send(peer, HeartbeatReply(self._scheduler)), *self._end_of_child(message)]

    def _end_of_child(self, message: ChildEnded) -> list[Action]:
        if self.state is State.ENDING:
            return []  # processes are expected to end now
        if message.job_id != self._job_id:
            return [Log("warning", f"ignored the end of a process of job {message.job_id!r}")]
        how = f"its process {message.process.pid} on {message.process.host} {_ending(message.status)}"
        member = self._roster.find(message.process)
        if member is None:
            return self._outsider_ended(message)
        if self._has_left(member.peer):
            # A process that says goodbye and then ends badly has failed.
            return self._abort(self._running.failure_of(member.peer, how)) if message.status else []
        without = "" if message.status else " without saying goodbye (is shutdown() called?)"
        return self._abort(f"{self._name(member.peer)} is lost: {how}{without}")

    def _outsider_ended(self, message: ChildEnded) -> list[Action]:
        """Before the start it would be waited for in vain; later, or if it was refused, nobody needs it."""
        process = message.process
        what = f"process {process.pid} on {process.host} {_ending(message.status)}"
        if self.state is State.RUNNING or any(is_same_process(process, each) for each in self._refused):
            return [Log("warning", f"{what}; it was no member of the job")]
        if message.status:
            return self._abort(f"{what} before it joined the job")
        self._gathering.ended(process)
        return [Log("warning", f"{what} before it joined the job")]

    def _silent(self, now: float, silence: Silence) -> list[Action]:
        seconds = f"{silence.seconds:.0f} s"
        if silence.lost:
            how = f"not heard from for {seconds} (BYTEPS_LOST_TIMEOUT={self._lost_timeout:g})"
            return self.proven_lost(now, silence.peer, how)
        return [Log("warning", f"{self._name(silence.peer)} has not been heard from for {seconds}; the job goes on")]

    def _may_send(self, peer: bytes, message: ControlMessage) -> bool:
        member = self._roster.get(peer)
        if isinstance(message, _OF_WORKERS) and (member is None or member.register.role is not Role.WORKER):
            return False
        return not (isinstance(message, Declare | Barrier) and self._has_left(peer))

    def _note_life(self, now: float, peer: bytes) -> list[Action]:
        """Note a sign of life of a member."""
        if self._roster.get(peer) is None or self._has_left(peer):
            return []
        silent = self._liveness.seen(peer, now)
        return [] if silent is None else [Log("warning", f"{self._name(peer)} is back after {silent:.0f} s")]

    def _stranger(self, peer: bytes, message: ControlMessage) -> list[Action]:
        """Whoever is not registered is mentioned once."""
        if not self._mute(peer):
            return []
        return [Log("warning", f"ignored a {_kind(message)} of {_shown(peer)}, which is not registered")]

    def _mute(self, peer: bytes) -> bool:
        """Do not mention what else this stranger sends; whether it could have been mentioned so far."""
        if peer in self._strangers or len(self._strangers) >= _REMEMBERED:
            return False
        self._strangers.add(peer)
        return True

    def _refuse(self, member: Member, reason: str) -> list[Action]:
        self._refused.append(member.process)
        self._mute(member.peer)
        return [Log("warning", f"refused: {reason}"), Send(member.peer, Refused(reason))]

    # ENDING

    def _abort(self, reason: str) -> list[Action]:
        return self._finish(Abort(reason), Stop(1, reason))

    def _finish(self, end: Abort | Finished, stop: Stop) -> list[Action]:
        """Tell everyone who has not left."""
        self.state = State.ENDING
        self._end = end
        return [*(Send(peer, end) for peer, _, _ in self.members()), stop]

    def _say_end(self, now: float, peer: bytes, message: ControlMessage) -> list[Action]:
        assert self._end is not None
        if self._has_left(peer):
            return [Send(peer, Left(self._running.seating.worker_ranks[peer]))]
        return [Send(peer, self._end)]

    def _after_end(self, now: float, peer: bytes, message: Register) -> list[Action]:
        if self._roster.get(peer) is not None:
            return self._say_end(now, peer, message)
        how = self._end.reason if isinstance(self._end, Abort) else "its work is done"
        return self._refuse(Member(peer, message), f"the job has ended: {how}")

    # Lookups

    def _has_left(self, peer: bytes) -> bool:
        return self._job is not None and peer in self._job.left

    def _name(self, peer: bytes) -> str:
        if self._job is not None and peer in self._job.names:
            return self._job.names[peer]
        member = self._roster.get(peer)
        return _shown(peer) if member is None else member.describe()

    _HANDLERS: ClassVar[dict[State, dict[type, Callable[[Membership, float, bytes, Any], list[Action]]]]] = {
        State.GATHERING: {
            Register: _join,
            Heartbeat: _heartbeat,
            Bye: _withdraw,
            ChildEnded: _child_ended,
        },
        State.RUNNING: {
            Register: _late,
            Heartbeat: _heartbeat,
            Declare: _declare,
            Barrier: _barrier,
            Bye: _leave,
            ChildEnded: _child_ended,
        },
        State.ENDING: {
            Register: _after_end,
            Heartbeat: _say_end,
            Declare: _say_end,
            Barrier: _say_end,
            Bye: _say_end,
            ChildEnded: _child_ended,
        },
    }


def _kind(message: ControlMessage) -> str:
    return type(message).__name__


def _ending(status: int) -> str:
    """``ended with status 3`` or ``was killed by signal 9``."""
    return f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"


def _shown(peer: bytes) -> str:
    return repr(peer)[2:-1]
