"""Control messages of one who is no member and only wants to know how a job stands: ``bps doctor``."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from byteps_py.types import Role
from byteps_py.wire.message import ControlStruct, Natural, Positive, Text, Unsigned64

__all__ = ["MAX_SOFTWARE", "MAX_SOFTWARE_TEXT", "Inquiry", "Software", "SoftwareText", "Status"]

MAX_SOFTWARE: Final = 16
"""Most kinds of software that a Status lists, so that its size does not grow with the job."""
MAX_SOFTWARE_TEXT: Final = 255
SoftwareText = Annotated[str, msgspec.Meta(max_length=MAX_SOFTWARE_TEXT)]


class Inquiry(ControlStruct, frozen=True, tag="inquiry"):
    """How does the job stand? From anybody: whoever asks does not join, and is not remembered."""

    number: Unsigned64


class Software(msgspec.Struct, frozen=True, array_like=True):
    """What members run with: those of one role with equal versions of everything are one entry.

    Attributes:
        role: theirs.
        version: of byteps_py.
        others: of what else matters: ``Python 3.11.7, numpy 2.1.0, torch 2.6.0``.
        count: how many they are.
        host: of one of them.
    """

    role: Role
    version: SoftwareText
    others: SoftwareText
    count: Positive
    host: Text


class Status(ControlStruct, frozen=True, tag="status"):
    """The answer to the Inquiry of that number; nothing in it lets anybody take part in the job.

    Attributes:
        number: of the Inquiry.
        job_id: the name of the job.
        state: ``gathering``, ``running``, ``suspended`` or ``ending``.
        software: of the scheduler, whose host is here, then of the members; of members 16 kinds at most.
        pid: of the scheduler.
        num_worker, num_server: worker machines and servers of the complete job.
        machines: of these worker machines, those of which all processes have registered.
        workers, servers: processes that have registered.
        missing: who has not, in words; empty if nobody is missing.
        uptime: of the scheduler, in nanoseconds.
        clock: what time it is there, in nanoseconds since the epoch of Unix.
    """

    number: Unsigned64
    job_id: Text
    state: Text
    software: Annotated[tuple[Software, ...], msgspec.Meta(min_length=1, max_length=MAX_SOFTWARE + 1)]
    pid: Natural
    num_worker: Positive
    num_server: Natural
    machines: Natural
    workers: Natural
    servers: Natural
    missing: Text
    uptime: Unsigned64
    clock: Unsigned64
