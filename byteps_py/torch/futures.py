"""torch's futures of what the session does.

A future that fails must not be given an exception (torch 2.13 crashes on one that DistributedDataParallel waits for):
callers get one whose callback raises.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch

__all__ = ["Completer"]

_EXIT_SECONDS: Final = 5.0
"""How long the end of the interpreter waits for futures that are under way."""


class Completer:
    """Completes futures in the order in which they were asked for, in a thread that is made when it is first needed and
    ends with this object.  Any thread.

    Whatever may wait for one another in different orders on different workers needs completers of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._nested: Completer | None = None
        self._pid = 0

    def future(self, wait: Callable[[], object], result: Callable[[], Any]) -> torch.futures.Future[Any]:
        """A future of ``result()`` after ``wait()`` has returned; if that raises, so does waiting for the future.

        Both are called by the thread, ``wait`` once those that were asked for before have ended. A callback of a future
        may ask for another one and wait for that, so it is completed by another thread.
        """
        asked: Completer | None = self
        while asked is not None and asked._thread is not threading.current_thread():
            asked = asked._nested
        if asked is not None:
            asked._nested = asked._nested or Completer()
        return (self if asked is None or asked._nested is None else asked._nested)._ask(wait, result)

    def _ask(self, wait: Callable[[], object], result: Callable[[], Any]) -> torch.futures.Future[Any]:
        parent: torch.futures.Future[None] = torch.futures.Future()
        entry = _Entry(wait, parent)

        def outcome(_: object) -> Any:
            if entry.error is not None:
                raise entry.error.with_traceback(None)
            return result()

        given: torch.futures.Future[Any] = parent.then(outcome)
        with self._lock:
            if self._pid != os.getpid():  # also in a forked child, which has no thread
                self._start()
            self._queue.put(entry)
        return given

    def close(self) -> None:
        """Complete what was asked for, and end the thread; gives up after a few seconds."""
        with self._lock:
            thread = self._thread if self._pid == os.getpid() else None
            self._pid = 0
            self._queue.put(None)
        if thread is not None:
            thread.join(_EXIT_SECONDS)

    def _start(self) -> None:
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=_run, args=(self._queue,), name="byteps-futures", daemon=True)
        self._thread.start()
        self._pid = os.getpid()
        weakref.finalize(self, self._queue.put, None).atexit = False
        with _lock:
            if not _started:
                atexit.register(_close_all)  # after init() has done so, thus run before the session leaves
            _started.add(self)


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


_lock: Final = threading.Lock()
_started: Final[weakref.WeakSet[Completer]] = weakref.WeakSet()


def _close_all() -> None:
    for each in list(_started):
        each.close()


def _run(entries: queue.SimpleQueue[_Entry | None]) -> None:
    while _perform_next(entries):
        pass


def _perform_next(entries: queue.SimpleQueue[_Entry | None]) -> bool:
    # A function of its own: the thread must not hold on to the last tensors while it waits for the next.
    entry = entries.get()
    if entry is not None:
        entry.perform()
    return entry is not None
