"""One trace of a whole job, made of those of its processes.

Their times are on one clock already.  What is added here: servers learn the names of tensors from the workers, and
arrows lead from a worker's push to the server that received it, and from the server's reply to the worker.
Files are read twice, in pieces, so a long job takes no more memory than its arrows do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from byteps_py.errors import TraceError
from byteps_py.telemetry.timeline import tensor_label
from byteps_py.telemetry.trace_file import FORMAT, Event, TraceReader, write_trace
from byteps_py.traces.checking import Checker

__all__ = ["Merged", "Traces", "check_trace", "find_traces", "merge_traces", "rename"]

_FILE: Final = "comm.json"
_MOST_PROBLEMS: Final = 3

Way: TypeAlias = tuple[int, int, int, int]
"""Worker, tensor, partition and step; or worker, -1, number of its bundle, and 0."""
End: TypeAlias = tuple[int, int, int]
"""Process, track and time of an end of an arrow."""


@dataclass
class Traces:
    """The traces of one job.

    Attributes:
        readers: of its processes, servers first, by rank.
        broken: what is wrong with files that are left out because of it.
        remarks: what else a user should know.
        inputs: all files of processes, whether they are used or not.
    """

    readers: list[TraceReader] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    inputs: list[Path] = field(default_factory=list)

    @property
    def names(self) -> dict[int, str]:
        """Of tensors, by id."""
        found: dict[int, str] = {}
        for each in self.readers:
            found.update({int(tensor): name for tensor, name in each.about.get("tensors", {}).items()})
        return found


@dataclass
class Merged:
    """What :func:`merge_traces` has done.

    Attributes:
        path: of the file.
        processes, spans, arrows: how many are in it.
        backward: arrows that were left out, since the clocks are not known well enough to draw them.
    """

    path: Path
    processes: int
    spans: int
    arrows: int
    backward: int


def find_traces(folder: Path) -> Traces:
    """The traces in a folder, at any depth: of the job that wrote last, if there are several.

    Raises:
        TraceError: there is no trace of which anything can be used.
    """
    if not os.path.isdir(folder):
        raise TraceError(f"{folder}: {_no_folder(folder)}")
    paths = sorted(folder.rglob(_FILE))
    if not paths:
        raise TraceError(
            f"{folder}: no {_FILE} in it or in a folder of it; BYTEPS_TRACE_ON=1 has a job write traces to "
            "BYTEPS_TRACE_DIR, when all traced steps have passed or the job ends"
        )
    traces = Traces()
    for path in paths:
        try:
            reader = TraceReader(path)
        except TraceError as error:
            traces.broken.append(str(error))
            traces.inputs.append(path)
            continue
        if reader.about["role"] != "job":  # else it is what was made of the others
            traces.readers.append(reader)
            traces.inputs.append(path)
    _choose_job(traces)
    for reader in list(traces.readers):
        try:
            check_trace(reader)
        except TraceError as error:
            traces.broken.append(str(error))
            traces.readers.remove(reader)
    if not traces.readers:
        raise TraceError("\n".join([*traces.broken, f"{folder}: no trace in it can be used"]))
    _remark(traces)
    return traces


def _no_folder(place: Path) -> str:
    """What is there instead of a folder, and what is wanted."""
    wanted = "give the folder that holds the traces of all processes: BYTEPS_TRACE_DIR of the job"
    if not os.path.lexists(place):
        return f"there is no such folder; {wanted}, ./trace if it was not set"
    return f"this is {'a file' if os.path.isfile(place) else 'something else than a folder'}; {wanted}"


def _choose_job(traces: Traces) -> None:
    """Leave the files of the latest run, each process once."""
    latest = max(traces.readers, key=lambda each: each.about["written"], default=None)
    found: dict[tuple[str, int], TraceReader] = {}
    for each in sorted(traces.readers, key=lambda each: each.about["written"]):
        if latest is not None and each.about.get("job") == latest.about.get("job"):
            found[each.about["role"], each.about["rank"]] = each
    others: dict[Any, list[Path]] = {}
    for each in traces.readers:
        if each not in found.values():
            others.setdefault(each.about.get("job"), []).append(each.path)
    for first, *more in others.values():
        names = f"{first}{f' and {len(more)} more' if more else ''}"
        traces.remarks.append(f"{names}: of an earlier run, left out")
    traces.readers = [found[process] for process in sorted(found)]


def check_trace(reader: TraceReader) -> None:
    """Read a trace as a whole.

    Raises:
        TraceError: it is damaged, or viewers would not show it as it is meant.
    """
    checker, found = Checker(), []
    for event in reader.events():
        problem = checker.take(event) or _lacks(event)
        if problem is not None:
            found.append(problem)
            break
    else:
        found.extend(islice(checker.problems(), _MOST_PROBLEMS))
    if found:
        raise TraceError(f"{reader.path}: no valid trace: {'; '.join(found)}")


def _lacks(event: Event) -> str | None:
    """What a span does not tell, but must; None if nothing."""
    if event.ph != "X":
        return None
    args = event.args or {}
    wanted = {"step": int, "name": str}
    if event.name.endswith("WAIT"):
        wanted |= {"last": int, "alone_us": int}
    wanted |= {name: int for name in ("tensor", "partition", "worker", "bundle") if name in args}
    if "partition" in args or "worker" in args:
        wanted |= {"bundle" if "bundle" in args else "tensor": int}
    wrong = [name for name, kind in wanted.items() if type(args.get(name)) is not kind]
    return f"{event.name!r} at {event.ts} does not say: {', '.join(wrong)}" if wrong else None


def _remark(traces: Traces) -> None:
    """Say who is missing, and whose times are not on the common clock."""
    about = traces.readers[0].about
    there = {(each.about["role"], each.about["rank"]) for each in traces.readers}
    for role, count in (("server", about["num_server"]), ("worker", about["num_worker"])):
        missing = [str(rank) for rank in range(count) if (role, rank) not in there]
        if missing:
            why = "killed, still at work, or written into another folder"
            traces.remarks.append(f"no trace of {role} {', '.join(missing)}: {why}")
    for each in traces.readers:
        if each.about["clock"]["error_us"] is None and len(traces.readers) > 1:
            traces.remarks.append(f"{each.path}: by a clock of its own, since no scheduler has answered")


def rename(event: Event, names: dict[int, str]) -> Event:
    """A server's event with the name of its tensor."""
    args = event.args
    if args is None or "tensor" not in args or args.get("name", "")[:7] != "tensor ":
        return event
    old, new = args["name"], tensor_label(args["tensor"], names)
    name = new + event.name[len(old) :] if event.name.startswith(old) else event.name
    return msgspec.structs.replace(event, name=name, args={**args, "name": new})


