"""Which messages the scheduler understands from whom."""

from __future__ import annotations

from typing import Final

from byteps_py.types import Role
from byteps_py.wire.control import (
    Barrier,
    Bye,
    ChildEnded,
    ControlMessage,
    Declare,
    FormGroup,
    GroupKnown,
    Notice,
    Register,
    Vouch,
)

__all__ = ["OF_ANYONE", "OF_WORKERS", "may_send"]

OF_ANYONE: Final = (Register, ChildEnded, Vouch)
OF_WORKERS: Final = (Declare, FormGroup, Barrier)
_SENDERS: Final = dict.fromkeys(OF_WORKERS, Role.WORKER) | {GroupKnown: Role.SERVER, Notice: Role.SERVER}


def may_send(role: Role, message: ControlMessage) -> bool:
    """Whether a member of ``role`` may send ``message``."""
    if isinstance(message, Bye) and message.suspends and role is not Role.WORKER:
        return False
    return role is _SENDERS.get(type(message), role)
