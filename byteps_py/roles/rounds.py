"""The data side of a server: takes contributions in, has them summed, and sends what is to be sent.

Everything here belongs to the thread that owns the endpoint.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from byteps_py.core.aggregation import Accept, Action, Aggregation, Contribution, Reject, Reply, Sum
from byteps_py.errors import RemoteProtocolError
from byteps_py.roles.answers import Answers
from byteps_py.roles.bundles import Bundles, Taken, contribution_of
from byteps_py.roles.engine import Engine, Summed, result_bytes
from byteps_py.roles.envelope import Envelope, is_bundle, open_bundle, open_frames
from byteps_py.roles.lacking import Lacking
from byteps_py.roles.lent import Bundle, Lent, pushed
from byteps_py.roles.member import worker_identity
from byteps_py.roles.results import Results
from byteps_py.roles.stores import Stores
from byteps_py.telemetry.stages import Held, Stages, server_stages
from byteps_py.transport.base import Endpoint, Message
from byteps_py.types import group_of
from byteps_py.wire.control import Welcome
from byteps_py.wire.header import MAX_ENTRIES, RANK_ENTRY, Flag, Header, Opcode, encode

__all__ = ["Rounds"]

_log = logging.getLogger("byteps_py.server")


class Rounds:
    """Feeds the aggregation and performs what it decides.

    Args:
        endpoint: carries the connections of the workers.
        engine: sums.
        welcome: who is in the job.
        incarnation: this process's own random number.
        timed: whether to count and time the contributions.
        patience: see :class:`~byteps_py.roles.answers.Answers`.
        make_held: makes what counts and times them.
        bound: of asynchronous training, see :class:`~byteps_py.core.parameters.Parameters`.

    Attributes:
        received: number of data messages of workers.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        engine: Engine,
        welcome: Welcome,
        incarnation: int,
        *,
        timed: bool = False,
        patience: float = 0.0,
        make_held: Callable[[int], Held] = Held,
        bound: int | None = None,
    ) -> None:
        self.received = 0
        self._endpoint = endpoint
        self._engine = engine
        self._participants = welcome.participants
        self._envelope = Envelope(welcome.rank, welcome.job, incarnation, welcome.epoch)
        self._aggregation = Aggregation(welcome.participants)
        self._bundles = Bundles(engine.kernels.name, welcome.participants, self._aggregation)
        self._due = Taken([], 0, 0)
        self._results = Results(endpoint)
        self._lacking = Lacking(welcome.participants)
        self._peers = [worker_identity(each.incarnation) for each in welcome.participants]
        nodes = Counter(each.node for each in welcome.participants)
        self._mates = [nodes[each.node] for each in welcome.participants]
        self._held = make_held(len(welcome.participants)) if timed else None
        self._answers = Answers(endpoint, self._envelope, welcome, self._held, patience)
        self._stores = Stores(endpoint, engine, self._answers, self._aggregation.members, bound)

    @property
    def sent(self) -> int:
        """Number of data messages that were sent."""
        return self._answers.sent

    @property
    def next_due(self) -> float | None:
        """When :meth:`advance` must be called at the latest, in monotonic seconds; None: not because of time."""
        return self._answers.next_due

    def stages(self) -> Stages:
        """The stage times of this server. Any thread."""
        return server_stages(self._held, self._engine.times)

    def receive(self, message: Message, arrived: float) -> None:
        """Take a message of a worker.

        Args:
            message: not looked at yet.
            arrived: when it came, in monotonic seconds; looked at only if contributions are timed.

        Raises:
            RemoteProtocolError: it is none, or an entry of a PUSH_MANY is none; the other entries count.
        """
        if is_bundle(message.frames):
            self._push_many(message, arrived)
            return
        header, payload = open_frames(message.frames)
        self._check_sender(header, message.peer)
        self._finish()
        if header.opcode is Opcode.PUSH:
            if header.flags & Flag.PARTIAL and group_of(header.key):
                raise RemoteProtocolError(
                    "the sum of a node for a tensor of a group, to which each member pushes by itself"
                )
            if header.detail > self._mates[header.sender]:
                raise RemoteProtocolError(f"{header.detail} contributions of a node of {self._mates[header.sender]}")
            if message.intact():
                self._claim(header.key, arrived)
                self._push(pushed(header, payload, message), arrived)
            else:  # a late repetition, whose memory serves another round by now; or tell the sender to push again
                self._pull(header)
        elif header.opcode is Opcode.PULL:
            self._pull(header)
        elif header.opcode is Opcode.WAITING:
            if header.detail > self._mates[header.sender]:
                raise RemoteProtocolError(f"{header.detail} missing workers of a node of {self._mates[header.sender]}")
            ranks = [rank for (rank,) in RANK_ENTRY.iter_unpack(payload or b"")]
            self._lacking.note(header.sender, header.key, header.round, ranks)
        elif header.opcode is Opcode.PROBE:
            self._endpoint.send(message.peer, [encode(self._envelope.header(Opcode.PROBED, header.key, header.round))])
        else:
            raise RemoteProtocolError(f"a worker must not send {header.opcode.name}")

    def form(self, group: int, ranks: Sequence[int]) -> None:
        """Keys of ``group`` are those of the workers ``ranks``; see :meth:`byteps_py.core.members.MemberTable.form`."""
        self._aggregation.members.form(group, ranks)

    def left(self, rank: int) -> None:
        """A worker has left in order."""
        self._finish()
        self._bundles.close()
        self._perform(self._aggregation.left(rank))
        self._stores.left(rank)

    def advance(self) -> None:
        """Send the results of the sums that are done, and what has been accepted since the last call.

        Rounds of bundles that came one behind the other are summed here at once, and their results share a message.
        """
        self._finish()
        for done in self._engine.collect():
            self._summed(done)
        self._answers.flush()

    def _check_sender(self, header: Header, peer: bytes) -> None:
        """A message must come from a worker of this very run of the job."""
        self._envelope.check_run(header)
        if header.sender >= len(self._peers):
            raise RemoteProtocolError(f"a message from worker {header.sender} of {len(self._peers)}")
        expected = self._participants[header.sender].incarnation
        if self._peers[header.sender] != peer or header.incarnation != expected:
            raise RemoteProtocolError(f"a message that claims to be from worker {header.sender} and is not")
        self.received += 1

    def _push(self, contribution: Contribution, arrived: float, bundle: Bundle | None = None) -> None:
        """A single contribution, or one out of ``bundle``, with which it is accepted."""
        if self._stores.takes(contribution, is_summed=self._aggregation.knows(contribution.key)):
            self._stores.push(contribution)
            return
        actions = self._aggregation.push(contribution)
        if isinstance(actions[0], Accept):
            if self._held is not None:
                stands_for = self._mates[contribution.participant] if contribution.partial else 1
                key, rank = contribution.key, contribution.participant
                members = self._aggregation.members.of(key)
                assert members is not None  # or it would not have been accepted
                self._held.arrived(key, contribution.round, rank, arrived, stands_for, members.size)
            if bundle is not None:
                bundle.apart.append((contribution.key, contribution.round))
                actions = actions[1:]
        self._perform(actions)

    def _claim(self, key: int, arrived: float) -> None:
        """The general machine looks after ``key`` from now on, and what the ledger had of it is timed by itself."""
        for round_, rank, then in self._bundles.claim(key):
            if self._held is not None:
                self._held.arrived(key, round_, rank, arrived if then is None else then)

    def _push_many(self, message: Message, arrived: float) -> None:
        header, table, payload = open_bundle(message.frames)
        self._check_sender(header, message.peer)
        if header.opcode is not Opcode.PUSH_MANY:
            raise RemoteProtocolError(f"a worker must not send {header.opcode.name}")
        own = table if message.stamp is None else bytes(table)  # what is checked must be what is used
        if not message.intact():
            _log.debug("worker %d has used the memory of a PUSH_MANY again; it will ask", header.sender)
            return
        bundle = Bundle(header.sender, header.round, message, own, arrived)
        if self._due.complete + header.detail > MAX_ENTRIES:
            self._finish()
        before = self._due.complete
        self._due = taken = self._bundles.take(bundle, payload)
        if taken.complete - before < header.detail:
            self._answers.accept_bundle(bundle)
        if taken.irregular:
            self._push_apart(bundle, taken.irregular, payload, arrived)

    def _push_apart(self, bundle: Bundle, places: Sequence[int], payload: memoryview, arrived: float) -> None:
        """The entries of a bundle that the ledger has left alone."""
        self._finish()
        problem: RemoteProtocolError | None = None
        for index in places:
            try:
                contribution = contribution_of(bundle, index, payload)
            except RemoteProtocolError as error:
                problem = problem or error
                continue
            self._claim(contribution.key, arrived)
            self._push(contribution, arrived, bundle)
        if problem is not None:
            raise problem

    def _finish(self) -> None:
        """Sum the rows that are complete in the ledger, if there are any, and send their results to all."""
        if not self._due.complete:
            return
        nbytes, self._due = self._due.nbytes, Taken([], 0, 0)
        begun = 0.0 if self._held is None else time.monotonic()
        out = self._endpoint.allocate(nbytes) if nbytes else np.empty(0, np.uint8)
        table, read = self._bundles.finish(out)
        self._engine.count_own(begun)
        changed = next((each.rank for each in read if not each.message.intact()), None)
        if changed is not None:
            for key, round_ in zip(table["key"].tolist(), table["round"].tolist(), strict=True):
                self._bundles.forget(key)
                self._perform(self._aggregation.changed(key, round_, changed))
            return
        if self._held is not None:
            self._held.bundles_replied(read, begun, table)
        self._answers.results(range(len(self._peers)), table, out.data)
        if self._held is not None:
            self._held.bundles_sent()

    def _pull(self, header: Header) -> None:
        """A worker is in doubt; if all that is to be said is that others are missing, say who."""
        rank, key, round_ = header.sender, header.key, header.round
        if self._stores.knows(key):
            self._stores.pull(header)
            return
        actions = self._bundles.pull(rank, key, round_)
        if actions is None:
            actions = self._aggregation.pull(rank, key, round_)
        if isinstance(actions[0], Accept):
            missing = self._bundles.missing(key)
            if missing is None:
                missing = self._aggregation.missing(key)
            self._answers.waiting(rank, key, round_, self._lacking.narrow(key, round_, missing))
        else:
            self._perform(actions)

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Sum):
                done = self._engine.submit(action, self._room(action))
                if done is not None:
                    self._summed(done)
            elif isinstance(action, Accept):
                self._answers.accept(action)
            elif isinstance(action, Reply):
                self._answers.reply(action)
            elif isinstance(action, Reject):
                self._answers.reject(action)
            else:
                self._answers.missing(action)

    def _room(self, action: Sum) -> memoryview | None:
        """Where the result of a sum goes; None: where the engine likes, since nobody reads it where it lies."""
        if not any(isinstance(each, Lent) for each in action.sources):
            return None
        if action.width:  # as many bytes in another round would be chance: the memory is freed after this one
            return self._endpoint.allocate(result_bytes(action)).data
        nbytes = action.count * action.dtype.itemsize
        return self._results.room(action.key, action.round, nbytes) if nbytes else None

    def _summed(self, done: Summed) -> None:
        if self._stores.knows(done.key):
            self._stores.summed(done)
        elif done.changed is None:
            self._perform(self._aggregation.summed(done.key, done.round, done.payload))
        else:
            self._perform(self._aggregation.changed(done.key, done.round, done.changed))
