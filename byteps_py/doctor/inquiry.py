"""Asks a scheduler how its job stands, and what time it is there, without joining the job."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from byteps_py.errors import RemoteProtocolError
from byteps_py.roles.member import SCHEDULER
from byteps_py.transport.base import Endpoint
from byteps_py.wire.control import Inquiry, Refused, Status, decode_control, encode_control

__all__ = ["Answer", "Exchange", "best_clock", "inquire"]

EXCHANGES: Final = 8
"""Questions, for the clock: an answer that nothing has delayed tells most."""


@dataclass(frozen=True)
class Exchange:
    """One question and its answer; seconds since the epoch of Unix.

    Attributes:
        asked, answered: when, by the clock of this process.
        theirs: the other clock, at some time between the two.
    """

    asked: float
    theirs: float
    answered: float

    @property
    def round_trip(self) -> float:
        """Seconds between question and answer."""
        return self.answered - self.asked


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: the first answer; None if there was none.
        exchanges: those that were answered.
        refusal: why it was refused; empty if it was not.
        misunderstood: why what came cannot be understood; empty if it can.
    """

    status: Status | None = None
    exchanges: tuple[Exchange, ...] = ()
    refusal: str = ""
    misunderstood: str = ""


def best_clock(exchanges: tuple[Exchange, ...]) -> tuple[float, float]:
    """How far the other clock is ahead, and the error bound, both in seconds; there must be an exchange.

    From the exchange with the least round trip, as in the clock filter of NTP (RFC 5905, section 10): the other clock
    was read somewhere within it, so the middle is wrong by half of it at most.
    """
    best = min(exchanges, key=lambda each: each.round_trip)
    return best.theirs - (best.asked + best.answered) / 2, best.round_trip / 2


def inquire(endpoint: Endpoint, address: str, timeout: float) -> Answer:
    """Ask who listens at ``address``; takes ``timeout`` seconds at most.

    Args:
        endpoint: connected to nobody; closed by the caller.
        address: ``tcp://host:port``, numeric.
        timeout: seconds.
    """
    endpoint.connect(SCHEDULER, address)
    deadline = time.monotonic() + timeout
    first: Status | None = None
    exchanges: list[Exchange] = []
    for number in range(1, EXCHANGES + 1):
        asked, started = time.time(), time.monotonic()
        endpoint.send(SCHEDULER, [encode_control(Inquiry(number))])
        try:
            status = _await(endpoint, number, deadline)
        except RemoteProtocolError as error:
            return Answer(first, tuple(exchanges), misunderstood=str(error))
        if isinstance(status, Refused):
            return Answer(first, tuple(exchanges), status.reason)
        if status is None:
            break
        first = first or status
        exchanges.append(Exchange(asked, status.clock / 1e9, asked + (time.monotonic() - started)))
    return Answer(first, tuple(exchanges))


def _await(endpoint: Endpoint, number: int, deadline: float) -> Status | Refused | None:
    """The answer to this question; None if it does not come in time.

    Raises:
        RemoteProtocolError: what was said is of another language, or another version of it.
    """
    while (left := deadline - time.monotonic()) > 0:
        for message in endpoint.receive(left):
            if message.peer != SCHEDULER or len(message.frames) != 1:
                continue
            said = decode_control(message.frames[0])
            if isinstance(said, Refused) or (isinstance(said, Status) and said.number == number):
                return said
    return None
