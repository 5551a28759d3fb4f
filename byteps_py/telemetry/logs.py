"""Log lines of a role on stderr: time, level, who, what."""

from __future__ import annotations

import logging
import sys
from typing import Final

from byteps_py.settings import LogSettings

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


_VERBOSE: Final = (logging.CRITICAL, logging.INFO, logging.DEBUG)
"""By ``PS_VERBOSE``: from which level on messages are logged in any case."""


def configure(settings: LogSettings, label: str) -> None:
    """Send the package's log lines to stderr, once per process.

    A program that has set up a handler for the ``byteps_py`` logger itself keeps it.

    Args:
        settings: from which level on; whether with the time. The more verbose of ``BYTEPS_LOG_LEVEL`` and
            ``PS_VERBOSE`` wins.
        label: who speaks, such as ``"server 0"``; set anew by every call.
    """
    logger = logging.getLogger("byteps_py")
    logger.setLevel(min(LEVELS[settings.log_level], _VERBOSE[settings.verbose]))
    time = "" if settings.hide_time else "%(asctime)s "
    formatter = logging.Formatter(f"{time}%(levelname)s byteps {label}: %(message)s", "%Y-%m-%d %H:%M:%S")
    ours = [each for each in logger.handlers if getattr(each, "made_by_byteps", False)]
    if not ours and not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.made_by_byteps = True  # type: ignore[attr-defined]
        logger.addHandler(handler)
        logger.propagate = False
        ours = [handler]
    for each in ours:
        each.setFormatter(formatter)
