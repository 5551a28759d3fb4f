"""The command ``bps trace``; what reads traces is loaded only where one is read."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from byteps_py.errors import SettingsError, TraceError
from byteps_py.standard_output import show

if TYPE_CHECKING:
    from byteps_py.traces.merge import Traces

__all__ = ["add_options"]

FAILED: Final = 1
_MERGED: Final = "trace.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What follows ``bps trace``; each command sets ``run``, which returns the exit status."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    text = "make one trace of those of all processes of a job, for chrome://tracing or ui.perfetto.dev"
    merge = commands.add_parser("merge", help=text, description=f"{text}.", allow_abbrev=False)
    merge.add_argument("folder", metavar="DIR", type=Path, help="BYTEPS_TRACE_DIR, or what was collected in a folder")
    merge.add_argument("-o", "--output", metavar="FILE", type=Path, help=f"default: DIR/{_MERGED}")
    merge.set_defaults(run=_merge)
    text = "print the time of each stage, the slowest tensors, and the worker that was waited for most"
    summary = commands.add_parser("summary", help=text, description=f"{text}.", allow_abbrev=False)
    summary.add_argument("place", metavar="DIR|FILE", type=Path, help="a folder as for merge, or a merged trace")
    summary.add_argument("--top", metavar="N", type=_count, default=10, help="so many tensors (default: 10)")
    summary.add_argument("--json", action="store_true", help="as a JSON object")
    summary.set_defaults(run=_summarize)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10**6):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _merge(arguments: argparse.Namespace) -> int:
    from byteps_py.traces.merge import find_traces, merge_traces

    traces = find_traces(arguments.folder)
    path = arguments.output or arguments.folder / _MERGED
    if os.path.exists(path) and not os.path.isfile(path):  # a device would be replaced by a file
        raise TraceError(f"{path}: the merged trace cannot be written: this is no regular file; choose another with -o")
    if any(each.resolve() == path.resolve() for each in traces.inputs):
        raise SettingsError(f"-o {path}: this is the trace of a process, which is merged: choose another file")
    _say(traces)
    try:
        merged = merge_traces(traces, path)
    except OSError as error:
        raise TraceError(f"{path}: the merged trace cannot be written: {error.strerror}") from error
    show(
        f"{merged.path}: {merged.processes} processes, {merged.spans} spans, {merged.arrows} arrows; "
        "open it in https://ui.perfetto.dev or chrome://tracing"
    )
    if not merged.spans:
        from byteps_py.traces.summary import nothing_traced

        print(f"bps trace: {nothing_traced(traces.readers[0].about['first_step'])}", file=sys.stderr)
    if merged.backward:
        text = "arrows are left out, which would run backwards: the clocks are not known well enough"
        print(f"bps trace: {merged.backward} {text}", file=sys.stderr)
    return FAILED if traces.broken else 0


def _summarize(arguments: argparse.Namespace) -> int:
    import msgspec

    from byteps_py.telemetry.trace_file import TraceReader
    from byteps_py.traces.merge import Traces, check_trace, find_traces
    from byteps_py.traces.summary import summarize

    place: Path = arguments.place
    if os.path.isfile(place):
        traces = Traces([TraceReader(place)])
        check_trace(traces.readers[0])
    else:
        traces = find_traces(place)
    _say(traces)
    summary = summarize(traces.readers, traces.names, arguments.top)
    found: dict[str, Any] = {**summary.as_json(), "broken": traces.broken, "remarks": traces.remarks}
    show(msgspec.json.format(msgspec.json.encode(found)).decode() if arguments.json else summary.as_text())
    return FAILED if traces.broken else 0


def _say(traces: Traces) -> None:
    for line in traces.broken + traces.remarks:
        print(f"bps trace: {line}", file=sys.stderr)
