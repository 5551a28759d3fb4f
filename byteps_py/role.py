"""What a process does in a job.  It stands apart from the other values, so that the launcher need not load NumPy."""

from __future__ import annotations

import enum

__all__ = ["Role"]


class Role(str, enum.Enum):
    """What a process does in the job; the value is the spelling used in ``DMLC_ROLE``."""

    SCHEDULER = "scheduler"
    SERVER = "server"
    WORKER = "worker"

    def __str__(self) -> str:
        return self.value
