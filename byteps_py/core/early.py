"""Processes that come for the next generation of a job before all workers have suspended the current one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from byteps_py.core.actions import Action, Send
from byteps_py.core.standing import Standing
from byteps_py.wire.control import (
    Bye,
    ControlMessage,
    Heartbeat,
    HeartbeatReply,
    ProcessInfo,
    Refused,
    Register,
    Waiting,
)

__all__ = ["Early"]

_MOST: Final = 65536
"""Most that are remembered."""


class Early:
    """Those that are heard when the generation is over. Not thread-safe.

    Args:
        job_id: of the job; others are not early, but wrong.
        scheduler: the process that this runs in.
    """

    def __init__(self, job_id: str, scheduler: ProcessInfo) -> None:
        self._job_id = job_id
        self._scheduler = scheduler
        self._registers: dict[bytes, Register] = {}

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._registers)

    def is_meant(self, peer: bytes, message: ControlMessage, current: Standing) -> bool:
        """Whether a message is of one of them, or of another one."""
        if peer in self._registers:
            return True
        is_new = isinstance(message, Register) and message.job_id == self._job_id and not current.knows(peer)
        return is_new and current.is_closing and len(self._registers) < _MOST

    def keep(self, peer: bytes, message: ControlMessage) -> list[Action]:
        """Remember, or answer, one of them."""
        if isinstance(message, Register):
            self._registers[peer] = message
            return [Send(peer, Waiting("waiting until all workers of the job have called suspend()"))]
        if isinstance(message, Bye):
            del self._registers[peer]
            return [Send(peer, Refused(message.reason or "has left"))]
        return [Send(peer, HeartbeatReply(self._scheduler))] if isinstance(message, Heartbeat) else []

    def take(self) -> dict[bytes, Register]:
        """The generation is over: they are early no more."""
        taken, self._registers = self._registers, {}
        return taken
