"""What traces say in numbers: where the time went, which tensors are slow, and who was waited for."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from byteps_py.telemetry.trace_file import Event, TraceReader
from byteps_py.traces.merge import rename

__all__ = ["Summary", "nothing_traced", "summarize"]

_STAGES: Final = {
    "worker": (
        *("COPY_IN", "QUEUE", "PUSH", "PULL", "PUSH_PULL", "COPY_OUT"),
        *("REDUCE_RECEIVE", "REDUCE_WAIT", "REDUCE_SUM_QUEUE", "REDUCE_SUM", "REDUCE_QUEUE", "REDUCE_PUSH"),
        *("REDUCE_PULL", "REDUCE_PUSH_PULL", "BROADCAST", "REDUCE_REPLY"),
    ),
    "server": ("RECEIVE", "WAIT", "SUM_QUEUE", "SUM", "REPLY"),
}
"""In the order in which they come."""
_MEANINGS: Final = {
    "COPY_IN": "copy of what is pushed",
    "QUEUE": "waits to be sent",
    "PUSH": "sent, until the server has it",
    "PULL": "then, until the result is here",
    "PUSH_PULL": "sent, until the result is here",
    "COPY_OUT": "copy of the result",
    "RECEIVE": "arrived, until taken into account",
    "WAIT": "from the first worker to the last",
    "SUM_QUEUE": "waits for a thread that sums",
    "SUM": "the sum",
    "REPLY": "until all results are sent",
    "BROADCAST": "copy of the result for its machine",
}
"""For those who read the summary for the first time; ``REDUCE_`` before a name: for the workers of one machine."""
_MOST_MARKED: Final = 1000


@dataclass
class _Waits:
    rounds: int = 0
    alone: int = 0


@dataclass
class Summary:
    """The numbers; see :meth:`as_json` for their units.

    Attributes:
        abouts: what each process says of itself.
        top: how many tensors are shown.
    """

    abouts: list[dict[str, Any]]
    top: int
    _stages: dict[tuple[str, str], array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))
    _tensors: dict[str, array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))
    _waits: dict[int, _Waits] = field(default_factory=lambda: defaultdict(_Waits))
    _marked: dict[str, list[tuple[str, str, int]]] = field(default_factory=lambda: {"unfinished": [], "failed": []})

    def take(self, event: Event, role: str, process: str) -> None:
        """Count one event."""
        args = event.args
        if event.ph != "X" or args is None or event.dur is None:
            return
        label = str(args.get("name", ""))
        stage = event.name[len(label) + 1 :]
        is_over = not (args.get("unfinished") or args.get("failed"))  # else its length says nothing
        if is_over and not stage and role == "worker":
            self._tensors[label].append(event.dur)
        elif is_over and stage in _STAGES[role]:
            self._stages[role, stage].append(event.dur)
        if is_over and stage in ("WAIT", "REDUCE_WAIT"):  # else the one that was waited for has not come
            waits = self._waits[int(args["last"])]
            waits.rounds += 1
            waits.alone += int(args["alone_us"])
        is_listed = not stage if role == "server" else stage not in ("", "REDUCE")
        for mark, found in self._marked.items():
            if args.get(mark) and is_listed and len(found) < _MOST_MARKED:
                found.append((process, event.name, int(args["step"])))

    def as_json(self) -> dict[str, Any]:
        """The summary as an object; ``_s`` are seconds, ``_us`` microseconds."""
        clocks = [each["clock"]["error_us"] for each in self.abouts]
        known = [each for each in clocks if each is not None]
        rounds = sum(each.rounds for each in self._waits.values())
        return {
            "job": self.abouts[0].get("job"),
            "processes": [f"{each['role']} {each['rank']}" for each in self.abouts],
            "steps": [self.abouts[0].get("first_step"), self.abouts[0].get("last_step")],
            "dropped": sum(each.get("dropped", 0) for each in self.abouts),
            "clock": {"error_us": max(known, default=None), "unknown": len(clocks) - len(known)},
            "stages": [
                {"role": role, "stage": stage, **_figures(self._stages[role, stage])}
                for role, stages in _STAGES.items()
                for stage in stages
                if (role, stage) in self._stages
            ],
            "tensors": [{"name": name, **_figures(self._tensors[name])} for name in self._slowest()],
            "waited_for": [
                {
                    "worker": rank,
                    "rounds": waits.rounds,
                    "share": waits.rounds / rounds,
                    "alone_s": waits.alone / 1e6,
                }
                for rank, waits in sorted(self._waits.items(), key=lambda each: (-each[1].alone, each[0]))
            ],
            **{
                mark: [{"process": process, "span": name, "step": step} for process, name, step in found]
                for mark, found in self._marked.items()
            },
        }

    def _slowest(self) -> list[str]:
        mean = {name: sum(durations) / len(durations) for name, durations in self._tensors.items()}
        return sorted(mean, key=lambda name: (-mean[name], name))[: self.top]

    def as_text(self) -> str:
        """The summary for people."""
        found = self.as_json()
        first, last = found["steps"]
        lines = [f"{_counted(self.abouts)}; steps {first} to {last} of each tensor"]
        if found["clock"]["error_us"] is None:
            lines.append("clocks: each process by its own")
        else:
            lines.append(f"clocks: the scheduler's, give or take {found['clock']['error_us']:.0f} µs")
        if found["dropped"]:
            lines.append(f"{found['dropped']} spans were left out: the traces were full")
        if not found["stages"] and not found["unfinished"] and not found["failed"]:
            return "\n".join([*lines, nothing_traced(first)])
        head = ("stage", "times", "sum s", "median ms", "95 % ms")
        rows = [(f"{each['role']} {each['stage']}", *_row(each)) for each in found["stages"]]
        meanings = ["what", *(_meaning(each["stage"]) for each in found["stages"])]
        lines += [
            "",
            "Where the time went (tensors are on their way at the same time: sums may exceed what has passed)",
        ]
        lines += [f"{row}  {meaning}" for row, meaning in zip(_table(head, rows), meanings, strict=True)]
        if found["tensors"]:
            rows = [(each["name"], *_row(each)) for each in found["tensors"]]
            which = "slowest first" if len(rows) == len(self._tensors) else f"the slowest of {len(self._tensors)}"
            lines += ["", f"Tensors on workers, from push to result, {which}", *_table(("tensor", *head[1:]), rows)]
        lines += ["", "The worker that was waited for: whose part came last, and how long only that was missing"]
        lines += _waited(found["waited_for"])
        for mark, title in (
            ("failed", "Failed, as what a server has rejected; in none of the figures"),
            ("unfinished", "Not over when the trace ended; in none of the figures"),
        ):
            if found[mark]:
                lines += ["", f"{title}: {len(found[mark])}"]
                shown = found[mark][: self.top]
                lines += [f"  {each['process']}: {each['span']}, step {each['step']}" for each in shown]
                lines += ["  ..."] if len(found[mark]) > self.top else []
        return "\n".join(lines)


def nothing_traced(first_step: int) -> str:
    """What to tell of traces without a span."""
    return (
        f"nothing was traced: no tensor was pushed {first_step} times while the traces were kept; "
        "BYTEPS_TRACE_START_STEP=1 traces from the first push on"
    )


def summarize(readers: Sequence[TraceReader], names: dict[int, str], top: int) -> Summary:
    """Read traces of processes, or the one that was made of them.

    Args:
        readers: of the traces.
        names: of tensors, by id.
        top: how many tensors are shown.

    Raises:
        TraceError: a file is damaged.
    """
    abouts: list[dict[str, Any]] = []
    for each in readers:
        abouts.extend(each.processes)
    summary = Summary(abouts, top)
    for each in readers:
        for event in each.events():
            role = "worker" if event.pid % 2 else "server"
            process = f"{role} {(event.pid - 8) // 2}"
            summary.take(rename(event, names), role, process)
    return summary


def _figures(durations: Iterable[int]) -> dict[str, Any]:
    values = np.array(durations, np.int64)
    return {
        "count": len(values),
        "sum_s": float(values.sum()) / 1e6,
        "median_us": float(np.median(values)),
        "p95_us": float(np.percentile(values, 95)),
    }


def _row(figures: dict[str, Any]) -> tuple[str, str, str, str]:
    return (
        str(figures["count"]),
        f"{figures['sum_s']:.3f}",
        f"{figures['median_us'] / 1000:.3f}",
        f"{figures['p95_us'] / 1000:.3f}",
    )


def _counted(abouts: Sequence[dict[str, Any]]) -> str:
    """``2 workers and 1 server``."""
    roles = [each["role"] for each in abouts]
    counts = [(roles.count(role), role) for role in ("worker", "server") if role in roles]
    return " and ".join(f"{count} {role}{'s' if count > 1 else ''}" for count, role in counts)


def _meaning(stage: str) -> str:
    found = _MEANINGS[stage.removeprefix("REDUCE_")]
    return f"{found}, for its machine" if stage.startswith("REDUCE_") else found


def _waited(waits: Sequence[dict[str, Any]]) -> list[str]:
    if not waits:
        return ["  none: no round of several workers was traced"]
    rows = [
        (f"worker {each['worker']}", str(each["rounds"]), f"{each['share']:.0%}", f"{each['alone_s']:.3f}")
        for each in waits
    ]
    return _table(("worker", "came last", "of rounds", "sum s"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns, the first to the left and the others to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  "
        + "  ".join(
            [row[0].ljust(widths[0]), *(each.rjust(width) for each, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in (head, *rows)
    ]
