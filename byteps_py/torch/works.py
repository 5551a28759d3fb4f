"""Operations of ``torch.distributed`` on their way.

Whoever waits for a :class:`Work` looks after its operations itself: there is no order in which works must be waited
for.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.distributed.distributed_c10d import Work as _TorchWork

from byteps_py.errors import NotInitializedError, TransportTimeout
from byteps_py.roles.pending import Sleeper, is_done_by
from byteps_py.torch.futures import Completer

__all__ = ["Waitable", "Work"]


class Waitable(Sleeper, Protocol):
    """What a work needs of :class:`byteps_py.roles.pending.Pending`."""

    def wait(self) -> Any:
        """Block until it is done; raises why it failed."""


class Work(_TorchWork):
    """One call of ``torch.distributed`` under way. Any thread.

    Args:
        what: the call, as messages name it.
        waiting: its operations.
        finish: brings the results to the caller's tensors; called once, by whoever finds all operations done; may
            raise what is amiss with them.
        seconds: how long it may take; None for as long as the session allows.
        completer: of its future.
        tensors: what :meth:`result` and the future give.
        source: the rank in its group from which it receives.
    """

    def __init__(
        self,
        what: str,
        waiting: Sequence[Waitable],
        finish: Callable[[], object],
        seconds: float | None,
        completer: Completer,
        tensors: Sequence[torch.Tensor] = (),
        source: int = -1,
    ) -> None:
        super().__init__()
        self._what = what
        self._waiting = tuple(waiting)
        self._finish: Callable[[], object] | None = finish
        self._seconds = seconds
        self._completer = completer
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._tensors = list(tensors)
        self._source = source
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._pid = os.getpid()

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Block until the results are in the caller's tensors; True.

        Args:
            timeout: shorter than that of the process group; zero and less (as torch passes it for "none") mean that of
                the group, which counts from the call.

        Raises:
            BytePSError: why it cannot be done; the same at each call.
            TransportTimeout: it is not done yet. It goes on, and can be waited for again.
            NotInitializedError: this is a forked child of the process that made the call.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        until, limit = self._deadline, self._seconds
        if seconds > 0 and (until is None or time.monotonic() + seconds < until):
            until, limit = time.monotonic() + seconds, seconds
        self._complete(until, limit)
        return True

    def synchronize(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether :meth:`wait` would return or raise at once."""
        if self._finish is None:
            return True
        if not all(each.done() for each in self._waiting):
            return False
        try:
            self.wait()
        except Exception:
            return self._finish is None
        return True

    def is_success(self) -> bool:
        """Whether it is done, and without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Why it failed; None if it has not."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The caller's tensors that hold the results, once it is done."""
        return list(self._tensors)

    def source_rank(self) -> int:
        """For a receive: the rank in the group that has sent; otherwise -1."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of :meth:`result`; waiting for it raises a RuntimeError with the text of what :meth:`wait` would.

        Raises:
            NotInitializedError: this is a forked child of the process that made the call.
        """
        self._check_process()
        return self._completer.future(self.wait, self.result)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise NotInitializedError("this process was forked from a worker, which alone can wait for this")

    def _complete(self, until: float | None, limit: float | None) -> None:
        self._check_process()
        if not self._lock.acquire(timeout=-1 if until is None else max(0.0, until - time.monotonic())):
            raise self._late(limit)
        try:
            if self._finish is not None:
                self._wait_for_all(until, limit)
                self._settle()
        finally:
            self._lock.release()
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _wait_for_all(self, until: float | None, limit: float | None) -> None:
        for each in self._waiting:
            if not is_done_by(each, until):
                raise self._late(limit)

    def _settle(self) -> None:
        """All operations are done, or have failed."""
        finish, error = self._finish, None
        assert finish is not None
        try:
            with torch.no_grad():
                for each in self._waiting:
                    each.wait()
                finish()
        except Exception as caught:
            error = caught
        # In this order: who sees that there is nothing to finish any more looks at the error.
        self._error, self._waiting = error, ()
        self._finish = None

    def _late(self, limit: float | None) -> TransportTimeout:
        return TransportTimeout(
            f"{self._what} is not done within {limit:g} s: not all members of the process group have made the call, or "
            "they are slow; see their output, and init_process_group(timeout=...) for a longer time"
        )
