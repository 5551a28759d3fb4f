"""Asynchronous training with MXNet: what a worker's own updates change is added to what the servers hold.

Before an update the weights are copied; after it, what has changed is pushed, and the weights become what the servers
hold then.  All of it is done by MXNet's engine, in the order in which it is written down here; the Python thread waits
for none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from byteps_py.errors import UnsupportedError
from byteps_py.mxnet.ops import start
from byteps_py.session import Session, current
from byteps_py.types import Operation

__all__ = ["Differences"]


class Differences:
    """The weights of one optimizer that the servers hold.  Not thread-safe.

    Args:
        session: of this worker.
        number: of the optimizer, as :class:`~byteps_py.operations.Numbering` gives it: weights are called
            ``weight<number>_<index>``.
        root: the worker whose weights the servers begin with.
    """

    def __init__(self, session: Session, number: str, root: int = 0) -> None:
        self._session = session
        self._number = number
        self._root: Final = root
        self._seeded: set[Any] = set()
        self._steps = 0

    def before(self, indices: Sequence[Any], weights: Sequence[Any], *, has_masters: bool) -> list[Any]:
        """Copies of ``weights``, which an update is to change. Those of a new index are seeded first, by all workers.

        Args:
            indices: which they are, equal on all workers.
            weights: NDArrays.
            has_masters: whether the optimizer keeps copies in float32 of those in float16.

        Raises:
            UnsupportedError: a weight cannot be pushed, or has such a copy, which nobody would change.
            BytePSError: an earlier push has failed.
        """
        if self._session is not (session := current()):  # after a resume() the servers begin anew
            self._session, self._steps = session, 0
            self._seeded.clear()
        copies = []
        for index, weight in zip(indices, weights, strict=True):
            if has_masters and weight.dtype == np.float16:
                raise UnsupportedError(
                    f"weight {index} is float16 and its optimizer keeps it in float32 (multi_precision): with "
                    "BYTEPS_ENABLE_ASYNC=1 it would not see what other workers add; use float32, or no multi_precision"
                )
            if index not in self._seeded:
                self._seeded.add(index)
                contributes = self._session.rank == self._root
                start(
                    self._session, weight, self._name(index), Operation.SEED, root=self._root, contributes=contributes
                )
            copies.append(weight.copy())
        return copies

    def after(
        self, indices: Sequence[Any], weights: Sequence[Any], copies: Sequence[Any], counts: Sequence[bool]
    ) -> None:
        """Push what an update has changed, and take what the servers hold then.

        Args:
            indices, weights: as before the update.
            copies: what :meth:`before` gave.
            counts: for each weight, whether it was updated.

        Raises:
            BytePSError: an earlier push has failed.
        """
        for index, weight, copy, contributes in zip(indices, weights, copies, counts, strict=True):
            difference = weight - copy
            priority = -index if isinstance(index, int) else 0
            start(
                self._session,
                difference,
                self._name(index),
                Operation.DIFFERENCE,
                priority=priority,
                version=self._steps,
                contributes=contributes,
            )
            weight[:] = difference  # by now the answer
        self._steps += 1

    def _name(self, index: Any) -> str:
        return f"weight{self._number}_{index}"
