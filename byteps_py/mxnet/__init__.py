"""The MXNet plugin: ``import byteps_py.mxnet as bps``.

::

    bps.init()
    net = make_network()
    bps.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

Whatever it does with an array goes through MXNet's engine: a push waits until the array has been computed, who reads
the array later waits for the result, and the Python thread waits for neither.  See docs/mxnet.md.
"""

from __future__ import annotations

import sys as _sys

import numpy as _np

try:
    import mxnet as _mx  # noqa: F401
except ImportError as error:
    if _sys.version_info >= (3, 12):
        raise ImportError(
            "byteps_py.mxnet needs MXNet 1.9.1, which needs Python 3.10 or 3.11, and this is Python "
            f"{_sys.version_info.major}.{_sys.version_info.minor}: make an environment with one of those"
        ) from error
    raise ImportError(
        "byteps_py.mxnet needs MXNet 1.9.1, and with it NumPy below 1.24 and Python 3.10 or 3.11: "
        "pip install 'byteps_py[mxnet]'"
    ) from error
except AttributeError as error:  # numpy.bool and its like, which NumPy 1.24 has dropped
    if _np.lib.NumpyVersion(_np.__version__) < "1.24.0":
        raise
    raise ImportError(
        f"byteps_py.mxnet needs NumPy below 1.24, since MXNet 1.9.1 cannot be imported with NumPy {_np.__version__}: "
        "pip install 'byteps_py[mxnet]'"
    ) from error

from byteps_py.mxnet.broadcast import broadcast_parameters
from byteps_py.mxnet.compression import Compression, Compressor
from byteps_py.mxnet.engine import shutdown, suspend
from byteps_py.mxnet.ops import byteps_declare_tensor, byteps_push_pull
from byteps_py.mxnet.optimizer import DistributedOptimizer
from byteps_py.mxnet.trainer import DistributedTrainer
from byteps_py.objects import broadcast_object
from byteps_py.session import (
    barrier,
    get_pushpull_speed,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    size,
    stats,
    step,
)
from byteps_py.suspension import resume

__all__ = [
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "DistributedTrainer",
    "barrier",
    "broadcast_object",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "get_pushpull_speed",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "resume",
    "shutdown",
    "size",
    "stats",
    "step",
    "suspend",
]
