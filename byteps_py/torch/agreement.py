"""Whether all workers mean the same: found out while work goes on, and told with both sides where they do not.

Each worker adds a digest of what it means, in a place of its own, to a sum of one number per worker.  Only where the
digests differ do the workers tell each other the words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np

from byteps_py import objects
from byteps_py import session as _session
from byteps_py.errors import AgreementError
from byteps_py.roles.pending import Pending
from byteps_py.torch.names import some
from byteps_py.types import DType, Operation, TensorSpec

__all__ = ["Agreement"]

_DIGEST_BYTES: Final = 8


class Agreement:
    """One question, asked when this is made. All workers must ask; nobody waits before :meth:`check`.

    Args:
        session: of this worker.
        topic: what it is about, the same on all workers; it appears in messages, also where one waits in vain.
        lines: what this worker means, in any order.
        advice: what to do where they differ.
    """

    def __init__(self, session: _session.Session, topic: str, lines: Iterable[str], advice: str) -> None:
        self._topic = topic
        self._lines = sorted(lines)
        self._advice = advice
        self._pending: Pending | None = None
        if session.size > 1:
            digests = np.zeros(session.size, np.int64)
            digests[session.rank] = _digest(self._lines)
            spec = TensorSpec(f"Agreement.{topic}", DType.INT64, (session.size,))
            self._pending = session.submit(spec, digests, digests, Operation.SUM)

    def check(self) -> None:
        """Wait for the answers of all workers. All must call it once.

        Raises:
            AgreementError: they differ; the message has what only the one side has and what only the other.
            BytePSError: a worker did not ask, or what else the session raises.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        digests = pending.wait().tolist()
        odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if odd:  # all see the same numbers, so all are here
            first, second = (self._of_worker(rank) for rank in (0, odd[0]))
            raise AgreementError(
                f"{self._topic}: workers do not have the same. Only worker 0 has {_only(first, second)}; "
                f"only worker {odd[0]} has {_only(second, first)}. {self._advice}"
            )

    def _of_worker(self, rank: int) -> list[str]:
        told = objects.broadcast_object(self._lines, rank, f"agreement.{self._topic}")
        assert isinstance(told, list)
        return told


def _digest(lines: Iterable[str]) -> int:
    hashed = hashlib.sha256("\0".join(lines).encode()).digest()
    return int.from_bytes(hashed[:_DIGEST_BYTES], "little", signed=True)


def _only(mine: list[str], theirs: list[str]) -> str:
    others = set(theirs)
    return some([each for each in mine if each not in others]) or "nothing"
