"""The question for the scheduler's clock, and its answer: what puts the traces of all processes on one clock."""

from __future__ import annotations

from byteps_py.wire.message import ControlStruct, Natural, Unsigned64

__all__ = ["Clock", "ClockReply", "clock_problem"]


class Clock(ControlStruct, frozen=True, tag="clock"):
    """Anybody, also a process that is no member, asks what time it is; ``number`` comes back in the answer."""

    number: Natural


class ClockReply(ControlStruct, frozen=True, tag="clock-reply"):
    """When the question ``number`` was received, and when this answer was given, by the scheduler's clock.

    Nanoseconds since the epoch as the scheduler saw it when it started; the clock is never set, so it may differ from
    what the wall clock of that machine says by now.
    """

    number: Natural
    received: Unsigned64
    replied: Unsigned64


def clock_problem(message: ClockReply) -> str | None:
    """What is wrong with an answer whose fields have the right types; None if nothing is."""
    if message.replied < message.received:
        return f"it was given at {message.replied}, before the question came at {message.received}"
    return None
