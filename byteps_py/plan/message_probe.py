"""A worker that pushes and pulls many small partitions, and says how long one took: run by ``bps plan --measure``."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["PARTITION_BYTES", "PREFIX", "main"]

PARTITION_BYTES: Final = 64 << 10
"""So large that each travels in a message of its own."""
PREFIX: Final = "seconds of a partition: "
_PARTITIONS: Final = 256
_TURNS: Final = 12


def main() -> None:
    """Join the job that the environment tells of, measure, and print one line."""
    import numpy as np

    import byteps_py as bps

    bps.init()
    array = np.zeros(_PARTITIONS * PARTITION_BYTES // 4, np.float32)
    best = float("inf")
    for turn in range(_TURNS):
        begin = time.perf_counter()
        bps.push_pull(array, "probe", out=array)
        if turn > 1:
            best = min(best, time.perf_counter() - begin)
    bps.shutdown()
    print(f"{PREFIX}{best / _PARTITIONS:.9f}", flush=True)


if __name__ == "__main__":
    main()
