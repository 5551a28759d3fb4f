"""A job whose workers suspend it and resume it: one :class:`~byteps_py.core.membership.Membership` after the other.

Theory of operation.  A *generation* is the time from one gathering to the moment at which all workers have suspended.
Each has its own members, counts, number of the run and epoch, so nothing of an older one is taken for the current one.
What lives on between them is here:

=============  ===========================================  ====================================================
who            after a generation                           until
=============  ===========================================  ====================================================
its servers    in *reserve*: told to forget everything, by  a generation wants so many servers (those in reserve
               ``Suspended``; *ready* when they register    come first), they end, or the job does
               again
its workers    *resting*, as far as they have suspended     they register for the next generation, or end
=============  ===========================================  ====================================================

The first registration of anybody else begins the next generation, with the counts that it names; the others must name
the same.  Surplus servers stay in reserve, lacking ones are waited for as at the start of a job.

If all who have come for a generation go before it is complete, as by Ctrl-C in ``resume()``, there was none: the next
one to come says how large it is.

A suspended job ends in order when all resting workers have ended, or when nobody has come within the start timeout.  A
launcher that vouches for workers keeps it waiting.  A process that registers while some have suspended and others work
on is early: it is heard when the generation is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import msgspec

from byteps_py.core.actions import Action, Log, Send, Stop
from byteps_py.core.census import Census
from byteps_py.core.early import Early
from byteps_py.core.job import EPOCH
from byteps_py.core.launches import HOLD_SECONDS, ending
from byteps_py.core.liveness import Reminder
from byteps_py.core.membership import Membership, State
from byteps_py.core.places import Member, is_same_process
from byteps_py.core.reserve import Reserve
from byteps_py.core.strangers import Strangers
from byteps_py.core.veterans import Veteran, Veterans
from byteps_py.types import Role
from byteps_py.wire.control import (
    Abort,
    Bye,
    ChildEnded,
    ControlMessage,
    Heartbeat,
    HeartbeatReply,
    Left,
    ProcessInfo,
    Refused,
    Register,
    Suspended,
    Vouch,
    Vouched,
)

__all__ = ["Generations"]


class Generations:
    """The scheduler's decisions over all generations of a job. Not thread-safe.

    Its methods are those of :class:`~byteps_py.core.membership.Membership`, with the same meaning.

    Args:
        job_id, num_worker, num_server, scheduler, start_timeout, lost_timeout, by_machine: see there; the counts are
            those of the first generation.
        draw: gives the number of a generation's run, another one in each call.
    """

    def __init__(
        self,
        job_id: str,
        num_worker: int,
        num_server: int,
        *,
        draw: Callable[[], int],
        scheduler: ProcessInfo,
        start_timeout: float,
        lost_timeout: float,
        by_machine: bool = True,
    ) -> None:
        self._draw = draw
        self._job_id = job_id
        self._scheduler = scheduler
        self._start_timeout = start_timeout
        self._lost_timeout = lost_timeout
        self._by_machine = by_machine
        self._epoch = EPOCH
        self._current = self._make(num_worker, num_server)
        self._strangers = Strangers(job_id, 0, scheduler)  # while the job is suspended
        self._reserve = Reserve(lost_timeout)
        self._resting: dict[bytes, Member] = {}
        self._resumed: dict[bytes, Member] = {}  # those that do not rest any more, as long as the generation gathers
        self._over: Membership | None = None  # the generation before the one that gathers
        self._reused: set[bytes] = set()  # servers of the one that gathers that were in reserve
        self._veterans = Veterans()
        self._past: dict[bytes, int] = {}  # the ranks of earlier workers, by the names of connections that they had
        self._early = Early(job_id, scheduler)
        self._reminder: Reminder | None = None  # of the wait for the next generation
        self._alone_since: float | None = None  # no worker rests any more
        self._vouched: float | None = None
        self._told = ""  # why this scheduler is to end

    def _make(self, num_worker: int, num_server: int, asked_by: str = "") -> Membership:
        return Membership(
            self._job_id,
            num_worker,
            num_server,
            job_nonce=self._draw(),
            scheduler=self._scheduler,
            start_timeout=self._start_timeout,
            lost_timeout=self._lost_timeout,
            by_machine=self._by_machine,
            epoch=self._epoch,
            asked_by=asked_by,
        )

    # What the runner calls.

    @property
    def state(self) -> State:
        """Of the current generation."""
        return self._current.state

    def receive(self, now: float, peer: bytes, message: ControlMessage) -> list[Action]:
        """Decide about one message."""
        if peer in self._reserve:
            return self._of_reserve(now, peer, message)
        if peer in self._past:
            return [Send(peer, Left(self._past[peer]))] if isinstance(message, Bye) else []
        if isinstance(message, ChildEnded) and (veteran := self._veteran(message)) is not None:
            return self._veteran_ended(now, peer, veteran, message)
        if isinstance(message, Register):
            for each, member in list(self._resting.items()):
                if is_same_process(member.process, message.process):
                    self._resumed[each] = self._resting.pop(each)
        if self.state is State.SUSPENDED:
            return self._while_suspended(now, peer, message)
        if self._early.is_meant(peer, message, self._current):
            return self._early.keep(peer, message)
        return self._follow(now, self._current.receive(now, peer, message))

    def tick(self, now: float, running: Collection[bytes] = ()) -> list[Action]:
        """Decide about the time that has passed; call it every second."""
        actions: list[Action] = []
        if self.state is not State.ENDING:
            for silence in self._reserve.liveness.check(now, running):
                heard = f"not been heard from for {silence.seconds:.0f} s"
                if silence.lost:
                    actions += self._drop(silence.peer, f"is lost: it has {heard}")
                elif not silence.runs:
                    actions.append(Log("warning", f"{self._reserve[silence.peer].describe()} has {heard}"))
        if self.state is State.SUSPENDED:
            return actions + self._wait(now)
        return actions + self._follow(now, self._current.tick(now, running))

    def silent(self, now: float) -> list[tuple[bytes, ProcessInfo]]:
        """The members that have been silent for a while, and their processes."""
        silent = self._reserve.liveness.silent(now)
        reserve = [(peer, self._reserve[peer].process) for peer in self._reserve if peer in silent]
        return reserve if self.state is State.SUSPENDED else [*self._current.silent(now), *reserve]

    def told_to_end(self, now: float, reason: str, grace: float) -> list[Action]:
        """This scheduler is to end; a suspended job ends in order."""
        self._told = f"{reason} while the job was suspended"
        if self.state is State.SUSPENDED:
            return self._finish(self._told)
        return self._follow(now, self._current.told_to_end(now, reason, grace))

    def proven_lost(self, now: float, peer: bytes, how: str) -> list[Action]:
        """The process of ``peer`` is gone."""
        if peer in self._reserve:
            return self._drop(peer, f"is lost: {how}") + self._fill(now)
        if peer in self._resting:
            return self._rested(now, peer, how)
        return self._follow(now, self._current.proven_lost(now, peer, how))

    def abort(self, reason: str) -> list[Action]:
        """End the job for a reason that only the runner knows; nothing if it has ended already."""
        return self._tell_reserve(self._current.abort(reason))

    def say_end_again(self) -> list[Action]:
        """Repeat the end, once there is one, to everyone who has not left."""
        return self._tell_reserve(self._current.say_end_again(), has_ended=True)

    def knows(self, peer: bytes) -> bool:
        """Whether ``peer`` is registered, present or left."""
        return peer in self._reserve or self._current.knows(peer)

    def members(self) -> list[tuple[bytes, ProcessInfo, str]]:
        """``(peer, process, description)`` of everyone who is registered and has not left; in a suspended job, also of
        the workers that may resume it."""
        apart = {peer: self._reserve[peer] for peer in self._reserve}
        apart |= self._resting if self._awaits_resting else {}
        found = [(peer, each.process, each.describe()) for peer, each in apart.items()]
        return found + [each for each in self._current.members() if each[0] not in apart]

    def census(self, now: float) -> Census:
        """Who is here and who is missing, for one who asks from outside."""
        census = self._current.census(now)
        if self.state is not State.SUSPENDED:
            return census
        missing = "the workers, of which none has called resume() yet"
        return replace(census, machines=0, workers=0, servers=len(self._reserve), missing=missing)

    @property
    def _awaits_resting(self) -> bool:
        """Whether resting workers are of interest: they may resume, or are to learn why they cannot."""
        return self.state is State.SUSPENDED or isinstance(self._current.end, Abort)

    # From one generation to the next.

    def _follow(self, now: float, actions: list[Action]) -> list[Action]:
        """The current generation has decided; see whether it is over, or wants servers."""
        if self.state is State.SUSPENDED and self._reminder is None:
            return actions + self._suspend(now)
        if any(isinstance(each, Stop) for each in actions):
            return self._tell_reserve(actions)
        if self.state is State.GATHERING and self._over is not None and self._is_deserted:
            return actions + self._return(now, self._over)
        return actions + self._fill(now)

    @property
    def _is_deserted(self) -> bool:
        """Whether nobody is there of those that have named, or agreed with, the counts of a generation."""
        return all(each.peer in self._reused for each in self._current.roster)

    def _return(self, now: float, former: Membership) -> list[Action]:
        """Whoever has begun the generation that gathers is gone: the next one to come may name other counts."""
        for each in list(self._current.roster):
            self._reserve.add(now, each)
            self._reserve.make_ready(each.peer)
        self._current, self._over = former, None
        self._epoch -= 1  # nobody has heard of it
        self._resting |= self._resumed
        self._resumed, self._reused = {}, set()
        self._wait_for_next(now)
        return [Log("info", "nobody is left of those that had called resume(): the job is suspended as before")]

    def _wait_for_next(self, now: float) -> None:
        self._reminder = Reminder(now, calm_after=60.0)
        self._alone_since = self._vouched = None

    def _suspend(self, now: float) -> list[Action]:
        self._wait_for_next(now)
        workers, servers = self._current.survivors()
        self._veterans.add(self._current.cast())
        self._past = self._current.ranks()
        self._resting = {each.peer: each for each in workers}
        self._resumed, self._reused = {}, set()
        for each in servers:
            self._reserve.add(now, each)
        limit = f", within BYTEPS_START_TIMEOUT={self._start_timeout:g} s" if self._start_timeout else ""
        text = f"all workers have suspended the job (generation {self._epoch}): waiting for resume(){limit}"
        actions: list[Action] = [Log("info", text)]
        if self._told:
            return actions + self._finish(self._told)
        for peer, register in self._early.take().items():
            actions += self.receive(now, peer, register)
        return actions

    def _begin(self, now: float, peer: bytes, message: Register) -> list[Action]:
        """The first process that registers for the next generation says how large it is."""
        member = Member(peer, message)
        objection = self._strangers.job_problem(member.describe(), message.job_id)
        if objection is not None:
            return self._strangers.refuse(member, objection)
        if message.num_server < 1:
            text = f"DMLC_NUM_SERVER=0 on {member.describe()}: a job with a scheduler needs at least one server"
            return self._strangers.refuse(member, text, settings=True)
        self._epoch += 1
        self._reminder = None
        self._over = self._current
        self._current = self._make(message.num_worker, message.num_server, asked_by=member.describe())
        counts = f"DMLC_NUM_WORKER={message.num_worker}, DMLC_NUM_SERVER={message.num_server}"
        begun = Log("info", f"generation {self._epoch} of the job gathers, with {counts} as {member.describe()} has it")
        return [begun, *self._follow(now, self._current.receive(now, peer, message))]

    def _fill(self, now: float) -> list[Action]:
        """Take servers out of the reserve while the generation lacks some."""
        actions: list[Action] = []
        roster = self._current.roster
        while self.state is State.GATHERING and roster.servers < roster.num_server:
            peer = self._reserve.first_ready()
            if peer is None:
                break
            member = self._reserve.take(peer)
            self._reused.add(peer)
            counts = {"num_worker": roster.num_worker, "num_server": roster.num_server}
            register = msgspec.structs.replace(member.register, **counts)
            actions += self._current.receive(now, peer, register)
        return self._tell_reserve(actions) if any(isinstance(each, Stop) for each in actions) else actions

    # While the job is suspended.

    def _while_suspended(self, now: float, peer: bytes, message: ControlMessage) -> list[Action]:
        if isinstance(message, Register):
            return self._begin(now, peer, message)
        if isinstance(message, Vouch):
            objection = self._strangers.job_problem("this launch of workers", message.job_id)
            if objection is not None:
                return [Send(peer, Refused(objection))]
            self._vouched = now
            return [Send(peer, Vouched(tuple(each.local_rank for each in message.children)))]
        if isinstance(message, ChildEnded):
            return [Send(peer, HeartbeatReply(self._scheduler))]
        return self._strangers.heard(peer, message)

    def _wait(self, now: float) -> list[Action]:
        assert self._reminder is not None
        if self._vouched is not None and now - self._vouched < self._lost_timeout:
            return []
        if not self._resting and self._alone_since is None:
            self._alone_since = now
        if self._alone_since is not None and now - self._alone_since >= HOLD_SECONDS:
            return self._finish("every worker has ended after suspend(), and nobody has called resume()")
        if self._start_timeout and now - self._reminder.started >= self._start_timeout:
            limit = f"BYTEPS_START_TIMEOUT={self._start_timeout:g} seconds"
            return self._finish(f"nobody has called resume() within {limit} after suspend()")
        waited = self._reminder.due(now)
        if waited is None:
            return []
        return [Log("info", f"suspended for {waited:.0f} s: waiting for resume() of {len(self._resting)} workers")]

    def _rested(self, now: float, peer: bytes, how: str) -> list[Action]:
        member = self._resting.pop(peer)
        if not self._resting:
            self._alone_since = now
        return [Log("info", f"{self._veterans.name(member)} has ended after suspend(): {how}")]

    def _finish(self, reason: str) -> list[Action]:
        return self._tell_reserve(self._current.finish(reason))

    # Processes of earlier generations.

    def _of_reserve(self, now: float, peer: bytes, message: ControlMessage) -> list[Action]:
        """A server that the current generation does not use says something."""
        member = self._reserve[peer]
        if self.state is State.ENDING:
            return [each for each in self.say_end_again() if isinstance(each, Send) and each.peer == peer]
        self._reserve.liveness.seen(peer, now)
        if isinstance(message, Bye):
            return self._drop(peer, message.reason or "has left")
        if isinstance(message, Heartbeat):
            reply: list[Action] = [Send(peer, HeartbeatReply(self._scheduler))]
            return [*reply, Send(peer, Suspended())] if message.job and not self._reserve.is_ready(peer) else reply
        if isinstance(message, Register) and message.incarnation == member.register.incarnation:
            self._reserve.make_ready(peer)
            return self._fill(now)
        return []

    def _drop(self, peer: bytes, what: str) -> list[Action]:
        """A server in reserve is gone; nobody needs it now."""
        name = self._reserve.take(peer).describe()
        text = f"{name} {what}; it was in reserve, and another server may take its place"
        return [Log("warning", text), Send(peer, Refused(text))]

    def _veteran(self, message: ChildEnded) -> Veteran | None:
        """The process of an earlier generation that has ended, if it has no part in the current one."""
        if self.state is not State.SUSPENDED:
            roster = self._current.roster
            is_member = roster.find(message.process) or roster.find_child(message.launch_id, message.local_rank or 0)
            if is_member is not None:
                return None
        return self._veterans.find(message)

    def _veteran_ended(self, now: float, peer: bytes, veteran: Veteran, message: ChildEnded) -> list[Action]:
        actions: list[Action] = [Send(peer, HeartbeatReply(self._scheduler))]
        member, how = veteran.member, f"its process {ending(message.status)}"
        self._veterans.forget(veteran)
        if self.state is State.ENDING:
            return actions
        if member.peer in self._reserve:
            return actions + self._drop(member.peer, f"is lost: {how}")
        if message.status and self.state is State.SUSPENDED and member.register.role is Role.WORKER:
            return actions + self.abort(f"{veteran.name} failed after suspend(): {how}")
        if member.peer in self._resting:
            return actions + self._rested(now, member.peer, how)
        if message.status:
            text = f"{veteran.name}, which was in an earlier generation of the job, has ended: {how}"
            actions.append(Log("warning", text))
        return actions

    def _tell_reserve(self, actions: list[Action], *, has_ended: bool = False) -> list[Action]:
        """If the job has ended, servers in reserve and early processes are told, too."""
        end = self._current.end
        if end is None or not (has_ended or any(isinstance(each, Stop) for each in actions)):
            return actions
        told = {each.peer for each in actions if isinstance(each, Send)}
        more: list[Action] = [Send(peer, end) for peer in (*self._reserve, *self._early) if peer not in told]
        return [*more, *actions]
