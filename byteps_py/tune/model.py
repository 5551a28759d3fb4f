"""What an experiment is made of: factors, cells, runs; and what was seen in them.

All are frozen values that turn into JSON and back (msgspec), so an experiment can be interrupted and go on, and a
report can be made again from what is on the disk.

Words, as statisticians use them: a *factor* is a setting that is varied, a *level* one of its values, a *cell* one
combination of levels, a *block* one run of every cell, in random order and close together in time.  Cells are compared
within blocks, so what makes the whole machine slower for an hour makes no difference.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = ["BASELINE", "Cell", "Design", "Factor", "ProcessUse", "Run", "StageSum"]

BASELINE = 0
"""Index of the cell that all others are compared with: the first level of every factor."""


class Factor(msgspec.Struct, frozen=True):
    """A setting that is varied.

    Attributes:
        name: as it was typed: ``omp-wait-policy``, ``num-servers``, or the name of an environment variable.
        levels: its values, the baseline's first; no two are equal.
        option: the option of ``bpslaunch`` that sets it; empty if ``name`` is an environment variable.
    """

    name: str
    levels: tuple[str, ...]
    option: str = ""


class Cell(msgspec.Struct, frozen=True):
    """One combination: the level of each factor, in the order of the factors.

    Attributes:
        levels: one for each factor of the design.
        label: for tables: ``baseline``, ``+ omp-wait-policy=passive``, ``+ both`` ...; unique within a design.
        slug: the same for file names: letters, digits, ``-``, ``.``, ``_`` and ``=``; unique within a design.
    """

    levels: tuple[str, ...]
    label: str
    slug: str


class Design(msgspec.Struct, frozen=True):
    """A whole experiment, as it was asked for; two experiments with equal designs may be one, interrupted.

    Attributes:
        factors: what is varied.
        cells: all combinations, the baseline first.
        repeats: number of blocks, at least 1; below 2 there is no interval.
        num_workers: workers of every run.
        warmup_steps, steps: steps that are not counted, and steps that are. 0 steps: the run goes to its own end.
        metric: regular expression whose first group is the number in the output that is compared; empty: steps/s.
        command: the training command.
        seed: for the order of the runs within the blocks.
        timeout: seconds after which a run is ended and has failed.
        environment: variables of the user that all runs inherit and that may matter, without the factors'.
        machine: on what the experiment was begun, as text; empty: unknown.
        directory: the working folder of all runs; empty: unknown, so that in which they are made.
    """

    factors: tuple[Factor, ...]
    cells: tuple[Cell, ...]
    repeats: int
    num_workers: int
    warmup_steps: int
    steps: int
    metric: str
    command: tuple[str, ...]
    seed: int
    timeout: float
    environment: dict[str, str] = {}
    machine: str = ""
    directory: str = ""


class StageSum(msgspec.Struct, frozen=True):
    """How often a stage was passed, and how many seconds that took in sum (pieces that overlap in time count each)."""

    count: int
    seconds: float


Stages: TypeAlias = dict[str, StageSum]
"""By the name of the stage (:mod:`byteps_py.telemetry.stages`)."""


class ProcessUse(msgspec.Struct, frozen=True):
    """What one process did while its run was measured.

    Attributes:
        role, rank: which one; ``scheduler`` has rank 0.
        host, pid: where.
        cpu_seconds: user and system time of the process, all its threads.
        team: threads of an OpenMP team as the process really has them; 0: unknown.
        policy: how its idle OpenMP threads wait, as the process was told or its runtime says; empty: unknown.
        engines: engine threads of a server, each of which has a team; 0 for others.
        cores: cores that the process may use.
        stages: the sums over the measured time.
    """

    role: str
    rank: int
    host: str
    pid: int
    cpu_seconds: float
    team: int
    policy: str
    engines: int
    cores: int
    stages: Stages


class Run(msgspec.Struct, frozen=True):
    """One run of one cell.

    Attributes:
        cell: index into ``Design.cells``.
        block: from 0.
        problem: why it has no value; empty if it has.
        value: what is compared: more is better.
        unit: ``steps/s``, ``samples/s``, or ``metric`` for a number from the output.
        seconds: measured time, without start and warm-up.
        steps: steps in it.
        processes: what each did.
        log: the end of the output, of a run that failed.
        started: seconds since the epoch.
        attempt: how often its block had been begun anew. Runs of a block that are of different attempts are not
            close together in time, so only those of the last one count.
    """

    cell: int
    block: int
    problem: str = ""
    value: float = 0.0
    unit: str = "steps/s"
    seconds: float = 0.0
    steps: int = 0
    processes: tuple[ProcessUse, ...] = ()
    log: str = ""
    started: float = 0.0
    attempt: int = 0
