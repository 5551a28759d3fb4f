"""The goodbye of a worker that is ended by SIGTERM, so that a job of many hosts knows at once, and by whom.

A process that has not set up a handler dies of the signal without a word, and other hosts wait for it until the lost
timeout is over.  :class:`Farewell` catches the signal first, in C (``csrc/farewell.c``): the process still dies of it,
a moment later at most, whatever its Python threads do.  Where the program has a handler of its own, or sets one up
later, that one counts and nothing happens here.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

__all__ = ["Farewell"]

MILLISECONDS: Final = 300
"""At most so long after the signal the process is dead; as a rule a goodbye takes the time of one round trip."""
_CLOSED: Final = 1 << 32
"""What ends the thread; the signal counts 1, also if both have come before the thread looks."""


class Farewell:
    """In force from its creation to :meth:`close`; one at a time.

    Args:
        say: called on a thread of its own with what the process dies of, as words that follow its name.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._pid = os.getpid()
        self._event = os.eventfd(0, os.EFD_CLOEXEC)
        self._library = _library()
        self._thread: threading.Thread | None = None
        if self._library is not None and self._library.byteps_farewell(self._event, MILLISECONDS):
            self._thread = threading.Thread(target=self._watch, name="byteps-farewell", daemon=True)
            self._thread.start()

    @property
    def in_force(self) -> bool:
        """Whether there is anybody to say goodbye."""
        return self._thread is not None

    def close(self) -> None:
        """The process has left its job, and would die without a word again. A forked child has nothing to close."""
        if os.getpid() != self._pid or self._event < 0:
            return
        if self._thread is not None and self._library is not None:
            self._library.byteps_no_farewell()
            os.eventfd_write(self._event, _CLOSED)
            self._thread.join()
            self._thread = None
        os.close(self._event)
        self._event = -1

    def _watch(self) -> None:
        if os.eventfd_read(self._event) % _CLOSED == 0:
            return
        try:
            self._say("was terminated by SIGTERM")
        finally:
            self._library.byteps_no_farewell()
            os.kill(os.getpid(), signal.SIGTERM)  # at its default again


def _library() -> Any:
    """The extension in C; None where there is none, or one that was built before it had this."""
    try:
        library = import_module("byteps_py.kernels._native").lib
    except ImportError:
        return None
    return library if hasattr(library, "byteps_farewell") else None
