"""The copy of a large result into the caller's memory, during which others may go on."""

from __future__ import annotations

import threading
import time
from typing import Final

import numpy as np
import numpy.typing as npt

from byteps_py.errors import RemoteProtocolError
from byteps_py.kernels import Kernels
from byteps_py.roles.pieces import slice_of
from byteps_py.roles.rows import received_rows
from byteps_py.roles.tensors import TensorOperation
from byteps_py.telemetry.stages import WorkerTimes
from byteps_py.transport.base import Message
from byteps_py.types import Partition
from byteps_py.wire.header import Flag, Header

__all__ = ["CopyOut"]

_LONG_COPY: Final = 65536
"""Bytes from which the lock is let go during a copy."""
_FAR_BYTES: Final = 1 << 24
"""Bytes of other results, between two of one tensor, from which the caches do not keep a result until it is needed."""


class CopyOut:
    """Copies results out.

    Args:
        kernels: copy.
        threads: how many may share a copy.
        lock: an RLock held once by the caller, and let go during a long copy: what the caller looked up before must be
            looked up again.  None where there is one thread only.
        times: where the copies are counted and timed; None where they are not.
    """

    def __init__(self, kernels: Kernels, threads: int, lock: threading.RLock | None, times: WorkerTimes | None) -> None:
        self._kernels = kernels
        self._threads = threads
        self._lock = lock
        self._times = times
        self._keys: set[int] = set()
        self._copied_bytes = 0
        self._copied_before: dict[int, int] = {}

    def result(
        self,
        operation: TensorOperation,
        partition: Partition,
        header: Header,
        payload: memoryview | None,
        message: Message,
    ) -> bool:
        """Write the RESULT of ``partition`` to where the operation has its output, or keep the rows that it brings.

        Returns:
            False as :meth:`__call__`.

        Raises:
            RemoteProtocolError: as there; or the result is rows and the contribution is not, or the other way round.
        """
        spec = operation.tensor.spec
        if header.flags & Flag.ROWS:
            if operation.contributes and operation.rows is None:
                raise RemoteProtocolError(f"a result for {spec.name!r} that is rows, of contributions that are not")
            operation.arrived[partition.key] = received_rows(spec, header, payload, message)
            return True
        if operation.rows is not None:
            raise RemoteProtocolError(f"a result for {spec.name!r} that is not rows, of contributions that are")
        target = slice_of(operation, operation.output, partition)
        return self(operation, partition.key, target, None if header.flags & Flag.ABSENT else payload, message)

    def __call__(
        self,
        operation: TensorOperation,
        key: int,
        target: npt.NDArray[np.uint8],
        payload: memoryview | None,
        message: Message,
    ) -> bool:
        """Write ``payload``, a frame of ``message``, to ``target``, a part of the output; None is zero everywhere.

        If the operation fails meanwhile, its caller is told when the copy is over, and may use its memory then.

        Returns:
            False, and nothing is done, if a copy of the same result is under way on another thread.

        Raises:
            RemoteProtocolError: the memory behind the message changed meanwhile; ``target`` holds anything.
        """
        if key in self._keys:
            return False
        if payload is None:
            target.fill(0)
        elif target.nbytes:
            self._keys.add(key)
            operation.copying += 1
            begun = 0.0 if self._times is None else time.monotonic()
            try:
                self.copy(target, payload, message, far=self._is_far(key, target.nbytes))
                if self._times is not None:
                    self._times.copied_out(key, begun)
            finally:
                operation.copied_out()
                self._keys.discard(key)
        return True

    def copy(self, target: npt.NDArray[np.uint8], payload: memoryview, message: Message, *, far: bool = False) -> None:
        """Copy and nothing else; the caller sees to it that no other thread does the same. ``far``: past the caches.

        Raises:
            RemoteProtocolError: as above.
        """
        self._copy(target, payload, far)
        if not message.intact():
            raise RemoteProtocolError("a result that changed while it was copied")

    def _copy(self, target: npt.NDArray[np.uint8], payload: memoryview, far: bool) -> None:
        if self._lock is None or target.nbytes < _LONG_COPY:
            self._kernels.copy(target, payload, target.nbytes, self._threads)
            return
        try:
            self._lock.release()
            self._kernels.copy(target, payload, target.nbytes, self._threads, far=far)
        finally:
            self._take_back(self._lock)

    def _is_far(self, key: int, nbytes: int) -> bool:
        """Whether so much was copied since the last result of this partition, as in a step of training with a large
        model, that the one of now will not be in the caches either when the step comes to use it."""
        before = self._copied_before.get(key)
        self._copied_bytes += nbytes
        self._copied_before[key] = self._copied_bytes
        return before is not None and self._copied_bytes - before >= _FAR_BYTES

    @staticmethod
    def _take_back(lock: threading.RLock) -> None:
        """The caller has the lock again, whatever interrupts this; the interruption is raised then."""
        interruption: BaseException | None = None
        while not lock._is_owned():  # type: ignore[attr-defined]
            try:
                lock.acquire()
            except BaseException as error:
                interruption = error
        if interruption is not None:
            raise interruption
