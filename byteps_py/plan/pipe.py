"""What an exchange loses while its pipe fills and drains, and while servers wait for what others are sent meanwhile.

``n`` workers and ``k`` servers with partitions of ``p`` bytes leave links idle for as long as about ``c n max(n, k) p``
bytes take (see :mod:`byteps_py.core.partition_size`); of a model of ``M`` bytes that is the part
``x = c n max(n, k) p / M``.  With few partitions it cannot go on growing like that: an exchange whose partitions do not
overlap at all is a push and then a pull, which take twice the time.  ``x / sqrt(1 + x^2)`` has both limits.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["idle_part"]

_FILL: Final = 1.7
"""``c`` above, with windows as the scheduler chooses them. Seen with links of 200 Mbit/s, a model of 25 MB and
partitions of 64 KiB, four workers: 1.06 times M / B with four servers, 1.05 times 2 M / B with two, 1.05 times
1.5 M / B with four beside the workers, 1.16 times 1.2 M / B with two more."""


def idle_part(partition_bytes: float, model_bytes: float, workers: int, servers: float) -> float:
    """How much longer than its bytes take an exchange is, over links: 0.1 for a tenth.

    Args:
        partition_bytes: of a partition.
        model_bytes: of all tensors, above 0.
        workers: senders, one for each machine whose workers sum first.
        servers: that they send to; see :func:`byteps_py.core.seating.effective`.
    """
    idle = _FILL * workers * max(workers, servers) * min(1.0, partition_bytes / model_bytes)
    return idle / math.sqrt(1.0 + idle * idle)
