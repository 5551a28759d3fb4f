"""How large partitions are, and how many of them may be on the way, where nobody has said so.

Small partitions cost messages.  Large ones leave links idle: the results of the first ones come late, the last ones
travel while nothing else does, and what several workers send to one server meanwhile, another server lacks.  Say a
partition of ``p`` bytes costs ``o`` seconds beside its bytes; there are ``M / p`` of them.  With ``n`` workers and
``k`` servers about ``c n max(n, k) p`` bytes' time of a link of ``B`` bytes/s stays unused.  What both take together is
least at::

    p = sqrt(M B o / (c n max(n, k)))

``o / c`` was measured, see docs/performance.md; under a root, a wrong guess costs little, and the estimate of ``B``
need not be good either.  A partition never becomes so small that handling it takes as long as moving it.  Sizes are
powers of two: 64 KiB is what Linux sends of a TCP connection in one go, and a little more takes twice as many steps.

*Windows* are as small as keeps the busiest links busy, those of the workers or, where these are fewer, of the servers:
four partitions for a link.  More would wait in the queues of switches, delay the word that a partition has arrived, and
travel in smaller packets, of which each costs time.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["LARGEST_PARTITION", "SMALLEST_PARTITION", "choose_partition_bytes", "choose_window_bytes"]

LARGEST_PARTITION: Final = 4 << 20
"""Bytes; also the size where no link lies between workers and servers."""

SMALLEST_PARTITION: Final = 8 << 10
"""Bytes: less would be mostly headers of messages and packets."""

_COST: Final = 160e-6
"""Seconds: ``o / c`` in the formula above."""

_HANDLING: Final = 100e-6
"""Seconds of the link that a partition takes at least: about twice what handling it costs a process."""

_MOST_PARTITIONS: Final = 1 << 18
"""Of one model; a batch of declarations may have four times as many."""

_FOR_A_LINK: Final = 4
"""Partitions on the way over one link."""


def choose_partition_bytes(model_bytes: int, workers: int, servers: float, link: float | None) -> int:
    """The size of the partitions of tensors that are declared.

    Args:
        model_bytes: of all tensors declared so far, these included.
        workers: machines that send, at least 1.
        servers: that they send to, at least 1; see :func:`byteps_py.core.seating.effective`.
        link: bytes per second between a worker and servers on other machines; None if all are on one machine.

    Returns:
        Bytes, a power of two.
    """
    if link is None:
        return LARGEST_PARTITION
    best = math.sqrt(model_bytes * link * _COST / (workers * max(workers, servers)))
    least = max(SMALLEST_PARTITION, link * _HANDLING, model_bytes / _MOST_PARTITIONS)
    return min(LARGEST_PARTITION, 1 << round(math.log2(max(best, least))))


def choose_window_bytes(partition_bytes: int, workers: int, servers: int, link: float | None) -> int:
    """How much may be on the way from a worker to a server without being accepted.

    Args:
        partition_bytes: of the largest partitions.
        workers, servers: how many there are.
        link: as of :func:`choose_partition_bytes`.
    """
    if link is None:
        return partition_bytes * max(_FOR_A_LINK, servers)
    return partition_bytes * math.ceil(_FOR_A_LINK / max(workers, servers))
