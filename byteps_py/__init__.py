"""A parameter server for data-parallel training: workers push gradients, servers sum them, workers pull the sum.

::

    import byteps_py as bps

    bps.init()
    total = bps.push_pull(array, "name")
"""

from __future__ import annotations

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
