"""How a worker leaves its job: what others wait for first, then a goodbye that the scheduler confirms."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

from byteps_py.errors import BytePSError, TransportTimeout
from byteps_py.roles.member import SCHEDULER, SchedulerLink
from byteps_py.transport.base import Endpoint
from byteps_py.wire.control import Bye

__all__ = ["Goodbye", "tell"]

LEAVE_SECONDS: Final = 4.0
"""How long to wait for the contributions that are on their way, and for the scheduler."""
WITHDRAW_SECONDS: Final = 1.0
"""The same before the job is complete, when nobody waits for anything of this process."""
_REPEAT_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 0.5
"""Between two looks at whether a failure has been heard."""


class Goodbye:
    """One attempt to leave. Belongs to the worker's thread.

    Args:
        link: the way to the scheduler.
        now: monotonic seconds, as in :meth:`may_end`.
        failure: what this process dies of, as words that follow its name; empty to leave in order.
        joined: whether the job was complete. If not, the scheduler answers with a refusal, which ends the link.
    """

    words = "shutdown() was called while this operation was on its way"
    """What operations end with that are still outstanding, or come later."""

    def __init__(self, link: SchedulerLink, now: float, failure: str, *, joined: bool) -> None:
        self._link = link
        self._joined = joined
        self._message = Bye(failure if joined else failure or "gave init() up")
        self._seconds = LEAVE_SECONDS if joined else WITHDRAW_SECONDS
        self._deadline = now + self._seconds
        self._repeat_due = now
        self.confirmed = False
        """Whether the scheduler has answered."""

    @property
    def in_order(self) -> bool:
        """Whether this process leaves a complete job without dying of anything."""
        return self._joined and not self._message.reason

    def may_end(self, now: float, owed: str, *, serves: bool = False) -> bool:
        """Say goodbye when it is time, and tell whether the thread may end.

        Args:
            now: monotonic seconds.
            owed: what others may still wait for; empty if nothing. A process that dies of an error owes nothing.
            serves: that these are other workers of the machine, who are served for as long as it takes: how long that
                may be is up to their and this worker's ``BYTEPS_STALL_TIMEOUT``.

        Raises:
            TransportTimeout: an orderly goodbye takes too long.
        """
        if self.confirmed:
            return True
        in_order = self.in_order
        if in_order and serves:
            self._deadline = now + self._seconds
        if now >= self._deadline:
            if in_order:
                raise TransportTimeout(f"left the job after {self._seconds:g} s although {owed or 'nobody answered'}")
            return True
        if not (in_order and owed):
            self._repeat(now)
        return False

    def _repeat(self, now: float) -> None:
        if now >= self._repeat_due:
            self._repeat_due = now + _REPEAT_SECONDS
            self._link.send(self._message)


def tell(goodbye: Goodbye, endpoint: Endpoint, hear: Callable[[float, Sequence[memoryview]], None]) -> None:
    """Say what this process dies of, until that is confirmed or has taken too long.

    Args:
        goodbye: with a failure.
        endpoint: of the link; what others than the scheduler send is dropped.
        hear: takes what the scheduler sends, at a time in monotonic seconds.
    """
    with contextlib.suppress(BytePSError):  # the job has ended: they know
        while not goodbye.may_end(time.monotonic(), ""):
            for message in endpoint.receive(_TELL_SECONDS):
                if message.peer == SCHEDULER:
                    hear(time.monotonic(), message.frames)
