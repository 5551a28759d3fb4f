"""What is written to see where the time goes (:mod:`byteps_py.telemetry.trace` writes it)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from byteps_py.errors import SettingsError
from byteps_py.variables import boolean, integer, text, variable

__all__ = ["TraceSettings", "prepare_trace", "trace_problems"]

_LONGEST_PATH = 4095
_MOST = 10**9


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """For a process of any job; the names and the defaults are BytePS's."""

    trace_on: bool = variable(
        "BYTEPS_TRACE_ON", boolean(), "write what each tensor's time went into, as Chrome-trace JSON", False, "0"
    )
    trace_start_step: int = variable(
        "BYTEPS_TRACE_START_STEP", integer(1, _MOST), "first step of each tensor, counted from 1, that is traced", 10
    )
    trace_end_step: int = variable("BYTEPS_TRACE_END_STEP", integer(1, _MOST), "last step that is traced", 20)
    trace_dir: str = variable(
        "BYTEPS_TRACE_DIR",
        text("the path of a folder, in printable characters", _LONGEST_PATH),
        "folder for traces, made if need be; `bps trace merge` makes one file of what is in it",
        "./trace",
    )


def trace_problems(values: Mapping[str, Any]) -> Iterator[str]:
    """Contradictions among values that are good by themselves; none where nothing is traced."""
    start, end = values.get("trace_start_step"), values.get("trace_end_step")
    if values.get("trace_on") and start is not None and end is not None and start >= end:
        yield (
            f"BYTEPS_TRACE_START_STEP={start} must be less than BYTEPS_TRACE_END_STEP={end}: steps are traced from the "
            "one to the other"
        )


def prepare_trace(settings: TraceSettings) -> None:
    """See to it that there is a folder for traces, before a process or a job starts; nothing if none is wanted.

    Raises:
        SettingsError: it cannot be made, or not be written to.
    """
    if not settings.trace_on:
        return
    folder = os.path.abspath(settings.trace_dir)
    reason = ""
    try:
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            reason = "it must not be written to"
    except OSError as error:
        reason = "it is no folder" if os.path.lexists(folder) else str(error.strerror)
    if reason:
        raise SettingsError(
            f"BYTEPS_TRACE_DIR={settings.trace_dir!r}: the folder {folder!r} for traces cannot be used: {reason}; "
            "set it to a folder that can be made and written to, or BYTEPS_TRACE_ON=0"
        )
