"""Who reads the lanes of a worker: a caller who waits (the *driver*), or the worker's thread.

=========  ==============================  ===============================================================  =========
the lanes  event                           action                                                           then
=========  ==============================  ===============================================================  =========
FREE       a caller waits                  they no longer wake the worker's thread (they are held)          DRIVEN
DRIVEN     the driver has what it wants    --                                                               HELD
DRIVEN     the same, others rely on them   they wake the worker's thread again                              FREE
DRIVEN     nobody has looked for 3 s       the driver is gone without a word: the same                      FREE
HELD       a caller waits                  --                                                               DRIVEN
HELD       nobody has for a few ms         the worker's thread comes by; they wake it again                 FREE
HELD       a caller relies on others       they wake the worker's thread again                              FREE
any        the worker leaves               they are held, and nobody reads them any more                    LEFT
=========  ==============================  ===============================================================  =========

Who has waited often waits again soon, and to give the lanes back each time would cost as much as to move the data.

The caller of every method holds the worker's lock.
"""

from __future__ import annotations

import time
from typing import Final

from byteps_py.roles.light import HOLD_SECONDS
from byteps_py.transport.base import Endpoint

__all__ = ["LOOK_SECONDS", "LaneKeeper"]

LOOK_SECONDS: Final = 1.0
"""A driver looks up so often, should anything have been missed."""


class LaneKeeper:
    """The state of the lanes of one worker.

    Args:
        endpoint: has them.

    Attributes:
        driver: the thread that reads them; 0: none does.
        has_lanes: whether there are any.
        sleepers: callers that rely on others to read them.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.driver = 0
        self.has_lanes = False
        self.sleepers = 0
        self._endpoint = endpoint
        self._are_held = False
        self._has_left = False
        self._driven = self._looked = self._visit_due = 0.0

    def take(self, thread: int) -> bool:
        """Let ``thread`` drive, unless another one does or there is nothing to read."""
        if not self.has_lanes or self.driver or self._has_left:
            return False
        self.driver, self._looked = thread, time.monotonic()
        if not self._are_held:
            self._endpoint.hold_lanes()
            self._are_held = True
        return True

    def looked(self, now: float) -> None:
        """The driver reads them."""
        self._looked = now

    def stop(self, now: float, *, at_once: bool) -> None:
        """The driver has what it wants; ``at_once``: somebody relies on the worker's thread."""
        self.driver = 0
        self._driven = now
        if self._has_left:
            return
        if at_once or self.sleepers:
            self._free()
        else:
            self.visit(now)

    def rely(self) -> None:
        """A caller waits and does not drive; :attr:`sleepers` is one less when it does not wait any more."""
        self.sleepers += 1
        if self._are_held and not self.driver and not self._has_left:
            self._free()

    def visit(self, now: float) -> None:
        """Have the worker's thread come by in a few milliseconds, if it does not anyway."""
        if now >= self._visit_due:
            self._visit_due = now + HOLD_SECONDS
            self._endpoint.wake_in(HOLD_SECONDS)

    def come_by(self, now: float) -> float | None:
        """The worker's thread is here.

        Returns:
            None: it reads the lanes. Else it does not, and looks again in so many seconds (infinity: when it likes).
        """
        if self._has_left:
            return float("inf")
        if self.driver:
            left = self._looked + 3 * LOOK_SECONDS - now
            if left > 0:
                return left
            self.driver = 0
            self._free()
        elif self._are_held:
            left = self._driven + HOLD_SECONDS - now
            if left > 0:
                return left
            self._free()
        return None

    def leave(self) -> None:
        """Nobody reads them any more, and they wake nobody."""
        self._has_left = True
        self._endpoint.hold_lanes()
        self._are_held = True

    def end(self) -> None:
        """The endpoint is about to be closed: it is left alone from now on."""
        self._has_left = True

    def _free(self) -> None:
        self._endpoint.resume_lanes()  # first: to do it twice is harmless, to leave it out is not
        self._are_held = False