def merge_traces(traces: Traces, path: Path) -> Merged:
    """Write one trace of all.

    Raises:
        OSError: it cannot be written.
        TraceError: a file has changed since it was found.
    """
    arrows, backward = _arrows(traces.readers)
    about = {
        "byteps_py": FORMAT,
        "role": "job",
        "job": traces.readers[0].about.get("job"),
        "processes": [{k: v for k, v in each.about.items() if k != "tensors"} for each in traces.readers],
        "tensors": {str(tensor): name for tensor, name in traces.names.items()},
    }
    spans = 0

    def events() -> Iterator[Event]:
        nonlocal spans
        for event in _events(traces, arrows):
            spans += event.ph == "X"
            yield event

    write_trace(path, about, events())
    return Merged(path, len(traces.readers), spans, len(arrows), backward)


def _events(traces: Traces, arrows: Sequence[tuple[str, End, End]]) -> Iterator[Event]:
    names = traces.names
    for reader in traces.readers:
        if reader.about["role"] == "server":
            for event in reader.events():
                yield rename(event, names)
        else:
            yield from reader.events()
    for number, (name, (pid, tid, at), (other_pid, other_tid, other_at)) in enumerate(arrows, 1):
        yield Event("s", pid, tid, name, "flow", at, id=number)
        yield Event("f", other_pid, other_tid, name, "flow", other_at, id=number, bp="e")


def _arrows(readers: Iterable[TraceReader]) -> tuple[list[tuple[str, End, End]], int]:
    """From pushes to their receipts, from replies to their results; and how many would run backwards."""
    pushes: dict[Way, End] = {}
    receipts: dict[Way, End] = {}
    replies: dict[Way, End] = {}
    results: dict[Way, End] = {}
    for reader in readers:
        if reader.about["role"] == "server":
            _server_ends(reader, receipts, replies)
        else:
            _worker_ends(reader, int(reader.about["rank"]), pushes, results)
    arrows: list[tuple[str, End, End]] = []
    backward = 0
    for name, starts, ends in (("push", pushes, receipts), ("result", replies, results)):
        for way, start in starts.items():
            end = ends.get(way)
            if end is not None and start[2] <= end[2]:
                arrows.append((name, start, end))
            elif end is not None:
                backward += 1
    return arrows, backward


def _worker_ends(reader: TraceReader, rank: int, pushes: dict[Way, End], results: dict[Way, End]) -> None:
    reduced: set[Way] = set()
    for event in reader.events():
        args, name = event.args, event.name
        if event.ph != "X" or args is None or event.ts is None or "partition" not in args:
            continue
        stage = name.rpartition(".")[2]
        way = rank, args["tensor"], args["partition"], args["step"]
        if "bundle" in args:
            way = rank, -1, args["bundle"], 0
        if stage in ("REDUCE_PUSH", "REDUCE_PUSH_PULL"):  # what the server sees, instead of the own contribution
            reduced.add(way)
            pushes[way] = event.pid, event.tid, event.ts
        elif stage in ("PUSH", "PUSH_PULL") and way not in reduced:
            pushes.setdefault(way, (event.pid, event.tid, event.ts))
        elif stage == "BROADCAST" or (stage == "COPY_OUT" and way not in reduced):
            if stage == "BROADCAST":
                reduced.add(way)
                results[way] = event.pid, event.tid, event.ts
            results.setdefault(way, (event.pid, event.tid, event.ts))


def _server_ends(reader: TraceReader, receipts: dict[Way, End], replies: dict[Way, End]) -> None:
    waiting: list[Way] = []  # for the reply of their round, which follows on the same track
    track = 0
    for event in reader.events():
        args = event.args
        if event.ph != "X" or args is None or event.ts is None:
            continue
        if event.tid != track or event.name == args["name"]:
            track, waiting = event.tid, []
        end = event.pid, event.tid, event.ts
        if "worker" in args:
            way = (args["worker"], args.get("tensor", -1), args.get("partition", 0), args["step"])
            if "bundle" in args:
                way = (args["worker"], -1, args["bundle"], 0)
            receipts.setdefault(way, end)
            waiting.append(way)
        elif event.name.endswith(".REPLY"):
            for way in waiting:
                replies.setdefault(way, end)
