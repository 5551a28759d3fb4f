"""The PyTorch plugin: ``import byteps_py.torch as bps``.

::

    bps.init()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("byteps_py.torch needs PyTorch: pip install 'byteps_py[torch]'") from error

from byteps_py.session import (
    barrier,
    get_pushpull_speed,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    stats,
    step,
)
from byteps_py.suspension import resume, suspend
from byteps_py.torch import rendezvous as _rendezvous
from byteps_py.torch.batchnorm import SyncBatchNorm
from byteps_py.torch.broadcast import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from byteps_py.torch.bucket_hook import CommHookState, comm_hook
from byteps_py.torch.compression import Compression, Compressor
from byteps_py.torch.ops import (
    byteps_push_pull,
    byteps_torch_set_num_grads,
    declare,
    empty,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_group_sync_inplace,
    push_pull_inplace,
    synchronize,
)
from byteps_py.torch.optimizer import DistributedOptimizer, SynchronizedOptimizer

_rendezvous.register()

__all__ = [
    "CommHookState",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "SynchronizedOptimizer",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "byteps_torch_set_num_grads",
    "comm_hook",
    "declare",
    "empty",
    "get_pushpull_speed",
    "init",
    "is_initialized",
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
    "stats",
    "step",
    "suspend",
    "synchronize",
]
