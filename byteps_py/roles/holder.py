"""The one session of a process: which it is, whose it is, and when it is left.

=============  ===================================  ==================================================
the process    has                                  becomes
=============  ===================================  ==================================================
without        nothing                              joined by ``init()``
joined         a session                            without by ``shutdown()`` and as the interpreter
                                                    exits; suspended by ``suspend()``
suspended      the lineage of the session it had    joined by ``resume()``; without by ``shutdown()``
=============  ===================================  ==================================================

A forked child inherits all that and has none of it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from byteps_py.errors import BytePSError, NotInitializedError
from byteps_py.roles import last_words
from byteps_py.roles.lineage import Lineage
from byteps_py.settings import environment

__all__ = ["Holder"]

_log = logging.getLogger("byteps_py.worker")


class _Session(Protocol):
    size: int
    lineage: Lineage

    def suspend(self) -> None: ...

    def close(self, failure: str = "") -> None: ...


_S = TypeVar("_S", bound=_Session)


class Holder(Generic[_S]):
    """Any thread; see above."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: _S | None = None
        self._suspended: Lineage | None = None
        self._pid = 0

    @property
    def has_session(self) -> bool:
        """Whether this process has a session."""
        return self._session is not None and self._pid == os.getpid()

    @property
    def is_suspended(self) -> bool:
        """Whether this process has called ``suspend()``, and not ``resume()``."""
        return self.suspended is not None

    @property
    def suspended(self) -> Lineage | None:
        """The lineage of a process that :attr:`is_suspended`; None of others."""
        return self._suspended if self._pid == os.getpid() else None

    def current(self) -> _S:
        """The session of this process.

        Raises:
            NotInitializedError: there is none.
        """
        session = self._session
        if session is None:
            if self.is_suspended:
                raise NotInitializedError("byteps_py is suspended: call resume(num_workers, num_servers) first")
            raise NotInitializedError("byteps_py is not initialized: call init() first")
        if self._pid != os.getpid():
            raise NotInitializedError(
                "this process was forked from a worker and has no session: call init() in one process"
            )
        return session

    def join(self, make: Callable[[], _S]) -> None:
        """Have the session that ``make`` gives, unless there is one.

        Raises:
            NotInitializedError: this is a forked child of a worker, or the job is suspended.
            BytePSError: as ``make``.
        """
        with self._lock:
            if self._session is not None and (self._pid == os.getpid() or self._session.size > 1):
                self.current()  # a child that was forked from a worker has none, and its job is complete
                return
            if self.is_suspended:
                self.current()  # there is none, and the message says what to call
            last_words.watch(launched=bool(environment().get("BYTEPS_LAUNCH_ID")))
            self._begin(make)

    def rejoin(self, make: Callable[[Lineage], _S]) -> _S:
        """Have the session that ``make`` gives for the lineage of a suspended process.

        Raises:
            NotInitializedError: it is not suspended.
            BytePSError: as ``make``; it is suspended as before.
        """
        with self._lock:
            lineage = self._suspended
            if lineage is None or not self.is_suspended:
                raise NotInitializedError("resume() is for a process that has called suspend(), and this one has not")
            return self._begin(lambda: make(lineage))

    def suspend(self) -> None:
        """Suspend the session; nothing if it is suspended. Where that fails, the process has it as before.

        Raises:
            NotInitializedError: there is none.
            BytePSError: as :meth:`byteps_py.session.Session.suspend`.
        """
        if self.is_suspended:
            return
        session = self.current()
        session.suspend()  # without the lock: a signal handler may want to leave meanwhile
        with self._lock:
            if self._session is session:
                self._session, self._suspended = None, session.lineage
                atexit.unregister(_leave_at_exit)

    def leave(self) -> None:
        """Close the session, if there is one.

        Raises:
            BytePSError: as :meth:`byteps_py.session.Session.close`.
        """
        with self._lock:
            self._suspended = None
            session, self._session = self._session, None
            if session is not None and self._pid == os.getpid():
                atexit.unregister(_leave_at_exit)
                session.close()

    def leave_at_exit(self) -> None:
        """Leave as the interpreter exits, now; nothing without a session."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            atexit.unregister(_leave_at_exit)
            _leave_at_exit(session, self._pid)

    def _begin(self, make: Callable[[], _S]) -> _S:
        try:
            session = make()
        except BytePSError as error:
            last_words.note_failed_start(error)
            raise
        self._session, self._pid, self._suspended = session, os.getpid(), None
        atexit.register(_leave_at_exit, session, self._pid)
        return session


def _leave_at_exit(session: _Session, pid: int) -> None:
    """Leave as the interpreter ends: in order, or saying what this process dies of.

    A child that was forked without exec inherits this handler, and must not say goodbye for its parent.
    """
    if pid != os.getpid():
        return
    try:
        session.close(last_words.cause())
    except BytePSError as error:
        _log.error("%s", error)
        last_words.exit_now()  # the status would be 0: the script ended well, but not its job
