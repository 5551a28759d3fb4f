"""How large the partitions of a model should be, where nobody has said so.

Small partitions cost messages.  Large ones leave links idle: the results of the first ones come late, the last ones
travel while nothing else does, and what several workers send to one server meanwhile, another server lacks.  Say a
partition of ``p`` bytes costs ``o`` seconds beside its bytes; there are ``M / p`` of them.  ``n`` workers that fill
windows of ``k`` servers leave about ``c n k p`` bytes' time of a link of ``B`` bytes/s unused.  What both take together
is least at::

    p = sqrt(M B o / (c n k))

``o / c`` was measured, see docs/performance.md; under a root, a wrong guess costs little.  The estimate of ``B`` need
not be good either, for the same reason.  A partition never becomes so small that handling it takes as long as moving
it.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["LARGEST_PARTITION", "SMALLEST_PARTITION", "choose_partition_bytes"]

LARGEST_PARTITION: Final = 4 << 20
"""Bytes; also the size where no link lies between workers and servers, and nothing is known of it."""

SMALLEST_PARTITION: Final = 8 << 10
"""Bytes: less would be mostly headers of messages and packets."""

_COST: Final = 100e-6
"""Seconds: ``o / c`` in the formula above."""

_HANDLING: Final = 100e-6
"""Seconds of the link that a partition takes at least: about twice what handling it costs a process."""

_MOST_PARTITIONS: Final = 1 << 18
"""Of one model; a batch of declarations may have four times as many."""

_GRAIN: Final = 4 << 10


def choose_partition_bytes(model_bytes: int, workers: int, servers: int, link: float | None) -> int:
    """The size of the partitions of tensors that are declared.

    Args:
        model_bytes: of all tensors declared so far, these included.
        workers: machines that send, at least 1.
        servers: that they send to, at least 1.
        link: bytes per second between a worker and servers on other machines; None if all are on one machine.

    Returns:
        Bytes, a multiple of 4096.
    """
    if link is None:
        return LARGEST_PARTITION
    best = math.sqrt(model_bytes * link * _COST / (workers * servers))
    least = max(SMALLEST_PARTITION, link * _HANDLING, model_bytes / _MOST_PARTITIONS)
    grains = math.ceil(max(best, least) / _GRAIN)
    return min(LARGEST_PARTITION, grains * _GRAIN)
