"""How a worker process ends before its time: what it says to its user, and what others are told that it died of.

An exception that ends the program is told to no exit handler, so :func:`watch` looks at it on its way.

=========================  ===========================================  ======================================
what ends the program      what is shown                                exit status
=========================  ===========================================  ======================================
SettingsError              its problems, a line each                    2, as of the commands of this package
an error of ``init()``     its text                                     1
Ctrl-C, under bpslaunch    nothing: the launcher says it once           Python's own (130, or by SIGINT)
any other exception        what Python shows                            Python's own (1)
=========================  ===========================================  ======================================

At a prompt an exception ends nothing, and is shown as ever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from byteps_py.errors import BytePSError, SettingsError

__all__ = ["cause", "end_soon", "exit_now", "note_failed_start", "watch"]

_log = logging.getLogger("byteps_py.worker")
_EXIT_GRACE_SECONDS: Final = 4.0
"""Between the end of an aborted job and the end of this process, for handlers that save what they can."""

_cause: list[str] = []
_failed_start: list[BytePSError] = []


def watch(*, launched: bool) -> None:
    """Learn of the exception that ends the program. A second call does nothing.

    Args:
        launched: whether bpslaunch watches over this process.
    """
    previous = sys.excepthook
    if getattr(previous, "made_by_byteps", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if hasattr(sys, "ps1"):
            previous(kind, error, trace)
            return
        _cause[:] = ["failed: " + "".join(traceback.format_exception_only(kind, error)).strip()]
        if isinstance(error, SettingsError):
            _say(error.problems)
            sys.exit(2)  # as the program's own: its exit handlers run, and its threads come to their end
        elif any(error is each for each in _failed_start):
            _say(str(error).splitlines())
        elif previous is not sys.__excepthook__:
            previous(kind, error, trace)
        elif not (launched and kind is KeyboardInterrupt):
            with _uninterrupted():
                previous(kind, error, trace)

    hook.made_by_byteps = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def note_failed_start(error: BytePSError) -> None:
    """``error`` is why ``init()`` failed: where in this package that was noticed is of no use to the user."""
    _failed_start[:] = [error]


def cause() -> str:
    """What this process dies of, as words that follow its name; empty while it does not."""
    return _cause[0] if _cause else ""


def end_soon(reason: BaseException, grace_period: float = 0.0) -> None:
    """The job is over before its time: say why, and make sure that this process does not outlive it for long.

    Args:
        reason: as the scheduler says it.
        grace_period: seconds that this process has if the reason is a SIGTERM. It may well have got one too, and be
            saving at this moment, while another worker had nothing to save and is gone.
    """
    is_terminated = signal.SIGTERM.name in str(reason)
    watchdog = threading.Timer(max(_EXIT_GRACE_SECONDS, grace_period * is_terminated), exit_now)
    watchdog.daemon = True
    with contextlib.suppress(RuntimeError):  # it is exiting already: from Python 3.12 on no thread can be started then
        watchdog.start()
    _log.error("%s", reason)  # last: the line waits for a traceback that is being written


def exit_now(status: int = 1) -> None:
    """End the process without any handler, but with what it has printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or replaced by something else
            stream.flush()
    os._exit(status)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Python writes a traceback in pieces: no line of another thread of this package is to come between them."""
    with contextlib.ExitStack() as held:
        for handler in logging.getLogger("byteps_py").handlers:
            handler.acquire()
            held.callback(handler.release)
        yield


def _say(lines: tuple[str, ...] | list[str]) -> None:
    for line in lines:
        print(f"byteps_py: {line}", file=sys.stderr)
