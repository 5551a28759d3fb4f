"""The scheduler's decisions: who is in the job, and when it is over.

Theory of operation.  One generation of the job (:mod:`byteps_py.core.generations`) passes through these states, and
never goes back:

=========  ==================================================  ==========================================
state      what it means                                       it ends when
=========  ==================================================  ==========================================
GATHERING  processes register; nobody has a rank               all are here (each is told who all are), or
                                                               the start timeout is over, or the processes
                                                               contradict each other
RUNNING    the list of members is fixed; tensors are declared  every worker has said goodbye, or a member
           and barriers are kept                               is lost, or a barrier cannot complete; or every
                                                               worker has suspended it or left
SUSPENDED  this generation is over, the job is not             the next generation takes over, or the job ends
ENDING     a :class:`Stop` has been given out; whoever still   the runner closes
           speaks hears the end once more
=========  ==================================================  ==========================================

Which message is understood in which state is the table ``_HANDLERS``; any other one is logged and ignored, because a
message that was delayed or repeated must do no harm.  So every request may be repeated, and gets the same answer.

A process that is gone before the job is complete leaves its place to another one.  Afterwards its place cannot be
filled: a lost member ends the job for everyone, with the same reason everywhere.  Workers that have left are of no
concern any more.  Registered processes must show a sign of life, by any message, within the lost timeout, unless the
runner sees that they run.  A scheduler or a server that is told to end says so, and ends the job if it has not ended
within the grace period.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar, Literal

from byteps_py.core.absence import counts
from byteps_py.core.actions import Action, Log, Send, Stop
from byteps_py.core.census import Census, take_census
from byteps_py.core.gathering import Gathering
from byteps_py.core.job import EPOCH, Job
from byteps_py.core.launches import Launches
from byteps_py.core.liveness import Liveness, Silence
from byteps_py.core.roster import Member, Roster
from byteps_py.core.senders import OF_ANYONE, OF_WORKERS
from byteps_py.core.standing import Standing, State
from byteps_py.core.strangers import Strangers
from byteps_py.types import Role
from byteps_py.wire.control import (
    Abort,
    Barrier,
    Bye,
    ChildEnded,
    ControlMessage,
    Declare,
    Finished,
    FormGroup,
    GroupKnown,
    Heartbeat,
    HeartbeatReply,
    Left,
    Notice,
    ProcessInfo,
    Refused,
    Register,
    Vouch,
)

__all__ = ["Action", "Log", "Membership", "Send", "State", "Stop"]


class Membership(Standing):
    """The state machine of one job. Not thread-safe.

    Times are seconds on any clock that does not go back.

    Args:
        job_id: processes of another one are refused.
        num_worker, num_server: worker machines and server processes of the complete job; at least one server.
        job_nonce: 64-bit number that tells this run of the job from all others.
        scheduler: the process that this runs in, for the proof of its own loss.
        start_timeout: seconds from the first registration until the job must be complete; 0: no limit.
        lost_timeout: seconds without a sign of life after which a process counts as lost.
        by_machine, asked_by: as in :class:`~byteps_py.core.roster.Roster`.
        epoch: number of the generation.

    Attributes:
        end: what everybody is told, in ENDING.
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
        by_machine: bool = True,
        epoch: int = EPOCH,
        asked_by: str = "",
    ) -> None:
        if num_worker < 1 or num_server < 1:
            raise ValueError(f"num_worker={num_worker} and num_server={num_server} must be at least 1")
        self._job_nonce = job_nonce
        self._scheduler = scheduler
        self._lost_timeout = lost_timeout
        self._epoch = epoch
        super().__init__(Roster(num_worker, num_server, by_machine=by_machine, asked_by=asked_by))
        self._strangers = Strangers(job_id, job_nonce, scheduler)
        self._launches = Launches(self.roster, self._strangers, lost_timeout)
        self._gathering = Gathering(self.roster, self._launches, start_timeout)
        self._liveness = Liveness(lost_timeout)
        self._last_call: tuple[float, str] | None = None  # when and why the job ends at the latest
        self.end: Abort | Finished | None = None

    # What the runner calls.

    def receive(self, now: float, peer: bytes, message: ControlMessage) -> list[Action]:
        """Decide about one message."""
        if self.roster.get(peer) is None and not isinstance(message, OF_ANYONE):
            return self._strangers.heard(peer, message)
        actions = self._note_life(now, peer)
        handler = self._HANDLERS[self.state].get(type(message))
        if handler is None or not self._may_send(peer, message):
            situation = "it has left" if self._has_left(peer) else f"the job is {self.state.name}"
            ignored = f"ignored a {type(message).__name__} of {self._name(peer)}: {situation}"
            return [*actions, Log("warning", ignored)]
        return actions + handler(self, now, peer, message)

    def tick(self, now: float, running: Collection[bytes] = ()) -> list[Action]:
        """Decide about the time that has passed; call it every second.

        Args:
            now: seconds.
            running: those of :meth:`silent` that are known to run.
        """
        actions: list[Action] = []
        if self.state is not State.ENDING:
            for silence in self._liveness.check(now, running):
                actions += self._silent(now, silence)
        if self.state is State.GATHERING:
            failure = self._launches.failure(now) or self._gathering.failure(now)
            actions += self._gathering.remind(now) if failure is None else self._abort(failure)
        elif self.state is State.RUNNING:
            actions += self._running.remind(now) + self._tell_departures(now)
        if self._last_call is not None and now >= self._last_call[0]:
            actions += self.abort(self._last_call[1])
        return actions

    def silent(self, now: float) -> list[tuple[bytes, ProcessInfo]]:
        """The members that have been silent for a while, and their processes."""
        silent = self._liveness.silent(now)
        return [(peer, process) for peer, process, _ in self.members() if peer in silent]

    def told_to_end(self, now: float, reason: str, grace: float) -> list[Action]:
        """This scheduler is to end: at once while nobody works, else when the workers have left.

        Args:
            now: seconds.
            reason: why the job ends if they have not left after ``grace`` seconds.
        """
        if self.state is State.RUNNING and grace > 0:
            self._last_call = (now + grace, reason)
            text = f"{reason}: the job goes on until its workers have left, for {grace:g} s at most"
            return self._running.announce(f"{text} (BYTEPS_GRACE_PERIOD)")
        if self.state is State.GATHERING and not self.roster.has_workers and not self._launches.peers():
            nothing = Log("warning", "no worker called init(): nothing was exchanged")
            said = [] if self._gathering.had_workers else [nothing]
            return [*said, *self._finish(Finished(), Stop(0, f"{reason} while no worker was there"))]
        return self.abort(reason)

    def proven_lost(self, now: float, peer: bytes, how: str) -> list[Action]:
        """The process of ``peer`` is gone; ``how`` that is known, such as ``its process 4242 on host-a is gone``."""
        if self.roster.get(peer) is None or self._has_left(peer) or self.state is State.ENDING:
            return []
        if self.state is State.RUNNING:
            return self._abort(f"{self._name(peer)} is lost: {how}")
        return self._vacate(peer, f"{self._name(peer)} is lost: {how}")

    def abort(self, reason: str) -> list[Action]:
        """End the job for a reason that only the runner knows; nothing if it has ended already."""
        return [] if self.state is State.ENDING else self._abort(reason)

    def finish(self, reason: str) -> list[Action]:
        """End the job in order, for a reason that is known elsewhere."""
        return self._finish(Finished(), Stop(0, reason))

    def say_end_again(self) -> list[Action]:
        """Repeat the end, once there is one, to everyone who has not left."""
        return [] if self.end is None else [Send(peer, self.end) for peer, _, _ in self.members()]

    def census(self, now: float) -> Census:
        """Who is here and who is missing, for one who asks from outside."""
        return take_census(self.state.name.lower(), self.roster, self._launches.unjoined(now))

    # GATHERING

    def _join(self, now: float, peer: bytes, message: Register) -> list[Action]:
        member = Member(peer, message)
        objection = self._strangers.identity_problem(member, self.roster.get(peer), self._name(peer))
        if objection is not None:
            return self._strangers.refuse(member, objection)
        if self.roster.get(peer) is not None:
            return []
        problem = self.roster.add(member)
        if problem is not None:
            everyone = self._abort(problem.text, settings=True) if problem.for_all else []
            return self._strangers.refuse(member, problem.text, settings=problem.for_all) + everyone
        self._liveness.seen(peer, now)
        return self._gathering.joined(now, member) + (self._start() if self.roster.is_complete else [])

    def _start(self) -> list[Action]:
        self.state = State.RUNNING
        self._job = job = Job(self.roster.seating(), self.roster.partition_bytes, self._job_nonce, self._epoch)
        actions: list[Action] = [Log("info", f"the job is complete: {counts(self.roster)}"), *job.tell_shares()]
        return actions + [job.welcome(member.peer) for member in self.roster]

    def _withdraw(self, now: float, peer: bytes, message: Bye) -> list[Action]:
        return self._vacate(peer, f"{self._name(peer)} {message.reason or 'has left'}")

    def _vacate(self, peer: bytes, what: str) -> list[Action]:
        """A process is gone before the job is complete: its place is free again. Without workers, nobody minds."""
        level: Literal["info", "warning"] = "warning" if self.roster.has_workers else "info"
        self.roster.remove(peer)
        self._liveness.forget(peer)
        self._gathering.removed()
        self._strangers.mute(peer)
        text = f"{what}; the job was not complete, so another process may take its place: {counts(self.roster)}"
        return [Log(level, text), Send(peer, Refused(text))]

    # RUNNING

    def _late(self, now: float, peer: bytes, message: Register) -> list[Action]:
        """The answer to a registration may have been lost; anyone else is too late."""
        member = Member(peer, message)
        objection = self._strangers.identity_problem(member, self.roster.get(peer), self._name(peer))
        if objection is None and self.roster.get(peer) is None:
            objection = f"{member.describe()} is too late: the job is complete and runs already"
        return [self._running.welcome(peer)] if objection is None else self._strangers.refuse(member, objection)

    def _ask(self, now: float, peer: bytes, message: Declare | FormGroup | GroupKnown) -> list[Action]:
        job = self._running
        return job.declare(peer, message) if isinstance(message, Declare) else job.group(peer, message)

    def _barrier(self, now: float, peer: bytes, message: Barrier) -> list[Action]:
        return self._running.barrier(now, peer, message.number) + self._check_barrier()

    def _leave(self, now: float, peer: bytes, message: Bye) -> list[Action]:
        job = self._running
        if peer not in job.seating.worker_ranks:  # a server: nothing goes on without it
            return self._abort(f"{self._name(peer)} {message.reason or 'has left'}")
        if message.suspends:
            actions = job.suspend(now, peer)
        else:
            actions = job.leave(now, peer, message.reason)
            self._liveness.forget(peer)
        if not job.is_done:
            return actions
        failure = job.failure()
        if failure is not None:
            return actions + self._abort(failure)
        if job.suspended:
            self.state = State.SUSPENDED
            job.left.update(job.suspended)
            return actions + job.confirm_suspension()
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

    def _notice(self, now: float, peer: bytes, message: Notice) -> list[Action]:
        return self._running.announce(f"{self._name(peer)} {message.text}")

    def _vouch(self, now: float, peer: bytes, message: Vouch) -> list[Action]:
        """A launcher says that its workers live; from the start on nobody has to know.

        Of the end only a launcher has to hear whose workers have come too late: members hear of it themselves, and are
        to end by themselves.
        """
        objection = self._strangers.job_problem("this launch of workers", message.job_id)
        if objection is not None:
            return [Send(peer, Refused(objection))]
        if self.end is not None and not self._launches.have_joined(message):
            return [Send(peer, self.end)]
        return [Send(peer, self._launches.vouch(now, peer, message, is_waiting=self.state is State.GATHERING))]

    def _child_ended(self, now: float, peer: bytes, message: ChildEnded) -> list[Action]:
        """A process of a launch has ended; the launcher only has to know that this has been heard."""
        actions: list[Action] = [Send(peer, HeartbeatReply(self._scheduler))]
        if self.state is State.ENDING:
            return actions  # processes are expected to end now
        if self._strangers.job_problem("", message.job_id) is not None:
            return actions + self._strangers.heard(peer, message)
        verdict = self._launches.ended(now, message, self._job)
        if verdict.warning:
            actions.append(Log("warning", verdict.warning))
        if verdict.doubted is not None:
            self._liveness.doubt(verdict.doubted)
        if verdict.is_failure:
            actions += self._abort(verdict.reason)
        elif verdict.reason:
            actions += self._finish(Finished(), Stop(0, verdict.reason))
        return actions

    def _silent(self, now: float, silence: Silence) -> list[Action]:
        heard = f"not been heard from for {silence.seconds:.0f} s"
        if silence.lost:
            why = self._launches.doubt(silence.peer) or f"BYTEPS_LOST_TIMEOUT={self._lost_timeout:g}"
            return self.proven_lost(now, silence.peer, f"it has {heard} ({why})")
        but = ", but its process runs (is it in a long call that holds the GIL?)" if silence.runs else ""
        return [Log("warning", f"{self._name(silence.peer)} has {heard}{but}; the job goes on")]

    def _note_life(self, now: float, peer: bytes) -> list[Action]:
        """Note a sign of life of a member."""
        if self.roster.get(peer) is None or self._has_left(peer):
            return []
        silent = self._liveness.seen(peer, now)
        return [] if silent is None else [Log("warning", f"{self._name(peer)} is back after {silent:.0f} s")]

    # ENDING

    def _abort(self, reason: str, *, settings: bool = False) -> list[Action]:
        return self._finish(Abort(reason, settings), Stop(2 if settings else 1, reason))

    def _finish(self, end: Abort | Finished, stop: Stop) -> list[Action]:
        """Tell everyone who has not left, and the launchers whose workers have not come yet."""
        launchers = self._launches.peers() if self.state is State.GATHERING else []
        self.state = State.ENDING
        self.end = end
        return [*self.say_end_again(), *(Send(peer, end) for peer in launchers), stop]

    def _say_end(self, now: float, peer: bytes, message: ControlMessage) -> list[Action]:
        assert self.end is not None
        if self._has_left(peer):
            return [Send(peer, Left(self._running.seating.worker_ranks[peer]))]
        return [Send(peer, self.end)]

    def _after_end(self, now: float, peer: bytes, message: Register) -> list[Action]:
        is_needless = message.role is Role.SERVER and self._job is None and isinstance(self.end, Finished)
        if is_needless or self.roster.get(peer) is not None:
            return self._say_end(now, peer, message)
        end = self.end if isinstance(self.end, Abort) else Abort("its work is done")
        return self._strangers.refuse(Member(peer, message), f"the job has ended: {end.reason}", settings=end.settings)

    _OF_LAUNCHERS: ClassVar[dict[type, Callable[..., list[Action]]]] = {ChildEnded: _child_ended, Vouch: _vouch}
    _HANDLERS: ClassVar[dict[State, dict[type, Callable[[Membership, float, bytes, Any], list[Action]]]]] = {
        State.GATHERING: {Register: _join, Bye: _withdraw, Heartbeat: _heartbeat, **_OF_LAUNCHERS},
        State.RUNNING: {
            Register: _late,
            Heartbeat: _heartbeat,
            **dict.fromkeys((Declare, FormGroup, GroupKnown), _ask),
            Barrier: _barrier,
            Bye: _leave,
            Notice: _notice,
            **_OF_LAUNCHERS,
        },
        State.SUSPENDED: {},
        State.ENDING: {
            Register: _after_end,
            **dict.fromkeys((Heartbeat, *OF_WORKERS, GroupKnown, Bye), _say_end),
            **_OF_LAUNCHERS,
        },
    }
