"""What the scheduler's state machine asks its runner to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from byteps_py.wire.control import ControlMessage

__all__ = ["Action", "Log", "Send", "Stop"]


@dataclass(frozen=True)
class Send:
    """Send ``message`` to ``peer``."""

    peer: bytes
    message: ControlMessage


@dataclass(frozen=True)
class Log:
    """Write ``text`` to the log."""

    level: Literal["debug", "info", "warning", "error"]
    text: str


@dataclass(frozen=True)
class Stop:
    """The job is over: deliver what was sent, then exit with ``status``. Given out once."""

    status: int
    reason: str


Action: TypeAlias = Send | Log | Stop
