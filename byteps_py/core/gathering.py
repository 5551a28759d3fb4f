"""The wait for a complete job: what is said while it lasts, and when it has lasted too long."""

from __future__ import annotations

from typing import Final

from byteps_py.core.actions import Action, Log, Send
from byteps_py.core.liveness import Reminder
from byteps_py.core.roster import Member, Roster
from byteps_py.wire.control import ProcessInfo, Waiting

__all__ = ["Gathering"]

_MOST_ENDED: Final = 1000
"""Most ended processes that are counted, so that nobody can fill the memory."""


class Gathering:
    """Watches a roster fill. Not thread-safe.

    The clock of ``start_timeout`` runs while anybody waits: from the first registration on, but not before, since a
    scheduler may be started long before the rest.

    Args:
        roster: filled and emptied by the caller.
        start_timeout: seconds that the first process waits for the last one.
    """

    def __init__(self, roster: Roster, start_timeout: float) -> None:
        self._roster = roster
        self._start_timeout = start_timeout
        self._reminder: Reminder | None = None  # of the wait for the first process, or for the last one
        self._ended: set[tuple[str, int]] = set()

    def joined(self, now: float, member: Member) -> list[Action]:
        """``member`` has been added to the roster."""
        if len(self._roster) == 1:
            self._reminder = Reminder(now, calm_after=None)
        actions: list[Action] = [Log("info", f"{member.describe()} joined: {self._roster.counts()}")]
        first = next(iter(self._roster))
        # Other versions of the package understand each other as long as the wire version is the same.
        if first.register.version != member.register.version:
            ours = f"{first.register.version} on {first.describe()}"
            theirs = f"{member.register.version} on {member.describe()}"
            text = f"byteps_py is {ours} and {theirs}: install the same version everywhere"
            actions.append(Log("warning", text))
        return actions

    def removed(self) -> None:
        """A member has been removed from the roster."""
        if not len(self._roster):
            self._reminder = None

    def ended(self, process: ProcessInfo) -> None:
        """A process has ended without an error and without joining."""
        if len(self._ended) < _MOST_ENDED:
            self._ended.add((process.host_id, process.pid))

    def failure(self, now: float) -> str | None:
        """Why the wait is over without success."""
        waited = 0.0 if self._reminder is None else now - self._reminder.started
        if not len(self._roster) or waited < self._start_timeout:
            return None
        return f"{self._text(waited)}; gave up after BYTEPS_START_TIMEOUT={self._start_timeout:g} seconds"

    def remind(self, now: float) -> list[Action]:
        """Tell everyone who is missing, when it is time to."""
        if self._reminder is None:
            self._reminder = Reminder(now)
        waited = self._reminder.due(now)
        if waited is None:
            return []
        text = self._text(waited)
        return [Log("warning", text), *(Send(member.peer, Waiting(text)) for member in self._roster)]

    def _text(self, waited: float) -> str:
        note = f"; processes that ended with status 0 before they joined: {len(self._ended)}" if self._ended else ""
        return f"waiting {waited:.0f} s for {self._roster.missing()}{note}"
