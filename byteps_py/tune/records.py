"""Reads the records that processes of jobs have written, and cuts the measured part out of each.

A record is ``ROLE-RANK.jsonl``: a line about the process, then samples, each with everything since the start of the
process.  A job's files have one random number in common, so they may lie in any folders, also in several that were
copied together from several hosts.  A file may end anywhere; a line that is incomplete ends it.

The measured part, the *window*, is worker 0's time from the end of the warm-up to the last counted step.  The other
workers are taken between the same steps, since all workers make a step together; what falls between two samples is
interpolated by steps.  Servers and the scheduler count no steps: their sums are interpolated at the two times, by the
monotonic clock on worker 0's host, else by the wall clock, whose error between hosts is small against a window of
seconds.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from byteps_py.errors import SettingsError
from byteps_py.tune.factors import slug, unique
from byteps_py.tune.model import Cell, Design, Factor, ProcessUse, Run, Stages, StageSum

__all__ = ["VERSION", "Job", "Record", "Sample", "Start", "from_records", "read", "to_run"]

VERSION = 1
"""Of the form of a record."""

_NAME = re.compile(r"(scheduler|server|worker)-\d+\.jsonl")
_LONGEST_LINE = 1 << 20
_SAME_BOOT = 5.0
"""Seconds by which the wall clock may have been set between the starts of two processes of one host."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What a process had done at one moment, all of it since its start.

    Attributes:
        wall, monotonic: the moment, in seconds of both clocks.
        cpu: user and system time.
        steps, samples: as the training script counted them; 0 for servers and the scheduler.
        stepped: when it had counted the last step, by the monotonic clock; 0 if it has not said.
        stages: count and seconds by name.
    """

    wall: float
    monotonic: float
    cpu: float
    steps: int = 0
    samples: float = 0
    stepped: float = 0.0
    stages: dict[str, tuple[int, float]] = {}


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: whose record it is, and what the process was told.

    Attributes:
        role, rank, job, cell, block, host, pid: which process, of what.
        cores, team, policy, engines: as in :class:`~byteps_py.tune.model.ProcessUse`.
        num_worker, num_server: processes of the job.
        warmup, steps: steps that are not counted, and steps that are; 0 steps: until the end.
        wall, monotonic: when the record was begun.
    """

    kind: str
    version: int
    role: str
    rank: int
    job: str
    cell: str
    block: int | None = None
    host: str = ""
    pid: int = 0
    cores: int = 0
    team: int = 0
    policy: str = ""
    engines: int = 0
    num_worker: int = 0
    num_server: int = 0
    warmup: int = 0
    steps: int = 0
    wall: float = 0.0
    monotonic: float = 0.0


class Record(msgspec.Struct, frozen=True):
    """One process: the file's first line, and its samples in the order of time."""

    start: Start
    samples: tuple[Sample, ...]


class Job(msgspec.Struct, frozen=True):
    """All records of one run of a job.

    Attributes:
        job: its number, 16 hexadecimal digits.
        cell, block: what it belongs to, as its processes were told.
        started: when its first process began to write, in seconds since the epoch.
        records: one for each role and rank.
    """

    job: str
    cell: str
    block: int | None
    started: float
    records: tuple[Record, ...]

    def of(self, role: str) -> list[Record]:
        """The records of one role, by rank."""
        return sorted((each for each in self.records if each.start.role == role), key=lambda each: each.start.rank)


class _Kind(msgspec.Struct):
    kind: str = ""
    version: int = 0


def read(paths: Iterable[Path]) -> list[Job]:
    """Read every record below some folders, or in some files, and put together what is of one job.

    Files of other kinds are passed over.  If a record is there several times, as after copying, the longest one counts;
    of two processes that had the same role and rank in a job, the later one.

    Returns:
        the jobs, in the order in which they were started.

    Raises:
        SettingsError: a path does not exist, a record cannot be read, or it is of another version.
    """
    problems: list[str] = []
    found: dict[tuple[str, str, int], Record] = {}
    for path in _files(paths, problems):
        try:
            record = _read(path)
        except (OSError, SettingsError) as error:
            text = error.strerror if isinstance(error, OSError) else error
            problems.append(f"{path} cannot be read: {text}")
            continue
        if record is not None:
            key = (record.start.job, record.start.role, record.start.rank)
            found[key] = max(found.get(key, record), record, key=lambda each: (each.start.wall, len(each.samples)))
    if problems:
        raise SettingsError(problems)
    jobs: dict[str, list[Record]] = {}
    for record in found.values():
        jobs.setdefault(record.start.job, []).append(record)
    return sorted((_job(name, records) for name, records in jobs.items()), key=lambda each: (each.started, each.job))


