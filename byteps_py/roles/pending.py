"""What a caller holds while an operation is on its way."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_py.errors import NotInitializedError
from byteps_py.types import TensorSpec

__all__ = ["Pending", "Signal"]


class Signal:
    """Something that happens once, or fails. Any thread may wait; the worker's thread sets it."""

    __slots__ = ("_error", "_event", "_pid")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._pid = os.getpid()
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether :meth:`wait` would return or raise at once."""
        return self._event.is_set()

    def wait(self) -> None:
        """Block until it has happened.

        There is no deadline here: the worker's thread watches all that is outstanding, says what it waits for, and
        fails it in the end.

        Raises:
            BytePSError: why it cannot happen any more.
            NotInitializedError: this is a forked child of the process that started it, where it cannot happen.
        """
        if os.getpid() != self._pid and not self._event.is_set():
            raise NotInitializedError("this process was forked from a worker, which alone can wait for this")
        self._event.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)

    def complete(self) -> None:
        """It has happened."""
        self._event.set()

    def fail(self, error: BaseException) -> None:
        """It cannot happen any more. The first outcome counts."""
        if not self._event.is_set():
            self._error = error
            self._event.set()


class Pending:
    """A tensor operation on its way.

    Attributes:
        spec: the tensor.
        output: C-contiguous array of ``spec.dtype.storage`` with ``spec.count`` elements; holds the result after
            :meth:`wait` and must not be touched before.
        absent: after :meth:`wait`, whether no worker contributed anything; ``output`` is zero then.
    """

    __slots__ = ("_signal", "absent", "output", "spec")

    def __init__(self, spec: TensorSpec, output: npt.NDArray[Any] | None) -> None:
        self.spec = spec
        self.output: npt.NDArray[Any] = np.empty(spec.shape, spec.dtype.storage) if output is None else output
        self.absent = False
        self._signal = Signal()

    def done(self) -> bool:
        """Whether :meth:`wait` would return or raise at once."""
        return self._signal.done()

    def wait(self) -> npt.NDArray[Any]:
        """Block until the result is in :attr:`output`, and return that.

        Raises:
            AgreementError: workers disagree about the tensor or the operation.
            ParticipantLeft: a worker left whose contribution is needed.
            JobAborted, TransportTimeout: the job cannot go on.
        """
        self._signal.wait()
        return self.output

    def complete(self, absent: bool) -> None:
        """The result is in :attr:`output`."""
        self.absent = absent
        self._signal.complete()

    def fail(self, error: BaseException) -> None:
        """The result will never come."""
        self._signal.fail(error)
