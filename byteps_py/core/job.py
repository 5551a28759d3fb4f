"""A complete job while it runs: who is who in it, its tensors and groups, and its barriers."""

from __future__ import annotations

from byteps_py.core.actions import Action, Log, Send
from byteps_py.core.barriers import Arrival, Barriers
from byteps_py.core.departures import Departures
from byteps_py.core.groups import Groups
from byteps_py.core.liveness import Reminder
from byteps_py.core.roster import listed
from byteps_py.core.seating import Seating
from byteps_py.core.tensor_table import TensorTable
from byteps_py.wire.control import (
    BarrierDone,
    ControlMessage,
    Declare,
    Declared,
    FormGroup,
    GroupKnown,
    Left,
    Notice,
    Suspended,
    Waiting,
    Welcome,
)

__all__ = ["EPOCH", "Job"]

EPOCH = 1
"""The membership epoch of a job until its workers have suspended it for the first time."""


class Job:
    """What the scheduler knows from the start of a job on. Not thread-safe.

    Attributes:
        seating: everybody with their ranks.
        names: by peer, for messages.
        left: the workers that have said goodbye, by peer.
        suspended: the workers that wait until all have suspended this generation or left.
    """

    def __init__(self, seating: Seating, partition_bytes: int | None, nonce: int, epoch: int = EPOCH) -> None:
        self.seating = seating
        self.names = {peer: seating.servers[rank].describe() for peer, rank in seating.server_ranks.items()}
        self.names |= {peer: seating.participants[rank].describe() for peer, rank in seating.worker_ranks.items()}
        self.left: set[bytes] = set()
        self.suspended: dict[bytes, float] = {}  # since when
        self._suspension_reminder: Reminder | None = None
        self._departures = Departures()
        self._nonce = nonce
        self._epoch = epoch
        self._workers = list(seating.worker_ranks)
        self._tensors = TensorTable(
            len(seating.servers),
            partition_bytes,
            weights=seating.weights,
            workers=seating.senders,
            has_links=seating.has_links,
        )
        self._groups = Groups(len(seating.participants), list(seating.server_ranks))
        self._announced: set[str] = set()
        self._barriers = Barriers(len(seating.participants))
        self._barrier_reminder: Reminder | None = None

    def welcome(self, peer: bytes) -> Send:
        """The list of members, for one of them."""
        ranks = self.seating.worker_ranks if peer in self.seating.worker_ranks else self.seating.server_ranks
        welcome = Welcome(self._nonce, self._epoch, ranks[peer], self.seating.participants, self.seating.servers)
        return Send(peer, welcome)

    def tell_shares(self) -> list[Action]:
        """A line that says how much each server is to sum, where that differs; those with the same share together."""
        found: dict[str, list[str]] = {}
        for server, weight in zip(self.seating.servers, self.seating.weights or (), strict=False):
            found.setdefault(f"{100 * weight:.3g} %", []).append(f"server {server.rank} on {server.host}")
        if len(found) < 2:
            return []
        words = (f"{share}{' each' if len(who) > 1 else ''}: {listed(who, len(who))}" for share, who in found.items())
        text = f"shares of the bytes, by where servers and workers are: {'; '.join(words)}"
        return [Log("info", f"{text} (BYTEPS_ENABLE_MIXED_MODE=0: equal ones)")]

    @property
    def is_done(self) -> bool:
        """Whether every worker has left, or waits for the others to suspend."""
        return len(self.left | self.suspended.keys()) == len(self._workers)

    def declare(self, peer: bytes, message: Declare) -> list[Action]:
        """Answer with placements. A new conflict is told to every worker; all of them have to stop using the name.

        Conflicts go out before the answer, so that a worker knows the reason for whatever the answer lacks.
        """
        placements, conflicts = self._tensors.declare(self.seating.worker_ranks[peer], message.tensors, message.link)
        actions: list[Action] = [Log("info", text) for text in self._tensors.take_news()]
        for conflict in conflicts:
            is_new = conflict.name not in self._announced
            if is_new:
                self._announced.add(conflict.name)
                actions.append(Log("error", conflict.text))
            actions += self._to_workers(conflict) if is_new else [Send(peer, conflict)]
        return [
            *actions,
            Send(
                peer, Declared(message.request, placements, self._tensors.partition_bytes, self._tensors.window_bytes)
            ),
        ]

    def group(self, peer: bytes, message: FormGroup | GroupKnown) -> list[Action]:
        """A worker asks for a group of workers, or a server confirms one."""
        if isinstance(message, GroupKnown):
            return [*self._groups.known(peer, message.group)]
        return [*self._groups.form(peer, self.seating.worker_ranks[peer], message)]

    def barrier(self, now: float, peer: bytes, number: int) -> list[Action]:
        """A worker is at a barrier; asking again, it is told for whom it waits."""
        arrival = self._barriers.arrive(self.seating.worker_ranks[peer], number)
        if arrival is Arrival.PASSED:
            return [Send(peer, BarrierDone(number))]
        if arrival is Arrival.AHEAD:
            open_one = self._barriers.number
            return [Log("warning", f"{self.names[peer]} is at barrier {number} before barrier {open_one} is complete")]
        if arrival is Arrival.REPEATED:
            return [Send(peer, Waiting(self._missing(), number))]
        if arrival is Arrival.WAITING:
            self._barrier_reminder = self._barrier_reminder or Reminder(now)
            return []
        self._barrier_reminder = None
        return self._to_workers(BarrierDone(number))

    def impossible_barrier(self) -> str | None:
        """Why the open barrier can never complete, naming who has left and who waits."""
        away = self.left | self.suspended.keys()
        gone = [rank for rank in self._barriers.missing() if self._workers[rank] in away]
        if not gone or self._departures.pending:
            return None
        waiting = self._name(self._barriers.arrived()[0])
        name = self._name(gone[0])
        why = (
            f"{name} has left the job and"
            if self._workers[gone[0]] in self.left
            else f"{name} has called suspend() and"
        )
        return (
            f"barrier {self._barriers.number} cannot complete: {why} {waiting} waits for it; every worker must call "
            "barrier() equally often"
        )

    def leave(self, now: float, peer: bytes, reason: str) -> list[Action]:
        """A worker says goodbye, maybe once more; the others are told by :meth:`tell_departures`."""
        actions: list[Action] = [Send(peer, Left(self.seating.worker_ranks[peer]))]
        if peer not in self.left:
            self.left.add(peer)
            self._departures.add(now, peer, reason)
            actions.append(Log("info", f"{self.names[peer]} has left"))
        return actions

    def suspend(self, now: float, peer: bytes) -> list[Action]:
        """A worker suspends, maybe once more. The others are told as of one that leaves; it is told when all have."""
        if peer in self.left or peer in self.suspended:
            return []
        self.suspended[peer] = now
        self._suspension_reminder = self._suspension_reminder or Reminder(now)
        self._departures.add(now, peer, "")
        return [Log("info", f"{self.names[peer]} has called suspend()")]

    def confirm_suspension(self) -> list[Action]:
        """Tell those that wait that all have suspended, and servers that this generation is over."""
        workers = [Send(peer, Left(self.seating.worker_ranks[peer])) for peer in self.suspended]
        return [*workers, *(Send(peer, Suspended()) for peer in self.seating.server_ranks)]

    def tell_departures(self, now: float) -> tuple[list[Action], str | None]:
        """Tell everybody of those who have left; or why the job has failed, if one of them died of an error."""
        actions: list[Action] = []
        for peer in self._departures.due(now):
            if self._departures.reason(peer):
                return actions, self.failure_of(peer, "")
            left = Left(self.seating.worker_ranks[peer])
            others = [each for each in self._workers if each not in self.left and each != peer]
            actions += [Send(each, left) for each in (*others, *self.seating.server_ranks)]
        return actions, None

    def failure(self) -> str | None:
        """What the first worker that left because of an error died of."""
        peer = self._departures.failed()
        return None if peer is None else self.failure_of(peer, "")

    def failure_of(self, peer: bytes, how: str) -> str:
        """What ``peer`` died of, as it said; ``how`` its process ended, if it said nothing."""
        return f"{self.names[peer]} {self._departures.reason(peer) or f'failed: {how}'}"

    def announce(self, text: str) -> list[Action]:
        """Let the users know."""
        return [Log("warning", text), *self._to_workers(Notice(text))]

    def remind(self, now: float) -> list[Action]:
        """Speak of a barrier that has been waited for, and of workers that others wait for in suspend()."""
        actions: list[Action] = []
        if self._suspension_reminder is not None and (waited := self._suspension_reminder.due(now)) is not None:
            absent = [self.names[each] for each in self._workers if each not in self.left | self.suspended.keys()]
            text = f"waiting {waited:.0f} s in suspend() for {listed(absent, len(absent))}"
            actions += [Log("warning", text), *(Send(peer, Waiting(text)) for peer in self.suspended)]
        waited = self._barrier_reminder.due(now) if self._barrier_reminder is not None else None
        if waited is None:
            return actions
        return [
            *actions,
            Log("warning", f"waiting {waited:.0f} s at barrier {self._barriers.number} for {self._missing()}"),
        ]

    def _missing(self) -> str:
        """Who is missing at the open barrier."""
        ranks = self._barriers.missing()
        return listed((self._name(rank) for rank in ranks), len(ranks))

    def _to_workers(self, message: ControlMessage) -> list[Action]:
        return [Send(peer, message) for peer in self._workers if peer not in self.left]

    def _name(self, rank: int) -> str:
        return self.names[self._workers[rank]]
