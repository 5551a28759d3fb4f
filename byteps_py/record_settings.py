"""What is measured in a process, and where its record goes (:mod:`byteps_py.telemetry.recorder` writes it)."""

from __future__ import annotations

from dataclasses import dataclass

from byteps_py.variables import boolean, integer, label, text, variable

__all__ = ["RecordSettings"]

_LONGEST_PATH = 4095
_MOST = 10**9


@dataclass(frozen=True, kw_only=True)
class RecordSettings:
    """For a process of any job, also for one that is a job of its own; `bps ab` sets all but ``BYTEPS_STAGE_TIMES``."""

    record: str | None = variable(
        "BYTEPS_AB_RECORD",
        text("the path of a folder, in printable characters", _LONGEST_PATH),
        "each process of the job writes there what it did: steps, CPU time, stage times",
        None,
    )
    cell: str = variable(
        "BYTEPS_AB_CELL", label(), "name of the combination of settings that this run is a measurement of", "cell"
    )
    block: int | None = variable(
        "BYTEPS_AB_BLOCK",
        integer(0, _MOST),
        "number of the block of runs that this one belongs to; runs of one block are compared",
        None,
    )
    warmup_steps: int = variable(
        "BYTEPS_AB_WARMUP_STEPS", integer(0, _MOST), "steps, by bps.step(), before the measured ones", 20
    )
    measured_steps: int = variable(
        "BYTEPS_AB_STEPS", integer(0, _MOST), "number of measured steps (0: until the run ends)", 0
    )
    stage_times: bool = variable(
        "BYTEPS_STAGE_TIMES", boolean(), "count and time the stages of the way of each tensor: bps.stats()", True, "1"
    )
    run_dir: str | None = variable(
        "BYTEPS_RUN_DIR",
        ("the path of a folder", str),
        "for what a run leaves, such as checkpoints: read by training scripts; `bps ab` gives each run one of its own",
        None,
    )
