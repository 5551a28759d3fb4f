"""How fast the link to the servers is: a few messages of no meaning, before the first tensor is placed.

The size of partitions follows from it (:mod:`byteps_py.core.partition_size`), under a root, so that an estimate does
for which the others need not be asked to be silent: all workers measure at the same time, each at another server, as
they do later.  A train of equal messages is sent at once; the server answers each when it is there, and what counts is
the time between the first answer and the last, in which all messages but the first have passed, at the speed of the
slowest link on the way.  (The method of packet trains: Jain and Dovrolis, "End-to-end available bandwidth", SIGCOMM
2002.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from byteps_py.roles.envelope import Envelope
from byteps_py.roles.neighbours import Peer
from byteps_py.transport.base import Buffer, Endpoint
from byteps_py.wire.header import Header, Opcode, encode

__all__ = ["LinkSpeed", "measure_link"]

_BYTES: Final = 64 << 10
_COUNT: Final = 8
_PATIENCE_SECONDS: Final = 3.0
"""How long is waited for the answers: those that have come then must do."""
_FASTEST: Final = 10**11
"""Bytes per second; two answers may be read at the same time."""
_KEY: Final = 0
_SLOW: Final = 10**7
"""Bytes per second that are assumed where no answer has come: partitions for it suit faster links, too."""


class LinkSpeed:
    """One measurement. Belongs to the worker's thread.

    Args:
        send: sends header and payload to the server that is measured.
        envelope: of this worker.
        now: monotonic seconds, as in all methods.

    Attributes:
        bytes_per_second: what was found; 0 before that, and where nothing was found.
        is_known: whether it is over.
    """

    def __init__(self, send: Callable[[list[Buffer]], object], envelope: Envelope, now: float) -> None:
        self.bytes_per_second = 0
        self.is_known = False
        self._begun = now
        self._answers: list[float] = []
        self._deadline = now + _PATIENCE_SECONDS
        payload = bytes(_BYTES)
        for number in range(1, _COUNT + 1):
            send([encode(envelope.header(Opcode.PROBE, _KEY, number, length=_BYTES)), payload])

    def answered(self, now: float, header: Header) -> None:
        """One of the messages has arrived; an answer out of order is none."""
        if self.is_known or header.round != len(self._answers) + 1:
            return
        self._answers.append(now)
        if len(self._answers) == _COUNT:
            self._end()

    def tick(self, now: float) -> float | None:
        """End this if it is time to; returns when it will be, None if it is over."""
        if not self.is_known and now >= self._deadline:
            self._end()
        return None if self.is_known else self._deadline

    def _end(self) -> None:
        self.is_known = True
        if not self._answers:
            self.bytes_per_second = _SLOW
            return
        count = len(self._answers)
        since = self._answers[0] if count > 1 else self._begun
        passed = max(1, count - 1) * _BYTES
        self.bytes_per_second = max(1, int(passed / max(self._answers[-1] - since, passed / _FASTEST)))


def measure_link(endpoint: Endpoint, servers: Sequence[Peer], envelope: Envelope, now: float) -> LinkSpeed | None:
    """Begin to measure the way to one of the servers on other machines; None if there are none."""
    remote = [each.name for each in servers if not endpoint.is_lane(each.name)]
    if not remote:
        return None
    server = remote[envelope.sender % len(remote)]
    return LinkSpeed(lambda frames: endpoint.send(server, frames), envelope, now)
