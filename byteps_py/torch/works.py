"""Operations of ``torch.distributed`` on their way.

Whoever waits for a :class:`Work` looks after its operations itself: there is no order in which works must be waited
for.  One thread does so for those whose future somebody has asked for, as DistributedDataParallel does for each bucket;
it is made when it is first needed, and completes futures in the order in which they were asked for.

A future that fails must not be given an exception (torch 2.13 crashes on one that DistributedDataParallel waits for):
callers get one whose callback raises.
"""

from __future__ import annotations

import atexit
import datetime
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from byteps_py.errors import NotInitializedError, TransportTimeout

__all__ = ["Waitable", "Work", "complete_later"]

_LOOK_SECONDS: Final = 1.0
"""A sleeping thread looks so often whether what it waits for was held back, to travel with more."""
_EXIT_SECONDS: Final = 5.0
"""How long the end of the interpreter waits for futures that are under way."""


class Waitable(Protocol):
    """What a work needs of :class:`byteps_py.roles.pending.Pending`."""

    def done(self) -> bool:
        """Whether :meth:`wait` would return or raise at once."""

    def sleep(self, seconds: float | None = None) -> None:
        """Block until it is done, ``seconds`` at most."""

    def wait(self) -> Any:
        """Block until it is done; raises why it failed."""


class Work(dist._Work):
    """One call of ``torch.distributed`` under way. Any thread.

    Args:
        what: the call, as messages name it.
        waiting: its operations.
        finish: brings the results to the caller's tensors; called once, by whoever finds all operations done; may
            raise what is amiss with them.
        seconds: how long it may take; None for as long as the session allows.
        tensors: what :meth:`result` and the future give.
        source: the rank in its group from which it receives.
    """

    def __init__(
        self,
        what: str,
        waiting: Sequence[Waitable],
        finish: Callable[[], object],
        seconds: float | None,
        tensors: Sequence[torch.Tensor] = (),
        source: int = -1,
    ) -> None:
        super().__init__()
        self._what = what
        self._waiting = tuple(waiting)
        self._finish: Callable[[], object] | None = finish
        self._seconds = seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._tensors = list(tensors)
        self._source = source
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._pid = os.getpid()

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Block until the results are in the caller's tensors; True.

        Args:
            timeout: shorter than that of the process group; zero and less (as torch passes it for "none") mean that of
                the group, which counts from the call.

        Raises:
            BytePSError: why it cannot be done; the same at each call.
            TransportTimeout: it is not done yet. It goes on, and can be waited for again.
            NotInitializedError: this is a forked child of the process that made the call.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        until, limit = self._deadline, self._seconds
        if seconds > 0 and (until is None or time.monotonic() + seconds < until):
            until, limit = time.monotonic() + seconds, seconds
        self._complete(until, limit)
        return True

    def synchronize(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether :meth:`wait` would return or raise at once."""
        if self._finish is None:
            return True
        if not all(each.done() for each in self._waiting):
            return False
        try:
            self.wait()
        except Exception:
            return self._finish is None
        return True

    def is_success(self) -> bool:
        """Whether it is done, and without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Why it failed; None if it has not."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The caller's tensors that hold the results, once it is done."""
        return list(self._tensors)

    def source_rank(self) -> int:
        """For a receive: the rank in the group that has sent; otherwise -1."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of :meth:`result`; waiting for it raises a RuntimeError with the text of what :meth:`wait` would."""
        return complete_later(self.wait, self.result)

    def _complete(self, until: float | None, limit: float | None) -> None:
        if os.getpid() != self._pid:
            raise NotInitializedError("this process was forked from a worker, which alone can wait for this")
        if not self._lock.acquire(timeout=-1 if until is None else max(0.0, until - time.monotonic())):
            raise self._late(limit)
        try:
            if self._finish is not None:
                self._wait_for_all(until, limit)
                self._settle()
        finally:
            self._lock.release()
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _wait_for_all(self, until: float | None, limit: float | None) -> None:
        for each in self._waiting:
            while not each.done():
                left = _LOOK_SECONDS if until is None else until - time.monotonic()
                if left <= 0:
                    raise self._late(limit)
                each.sleep(min(left, _LOOK_SECONDS))

    def _settle(self) -> None:
        """All operations are done, or have failed."""
        finish, error = self._finish, None
        assert finish is not None
        try:
            with torch.no_grad():
                for each in self._waiting:
                    each.wait()
                finish()
        except Exception as caught:
            error = caught
        # In this order: who sees that there is nothing to finish any more looks at the error.
        self._error, self._waiting = error, ()
        self._finish = None

    def _late(self, limit: float | None) -> TransportTimeout:
        return TransportTimeout(
            f"{self._what} is not done within {limit:g} s: not all members of the process group have made the call, or "
            "they are slow; see their output, and init_process_group(timeout=...) for a longer time"
        )


def complete_later(wait: Callable[[], object], result: Callable[[], Any]) -> torch.futures.Future[Any]:
    """A future of ``result()`` after ``wait()`` has returned; if that raises, so does waiting for the future.

    Both are called by other threads, ``wait`` once those that were asked for before have ended.
    """
    parent: torch.futures.Future[None] = torch.futures.Future()
    entry = _Entry(wait, parent)

    def outcome(_: object) -> Any:
        if entry.error is not None:
            raise entry.error.with_traceback(None)
        return result()

    given: torch.futures.Future[Any] = parent.then(outcome)
    _thread_of_this_process().add(entry)
    return given


class _Entry:
    def __init__(self, wait: Callable[[], object], future: torch.futures.Future[None]) -> None:
        self._wait = wait
        self._future = future
        self.error: BaseException | None = None

    def perform(self) -> None:
        try:
            self._wait()
        except BaseException as error:
            self.error = error
        self._future.set_result(None)


class _Completer:
    """The thread that completes futures."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="byteps-futures", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # after init() has done so, thus run before the session leaves

    def add(self, entry: _Entry) -> None:
        self._queue.put(entry)

    def close(self) -> None:
        """Complete what was added, and end the thread; gives up after a few seconds."""
        if self.pid == os.getpid():
            self._queue.put(None)
            self._thread.join(_EXIT_SECONDS)

    def _run(self) -> None:
        while self._perform_next():
            pass

    def _perform_next(self) -> bool:
        # A function of its own: the thread must not hold on to the last tensors while it waits for the next.
        entry = self._queue.get()
        if entry is not None:
            entry.perform()
        return entry is not None


_making: Final = threading.Lock()
_completer: _Completer | None = None


def _thread_of_this_process() -> _Completer:
    global _completer
    with _making:
        if _completer is None or _completer.pid != os.getpid():
            _completer = _Completer()
        return _completer
