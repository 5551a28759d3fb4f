"""How fast the link to the servers is: a few messages of no meaning, before the first tensor is placed.

The size of partitions follows from it (:mod:`byteps_py.core.partition_size`), under a root, so that an estimate does
for which the others need not be asked to be silent: all workers measure at the same time, each at another server, as
they do later.  When the first message, a small one, is answered, the connection is there and the server is awake; then
a train of large ones is sent at once, of which each is answered when it has arrived.  What counts is the time from
sending to the last answer.  (The time between answers would leave out the way back; but a thread that comes late reads
several at once, and a slow link looks fast.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from byteps_py.roles.envelope import Envelope
from byteps_py.roles.neighbours import Peer
from byteps_py.transport.base import Buffer, Endpoint
from byteps_py.wire.control import Welcome
from byteps_py.wire.header import Header, Opcode, encode

__all__ = ["LinkSpeed", "known_speed", "measure_link"]

_BYTES: Final = 64 << 10
_COUNT: Final = 8
"""Messages of the train, and bytes of each: 21 ms at 200 Mbit/s."""
_PATIENCE_SECONDS: Final = 3.0
"""How long is waited for the answers: those that have come then must do."""
_LEAST_SECONDS: Final = 1e-6
_KEY: Final = 0
_FIRST: Final = 1


class LinkSpeed:
    """One measurement. Belongs to the worker's thread.

    Args:
        send: sends header and payload to the server that is measured.
        envelope: of this worker.
        now: monotonic seconds, as in all methods.

    Attributes:
        bytes_per_second: what was found; 0 before that, and where nothing of the train has arrived in time.
        is_known: whether it is over.
    """

    def __init__(self, send: Callable[[list[Buffer]], object], envelope: Envelope, now: float) -> None:
        self.bytes_per_second = 0
        self.is_known = False
        self._send = send
        self._envelope = envelope
        self._deadline = now + _PATIENCE_SECONDS
        self._begun = self._last = now
        self._missing = {_FIRST}
        self._probe(_FIRST, 1)

    def answered(self, now: float, header: Header) -> None:
        """One of the messages has arrived; over several connections they may overtake each other."""
        if self.is_known or header.round not in self._missing:
            return
        self._missing.remove(header.round)
        self._last = now
        if header.round == _FIRST:
            self._begun = now
            self._missing = set(range(_FIRST + 1, _FIRST + 1 + _COUNT))
            for number in self._missing:
                self._probe(number, _BYTES)
        elif not self._missing:
            self._end()

    def tick(self, now: float) -> float | None:
        """End this if it is time to; returns when it is, None if it was over before."""
        if self.is_known:
            return None
        if now >= self._deadline:
            self._end()
        return self._deadline

    def _probe(self, number: int, nbytes: int) -> None:
        self._send([encode(self._envelope.header(Opcode.PROBE, _KEY, number, length=nbytes)), bytes(nbytes)])

    def _end(self) -> None:
        self.is_known = True
        passed = 0 if _FIRST in self._missing else (_COUNT - len(self._missing)) * _BYTES
        self.bytes_per_second = round(passed / max(self._last - self._begun, _LEAST_SECONDS))


def measure_link(
    endpoint: Endpoint, welcome: Welcome, peers: Sequence[Peer], envelope: Envelope, now: float
) -> LinkSpeed | None:
    """Begin to measure the way to one of the servers on other machines; None if there are none.

    Args:
        endpoint: of this worker.
        welcome: who is in the job.
        peers: the servers by rank, and whoever follows.
        envelope: of this worker.
        now: monotonic seconds.
    """
    here, count = welcome.participants[welcome.rank].host, len(welcome.servers)
    # From another one for each worker, as in the exchanges that follow.
    order = [welcome.servers[(welcome.rank + step) % count] for step in range(count)]
    names = [peers[each.rank].name for each in order if each.host != here]
    server = next((each for each in names if not endpoint.is_lane(each)), None)
    return None if server is None else LinkSpeed(lambda frames: endpoint.send(server, frames), envelope, now)


def known_speed(link: LinkSpeed | None) -> int | None:
    """Bytes per second: 0 where there is no link to measure, None while it is being measured."""
    if link is None:
        return 0
    return link.bytes_per_second if link.is_known else None
