"""All runs of an experiment, in their random order, with a look at the time that is left.

A run that fails is told, with the end of its output, and the others go on; if every cell has failed and none has ever
worked, nothing is to be expected of the rest.  SIGINT, SIGTERM and SIGHUP end the run in progress, in order; what was
made before stays, and the same command goes on from there.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from byteps_py.tune import factors
from byteps_py.tune.journal import Journal
from byteps_py.tune.model import Design, Run
from byteps_py.tune.running import Stop, run_cell, run_folder
from byteps_py.tune.wording import number

__all__ = ["Clock", "Outcome", "Screen", "describe_run", "describe_seconds", "describe_setup", "run", "to_do"]

_REFRESH_SECONDS = 0.5
_END_COLUMNS = 38
_LOG_LINES = 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Outcome:
    """How an experiment ended.

    Attributes:
        number: the signal that interrupted it; 0 if none did.
        hopeless: whether it was given up because every cell had failed.
    """

    number: int = 0
    hopeless: bool = False


class Screen:
    """Lines for a person: one for each run, and on a terminal one below them that changes.

    Args:
        stream: where to; a terminal or not.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._shown = ""
        self._refreshed = 0.0

    def say(self, text: str) -> None:
        """Print lines that stay."""
        self._clear()
        print(text, file=self._stream, flush=True)

    def show(self, text: Callable[[], str]) -> None:
        """Replace the line that changes, if there is one and it is old enough."""
        now = time.monotonic()
        if not self._is_terminal or now - self._refreshed < _REFRESH_SECONDS:
            return
        self._refreshed = now
        line = text()
        # One column less: a line that fills the terminal would begin another one. What changes is at its end.
        room = shutil.get_terminal_size().columns - 1
        if len(line) > room:
            kept = min(_END_COLUMNS, room // 2)
            line = f"{line[: room - kept - 3]}...{line[-kept:]}"[:room]
        self._stream.write("\r" + line + " " * (len(self._shown) - len(line)))
        self._stream.flush()
        self._shown = line

    def _clear(self) -> None:
        if self._shown:
            self._stream.write("\r" + " " * len(self._shown) + "\r")
        self._shown = ""
        self._refreshed = 0.0


@dataclass
class Clock:
    """How long the rest will take: a run takes what the median of its cell took, or else of all that were made."""

    seconds: dict[int, list[float]] = field(default_factory=dict)

    def add(self, cell: int, seconds: float) -> None:
        """A run of ``cell`` has taken so long, start and end included."""
        self.seconds.setdefault(cell, []).append(seconds)

    def left(self, cells: list[int], elapsed: float = 0.0) -> float | None:
        """Seconds for runs of these cells, the first of which runs since ``elapsed`` seconds; None if that is not
        known yet."""
        known = [each for seconds in self.seconds.values() for each in seconds]
        if not known:
            return None
        each = [statistics.median(self.seconds.get(cell, known)) for cell in cells]
        return max(0.0, each[0] - elapsed) + sum(each[1:]) if each else 0.0


def to_do(design: Design, runs: list[Run]) -> list[tuple[int, int]]:
    """Block and cell of the runs that are still to be made, in their order; those that have failed among them."""
    good = {(run.block, run.cell) for run in runs if not run.problem}
    return [each for each in factors.order(design) if each not in good]


def describe_setup(journal: Journal, environ: Mapping[str, str]) -> list[str]:
    """Lines to print before the first run."""
    design = journal.design
    lines = [f"bps ab: {line}" for line in factors.notes(design.factors)]
    dropped = [f"{name}={environ[name]}" for name in sorted(environ) if name.startswith(("DMLC_", "BYTEPS_AB_"))]
    if dropped:
        lines.append(f"bps ab: each run is a job of its own, so these are not used: {' '.join(dropped)}")
    whole, rest = len(factors.order(design)), len(to_do(design, journal.runs))
    size = f"{len(design.cells)} cells x {design.repeats} {'block' if design.repeats == 1 else 'blocks'}"
    if not journal.runs:
        lines.append(f"{whole} runs: {size}, in random order (seed {design.seed}); output in {journal.folder}/runs")
    elif rest:
        again = len({(run.block, run.cell) for run in journal.runs} & set(to_do(design, journal.runs)))
        failed = f"; {again} that failed {'is' if again == 1 else 'are'} made again" if again else ""
        lines.append(f"resuming: {whole - rest} of {whole} runs are done{failed}")
    else:
        lines.append(f"all {whole} runs are done")
    return lines


def run(journal: Journal, environ: Mapping[str, str], screen: Screen) -> Outcome:
    """Make the runs that are missing; each is in the journal when it has ended.

    Only for the main thread: it handles signals meanwhile.

    Args:
        journal: the experiment.
        environ: the user's environment.
        screen: where progress is told.

    Raises:
        OSError: a folder or a run cannot be written.
    """
    design, order = journal.design, factors.order(journal.design)
    rest = to_do(design, journal.runs)
    clock = Clock()
    failed: set[int] = set()
    worked = any(not each.problem for each in journal.runs)
    with _signals() as stop:
        for index, (block, cell) in enumerate(rest):
            began = time.monotonic()
            place = f"block {block + 1}/{design.repeats}, run {order.index((block, cell)) + 1}/{len(order)}"
            head = f"{place}, {design.cells[cell].label}"
            cells = [each for _, each in rest[index:]]
            made = _run_one(journal, block, cell, environ, screen, stop, _progress(design, head, clock, cells, began))
            if made is None:
                return Outcome(number=stop.number)
            clock.add(cell, time.monotonic() - began)
            journal.append(made)
            screen.say(f"{head}: {describe_run(made)}{_describe_left(clock.left(cells[1:]))}")
            if made.problem:
                failed.add(cell)
                screen.say(_describe_log(made, str(run_folder(design, cell, block, journal.folder))))
            worked = worked or not made.problem
            if not worked and len(failed) == len(design.cells):
                return Outcome(hopeless=True)
            if stop.number:
                return Outcome(number=stop.number if index + 1 < len(rest) else 0)
    return Outcome()


def _run_one(
    journal: Journal,
    block: int,
    cell: int,
    environ: Mapping[str, str],
    screen: Screen,
    stop: Stop,
    text: Callable[[int], str],
) -> Run | None:
    return run_cell(
        journal.design,
        cell,
        block,
        journal.folder,
        environ=environ,
        stop=stop,
        progress=lambda steps: screen.show(lambda: text(steps)),
        keep_open=(journal.lock,),
    )


def _progress(design: Design, head: str, clock: Clock, cells: list[int], began: float) -> Callable[[int], str]:
    wanted = f" of {design.warmup_steps + design.steps}" if design.steps else ""

    def text(steps: int) -> str:
        state = f"step {steps}{wanted}" if steps else "starting"
        return f"{head}: {state}{_describe_left(clock.left(cells, time.monotonic() - began))}"

    return text


def describe_run(run: Run) -> str:
    """What came out of a run: ``41.2 steps/s``."""
    if run.problem:
        return f"FAILED: {run.problem}"
    return number(run.value) + ("" if run.unit == "metric" else f" {run.unit}")


def describe_seconds(seconds: float) -> str:
    """``about 40 s``, ``about 2 min``, ``about 3 h 20 min``."""
    if seconds < 55:
        return f"about {max(1, round(seconds / 5) * 5 if seconds > 10 else round(seconds))} s"
    minutes = max(1, round(seconds / 60))
    return f"about {minutes} min" if minutes < 60 else f"about {minutes // 60} h {minutes % 60} min"


def _describe_left(seconds: float | None) -> str:
    return f", {describe_seconds(seconds)} left" if seconds else ""


def _describe_log(run: Run, place: str) -> str:
    lines = run.log.splitlines()[-_LOG_LINES:] or ["(nothing was printed)"]
    return "\n".join([*(f"    | {line}" for line in lines), f"    all of it: {place}"])


@contextmanager
def _signals() -> Iterator[Stop]:
    """Signals that end a program are only noted, and the waiting for a run looks at that."""
    stop = Stop()

    def note(number: int, frame: object) -> None:
        stop.number = stop.number or number
        stop.count += 1

    # One that is ignored, such as SIGHUP under nohup, stays so.
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for each in _SIGNALS:
        if before[each] is not signal.SIG_IGN:
            signal.signal(each, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
