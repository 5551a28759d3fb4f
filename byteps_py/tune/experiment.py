"""All runs of an experiment, in their random order, with a look at the time that is left.

A run that fails is told, with the end of its output, and the others go on; if every cell has failed and none has ever
worked, nothing is to be expected of the rest.

The runs of a block must be close together in time, or comparing them would compare the hours of the day.  So a block
that lacks runs is gone on with only while the others are young; later it is made again as a whole, as another *attempt*
at it, and the runs of earlier attempts do not count any more.

SIGINT, SIGTERM and SIGHUP end the run in progress, in order; what was made before stays, and the same command goes on
from there.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from byteps_py.tune import factors
from byteps_py.tune.journal import Journal
from byteps_py.tune.model import Design, Run
from byteps_py.tune.running import OUTPUT, Stop, run_cell, run_folder
from byteps_py.tune.screen import Screen
from byteps_py.tune.wording import number

__all__ = [
    "Clock",
    "Outcome",
    "counting",
    "describe_run",
    "describe_seconds",
    "describe_setup",
    "run",
    "to_do",
    "too_old",
]

YOUNG_SECONDS = 600.0
"""A block is gone on with for so long after its latest run began, or for twice the time in which its runs began."""

_AGES = (("days", 86400.0), ("h", 3600.0), ("min", 60.0))
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


def counting(runs: Sequence[Run]) -> list[Run]:
    """The runs that count, in the same order: of each block those of its last attempt, good or failed."""
    last = _last_attempts(runs)
    return [run for run in runs if run.attempt == last[run.block]]


def to_do(design: Design, runs: Sequence[Run], now: float) -> list[tuple[int, int]]:
    """Block and cell of the runs that are still to be made, in their order; those that have failed among them.

    Args:
        design: the experiment.
        runs: what was made.
        now: seconds since the epoch.  Of a block whose runs are :func:`too_old`, all are to be made.
    """
    old = too_old(design, runs, now)
    good = {(run.block, run.cell) for run in counting(runs) if not run.problem and run.block not in old}
    return [each for each in factors.order(design) if each not in good]


def too_old(design: Design, runs: Sequence[Run], now: float) -> dict[int, float]:
    """The blocks that are to be made again as a whole, and how many seconds ago the latest good run of each began."""
    good: dict[int, dict[int, float]] = {}
    for run in counting(runs):
        if not run.problem:
            good.setdefault(run.block, {})[run.cell] = run.started
    old = {}
    for block, started in sorted(good.items()):
        first, last = min(started.values()), max(started.values())
        lacks_some = block < design.repeats and len(started) < len(design.cells)
        if lacks_some and now - last > max(YOUNG_SECONDS, 2 * (last - first)):
            old[block] = now - last
    return old


def _last_attempts(runs: Sequence[Run]) -> dict[int, int]:
    last: dict[int, int] = {}
    for run in runs:
        last[run.block] = max(run.attempt, last.get(run.block, 0))
    return last


def describe_setup(journal: Journal, environ: Mapping[str, str], now: float) -> list[str]:
    """Lines to print before the first run; ``now`` as for :func:`to_do`."""
    design = journal.design
    missing = to_do(design, journal.runs, now)
    lines = [f"bps ab: {line}" for line in factors.notes(design.factors)]
    dropped = [f"{name}={environ[name]}" for name in sorted(environ) if name.startswith(factors.OF_ANOTHER_JOB)]
    if dropped:
        lines.append(f"bps ab: each run is a job of its own, so these are not used: {' '.join(dropped)}")
    whole, rest = len(factors.order(design)), len(missing)
    size = f"{len(design.cells)} cells x {design.repeats} {'block' if design.repeats == 1 else 'blocks'}"
    if not journal.runs:
        lines.append(f"{whole} runs: {size}, in random order (seed {design.seed}); output in {journal.folder}/runs")
    elif rest:
        old = too_old(design, journal.runs, now)
        again = {(run.block, run.cell) for run in counting(journal.runs) if run.block not in old} & set(missing)
        failed = f"; {len(again)} that failed {'is' if len(again) == 1 else 'are'} made again" if again else ""
        lines.append(f"resuming: {whole - rest} of {whole} runs are done{failed}")
        lines += [_describe_old(*each) for each in old.items()]
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
    design = journal.design
    clock = Clock()
    failed: set[int] = set()
    worked = any(not each.problem for each in journal.runs)
    told = too_old(design, journal.runs, time.time())
    with _signals() as stop:
        for block in range(design.repeats):
            # Looked at when its turn comes: the blocks before it may have taken hours.
            now = time.time()
            rest = [each for each in to_do(design, journal.runs, now) if each[0] >= block]
            old = too_old(design, journal.runs, now)
            if block in old and block not in told:
                screen.say(_describe_old(block, old[block]))
            attempt = _last_attempts(journal.runs).get(block, 0) + (block in old)
            for index, (_, cell) in enumerate(each for each in rest if each[0] == block):
                cells = [each for _, each in rest[index:]]
                made = _run_one(journal, block, cell, environ, screen, stop, clock, cells)
                if made is None:
                    return Outcome(number=stop.number)
                try:
                    journal.append(msgspec.structs.replace(made, attempt=attempt))
                finally:
                    _tell(journal, made, clock, cells[1:], screen)
                failed |= {cell} if made.problem else set()
                worked = worked or not made.problem
                if not worked and len(failed) == len(design.cells):
                    return Outcome(hopeless=True)
                if stop.number:
                    return Outcome(number=stop.number if cells[1:] else 0)
    return Outcome()


def _head(design: Design, block: int, cell: int) -> str:
    order = factors.order(design)
    place = f"block {block + 1}/{design.repeats}, run {order.index((block, cell)) + 1}/{len(order)}"
    return f"{place}, {design.cells[cell].label}"


def _tell(journal: Journal, made: Run, clock: Clock, cells: list[int], screen: Screen) -> None:
    """What came out of a run; ``cells`` are those of the runs that are left."""
    design = journal.design
    head = _head(design, made.block, made.cell)
    screen.say(f"{head}: {describe_run(made)}{_describe_left(clock.left(cells))}")
    if made.problem:
        screen.say(_describe_log(made, str(run_folder(design, made.cell, made.block, journal.folder) / OUTPUT)))


def _run_one(
    journal: Journal,
    block: int,
    cell: int,
    environ: Mapping[str, str],
    screen: Screen,
    stop: Stop,
    clock: Clock,
    cells: list[int],
) -> Run | None:
    """Make a run, and note how long it took; ``cells`` are those of all runs that are left, of this one the first."""
    began = time.monotonic()
    text = _progress(journal.design, _head(journal.design, block, cell), clock, cells, began)
    made = run_cell(
        journal.design,
        cell,
        block,
        journal.folder,
        environ=environ,
        stop=stop,
        progress=lambda steps: screen.show(lambda: text(steps)),
        keep_open=(journal.lock,),
    )
    clock.add(cell, time.monotonic() - began)
    return made


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


def _describe_old(block: int, seconds: float) -> str:
    unit, size = next(each for each in _AGES if seconds >= 2 * each[1])
    return f"block {block + 1} is made again as a whole: its other runs are {seconds / size:.0f} {unit} old"


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
