"""The copy of a result into the caller's memory."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from byteps_py import kernels
from byteps_py.errors import JobAborted, RemoteProtocolError
from byteps_py.roles.copy_out import CopyOut
from byteps_py.roles.pending import Pending
from byteps_py.roles.tensors import Tensor, TensorOperation
from byteps_py.telemetry.stages import WorkerTimes
from byteps_py.transport.base import Message
from byteps_py.types import DType, Operation, TensorSpec

WHOLE = Message(b"server-0", [])
SPEC = TensorSpec("w", DType.UINT8, (8,))


class Changed:
    """The stamp of memory that was changed meanwhile."""

    def intact(self) -> bool:
        return False


class Watching:
    """Kernels that note whether another thread could take the lock."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.held: list[bool] = []
        self.far: list[bool] = []
        self.during = lambda: None
        self.copy_for_real = kernels.select("reference").copy

    def copy(self, out: object, source: object, nbytes: int, threads: int, *, far: bool = False) -> None:
        self.far.append(far)
        other = threading.Thread(target=self._try)
        other.start()
        other.join(10)
        self.during()
        self.copy_for_real(out, source, nbytes, threads)

    def _try(self) -> None:
        taken = self.lock.acquire(blocking=False)
        self.held.append(not taken)
        if taken:
            self.lock.release()


def operation() -> TensorOperation:
    return TensorOperation(
        Tensor(SPEC), Pending(SPEC, None), operation=Operation.SUM, root=0, priority=0, step=0, staging=None
    )


def test_the_lock_is_let_go_for_long_copies_only() -> None:
    lock = threading.RLock()
    watching = Watching(lock)
    copy_out = CopyOut(watching, 1, lock, None)  # type: ignore[arg-type]
    with lock:
        for size in (100, 1 << 20):
            target = np.zeros(size, np.uint8)
            assert copy_out(operation(), 1, target, memoryview(b"\7" * size), WHOLE)
            assert target.min() == 7
    assert watching.held == [True, False]


def test_results_of_a_step_that_moves_more_than_the_caches_hold_are_written_past_them() -> None:
    lock = threading.RLock()
    watching = Watching(lock)
    copy_out = CopyOut(watching, 1, lock, None)  # type: ignore[arg-type]
    target, payload = np.zeros(6 << 20, np.uint8), memoryview(bytes(6 << 20))
    with lock:
        for key in (0, 1, 0, 1, 2, 0, 1, 2, 2, 2):
            assert copy_out(operation(), key, target, payload, WHOLE)
        assert copy_out(operation(), 1, target[:8], payload[:8], WHOLE)
    assert watching.far == [False] * 2 + [False] * 3 + [True] * 3 + [False] * 2 + [False]


def test_what_is_absent_is_zero() -> None:
    target = np.ones(8, np.uint8)
    times = WorkerTimes()
    CopyOut(kernels.select("reference"), 1, None, times)(operation(), 1, target, None, WHOLE)
    assert target.tolist() == [0] * 8
    assert times.copy_out.count == 0


def test_memory_that_changed_is_an_error() -> None:
    copy_out = CopyOut(kernels.select("reference"), 1, None, WorkerTimes())
    changed = Message(b"server-0", [], Changed())
    mine = operation()
    with pytest.raises(RemoteProtocolError, match="changed"):
        copy_out(mine, 1, np.zeros(4, np.uint8), memoryview(bytes(4)), changed)
    assert mine.copying == 0
    assert copy_out(mine, 1, np.zeros(4, np.uint8), memoryview(bytes(4)), WHOLE)


def test_who_fails_meanwhile_is_told_when_nothing_writes_to_the_memory_any_more() -> None:
    lock = threading.RLock()
    watching = Watching(lock)
    copy_out = CopyOut(watching, 1, lock, None)  # type: ignore[arg-type]
    mine = operation()
    over: list[bool] = []

    def fail() -> None:
        mine.fail(JobAborted("why"))
        over.append(mine.pending.over())

    watching.during = fail  # type: ignore[assignment]
    with lock:
        copy_out(mine, 1, np.zeros(8, np.uint8), memoryview(bytes(8)), WHOLE)
    assert over == [False]
    with pytest.raises(JobAborted, match="why"):
        mine.pending.wait()


def test_one_copy_of_a_key_at_a_time() -> None:
    lock = threading.RLock()
    watching = Watching(lock)
    copy_out = CopyOut(watching, 1, lock, None)  # type: ignore[arg-type]
    target, again = np.zeros(8, np.uint8), []

    def second() -> None:
        again.append(copy_out(operation(), 1, target, memoryview(b"22222222"), WHOLE))

    watching.during = second  # type: ignore[assignment]
    with lock:
        assert copy_out(operation(), 1, target, memoryview(b"11111111"), WHOLE)
    assert again == [False]
    assert bytes(target) == b"11111111"


def test_an_interruption_is_raised_when_the_lock_is_there_again() -> None:
    class Interrupting:
        """An RLock whose first attempt to take it is interrupted."""

        def __init__(self) -> None:
            self.lock = threading.RLock()
            self.interrupted = False

        def acquire(self) -> bool:
            if not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            return self.lock.acquire()

        def release(self) -> None:
            self.lock.release()

        def _is_owned(self) -> bool:
            return self.lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    lock = Interrupting()
    copy_out = CopyOut(kernels.select("reference"), 1, lock, None)  # type: ignore[arg-type]
    mine, target = operation(), np.zeros(1 << 20, np.uint8)
    lock.lock.acquire()
    with pytest.raises(KeyboardInterrupt):
        copy_out(mine, 1, target, memoryview(b"\7" * (1 << 20)), WHOLE)
    assert lock._is_owned()
    assert mine.copying == 0
    lock.release()
    assert target.min() == 7
