"""Processes of earlier generations of a job: what launchers tell of their ends is no news of the current one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from byteps_py.core.places import Member, is_same_process
from byteps_py.types import Role
from byteps_py.wire.control import ChildEnded, ProcessInfo

__all__ = ["Veteran", "Veterans"]

_MOST: Final = 65536
"""Most that are remembered."""


@dataclass(frozen=True)
class Veteran:
    """One of them, and what it was called in its generation."""

    member: Member
    name: str

    def is_meant(self, message: ChildEnded) -> bool:
        """Whether its end is told, or that of the command that started it."""
        register = self.member.register
        if is_same_process(message.process, register.process):
            return True
        place = (register.launch_id, register.local_rank)
        is_worker = register.role is Role.WORKER
        return is_worker and bool(message.launch_id) and place == (message.launch_id, message.local_rank)


class Veterans:
    """All that are remembered. Not thread-safe."""

    def __init__(self) -> None:
        self._all: dict[ProcessInfo, Veteran] = {}

    def add(self, cast: Iterable[tuple[Member, str]]) -> None:
        """A generation is over; everybody in it with his name."""
        for member, name in cast:
            if len(self._all) < _MOST:
                self._all[member.process] = Veteran(member, name)

    def find(self, message: ChildEnded) -> Veteran | None:
        """Whose end is told."""
        return next((each for each in self._all.values() if each.is_meant(message)), None)

    def name(self, member: Member) -> str:
        """What a member was called."""
        known = self._all.get(member.process)
        return member.describe() if known is None else known.name

    def forget(self, veteran: Veteran) -> None:
        """It has ended."""
        self._all.pop(veteran.member.process, None)
