"""What comes out of an experiment: plain values, made by :mod:`~byteps_py.tune.analysis`, shown by the reports."""

from __future__ import annotations

import msgspec

from byteps_py.tune.model import Cell, Design, Run

__all__ = ["Analysis", "CellResult", "Effect", "Interval", "RoleCpu", "StageShare"]


class Interval(msgspec.Struct, frozen=True):
    """A ratio of two cells (1.4: 40 % more) and where it lies with 95 % confidence.

    Attributes:
        blocks: pairs it rests on.
        ratio: the middle of the interval: exp of the mean log-ratio.
        low, high: the ends; None with fewer than two pairs, when nothing can be said.
        median: of the pairs' ratios.
        detectable: the ratio above 1 that an experiment with this noise and as many blocks would have shown nine
            times out of ten; None without an interval.
    """

    blocks: int
    ratio: float
    low: float | None
    high: float | None
    median: float
    detectable: float | None

    @property
    def verdict(self) -> str:
        """``more``, ``less``, ``none`` (no difference shown) or ``unknown`` (no interval)."""
        if self.low is None or self.high is None:
            return "unknown"
        if self.low <= 1.0 <= self.high:
            return "none"
        return "more" if self.low > 1.0 else "less"


class StageShare(msgspec.Struct, frozen=True):
    """One stage of the way of a partition, summed over all processes of a run, median over the runs of a cell.

    Attributes:
        name: ``queue``, ``copy in``, ``push``, ``wait for others``, ``server queue``, ``sum``, ``pull``, ``copy out``.
        seconds_per_step: per worker; partitions travel side by side, so the sum may be more than a step's time.
        share: of the sum of all stages, 0 to 1.
    """

    name: str
    seconds_per_step: float
    share: float


class RoleCpu(msgspec.Struct, frozen=True):
    """CPU time of all processes of a role, median over the runs.

    Attributes:
        role: ``worker``, ``server`` or ``scheduler``.
        processes: how many.
        seconds_per_step: user and system time of all of them.
        cores: the same as cores kept busy: CPU seconds for each second measured.
    """

    role: str
    processes: int
    seconds_per_step: float
    cores: float


class CellResult(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        cell: which.
        done, failed: numbers of runs.
        values: of the runs that are good, in the order of blocks.
        median: of them; None without any.
        unit: of them.
        against_baseline: None for the baseline itself, and where no block has both.
        stages: in the order of the way; empty where nothing was recorded.
        cpu: by role.
        server_team, server_engines, server_policy: as the servers really had them; 0 and "" if unknown or no server.
        worker_team, worker_policy: the same of the workers.
        problems: why runs failed, each reason once, the most frequent first.
        log: the end of the output of the first run that failed.
    """

    cell: Cell
    done: int
    failed: int
    values: tuple[float, ...]
    median: float | None
    unit: str
    against_baseline: Interval | None
    stages: tuple[StageShare, ...] = ()
    cpu: tuple[RoleCpu, ...] = ()
    server_team: int = 0
    server_engines: int = 0
    server_policy: str = ""
    worker_team: int = 0
    worker_policy: str = ""
    problems: tuple[str, ...] = ()
    log: str = ""


class Effect(msgspec.Struct, frozen=True):
    """What one level of one factor does, averaged over the levels of the other factors.

    Attributes:
        factor, level, baseline: ``omp-wait-policy``, ``passive``, ``active``.
        interval: of level over baseline; None where no block has all that is needed.
        inert: why this factor cannot matter here; empty if it can.
    """

    factor: str
    level: str
    baseline: str
    interval: Interval | None
    inert: str


class Analysis(msgspec.Struct, frozen=True):
    """The whole result.

    Attributes:
        design: what was asked; for records of runs that no experiment started, one made from what they say.
        cells: one for each cell of the design, in its order.
        effects: one for each level of each factor but the baseline's.
        runs: all that were made.
        notes: sentences for the reader: comparisons made, runs missing, units that differ.
        machine: processor, cores, versions.
        finished: whether all runs were made.
    """

    design: Design
    cells: tuple[CellResult, ...]
    effects: tuple[Effect, ...]
    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    machine: str
    finished: bool
