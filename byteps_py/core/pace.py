"""What keeps servers with much work and servers with little in step, within one operation.

Acceptances come from all servers equally fast, so without a rule each gets equally many bytes: one with a third of the
work would have all of its own early, and the others' links are idle for what they could have had meanwhile.  A
partition therefore waits while its server is further through its part of the operation than the one that is furthest
behind, by more than a little.

Operations do not wait for each other, so priorities are kept; and the server that is furthest behind never waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from byteps_py.types import Partition

__all__ = ["Step", "steps"]

_UNEVEN = 1.25
"""Where the largest part is this many times the smallest, servers have to wait for each other."""
_AHEAD = 2
"""Partitions by which a server may be ahead."""


class Step(msgspec.Struct, frozen=True, gc=False):
    """How far its server is with an operation when a partition is next.

    Attributes:
        done: part of the server's partitions that came before, from 0 to 1.
        limit: what the one that is furthest behind must have done for this one to go.
    """

    done: float
    limit: float


def steps(partitions: Sequence[Partition]) -> list[Step] | None:
    """For each partition of an operation; None where servers have about equally many, or there is only one."""
    counts = Counter(each.server for each in partitions)
    if max(counts.values()) <= _UNEVEN * min(counts.values()):
        return None
    before: Counter[int] = Counter()
    made = []
    for each in partitions:
        count, place = counts[each.server], before[each.server]
        before[each.server] += 1
        made.append(Step(place / count, (place - _AHEAD) / count))
    return made
