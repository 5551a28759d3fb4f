"""What a caller holds while an operation is on its way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from byteps_py.errors import NotInitializedError
from byteps_py.roles.rows import Rows
from byteps_py.types import TensorSpec

__all__ = ["Driver", "Pending", "Signal", "Sleeper", "is_done_by"]

_LOOK_SECONDS: Final = 1.0
"""A sleeping thread looks so often whether what it waits for was held back, to travel with more."""


class Signal:
    """Something that happens once, or fails. Any thread may wait; the worker's thread sets it."""

    __slots__ = ("_error", "_event", "_pid")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._pid = os.getpid()
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether :meth:`wait` would return or raise at once."""
        return self._event.is_set()

    def wait(self) -> None:
        """Block until it has happened.

        There is no deadline here: the worker's thread watches all that is outstanding, says what it waits for, and
        fails it in the end.

        Raises:
            BytePSError: why it cannot happen any more.
            NotInitializedError: this is a forked child of the process that started it, where it cannot happen.
        """
        if os.getpid() != self._pid and not self._event.is_set():
            raise NotInitializedError("this process was forked from a worker, which alone can wait for this")
        self._event.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)

    def complete(self) -> None:
        """It has happened."""
        self._event.set()

    def fail(self, error: BaseException) -> None:
        """It cannot happen any more. The first outcome counts."""
        if not self._event.is_set():
            self._error = error
            self._event.set()


class Driver(Protocol):
    """What moves the data while somebody waits. Any thread."""

    def drive(self, pending: Pending) -> None:
        """Return when ``pending`` is done.

        Raises:
            NotInitializedError: this is a forked child of the process that started the operation.
        """

    def hurry(self) -> None:
        """Somebody looks for results: send what has been held back to travel with more."""


class Pending:
    """A tensor operation on its way.

    Attributes:
        spec: the tensor.
        output: C-contiguous array of ``spec.dtype.storage`` with ``spec.count`` elements; holds the result after
            :meth:`wait` and must not be touched before.
        absent: after :meth:`wait`, whether no worker contributed anything; ``output`` is zero then.
        rows: after :meth:`wait`, the result, where workers contributed rows of the tensor; ``output`` means nothing
            then. None where the result is in ``output``.
    """

    __slots__ = ("_callback", "_done", "_driver", "_error", "_event", "absent", "output", "rows", "spec")

    _making = threading.Lock()

    def __init__(self, spec: TensorSpec, output: npt.NDArray[Any] | None, driver: Driver | None = None) -> None:
        self.spec = spec
        self.output: npt.NDArray[Any] = np.empty(spec.shape, spec.dtype.storage) if output is None else output
        self.absent = False
        self.rows: Rows | None = None
        self._driver = driver
        self._done = False
        self._error: BaseException | None = None
        # Made by the first who sleeps: most results are there when they are asked for, and an event is dear.
        self._event: threading.Event | None = None
        self._callback: Callable[[], object] | None = None

    def done(self) -> bool:
        """Whether :meth:`wait` would return or raise at once."""
        if not self._done and self._driver is not None:
            self._driver.hurry()
        return self._done

    def wait(self) -> npt.NDArray[Any]:
        """Block until the result is in :attr:`output`, and return that.

        There is no deadline here: the worker's thread watches all that is outstanding, says what it waits for, and
        fails it in the end.

        Raises:
            AgreementError: workers disagree about the tensor or the operation.
            ParticipantLeft: a worker left whose contribution is needed.
            JobAborted, TransportTimeout: the job cannot go on.
            NotInitializedError: this is a forked child of the process that started it.
        """
        if not self._done:
            if self._driver is not None:
                self._driver.drive(self)
            else:
                self.sleep()
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self.output

    def over(self) -> bool:
        """Whether it is done, without any side effect."""
        return self._done

    def sleep(self, seconds: float | None = None) -> None:
        """Block until it is done, ``seconds`` at most, and leave the work to others."""
        with self._making:
            event = self._event = self._event or threading.Event()
        # Whoever completes it sets the mark before looking for an event, so one of the two is seen.
        if not self._done:
            event.wait(seconds)

    def call_when_done(self, callback: Callable[[], object]) -> None:
        """Have ``callback`` called once, when it is done: at once if it is, else by the thread that completes it.

        That thread may hold locks of the session, so ``callback`` must be quick, leave the session alone and not raise.
        There is one callback at most.
        """
        with self._making:
            self._callback = callback
        if self._done:
            self._call()

    def complete(self, absent: bool) -> None:
        """The result is in :attr:`output`."""
        self.absent = absent
        self._done = True
        event = self._event
        if event is not None:
            event.set()
        if self._callback is not None:
            self._call()

    def _call(self) -> None:
        with self._making:  # whoever completes it and whoever sets the callback may both come here
            callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def fail(self, error: BaseException) -> None:
        """The result will never come. The first outcome counts."""
        if not self._done:
            self._error = error
            self.complete(self.absent)


class Sleeper(Protocol):
    """What :func:`is_done_by` needs of :class:`Pending`."""

    def done(self) -> bool:
        """Whether it is over, or has failed."""

    def sleep(self, seconds: float | None = None) -> None:
        """Block until it is done, ``seconds`` at most."""


def is_done_by(pending: Sleeper, until: float | None) -> bool:
    """Sleep until ``pending`` is done, or until ``until`` (monotonic seconds; None: no limit); whether it is done."""
    while not pending.done():
        left = _LOOK_SECONDS if until is None else until - time.monotonic()
        if left <= 0:
            return False
        pending.sleep(min(left, _LOOK_SECONDS))
    return True
