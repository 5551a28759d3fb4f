"""Whether all workers mean the same: found out while work goes on, and told with both sides where they do not.

Each worker puts a digest of what it means, and as much of the words as there is room for, in a place of its own of one
sum.  So whoever sees that they differ can name both sides without asking again: the others may be anywhere by then.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from byteps_py import session as _session
from byteps_py.errors import AgreementError
from byteps_py.roles.pending import Pending
from byteps_py.torch.names import some
from byteps_py.types import DType, Operation, TensorSpec

__all__ = ["Agreement"]

_DIGEST_BYTES: Final = 16
_ALL_BYTES: Final = 32 << 10
"""Of all workers' places; and the least and the most of one:"""
_LEAST_BYTES, _MOST_BYTES = 128, 4096


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
        self._advice = advice
        self._pending: Pending | None = None
        if session.size > 1:
            width = max(_LEAST_BYTES, min(_MOST_BYTES, _ALL_BYTES // session.size))
            places = np.zeros((session.size, width), np.uint8)
            text = "\n".join(sorted(lines)).encode()
            data = (hashlib.sha256(text).digest()[:_DIGEST_BYTES] + zlib.compress(text, 9))[:width]
            places[session.rank, : len(data)] = np.frombuffer(data, np.uint8)
            spec = TensorSpec(f"Agreement.{topic}", DType.UINT8, places.shape)
            self._pending = session.submit(spec, places, places, Operation.SUM)

    def check(self) -> None:
        """Wait for the answers of all workers.

        Raises:
            AgreementError: they differ; the message has what only the one side has and what only the other.
            BytePSError: a worker did not ask, or what else the session raises.
        """
        if self._pending is None:
            return
        places = self._pending.wait()
        different = np.flatnonzero((places[:, :_DIGEST_BYTES] != places[0, :_DIGEST_BYTES]).any(axis=1))
        if different.size:
            odd = int(different[0])
            first, second = _only(_read(places[0]), _read(places[odd]))
            raise AgreementError(
                f"{self._topic}: workers do not have the same. Only worker 0 has {first}; only worker {odd} has "
                f"{second}. {self._advice}"
            )


def _read(place: npt.NDArray[Any]) -> tuple[list[str], str | None]:
    """The lines that one worker has told, and the last of them if there was no room for more."""
    reader = zlib.decompressobj()
    text = reader.decompress(place[_DIGEST_BYTES:].tobytes()).decode(errors="replace")
    lines = text.split("\n")
    if reader.eof:
        return lines, None
    whole = lines[:-1]
    return whole, whole[-1] if whole else ""


def _only(first: tuple[list[str], str | None], second: tuple[list[str], str | None]) -> tuple[str, str]:
    """What only the one has and only the other, as far as both sides are known; lines are sorted."""
    ends = [end for _, end in (first, second) if end is not None]
    known = [[each for each in lines if not ends or each <= min(ends)] for lines, _ in (first, second)]
    found = [_list(known[0], known[1]), _list(known[1], known[0])]
    if found == ["nothing", "nothing"]:
        return (f"other names after the first {len(known[0])}",) * 2
    return found[0], found[1]


def _list(mine: Sequence[str], theirs: Sequence[str]) -> str:
    others = set(theirs)
    return some([each for each in mine if each not in others]) or "nothing"
