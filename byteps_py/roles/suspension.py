"""How a worker leaves one generation of its job: its own operations end, then all workers wait for one another."""

from __future__ import annotations

from byteps_py.errors import TransportTimeout
from byteps_py.roles.goodbye import Goodbye
from byteps_py.roles.member import SchedulerLink
from byteps_py.wire.control import Bye

__all__ = ["Suspension"]


class Suspension(Goodbye):
    """A goodbye that is confirmed when all workers have said it. Belongs to the worker's thread.

    What is on its way has limits of its own (``BYTEPS_STALL_TIMEOUT``), so the wait for it needs none.

    Args:
        link: the way to the scheduler.
        now: monotonic seconds, as in :meth:`may_end`.
        limit: seconds to wait for the other workers; 0: no limit.
    """

    words = "suspend() was called before this operation was begun: call resume() first"

    def __init__(self, link: SchedulerLink, now: float, limit: float) -> None:
        super().__init__(link, now, "", joined=True)
        self._message = Bye(suspends=True)
        self._limit = limit
        self._since: float | None = None

    def may_end(self, now: float, owed: str, *, serves: bool = False) -> bool:
        """Say that this worker suspends when nothing is owed, and tell whether all have.

        Raises:
            TransportTimeout: others have not, within the limit.
        """
        if self.confirmed:
            return True
        if owed or serves:
            return False
        self._since = now if self._since is None else self._since
        if self._limit and now - self._since >= self._limit:
            raise TransportTimeout(
                f"waited {self._limit:g} s in suspend() for workers that have not called it "
                "(BYTEPS_STALL_TIMEOUT): every worker must call suspend(), or shutdown()"
            )
        self._repeat(now)
        return False
