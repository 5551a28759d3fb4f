"""``byteps.mxnet.ops``."""

from __future__ import annotations

from byteps_py.compat.basics import init, resume
from byteps_py.mxnet.engine import shutdown, suspend
from byteps_py.mxnet.ops import byteps_declare_tensor, byteps_push_pull
from byteps_py.session import get_pushpull_speed, local_rank, local_size, rank, size

__all__ = [
    "byteps_declare_tensor",
    "byteps_push_pull",
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
