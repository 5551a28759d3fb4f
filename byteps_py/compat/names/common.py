"""``byteps.common``."""

from __future__ import annotations

from byteps_py.compat.basics import BytePSBasics, init, resume, suspend
from byteps_py.session import get_pushpull_speed, local_rank, local_size, rank, shutdown, size

__all__ = [
    "BytePSBasics",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]