def to_run(job: Job, cell: int, block: int) -> Run:
    """The measured part of a job as a run, with ``problem`` set if there is none.

    The value is samples/s, the sum over all workers, if the script counts samples, else steps/s.  Stages are given only
    if every worker and every server has a record, as they are differences of sums over all of them.
    """
    blank = Run(cell, block, started=job.started)
    workers = job.of("worker")
    first = next((each for each in workers if each.start.rank == 0), None)
    if first is None:
        return _failed(blank, "there is no record of worker 0: give the folder that it wrote into as well")
    window = _window(first)
    if isinstance(window, str):
        return _failed(blank, window)
    begin, end = window
    seconds = end.monotonic - begin.monotonic
    spans = {id(each): _by_steps(each.samples, begin.steps, end.steps) for each in workers}
    spans |= {id(each): _by_time(each, first, begin, end) for each in job.records if each.start.role != "worker"}
    samples = sum(after.samples - before.samples for before, after in (spans[id(each)] for each in workers))
    lacking = first.start.num_worker - len(workers)
    if samples > 0 and lacking > 0:
        return _failed(
            blank,
            f"records of {lacking} of {first.start.num_worker} workers are missing, so their samples are: "
            "give the folders of all hosts",
        )
    whole = lacking <= 0 and len(job.of("server")) >= first.start.num_server
    steps = end.steps - begin.steps
    return msgspec.structs.replace(
        blank,
        value=(samples or steps) / seconds,
        unit="samples/s" if samples else "steps/s",
        seconds=seconds,
        steps=steps,
        processes=tuple(_use(each, *spans[id(each)], whole) for each in job.records),
    )


def from_records(jobs: Sequence[Job]) -> tuple[Design, list[Run]]:
    """An experiment that nobody planned, from its jobs: one factor, ``cell``, whose levels are the cells' names.

    The cell named ``baseline``, in any case, is the baseline; without one it is that of the first job.  If every job
    says which block it belongs to, and no two of a cell say the same, those are the blocks; else the first run of each
    cell makes up the first block, the second ones the second, and so on: what was started close together should be
    compared.

    Raises:
        SettingsError: there is no job.
    """
    if not jobs:
        raise SettingsError("no records were found: start each run with BYTEPS_AB_RECORD=DIR, and give DIR")
    ordered = sorted(jobs, key=lambda each: (each.started, each.job))
    names = list(dict.fromkeys(each.cell for each in ordered))
    names.sort(key=lambda name: name.lower() != "baseline")
    told = {(each.cell, each.block) for each in ordered if each.block is not None}
    if len(told) == len(ordered):
        numbers = {block: index for index, block in enumerate(sorted({block for _, block in told}))}
        blocks = [numbers[each.block] for each in ordered if each.block is not None]
    else:
        counts: Counter[str] = Counter()
        blocks = []
        for each in ordered:
            blocks.append(counts[each.cell])
            counts[each.cell] += 1
    runs = [
        _whole(each, to_run(each, names.index(each.cell), block)) for each, block in zip(ordered, blocks, strict=True)
    ]
    starts = [record.start for each in ordered for record in each.records]
    slugs = unique([slug(name) for name in names])
    cells = tuple(Cell((name,), name, text) for name, text in zip(names, slugs, strict=True))
    design = Design(
        factors=(Factor("cell", tuple(names)),),
        cells=cells,
        repeats=max(blocks) + 1,
        num_workers=max(1, *(each.num_worker for each in starts)),
        warmup_steps=max(each.warmup for each in starts),
        steps=max(each.steps for each in starts),
        metric="",
        command=(),
        seed=0,
        timeout=0.0,
    )
    return design, runs


def _whole(job: Job, run: Run) -> Run:
    """The run, if it has all the steps that its job was to have."""
    wanted = max((each.start.steps for each in job.of("worker")), default=0)
    if run.problem or run.steps >= wanted:
        return run
    return _failed(run, f"{run.steps} of {wanted} steps (BYTEPS_AB_STEPS): it ended early, or has not ended yet")


def _failed(run: Run, problem: str) -> Run:
    return msgspec.structs.replace(run, problem=problem)


def _files(paths: Iterable[Path], problems: list[str]) -> Iterator[Path]:
    """Files that may be records, each once."""
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            problems.append(f"{path} does not exist: give the folder that BYTEPS_AB_RECORD named, or a record")
        for each in sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]:
            where = each.resolve()
            if where not in seen and _NAME.fullmatch(each.name) and each.is_file():
                seen.add(where)
                yield each


