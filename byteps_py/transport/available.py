"""How much memory this process may still have, so that what it does not have is refused before anything is taken.

Linux promises more than it has: a mapping of any size is made, and a process that writes to all of it is killed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from byteps_py.errors import TransportError

__all__ = ["LARGE_ALLOCATION", "OutOfMemory", "available_bytes", "need"]

LARGE_ALLOCATION: Final = 64 << 20
"""Bytes beyond which an allocation is checked; to look each time would cost small ones more than they do."""

_UNLIMITED: Final = 1 << 60
"""Groups of version 1 without a limit have one of about 2**63."""


class OutOfMemory(TransportError):
    """There is no memory left for one allocation; smaller ones may go well."""


def need(nbytes: int) -> None:
    """Check that ``nbytes`` can be had, if they are more than :data:`LARGE_ALLOCATION`. Any thread.

    Raises:
        OutOfMemory: there is no memory left for them.
    """
    if nbytes <= LARGE_ALLOCATION:
        return
    available = available_bytes()
    if nbytes > available:
        raise OutOfMemory(
            f"there is no memory left for {nbytes} bytes ({nbytes / 1e9:.1f} GB): {available} bytes "
            f"({available / 1e9:.1f} GB) are available to this process; ask for less, or for less at a time"
        )


def available_bytes(root: Path = Path("/")) -> int:
    """What the machine and the control groups of this process leave it, in bytes; without limit if they do not say.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    machine = _fields(root / "proc/meminfo")
    free = [(machine["MemAvailable:"] + machine.get("SwapFree:", 0)) * 1024] if "MemAvailable:" in machine else []
    return max(0, min([*free, *_of_groups(root)], default=sys.maxsize))


def _of_groups(root: Path) -> Iterator[int]:
    """What each control group above this process, of either version, leaves it."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, limit, usage, prefix = root / "sys/fs/cgroup", "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            base, limit, usage = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            prefix = "total_"
        else:
            continue
        here = base / path.strip("/")  # in a container it may not exist, and the group is seen as the top one
        for each in (here, *(above for above in here.parents if above.is_relative_to(base))):
            most, used = _number(each / limit), _number(each / usage)
            if most is None or used is None or most >= _UNLIMITED:
                continue
            details = _fields(each / "memory.stat")  # files that were read are dropped when memory is short
            yield most - used + sum(details.get(f"{prefix}{name}_file", 0) for name in ("active", "inactive"))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # there is none, or it is "max"
        return None


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file of lines that begin with a name and a number."""
    try:
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
