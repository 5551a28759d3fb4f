"""A parameter server for data-parallel training: workers push gradients, servers sum them, workers pull the sum.

::

    import byteps_py as bps

    bps.init()
    total = bps.push_pull(array, "name")
"""

from __future__ import annotations

from importlib.util import find_spec as _find_spec
from warnings import warn as _warn

from byteps_py.errors import (
    AgreementError,
    BytePSError,
    JobAborted,
    JobRefused,
    KernelError,
    MembershipError,
    NotInitializedError,
    ParticipantLeft,
    ProtocolError,
    SettingsError,
    TransportError,
    TransportTimeout,
    UnsupportedError,
)
from byteps_py.objects import broadcast_object
from byteps_py.operations import AVG, SUM, broadcast, declare, poll, push_pull, push_pull_async, synchronize
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
    step,
)
from byteps_py.settings import wants_native_kernels as _wants_native_kernels

__all__ = [
    "AVG",
    "SUM",
    "AgreementError",
    "BytePSError",
    "JobAborted",
    "JobRefused",
    "KernelError",
    "MembershipError",
    "NotInitializedError",
    "ParticipantLeft",
    "ProtocolError",
    "SettingsError",
    "TransportError",
    "TransportTimeout",
    "UnsupportedError",
    "barrier",
    "broadcast",
    "broadcast_object",
    "declare",
    "get_pushpull_speed",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "rank",
    "shutdown",
    "size",
    "step",
    "synchronize",
]

if _find_spec("byteps_py.kernels._native") is None and _wants_native_kernels():
    # Not an error: a single process needs no kernels, and BYTEPS_KERNELS=reference needs no compiler.
    _warn(
        "this byteps_py is a source tree whose C extension was never built: run `pip install -e .` in it",
        RuntimeWarning,
        stacklevel=2,
    )