def _read(path: Path) -> Record | None:
    """A record; None if the file is none, or has not even its first line."""
    record: Record | None = None
    samples: list[Sample] = []
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
            if not line.endswith(b"\n"):
                break
            try:
                about = msgspec.json.decode(line, type=_Kind)
                if about.kind == "start":
                    if about.version != VERSION:
                        raise SettingsError(
                            f"it is a record of version {about.version}, not {VERSION}: use the byteps_py that wrote it"
                        )
                    # A file that was begun again is about the later process.
                    record, samples = Record(msgspec.json.decode(line, type=Start), ()), []
                elif about.kind == "sample" and record is not None:
                    samples.append(msgspec.json.decode(line, type=Sample))
            except msgspec.DecodeError:
                break
            if record is None:
                break
    return msgspec.structs.replace(record, samples=tuple(samples)) if record is not None else None


def _job(name: str, records: Sequence[Record]) -> Job:
    ordered = sorted(records, key=lambda each: (each.start.role != "worker", each.start.role, each.start.rank))
    about = ordered[0].start
    return Job(name, about.cell, about.block, min(each.start.wall for each in records), tuple(ordered))


def _window(first: Record) -> tuple[Sample, Sample] | str:
    """Worker 0's samples at both ends of the window; a text says why there is none."""
    warmup, steps = first.start.warmup, first.start.steps
    samples = first.samples
    last = samples[-1].steps if samples else 0
    begin = next((each for each in samples if each.steps >= warmup), None)
    if begin is None or last <= begin.steps:
        if last == 0:
            return "no step was counted: the script must call bps.step() after each step"
        return f"worker 0 made {last} steps, and {warmup} are for the warm-up: nothing was measured"
    end = next((each for each in samples if steps and each.steps >= warmup + steps), None)
    if end is None:
        # The last sample may be that of the end of the process, long after its last step.
        end = samples[-1]
        if end.stepped:
            late = end.monotonic - end.stepped
            end = msgspec.structs.replace(end, monotonic=end.stepped, wall=end.wall - late)
    if end.monotonic <= begin.monotonic:
        return "worker 0 counted its steps in no time: nothing was measured"
    return begin, end


def _by_steps(samples: Sequence[Sample], begin: int, end: int) -> tuple[Sample, Sample]:
    """A worker's sums when it had made ``begin`` and ``end`` steps."""
    steps = [each.steps for each in samples]
    before, after = (_at(samples, steps, each) for each in (begin, end))
    return before, after


def _by_time(record: Record, first: Record, begin: Sample, end: Sample) -> tuple[Sample, Sample]:
    """The sums of a process that counts no steps, at the ends of worker 0's window."""
    clock = "monotonic" if _share_clock(record.start, first.start) else "wall"
    times = [getattr(each, clock) for each in record.samples]
    before, after = (_at(record.samples, times, getattr(each, clock)) for each in (begin, end))
    return before, after


def _share_clock(one: Start, two: Start) -> bool:
    """Whether two processes have one monotonic clock; hosts may have one name, but were not booted together."""
    apart = (one.wall - one.monotonic) - (two.wall - two.monotonic)
    return one.host == two.host and abs(apart) < _SAME_BOOT


def _at(samples: Sequence[Sample], positions: Sequence[float], wanted: float) -> Sample:
    """The sums at a position: of the first sample there, else interpolated; beyond the ends, those of the end."""
    if not samples:
        return Sample(wall=0.0, monotonic=0.0, cpu=0.0)
    # A clock that was set back would put positions out of order.
    ordered = list(itertools.accumulate(positions, max))
    right = bisect.bisect_left(ordered, wanted)
    if right == len(samples):
        return samples[-1]
    if right == 0 or ordered[right] == wanted:
        return samples[right]
    return _between(
        samples[right - 1], samples[right], (wanted - ordered[right - 1]) / (ordered[right] - ordered[right - 1])
    )


def _between(one: Sample, two: Sample, part: float) -> Sample:
    def mix(first: float, second: float) -> float:
        return first + (second - first) * part

    stages = {
        name: (
            round(mix(one.stages.get(name, (0, 0.0))[0], count)),
            mix(one.stages.get(name, (0, 0.0))[1], seconds),
        )
        for name, (count, seconds) in two.stages.items()
    }
    return Sample(
        wall=mix(one.wall, two.wall),
        monotonic=mix(one.monotonic, two.monotonic),
        cpu=mix(one.cpu, two.cpu),
        steps=round(mix(one.steps, two.steps)),
        samples=mix(one.samples, two.samples),
        stages=stages,
    )


def _use(record: Record, before: Sample, after: Sample, with_stages: bool) -> ProcessUse:
    start = record.start
    stages: Stages = {}
    for name, (count, seconds) in after.stages.items() if with_stages else ():
        earlier = before.stages.get(name, (0, 0.0))
        stages[name] = StageSum(count - earlier[0], seconds - earlier[1])
    return ProcessUse(
        role=start.role,
        rank=start.rank,
        host=start.host,
        pid=start.pid,
        cpu_seconds=after.cpu - before.cpu,
        team=start.team,
        policy=start.policy,
        engines=start.engines,
        cores=start.cores,
        stages=stages,
    )
