"""``byteps.mxnet``: the names that BytePS has there, and the others of :mod:`byteps_py.mxnet`."""

from __future__ import annotations

from byteps_py.compat import VERSION as __version__
from byteps_py.compat.basics import init, resume
from byteps_py.mxnet import (
    Compression,
    Compressor,
    DistributedOptimizer,
    DistributedTrainer,
    barrier,
    broadcast_object,
    broadcast_parameters,
    byteps_declare_tensor,
    byteps_push_pull,
    get_pushpull_speed,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    stats,
    step,
    suspend,
)

from . import compression, ops  # under the name of this package, whichever that is

__all__ = [
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "DistributedTrainer",
    "__version__",
    "barrier",
    "broadcast_object",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "compression",
    "get_pushpull_speed",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "ops",
    "rank",
    "resume",
    "shutdown",
    "size",
    "stats",
    "step",
    "suspend",
]
