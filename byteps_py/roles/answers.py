"""What a server, or a worker that sums for its node, sends to the workers.

Acceptances are gathered until :meth:`Answers.flush`: many share one message, and those that an answer sent meanwhile
makes needless are left out.  That of a bundle, whose results are mostly about to come, waits for them a little longer:
it would wake a worker that waits for these.

Everything here belongs to the thread that owns the endpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from byteps_py.core.aggregation import Accept, Missing, Reject, Reply
from byteps_py.roles.envelope import Envelope
from byteps_py.roles.lent import Bundle
from byteps_py.roles.member import worker_identity
from byteps_py.telemetry.stages import Held
from byteps_py.transport.base import Buffer, Endpoint
from byteps_py.wire.bundle import BUNDLE_KEY
from byteps_py.wire.control import Welcome
from byteps_py.wire.header import ACCEPT_ENTRY, RANK_ENTRY, Flag, Header, Opcode, encode

__all__ = ["Answers"]

_log = logging.getLogger("byteps_py.server")
_Table: TypeAlias = npt.NDArray[np.void]


class Answers:
    """Encodes and sends.

    Args:
        endpoint: carries the connections of the workers.
        envelope: of this server.
        welcome: who is in the job.
        held: where replies and acceptances are timed; None if they are not.
        patience: seconds that the acceptance of a bundle waits for its results, which would say it as well.

    Attributes:
        sent: number of data messages that were handed to the endpoint.
    """

    def __init__(
        self, endpoint: Endpoint, envelope: Envelope, welcome: Welcome, held: Held | None, patience: float = 0.0
    ) -> None:
        self.sent = 0
        self._patience = patience
        self._endpoint = endpoint
        self._envelope = envelope
        self._peers = [worker_identity(each.incarnation) for each in welcome.participants]
        self._held = held
        self._accepts: dict[int, list[tuple[int, int]]] = {}
        self._bundles: list[Bundle] = []
        self._answered: dict[int, set[tuple[int, int]]] = {}
        self._answered_all: list[_Table] = []

    def accept(self, action: Accept) -> None:
        """Tell it with the next flush, unless an answer to the same contribution goes out before."""
        self._accepts.setdefault(action.participant, []).append((action.key, action.round))

    def accept_bundle(self, bundle: Bundle) -> None:
        """The same for a whole bundle, a while later, unless all of its entries are answered before, or have been
        since the last flush."""
        bundle.due = time.monotonic() + self._patience
        self._bundles.append(bundle)

    @property
    def next_due(self) -> float | None:
        """When :meth:`flush` will have an acceptance to send, in monotonic seconds; None: not because of time."""
        return min([each.due for each in self._bundles]) if self._bundles else None

    def flush(self) -> None:
        """Send what has been accepted since the last call."""
        now = time.monotonic()
        if self._bundles:
            self._accept_bundles(now)
        accepts, self._accepts = self._accepts, {}
        self._answered.clear()
        self._answered_all.clear()
        for participant, entries in accepts.items():
            if self._held is not None:
                for key, round_ in entries:
                    self._held.accepted(key, round_, participant, now)
            if entries:
                self._send_list(participant, Opcode.ACCEPT, 0, 0, [ACCEPT_ENTRY.pack(*each) for each in entries])

    def reply(self, action: Reply) -> None:
        """The result of a round."""
        self._take_back(action)
        payload = None if action.payload is None else memoryview(action.payload)  # type: ignore[arg-type]
        flags = Flag.ROWS if action.width else Flag.NONE
        header = self._envelope.header(
            Opcode.RESULT,
            action.key,
            action.round,
            dtype=action.dtype,
            operation=action.operation,
            flags=Flag.ABSENT if payload is None else flags,
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

    def results(self, ranks: Iterable[int], table: _Table, payload: memoryview) -> None:
        """The results of many rounds, in one message that is the same for all workers.

        Args:
            ranks: who is to have it.
            table: dtype :data:`~byteps_py.wire.bundle.ENTRY`; not written to any more.
            payload: the elements, which the caller keeps until all have them.
        """
        header = self._envelope.header(Opcode.RESULT_MANY, 0, 1, detail=len(table), length=payload.nbytes)
        entries = table.view(np.uint8).data
        frames: list[Buffer] = [encode(header), entries, payload] if payload.nbytes else [encode(header), entries]
        self._answered_all.append(table)
        for rank in ranks:
            self._send(rank, header, frames)

    def reject(self, action: Reject) -> None:
        """A round cannot complete."""
        self._take_back(action)
        payload = action.reason.encode()
        departed = int(action.departed is not None)
        header = self._envelope.header(Opcode.REJECT, action.key, action.round, detail=departed, length=len(payload))
        if self._held is not None:
            self._held.rejected(action.key, action.round)
        self._post(action.participant, header, payload)

    def missing(self, action: Missing) -> None:
        """A contribution is not here."""
        self._post(action.participant, self._envelope.header(Opcode.MISSING, action.key, action.round), None)

    def waiting(
        self, participant: int, key: int, round_: int, missing: Sequence[int], *, partial: bool = False
    ) -> None:
        """A contribution is here, those of others are not; ``partial``: the server has the sum that it is in."""
        entries = [RANK_ENTRY.pack(rank) for rank in missing]
        self._send_list(participant, Opcode.WAITING, key, round_, entries, Flag.PARTIAL if partial else Flag.NONE)

    def _take_back(self, action: Reply | Reject) -> None:
        """A RESULT or a REJECT says all that an ACCEPT before it would."""
        accepts = self._accepts.get(action.participant)
        if accepts and accepts[-1] == (action.key, action.round):
            accepts.pop()
        self._answered.setdefault(action.participant, set()).add((action.key, action.round))

    def _accept_bundles(self, now: float) -> None:
        waiting: list[Bundle] = []
        for bundle in self._bundles:
            if self._is_answered(bundle):
                continue
            if now < bundle.due:
                waiting.append(bundle)
                continue
            self._accepts.setdefault(bundle.rank, []).append((BUNDLE_KEY, bundle.number))
            self._time_bundle(bundle, now)
        self._bundles = waiting

    def _is_answered(self, bundle: Bundle) -> bool:
        """Whether every entry has had its answer since the last flush."""
        if any(_same_rounds(table, bundle.entries) for table in self._answered_all):
            return True  # as it is where workers bundle alike, and quickly found out
        answered = self._answered.get(bundle.rank, set()).union(*map(_pairs, self._answered_all))
        return answered.issuperset(_pairs(bundle.entries))

    def _time_bundle(self, bundle: Bundle, now: float) -> None:
        bundle.accepted = True
        if self._held is not None:
            if len(bundle.apart) < len(bundle.entries):
                self._held.bundle_accepted(bundle.arrived, now)
            for key, round_ in bundle.apart:
                self._held.accepted(key, round_, bundle.rank, now)

    def _send_list(
        self,
        participant: int,
        opcode: Opcode,
        key: int,
        round_: int,
        entries: Sequence[bytes],
        flags: Flag = Flag.NONE,
    ) -> None:
        """A message whose payload is a list of equal entries, counted in ``detail``."""
        payload = b"".join(entries)
        header = self._envelope.header(opcode, key, round_, flags=flags, detail=len(entries), length=len(payload))
        self._post(participant, header, payload)

    def _post(self, participant: int, header: Header, payload: Buffer | None) -> None:
        frames: list[Buffer] = [encode(header)]
        if payload is not None and header.length:
            frames.append(payload)
        self._send(participant, header, frames)

    def _send(self, participant: int, header: Header, frames: Sequence[Buffer]) -> None:
        """Send; a worker that is not connected right now asks again by PULL when it is back."""
        if self._endpoint.send(self._peers[participant], frames):
            self.sent += 1
        else:
            _log.debug("worker %d is not connected; it will ask for %s again", participant, header.opcode.name)


def _same_rounds(one: _Table, other: _Table) -> bool:
    """Whether two tables are about the same rounds, in the same order."""
    if len(one) != len(other):
        return False
    # A comparison of bytes takes half the time of one of arrays.
    return all(one[name].tobytes() == other[name].tobytes() for name in ("key", "round"))


def _pairs(table: _Table) -> Iterable[tuple[Any, Any]]:
    """Key and round of each entry."""
    return zip(table["key"].tolist(), table["round"].tolist(), strict=True)
