"""Log lines of a role on stderr: time, level, who, what."""

from __future__ import annotations

import logging
import sys
from typing import Final

from byteps_py.settings import LogSettings

__all__ = ["LEVELS", "configure", "relabel"]

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
    if not logger.handlers:
        logger.addHandler(_Handler(sys.stderr))
        logger.propagate = False
    for each in _ours():
        each.hide_time = settings.hide_time
    relabel(label)


def relabel(label: str) -> None:
    """Let the lines of this process begin with ``label`` from now on; without :func:`configure` this does nothing."""
    for each in _ours():
        time = "" if each.hide_time else "%(asctime)s "
        each.setFormatter(logging.Formatter(f"{time}%(levelname)s byteps {label}: %(message)s", "%Y-%m-%d %H:%M:%S"))


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # generic since Python 3.11
    """Made here, not by the program."""

    hide_time = False


def _ours() -> list[_Handler]:
    return [each for each in logging.getLogger("byteps_py").handlers if isinstance(each, _Handler)]
