"""Log lines of a role on stderr: time, level, who, what."""

from __future__ import annotations

import logging
import sys
from typing import Final

__all__ = ["LEVELS", "configure"]

LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
"""The words of ``BYTEPS_LOG_LEVEL``."""


def configure(level: str, label: str) -> None:
    """Send the package's log lines from ``level`` on to stderr, once per process.

    A program that has set up a handler for the ``byteps_py`` logger itself keeps it.

    Args:
        level: a word of :data:`LEVELS`.
        label: who speaks, such as ``"server 0"``; set anew by every call.
    """
    logger = logging.getLogger("byteps_py")
    logger.setLevel(LEVELS[level])
    formatter = logging.Formatter(f"%(asctime)s %(levelname)s byteps {label}: %(message)s", "%H:%M:%S")
    ours = [each for each in logger.handlers if getattr(each, "made_by_byteps", False)]
    if not ours and not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.made_by_byteps = True  # type: ignore[attr-defined]
        logger.addHandler(handler)
        logger.propagate = False
        ours = [handler]
    for each in ours:
        each.setFormatter(formatter)
