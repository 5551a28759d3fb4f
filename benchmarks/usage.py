"""CPU time and memory of all processes that a benchmark has started."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence

import psutil

CpuTimes = dict[int, tuple[float, float]]
"""User and system seconds by process id."""


def family(roots: Iterable[int]) -> list[psutil.Process]:
    """The processes of these ids that live, and all that descend from them."""
    found = []
    for pid in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            found += [root, *root.children(recursive=True)]
    return found


def cpu_seconds(processes: Sequence[psutil.Process]) -> CpuTimes:
    """User and system time of each process so far; they count in ticks of 10 ms."""
    seconds: CpuTimes = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds[process.pid] = times.user, times.system
    return seconds


def spent(before: CpuTimes, after: CpuTimes) -> CpuTimes:
    """What was used between two readings, by those that lived at the second one."""
    none = 0.0, 0.0
    return {
        pid: (user - before.get(pid, none)[0], system - before.get(pid, none)[1])
        for pid, (user, system) in after.items()
    }


def note_pss(peaks: dict[int, float], processes: Sequence[psutil.Process]) -> None:
    """Raise each process's peak, in MB (10^6 bytes), to its proportional set size now, if that is larger.

    The proportional set size (PSS) counts a page that n processes share as an n-th of a page for each of them, so the
    sum over processes is the memory that they take together.
    """
    for process in processes:
        with contextlib.suppress(psutil.Error):
            pss = process.memory_full_info().pss / 1e6
            peaks[process.pid] = max(pss, peaks.get(process.pid, 0.0))


def names(processes: Sequence[psutil.Process]) -> dict[int, str]:
    """``worker-0``, ``server-1`` and so on, by process id; the numbers of a role go by process id too.

    The role is ``DMLC_ROLE`` in the process's environment; what has none there is a ``launcher``.
    """
    counts: Counter[str] = Counter()
    found = {}
    for process in sorted(processes, key=lambda each: each.pid):
        with contextlib.suppress(psutil.Error):
            role = process.environ().get("DMLC_ROLE", "launcher")
            found[process.pid] = f"{role}-{counts[role]}"
            counts[role] += 1
    return found
