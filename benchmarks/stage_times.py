"""What it costs to keep stage times: nothing that can be measured.

    python -m benchmarks.stage_times [--blocks 8] [--out DIR]

Compares jobs with and without them (`BYTEPS_STAGE_TIMES`) by `bps ab`, for large tensors and for many small ones, where
each partition's two clock readings weigh most.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import arguments
from byteps_py.tune import report

WORKLOAD = Path(__file__).resolve().parent / "steps.py"
CASES = {"large": ("--bytes", "4000000", "--tensors", "4"), "small": ("--bytes", "1000", "--tensors", "200")}
"""Words for the workload: 4 tensors of 4 MB, and 200 of 1 KB, a step."""


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = arguments.parser("stage_times", (__doc__ or "").partition("\n\n")[0])
    found.add_argument(
        "--blocks", type=arguments.whole(2, 10_000), default=8, metavar="N", help="of each (default: %(default)s)"
    )
    found.add_argument(
        "--out", type=arguments.folder, metavar="DIR", help="for the experiments (default: a temporary one)"
    )
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run both comparisons; returns 1 if one shows that they cost something."""
    options = parser().parse_args(words)
    slower = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, load in CASES.items():
            print(f"\n=== {name}: {' '.join(load)} ===\n", flush=True)
            command = [sys.executable, "-m", "byteps_py", "ab", "--vary", "BYTEPS_STAGE_TIMES=0,1", "--seed", "1"]
            folder = (options.out or Path(temporary)) / name
            command += ["--repeats", str(options.blocks), "--steps", "200", "--out", os.fspath(folder)]
            subprocess.run([*command, "--", sys.executable, str(WORKLOAD), *load], check=True)
            interval = report.load(folder / "report.json").cells[1].against_baseline
            if interval is None or interval.verdict == "less":
                slower.append(name)
    print("slower with stage times: " + (", ".join(slower) or "none is shown to be"))
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
