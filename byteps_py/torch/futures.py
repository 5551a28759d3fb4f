"""torch's futures of what the session does.

A future that fails must not be given an exception (torch 2.13 crashes on one that DistributedDataParallel waits for):
callers get one whose callback raises.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch

from byteps_py.roles import last_words

__all__ = ["Completer"]

_EXIT_SECONDS: Final = 1.0
"""How long the end of the interpreter waits for futures that are under way, all together."""
_IDLE_THREADS: Final = 2


class Completer:
    """Waits for what futures stand for, in the order in which they were asked for, in threads that are made when they
    are first needed and end with this object.  Any thread.

    Callbacks of a future may wait for any other: a thread that runs them lets another one go on with the waiting.
    Whatever may wait for one another in different orders on different workers needs completers of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._crew: _Crew | None = None
        self._pid = 0

    def future(self, wait: Callable[[], object], result: Callable[[], Any]) -> torch.futures.Future[Any]:
        """A future of ``result()`` after ``wait()`` has returned; if that raises, so does waiting for the future.

        Both are called by a thread of this object, ``wait`` once those that were asked for before have returned.
        """
        parent: torch.futures.Future[None] = torch.futures.Future()
        entry = _Entry(wait, parent)

        def outcome(_: object) -> Any:
            if entry.error is not None:
                raise entry.error.with_traceback(None)
            return result()

        given: torch.futures.Future[Any] = parent.then(outcome)
        with self._lock:
            if self._crew is None or self._pid != os.getpid():  # also in a forked child, which has no thread
                self._crew, self._pid = self._start(), os.getpid()
            self._crew.put(entry)
        return given

    def close(self) -> None:
        """Complete what was asked for, and end the threads; gives up after a moment."""
        self._end(time.monotonic() + _EXIT_SECONDS)

    def _end(self, until: float) -> None:
        with self._lock:
            crew, self._crew = self._crew, None
            if crew is None or self._pid != os.getpid():
                return
        crew.end()
        crew.join(until)

    def _start(self) -> _Crew:
        crew = _Crew()
        weakref.finalize(self, crew.end).atexit = False
        with _lock:
            if not _started:
                atexit.register(_close_all)  # after init() has done so, thus run before the session leaves
            _started.add(self)
        return crew


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

    def complete(self) -> None:
        self._future.set_result(None)


class _Crew:
    """The threads of one completer: one waits, others wait for their turn to do so, or run callbacks."""

    def __init__(self) -> None:
        self._entries: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._free = 0
        self._threads: set[threading.Thread] = set()

    def put(self, entry: _Entry) -> None:
        self._entries.put(entry)
        with self._lock:
            if self._free == 0:
                self._start()

    def end(self) -> None:
        """The threads end when everything that was put has been done."""
        self._entries.put(None)

    def join(self, until: float) -> None:
        """Wait for the threads, but not for the one that calls."""
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        for each in threads:
            each.join(max(0.0, until - time.monotonic()))

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="byteps-futures", daemon=True)
        self._threads.add(thread)
        self._free += 1
        try:
            thread.start()
        except BaseException:
            self._threads.discard(thread)
            self._free -= 1
            raise

    def _run(self) -> None:
        while self._perform_next():
            pass
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _perform_next(self) -> bool:
        # A function of its own: the thread must not hold on to the last tensors while it waits for the next.
        with self._turn:
            entry = self._entries.get()
            if entry is None:
                self._entries.put(None)  # for the next thread
                return False
            entry.perform()
        self._leave_the_waiting()
        entry.complete()
        with self._lock:
            if self._free >= _IDLE_THREADS:
                return False
            self._free += 1
            return True

    def _leave_the_waiting(self) -> None:
        """Callbacks take as long as they like: somebody else waits for what was asked for."""
        with self._lock:
            self._free -= 1
            if self._free > 0 or self._entries.empty():
                return
            try:
                self._start()
            except RuntimeError:  # the interpreter is ending, when no thread can be started
                return


_lock: Final = threading.Lock()
_started: Final[weakref.WeakSet[Completer]] = weakref.WeakSet()


def _close_all() -> None:
    if last_words.cause():  # others wait to hear what this process dies of
        return
    until = time.monotonic() + _EXIT_SECONDS
    for each in list(_started):
        each._end(until)
