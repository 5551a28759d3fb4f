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

__all__ = ["Summary", "summarize"]

_STAGES: Final = {
    "worker": (
        *("COPY_IN", "QUEUE", "PUSH", "PULL", "PUSH_PULL", "COPY_OUT"),
        *("REDUCE_RECEIVE", "REDUCE_WAIT", "REDUCE_SUM_QUEUE", "REDUCE_SUM", "REDUCE_QUEUE", "REDUCE_PUSH"),
        *("REDUCE_PULL", "REDUCE_PUSH_PULL", "BROADCAST", "REDUCE_REPLY"),
    ),
    "server": ("RECEIVE", "WAIT", "SUM_QUEUE", "SUM", "REPLY"),
}
"""In the order in which they come."""
_MOST_UNFINISHED: Final = 1000


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
    _unfinished: list[tuple[str, str, int]] = field(default_factory=list)

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
        if args.get("unfinished") and stage not in ("", "REDUCE") and len(self._unfinished) < _MOST_UNFINISHED:
            self._unfinished.append((process, event.name, int(args["step"])))

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
            "unfinished": [
                {"process": process, "span": name, "step": step} for process, name, step in self._unfinished
            ],
        }

    def _slowest(self) -> list[str]:
        mean = {name: sum(durations) / len(durations) for name, durations in self._tensors.items()}
        return sorted(mean, key=lambda name: (-mean[name], name))[: self.top]

    def as_text(self) -> str:
        """The summary for people."""
        found = self.as_json()
        first, last = found["steps"]
        lines = [f"{len(found['processes'])} processes, steps {first} to {last} of each tensor"]
        if found["clock"]["error_us"] is None:
            lines.append("clocks: each process by its own")
        else:
            lines.append(f"clocks: the scheduler's, give or take {found['clock']['error_us']:.0f} µs")
        if found["dropped"]:
            lines.append(f"{found['dropped']} spans were left out: the traces were full")
        if not found["stages"]:
            lines.append(
                f"nothing was traced: no tensor was pushed {first} times, or not while the traces were kept; "
                "BYTEPS_TRACE_START_STEP=1 traces from the first push on"
            )
        head = ("stage", "times", "sum s", "median ms", "95 % ms")
        rows = [(f"{each['role']} {each['stage']}", *_row(each)) for each in found["stages"]]
        lines += ["", "Where the time went", *_table(head, rows)]
        if found["tensors"]:
            rows = [(each["name"], *_row(each)) for each in found["tensors"]]
            lines += ["", "The slowest tensors, on workers", *_table(("tensor", *head[1:]), rows)]
        lines += ["", "The worker that was waited for", *_waited(found["waited_for"])]
        if found["unfinished"]:
            lines += ["", f"Not over when the trace ended: {len(found['unfinished'])}"]
            lines += [
                f"  {each['process']}: {each['span']}, step {each['step']}" for each in found["unfinished"][: self.top]
            ]
        return "\n".join(lines)


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


def _waited(waits: Sequence[dict[str, Any]]) -> list[str]:
    if not waits:
        return ["  none: no round of several workers was traced"]
    rows = [
        (f"worker {each['worker']}", str(each["rounds"]), f"{each['share']:.0%}", f"{each['alone_s']:.3f}")
        for each in waits
    ]
    return _table(("worker", "came last", "of rounds", "alone s"), rows)


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
