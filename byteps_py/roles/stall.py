"""What a worker says of results that do not come, and when it gives up.

An operation that was not pushed yet waits for others, of the same tensor or the same server, which are spoken of if
they are the ones that stand still.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from byteps_py.core.pipeline import Pipeline
from byteps_py.errors import TransportTimeout
from byteps_py.roles.light import Light
from byteps_py.roles.neighbours import Peer
from byteps_py.roles.reach import Reach
from byteps_py.roles.reducer import Reducer
from byteps_py.roles.tensors import TensorOperation
from byteps_py.wire.control import Welcome

__all__ = ["StallWatch"]

_log = logging.getLogger("byteps_py.worker")
_FIRST_REPORT_SECONDS: Final = 10.0
_REPORT_SECONDS: Final = 60.0
_NAMES_IN_MESSAGES: Final = 3


class _Wait(NamedTuple):
    """One operation that stands still: the tensor; the ranks that it is known to wait for; the peers that have not
    accepted a part; and those of them that have, and sum for this node, and have not said for whom they wait."""

    seconds: float
    name: str
    ranks: frozenset[int]
    silent: frozenset[int]
    summing: frozenset[int] = frozenset()


class StallWatch:
    """Looks at everything that is outstanding. Not thread-safe: the caller holds the worker's lock.

    Args:
        limit: seconds without progress after which the worker gives up; 0: never.
        welcome: who is in the job.
        peers: to whom contributions are pushed.
        pipeline, operations, light: what is outstanding.
        reach: whether they can be reached.
        reducer: what sums for this node; None if nothing does.
        now: monotonic seconds.
    """

    def __init__(
        self,
        limit: float,
        welcome: Welcome,
        peers: Sequence[Peer],
        pipeline: Pipeline,
        operations: Mapping[int, TensorOperation],
        light: Light,
        reach: Reach,
        reducer: Reducer | None,
        now: float,
    ) -> None:
        self._limit = limit
        self._participants = welcome.participants
        self._peers = peers
        self._reducer = reducer
        self._pipeline = pipeline
        self._operations = operations
        self._light = light
        self._reach = reach
        self._report_due = now

    def check(self, now: float) -> None:
        """Speak of operations that make no progress, however well others do, and give up in the end.

        Raises:
            TransportTimeout: one has made no progress for too long, or a server that lives cannot be reached.
        """
        mentioned = min(_FIRST_REPORT_SECONDS, self._limit or _FIRST_REPORT_SECONDS)
        waits = self._waits(now, mentioned)
        if waits:
            waited = max(each.seconds for each in waits)
            if self._limit and waited >= self._limit:
                text = self._text(waits, waited)
                raise TransportTimeout(f"{text}; giving up (BYTEPS_STALL_TIMEOUT={self._limit:g})")
            if now >= self._report_due:
                self._report_due = now + _REPORT_SECONDS
                _log.warning("%s", self._text(waits, waited))
        else:
            self._report_due = now
        self._check_reach(now)

    def _waits(self, now: float, mentioned: float) -> list[_Wait]:
        stalled = {
            identifier: now - each.progressed
            for identifier, each in self._operations.items()
            if each.progressed is not None and now - each.progressed >= mentioned
        }
        waits: list[_Wait] = []
        for each in self._pipeline.outstanding() if stalled else ():
            if each.operation_id not in stalled:
                continue
            operation = self._operations[each.operation_id]
            ranks = frozenset[int]().union(*operation.waits_for.values())
            silent = frozenset([partition.server for partition in each.unaccepted])
            summing = [part.server for part in each.accepted if not operation.waits_for.get(part.key)]
            summing = [place for place in summing if not self._peers[place].is_server]
            waits.append(
                _Wait(stalled[each.operation_id], operation.tensor.spec.name, ranks, silent, frozenset(summing))
            )
        for flight in self._light.flights.values():
            bundle = flight.bundle
            if bundle.sent and now - bundle.pushed >= mentioned:
                servers = frozenset() if bundle.accepted else frozenset([bundle.server])
                ranks = frozenset(flight.waits_for or ())
                waits.append(_Wait(now - bundle.pushed, flight.tensor.spec.name, ranks, servers))
        return waits

    def _text(self, waits: list[_Wait], waited: float) -> str:
        names = ", ".join(repr(each.name) for each in waits[:_NAMES_IN_MESSAGES])
        more = f" and {len(waits) - _NAMES_IN_MESSAGES} more" if len(waits) > _NAMES_IN_MESSAGES else ""
        who = ", ".join(self._waited_for(waits)) or "an answer"
        return f"waiting {waited:.0f} s for the result of {names}{more}: missing {who}"

    def _waited_for(self, waits: list[_Wait]) -> list[str]:
        """Workers that were named as missing, then peers that have not even accepted what was pushed, and if there is
        neither, those that sum for this node."""
        ranks = sorted({rank for each in waits for rank in each.ranks})
        workers = [self._participants[rank].describe() for rank in ranks if rank < len(self._participants)]
        silent = {place for each in waits for place in each.silent}
        if self._reducer is not None:
            silent |= self._reducer.silent()
        places = sorted(silent)
        texts = [f"the acceptance of {self._peers[place].text}" for place in places]
        if places and (why := self._reach.why_not(places[0])):  # the first only: each may take two seconds
            texts[0] += f" ({why})"
        if not workers and not texts:
            summing = sorted({place for each in waits for place in each.summing})
            texts = [f"an answer of {self._peers[place].text}" for place in summing]
        return workers + texts

    def _check_reach(self, now: float) -> None:
        """Give up on a peer that lives, and that only this worker does not reach."""
        obstacle = self._reach.check(now)
        if obstacle is None:
            return
        peer = self._peers[obstacle.rank]
        seconds = f"for {obstacle.seconds:.0f} s now (BYTEPS_LOST_TIMEOUT): {obstacle.reason}"
        if not peer.is_server:
            raise TransportTimeout(f"{peer.text}, cannot be reached, {seconds}")
        name, _, address = peer.text.rpartition(" at ")
        raise TransportTimeout(
            f"{name} cannot be reached at {address}, {seconds}. The scheduler hears from it, so check the firewall "
            "between here and there; DMLC_PORT or BYTEPS_PORT_RANGE give a server a port that is open, DMLC_INTERFACE "
            "or DMLC_NODE_HOST another address"
        )
