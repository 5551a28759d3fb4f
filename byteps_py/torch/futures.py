"""torch's futures of what the session does.

One thread completes them, in the order in which they were asked for, so that DistributedDataParallel can go on with its
backward pass; it is made when it is first needed.

A future that fails must not be given an exception (torch 2.13 crashes on one that DistributedDataParallel waits for):
callers get one whose callback raises.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

import torch

__all__ = ["complete_later"]

_EXIT_SECONDS: Final = 5.0
"""How long the end of the interpreter waits for futures that are under way."""


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
_completers: Final[dict[int, _Completer]] = {}
"""By process; that of the parent is of no use in a forked child."""


def _thread_of_this_process() -> _Completer:
    with _making:
        found = _completers.get(os.getpid())
        if found is None:
            found = _completers[os.getpid()] = _Completer()
        return found
