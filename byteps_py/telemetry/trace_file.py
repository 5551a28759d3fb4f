"""A trace as a file: the Chrome trace event format as a JSON object, one event a line.

So a file of any length is written and read in pieces, and one that was cut off shows it: its last line is missing::

    {"displayTimeUnit":"ms","otherData":{"byteps_py":1,"role":"server","rank":0,...},"traceEvents":[
    {"ph":"M","name":"process_name","pid":8,"tid":0,"args":{"name":"server 0"}},
    {"ph":"X","name":"Comm.w.PUSH","cat":"Comm","pid":9,"tid":1,"ts":1764400000000000,"dur":120,"args":{...}}
    ]}

Times are whole microseconds since the epoch, by the scheduler's clock; ``pid`` and ``tid`` are numbers that mean no
process and no thread: a role and its rank, and a track.  The numbers of the roles are those of ps-lite.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from byteps_py.errors import TraceError

__all__ = ["FORMAT", "Event", "TraceReader", "process_number", "temporary_name", "write_trace"]

FORMAT: Final = 1
_START: Final = b'{"displayTimeUnit":"ms","otherData":'
_EVENTS: Final = b',"traceEvents":['
_END: Final = b"]}"
_BATCH: Final = 1000
"""Events that are encoded at once, which is quicker than one by one."""
_LONGEST_LINE: Final = 1 << 26


class Event(msgspec.Struct, omit_defaults=True, gc=False):
    """One event.

    Attributes:
        ph: its kind: X a span, M what a number means, s and f the start and the end of an arrow.
        ts, dur: begin and length in microseconds.
        id, bp: of an arrow.
    """

    ph: str
    pid: int
    tid: int
    name: str = ""
    cat: str = ""
    ts: int | None = None
    dur: int | None = None
    id: int | None = None
    bp: str = ""
    args: dict[str, Any] | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def process_number(role: str, rank: int) -> int:
    """The ``pid`` of a process in a trace: servers have 8, 10, ..., workers 9, 11, ..."""
    return 2 * rank + (8 if role == "server" else 9)


def write_trace(path: Path, about: dict[str, Any], events: Iterable[Event]) -> int:
    """Write a trace in place of what was there, all or nothing; returns how many events it has.

    Args:
        path: its folder is made if need be.
        about: what ``otherData`` tells.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(temporary_name(path, os.getpid()))
    try:
        with open(temporary, "wb") as file:
            count = _write(file, about, events)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return count


def temporary_name(path: Path, pid: int) -> str:
    """What ``path`` is called while process ``pid`` of this host writes it."""
    return f".{path.name}.{socket.gethostname()}.{pid}.tmp"


def _write(file: IO[bytes], about: dict[str, Any], events: Iterable[Event]) -> int:
    file.write(_START + _encoder.encode(about) + _EVENTS)
    count, rest = 0, iter(events)
    while batch := list(islice(rest, _BATCH)):
        lines = _encoder.encode_lines(batch)[:-1].replace(b"\n", b",\n")  # in a string of JSON there is none
        file.write((b",\n" if count else b"\n") + lines)
        count += len(batch)
    file.write(b"\n" + _END + b"\n")
    return count


class TraceReader:
    """A trace that :func:`write_trace` has written, read in pieces.

    Attributes:
        path: as given.
        about: what ``otherData`` tells.

    Raises:
        TraceError: there is no such file, or it is something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would wait for a writer for ever
                raise TraceError(f"{path}: no regular file, so it is not opened")
            with open(path, "rb") as file:
                first = file.readline(_LONGEST_LINE)
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror}") from error
        start = first.rstrip(b"\n")
        if not start.startswith(_START) or not start.endswith(_EVENTS):
            raise TraceError(f"{path}: no trace that byteps_py has written, or cut off in its first line")
        try:
            about = msgspec.json.decode(start[len(_START) : -len(_EVENTS)])
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}: its first line is damaged: {error}") from error
        if not isinstance(about, dict) or about.get("byteps_py") != FORMAT:
            raise TraceError(f"{path}: not of format {FORMAT}, which this version of byteps_py reads")
        problem = next((text for each in _processes(about) if (text := _lacks(each))), None)
        if problem is not None:
            raise TraceError(f"{path}: its first line is damaged: {problem}")
        if not _are_names(about.get("tensors", {})):
            raise TraceError(f"{path}: its first line is damaged: no names of tensors by their numbers in 'tensors'")
        self.about: dict[str, Any] = about

    @property
    def processes(self) -> list[dict[str, Any]]:
        """What each process that is in it tells of itself."""
        return _processes(self.about)

    def events(self) -> Iterator[Event]:
        """All events, in the order of the file.

        Raises:
            TraceError: a line is damaged, or the end is missing.
        """
        number = 1
        try:
            with open(self.path, "rb") as file:
                file.readline(_LONGEST_LINE)
                while line := file.readline(_LONGEST_LINE):
                    number += 1
                    text = line.rstrip(b",\n")
                    if text == _END:
                        return
                    if text:
                        yield _decoder.decode(text)
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(f"{self.path}: line {number} is damaged: {error}") from error
        raise TraceError(f"{self.path}: cut off: its last line is missing")


def _processes(about: dict[str, Any]) -> list[Any]:
    """Those of a merged trace, or the one that wrote this."""
    found = about.get("processes", []) if about.get("role") == "job" else [about]
    return found if isinstance(found, list) and found else [None]


def _are_names(tensors: Any) -> bool:
    """Whether these are names of tensors by their ids."""
    return isinstance(tensors, dict) and all(
        len(each) < 20 and each.isascii() and each.isdigit() and isinstance(name, str) for each, name in tensors.items()
    )


def _lacks(process: Any) -> str | None:
    """What a process does not tell of itself, but must; None if nothing."""
    if not isinstance(process, dict) or process.get("role") not in ("server", "worker"):
        return "it does not say whose trace it is"
    numbers = ("rank", "num_worker", "num_server", "first_step", "last_step", "dropped")
    wrong = [name for name in numbers if type(process.get(name)) is not int]
    clock = process.get("clock")
    if not isinstance(clock, dict) or not isinstance(clock.get("error_us", ""), (int, float, type(None))):
        wrong.append("clock")
    if not isinstance(process.get("written"), (int, float)):
        wrong.append("written")
    return f"no {', '.join(wrong)}" if wrong else None
