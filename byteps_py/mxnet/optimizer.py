"""Any optimizer of MXNet, on gradients that are averaged over all workers first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import mxnet as mx

from byteps_py import session as _session
from byteps_py.errors import UnsupportedError
from byteps_py.mxnet.asynchronous import Differences
from byteps_py.mxnet.ops import numbering, start
from byteps_py.mxnet.rows import is_rows, start_rows
from byteps_py.types import Operation

__all__ = ["DistributedOptimizer"]

_OWN: Final = frozenset(
    {"update", "update_multi_precision", "wrapped", "_average", "_alone", "_mark", "_differences", "_number", "_seen"}
)


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Averages each gradient over all workers, in place, and then lets another optimizer update the weight.

    Everything else is the other's: attributes that are read and set, states, learning rates.  It is for ``Module`` and
    for update loops of one's own; with gluon use :class:`~byteps_py.mxnet.trainer.DistributedTrainer`.

    Gradients are called ``gradient_<index>``, and their priority is ``-index``.  Those of the second optimizer of a
    process are called ``gradient2_<index>`` and so on, so the workers must make them in the same order.  Not
    thread-safe.

    With ``BYTEPS_ENABLE_ASYNC=1`` the other one updates the weight by the gradient of this worker alone, and what it
    has changed is added to the weight that the servers hold, called ``weight_<index>``; see docs/asynchronous.md.

    Args:
        optimizer: the other.

    Attributes:
        wrapped: the other.

    Raises:
        TypeError: it is no optimizer, or already distributed.
        NotInitializedError: ``init()`` has not been called.
    """

    def __init__(self, optimizer: Any) -> None:  # the base's would set attributes of the other
        if isinstance(optimizer, DistributedOptimizer) or not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(
                "DistributedOptimizer takes an optimizer of MXNet, such as mx.optimizer.create('sgd'), "
                f"not a {type(optimizer).__qualname__}"
            )
        object.__setattr__(self, "wrapped", optimizer)
        object.__setattr__(self, "_number", numbering.next(_session.current()))
        object.__setattr__(self, "_seen", set())
        object.__setattr__(self, "_differences", None)

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "wrapped"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.wrapped, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.wrapped, name)

    def __getstate__(self) -> tuple[Any, str]:
        return self.wrapped, self._number

    def __setstate__(self, state: tuple[Any, str]) -> None:
        for name, each in zip(("wrapped", "_number"), state, strict=True):
            object.__setattr__(self, name, each)
        object.__setattr__(self, "_seen", set())
        object.__setattr__(self, "_differences", None)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average ``grad`` (an NDArray, or a list of them as ``index`` is one), then update ``weight``.

        Raises:
            UnsupportedError: a gradient cannot be pushed, such as one on a GPU.
            BytePSError: an earlier push has failed.
        """
        if _session.current().is_asynchronous:
            self._alone(index, weight, lambda: self.wrapped.update(index, weight, grad, state), has_masters=False)
            return
        self._average(index, grad)
        self.wrapped.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As :meth:`update`, with a copy of the weight in float32 where the optimizer has one."""
        if _session.current().is_asynchronous:
            masters = bool(self.wrapped.multi_precision)
            update = self.wrapped.update_multi_precision
            self._alone(index, weight, lambda: update(index, weight, grad, state), has_masters=masters)
            return
        self._average(index, grad)
        self.wrapped.update_multi_precision(index, weight, grad, state)

    def _alone(self, index: Any, weight: Any, update: Callable[[], None], *, has_masters: bool) -> None:
        """Update by this worker's gradient, add the difference to what the servers hold, and take that."""
        session = _session.current()
        if self._differences is None:
            object.__setattr__(self, "_differences", Differences(session, self._number))
        are_many = isinstance(index, list | tuple)
        indices: Sequence[Any] = index if are_many else [index]
        weights: Sequence[Any] = weight if are_many else [weight]
        copies = self._differences.before(indices, weights, has_masters=has_masters)
        update()
        self._differences.after(indices, weights, copies, [True] * len(copies))
        self._mark(session, indices)

    def _average(self, index: Any, grad: Any) -> None:
        session = _session.current()
        are_many = isinstance(index, list | tuple)
        indices: Sequence[Any] = index if are_many else [index]
        grads: Sequence[Any] = grad if are_many else [grad]
        if len(indices) != len(grads):
            raise UnsupportedError(f"{len(indices)} indices and {len(grads)} gradients were given: one index for each")
        rows = []
        for number, each in zip(indices, grads, strict=True):
            name, priority = f"gradient{self._number}_{number}", -number if isinstance(number, int) else 0
            if is_rows(each):
                rows.append(start_rows(session, each, name, Operation.AVERAGE, priority=priority))
            else:
                start(session, each, name, Operation.AVERAGE, priority=priority)
        for work in rows:
            work.wait()
        self._mark(session, indices)

    def _mark(self, session: _session.Session, indices: Sequence[Any]) -> None:
        # Nobody says where a step begins, but it has each index once.
        if not self._seen or not self._seen.isdisjoint(indices):
            self._seen.clear()
            session.mark_step(automatic=True)
        self._seen.update(indices)
