"""``byteps.torch.ops``."""

from __future__ import annotations

from byteps_py.compat.basics import init, resume, suspend
from byteps_py.session import get_pushpull_speed, local_rank, local_size, rank, shutdown, size
from byteps_py.torch.compression import Compression
from byteps_py.torch.ops import (
    byteps_push_pull,
    byteps_torch_set_num_grads,
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_group_sync_inplace,
    push_pull_inplace,
    synchronize,
)

__all__ = [
    "Compression",
    "byteps_push_pull",
    "byteps_torch_set_num_grads",
    "declare",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]
