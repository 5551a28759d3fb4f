"""What control groups of either version allow a process: cores, memory, processes.

A limit of a group holds for all groups below it, so the path is walked upwards.  In a container the path may not exist,
since the group is seen as the top one; then only the top is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpu_quota", "groups", "pids_left"]


def groups(text: str) -> dict[str, str]:
    """The path of a process by controller, from ``/proc/PID/cgroup``; that of version 2 has no name. Pure."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            found |= dict.fromkeys(fields[1].split(","), fields[2])
    return found


def cpu_quota(root: Path) -> float | None:
    """How many cores' time the groups allow; None without a limit.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    limits = []
    for folder, version in _folders(root, "cpu"):
        if version == 2:
            words = _read(folder / "cpu.max").split()
            quota, period = (*words, "", "")[:2]
        else:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):  # "max" and -1 are no limit
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def pids_left(root: Path) -> int | None:
    """How many more processes and threads the groups allow; None without a limit; ``root`` as above."""
    left = []
    for folder, _ in _folders(root, "pids"):
        most, used = _read(folder / "pids.max"), _read(folder / "pids.current")
        if most.isdigit() and used.isdigit():
            left.append(max(0, int(most) - int(used)))
    return min(left, default=None)


def _folders(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """The folders with the limits of a controller, from the process's own group up, each with its version."""
    paths = groups(_read(root / "proc/self/cgroup"))
    top = root / "sys/fs/cgroup"
    for name, base, version in ((controller, top / controller, 1), ("", top, 2)):
        if name not in paths:
            continue
        here = base / paths[name].strip("/")
        for each in (here, *here.parents):
            if each == base or base in each.parents:
                yield each, version


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
