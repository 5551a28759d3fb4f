"""The data side of a server: takes contributions in, has them summed, and sends what is to be sent.

Everything here belongs to the thread that owns the endpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from byteps_py.core.aggregation import Accept, Action, Aggregation, Contribution, Reject, Reply, Sum
from byteps_py.errors import RemoteProtocolError
from byteps_py.roles.engine import Engine
from byteps_py.roles.envelope import Envelope, open_frames
from byteps_py.roles.member import worker_identity
from byteps_py.telemetry.stages import Held, Stages, server_stages
from byteps_py.transport.base import Buffer, Endpoint, Message
from byteps_py.wire.control import Welcome
from byteps_py.wire.header import ACCEPT_ENTRY, RANK_ENTRY, Flag, Header, Opcode, encode

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
    """

    def __init__(
        self, endpoint: Endpoint, engine: Engine, welcome: Welcome, incarnation: int, *, timed: bool = False
    ) -> None:
        self._endpoint = endpoint
        self._engine = engine
        self._participants = welcome.participants
        self._envelope = Envelope(welcome.rank, welcome.job, incarnation, welcome.epoch)
        self._aggregation = Aggregation(welcome.participants)
        self._peers = [worker_identity(each.incarnation) for each in welcome.participants]
        self._accepts: dict[int, list[tuple[int, int]]] = {}
        self._held = Held(len(welcome.participants)) if timed else None

    def stages(self) -> Stages:
        """The stage times of this server. Any thread."""
        return server_stages(self._held, self._engine.times)

    def receive(self, message: Message, arrived: float) -> None:
        """Take a message of a worker.

        Args:
            message: not looked at yet.
            arrived: when it came, in monotonic seconds; looked at only if contributions are timed.

        Raises:
            RemoteProtocolError: it is none.
        """
        header, payload = open_frames(message.frames)
        self._check_sender(header, message.peer)
        if header.opcode is Opcode.PUSH:
            actions = self._aggregation.push(_contribution(header, payload))
            if self._held is not None and isinstance(actions[0], Accept):
                self._held.arrived(header.key, header.round, header.sender, arrived)
            self._perform(actions)
        elif header.opcode is Opcode.PULL:
            self._pull(header)
        else:
            raise RemoteProtocolError(f"a worker must not send {header.opcode.name}")

    def left(self, rank: int) -> None:
        """A worker has left in order."""
        self._perform(self._aggregation.left(rank))

    def advance(self) -> None:
        """Send the results of the sums that are done, and what has been accepted since the last call."""
        for key, round_, result in self._engine.collect():
            self._perform(self._aggregation.summed(key, round_, result))
        if not self._accepts:
            return
        accepts, self._accepts = self._accepts, {}
        now = time.monotonic()
        for participant, entries in accepts.items():
            if self._held is not None:
                for key, round_ in entries:
                    self._held.accepted(key, round_, participant, now)
            if entries:
                self._send_list(participant, Opcode.ACCEPT, 0, 0, [ACCEPT_ENTRY.pack(*each) for each in entries])

    def _check_sender(self, header: Header, peer: bytes) -> None:
        """A message must come from a worker of this very run of the job."""
        self._envelope.check_run(header)
        if header.sender >= len(self._peers):
            raise RemoteProtocolError(f"a message from worker {header.sender} of {len(self._peers)}")
        expected = self._participants[header.sender].incarnation
        if self._peers[header.sender] != peer or header.incarnation != expected:
            raise RemoteProtocolError(f"a message that claims to be from worker {header.sender} and is not")

    def _pull(self, header: Header) -> None:
        """A worker is in doubt; if all that is to be said is that others are missing, say who."""
        actions = self._aggregation.pull(header.sender, header.key, header.round)
        if isinstance(actions[0], Accept):
            missing = self._aggregation.missing(header.key)
            entries = [RANK_ENTRY.pack(rank) for rank in missing]
            self._send_list(header.sender, Opcode.WAITING, header.key, header.round, entries)
        else:
            self._perform(actions)

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Sum):
                done = self._engine.submit(action)
                if done is not None:
                    self._perform(self._aggregation.summed(*done))
            elif isinstance(action, Accept):
                self._accepts.setdefault(action.participant, []).append((action.key, action.round))
            elif isinstance(action, Reply):
                self._reply(action)
            elif isinstance(action, Reject):
                self._reject(action)
            else:
                header = self._envelope.header(Opcode.MISSING, action.key, action.round)
                self._post(action.participant, header, None)

    def _reply(self, action: Reply) -> None:
        self._take_back(action)
        payload = None if action.payload is None else memoryview(action.payload)  # type: ignore[arg-type]
        header = self._envelope.header(
            Opcode.RESULT,
            action.key,
            action.round,
            dtype=action.dtype,
            operation=action.operation,
            flags=Flag.ABSENT if payload is None else Flag.NONE,
            root=action.root,
            detail=action.contributors,
            step=action.step,
            offset=action.offset,
            count=action.count,
            length=0 if payload is None else payload.nbytes,
        )
        if self._held is not None:  # before the worker can have it, so that no time is seen on both sides
            self._held.replied(action.key, action.round, action.participant)
        self._post(action.participant, header, payload)

    def _reject(self, action: Reject) -> None:
        self._take_back(action)
        payload = action.reason.encode()
        departed = int(action.departed is not None)
        header = self._envelope.header(Opcode.REJECT, action.key, action.round, detail=departed, length=len(payload))
        self._post(action.participant, header, payload)

    def _take_back(self, action: Reply | Reject) -> None:
        """A RESULT or a REJECT says all that an ACCEPT before it would."""
        accepts = self._accepts.get(action.participant)
        if accepts and accepts[-1] == (action.key, action.round):
            accepts.pop()

    def _send_list(self, participant: int, opcode: Opcode, key: int, round_: int, entries: Sequence[bytes]) -> None:
        """A message whose payload is a list of equal entries, counted in ``detail``."""
        payload = b"".join(entries)
        header = self._envelope.header(opcode, key, round_, detail=len(entries), length=len(payload))
        self._post(participant, header, payload)

    def _post(self, participant: int, header: Header, payload: Buffer | None) -> None:
        """Send; a worker that is not connected right now asks again by PULL when it is back."""
        frames: list[Buffer] = [encode(header)]
        if payload is not None and header.length:
            frames.append(payload)
        if not self._endpoint.send(self._peers[participant], frames):
            _log.debug("worker %d is not connected; it will ask for %s again", participant, header.opcode.name)


def _contribution(header: Header, payload: memoryview | None) -> Contribution:
    absent = bool(header.flags & Flag.ABSENT)
    return Contribution(
        participant=header.sender,
        key=header.key,
        round=header.round,
        dtype=header.dtype,
        operation=header.operation,
        root=header.root,
        step=header.step,
        offset=header.offset,
        count=header.count,
        payload=None if absent else (memoryview(b"") if payload is None else payload),
        want_result=bool(header.flags & Flag.WANT_RESULT),
    )
