"""The wait for a complete job: what is said while it lasts, and when it has lasted too long."""

from __future__ import annotations

from byteps_py.core.absence import counts, describe_missing, is_vouched_for
from byteps_py.core.actions import Action, Log, Send
from byteps_py.core.launches import Launches
from byteps_py.core.liveness import Reminder
from byteps_py.core.roster import Member, Roster
from byteps_py.wire.control import Waiting

__all__ = ["Gathering"]


class Gathering:
    """Watches a roster fill. Not thread-safe.

    The clock of ``start_timeout`` runs while anybody waits: from the first registration on, but not before, since a
    scheduler may be started long before the rest.  When it has run out, the wait goes on as long as everyone who is
    missing is a worker that is known to live: it takes long to start.

    Args:
        roster: filled and emptied by the caller.
        launches: what launchers tell of workers that have not registered; updated by the caller.
        start_timeout: seconds that the first process waits for the last one; 0: no limit.

    Attributes:
        had_workers: whether a worker has ever registered.
    """

    def __init__(self, roster: Roster, launches: Launches, start_timeout: float) -> None:
        self._roster = roster
        self._launches = launches
        self._start_timeout = start_timeout
        self.had_workers = False
        self._reminder: Reminder | None = None  # of the wait for the first process, or for the last one

    def joined(self, now: float, member: Member) -> list[Action]:
        """``member`` has been added to the roster."""
        self.had_workers = self.had_workers or self._roster.has_workers
        if len(self._roster) == 1:
            self._reminder = Reminder(now, calm_after=None)
        actions: list[Action] = [Log("info", f"{member.describe()} joined: {counts(self._roster)}")]
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

    def failure(self, now: float) -> str | None:
        """Why the wait is over without success."""
        limit = self._start_timeout
        if not len(self._roster) or self._reminder is None or not limit or now - self._reminder.started < limit:
            return None
        if is_vouched_for(self._roster, self._launches.unjoined(now)):
            return None
        return f"{self._text(now, now - self._reminder.started)}; gave up after BYTEPS_START_TIMEOUT={limit:g} seconds"

    def remind(self, now: float) -> list[Action]:
        """Tell everyone who is missing, when it is time to."""
        if self._reminder is None:
            self._reminder = Reminder(now)
        waited = self._reminder.due(now)
        if waited is None:
            return []
        text = self._text(now, waited)
        return [Log("warning", text), *(Send(member.peer, Waiting(text)) for member in self._roster)]

    def _text(self, now: float, waited: float) -> str:
        return f"waiting {waited:.0f} s for {describe_missing(self._roster, self._launches.unjoined(now))}"
