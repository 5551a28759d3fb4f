"""How a command starts: a Ctrl-C while its modules are being loaded ends it as quietly as a later one.

Loading is most of the first tenth of a second, and no ``try`` of a command is in force then. This module itself loads
nothing but ``signal``, which every command needs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

__all__ = ["INTERRUPTED", "run"]

INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell shows it."""


def run(load: Callable[[], Callable[[], int]]) -> int:
    """Load a command and run it; returns its exit status, 130 after a Ctrl-C. Main thread only.

    Args:
        load: imports the module of the command, and returns its function. It is to start no process.
    """
    try:
        command = _loaded(load)
        return command()
    except KeyboardInterrupt:  # where the command itself does not wait for one: its words are being read
        return INTERRUPTED


def _loaded(load: Callable[[], Callable[[], int]]) -> Callable[[], int]:
    # What was ignored when this process started (nohup, a shell's background job) stays ignored.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return load()
    signal.signal(signal.SIGINT, _end)
    try:
        return load()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    """No exception: amid an import it may be caught, or become another one. Nothing is there to be cleaned up yet."""
    os._exit(INTERRUPTED)
