"""Several workers in one process: one thread each, with sessions that meet in shared memory.

:func:`run_workers` runs a function once per worker, each with a :class:`FakeSession` that
:func:`byteps_py.session.current` gives out in that thread.  Contributions are summed in rank order as the servers do
it, and the contract of :meth:`byteps_py.session.Session.submit` is checked strictly.  When one worker fails, the waits
of the others fail at once, so no test hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from byteps_py import session as _session
from byteps_py.errors import AgreementError, JobAborted, NotInitializedError, TransportTimeout
from byteps_py.roles.groups import KnownGroups
from byteps_py.roles.lineage import Lineage
from byteps_py.roles.rows import Rows
from byteps_py.types import DType, Operation, TensorSpec

Array = npt.NDArray[Any]
_T = TypeVar("_T")
_DEADLINE_SECONDS = 60.0


@dataclass
class _Round:
    """What has arrived for one round of one tensor: by rank, the source and where the result goes."""

    sources: dict[int, Array | None] = field(default_factory=dict)
    pending: dict[int, FakePending] = field(default_factory=dict)
    claims: dict[int, str] = field(default_factory=dict)
    indices: list[Array] = field(default_factory=list)
    error: str | None = None
    done: bool = False
    callbacks: list[Callable[[], object]] = field(default_factory=list)

    def call_back(self) -> None:
        while self.callbacks:
            self.callbacks.pop()()


class FakePending:
    """Like the session's ``Pending``. The result is written to the output by whichever thread comes last."""

    def __init__(self, job: FakeJob, spec: TensorSpec, output: Array, entry: _Round) -> None:
        self._job, self._spec, self._entry = job, spec, entry
        self.output = output
        self.absent = False
        self.rows: Rows | None = None

    def done(self) -> bool:
        return self._entry.done or self._job.is_broken()

    def sleep(self, seconds: float | None = None) -> None:
        self._job.sleep(lambda: self._entry.done, seconds)

    def call_when_done(self, callback: Callable[[], object]) -> None:
        self._job.call_when_done(self._entry, callback)

    def wait(self) -> Array:
        self._job.wait_for(lambda: self._entry.done, f"tensor {self._spec.name!r}")
        if self._entry.error is not None:
            raise AgreementError(self._entry.error)
        return self.output


@dataclass(frozen=True)
class Submitted:
    """One call of :meth:`FakeSession.submit`."""

    name: str
    operation: Operation
    priority: int
    step: int
    absent: bool


class FakeSession:
    """One worker's session; what was done with it is recorded: questions whether workers agree apart."""

    def __init__(self, job: FakeJob, rank: int) -> None:
        self._job = job
        self._rounds: dict[str, int] = {}
        self._groups = KnownGroups(rank, job.size)
        self.rank = self.local_rank = rank
        self.size = self.local_size = job.size
        self.declared: list[list[TensorSpec]] = []
        self.submitted: list[Submitted] = []
        self.specs: list[TensorSpec] = []
        self.agreements: list[Submitted] = []
        self.arena: list[Array] = []
        self.steps = 0
        self.is_asynchronous = False
        self.lineage = Lineage()
        self.enter: Callable[[], None]
        """Makes the thread that calls it one of this worker's."""

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        self._job.check_life()
        self.declared.append(list(specs))
        for spec in specs:
            if spec.group:
                self._groups.check(spec)
            self._job.check_spec(self.rank, spec)

    def form_group(self, ranks: Sequence[int]) -> int:
        return self._groups.form(ranks, self._job.form_group)

    def submit(
        self,
        spec: TensorSpec,
        source: Array | Rows | None,
        output: Array | None,
        operation: Operation,
        *,
        root: int = 0,
        priority: int = 0,
        step: int = 0,
    ) -> FakePending:
        indices = None
        if isinstance(source, Rows):  # summed as a dense tensor here, of which the rows are taken in the end
            indices, values, output = *source, None
            source = np.zeros(spec.shape, spec.dtype.storage)
            source[indices] = values
        for array in (source, output):
            if array is not None:
                assert array.flags.c_contiguous
                assert array.dtype == spec.dtype.storage
                assert array.size == spec.count
        assert output is None or output.flags.writeable
        self.specs.append(spec)
        if spec.group:
            self._groups.check(spec, operation, root)
        record = self.agreements if spec.name.startswith("Agreement.") else self.submitted
        record.append(Submitted(spec.name, operation, priority, step, source is None))
        self._job.check_spec(self.rank, spec)
        number = self._rounds[spec.name] = self._rounds.get(spec.name, 0) + 1
        copied = None if source is None else source.copy()
        target = np.empty(spec.shape, spec.dtype.storage) if output is None else output
        claim = f"{operation.name} root {root} step {step}"
        return self._job.contribute(self.rank, spec, number, copied, target, operation, root, claim, indices)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        made = np.full(shape, 7, dtype)
        self.arena.append(made)
        return made

    def barrier(self) -> None:
        self._job.barrier.wait(_DEADLINE_SECONDS)

    def mark_step(self, samples: int | None = None, *, automatic: bool = False) -> None:
        self.steps += 1


class FakeJob:
    """What the workers' sessions share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sessions = [FakeSession(self, rank) for rank in range(size)]
        self.barrier = threading.Barrier(size)
        self._condition = threading.Condition()
        self._rounds: dict[tuple[str, int], _Round] = {}
        self._specs: dict[str, tuple[int, TensorSpec]] = {}
        self._groups: dict[tuple[int, ...], int] = {tuple(range(size)): 0}
        self._broken: str | None = None

    def fail(self, reason: str) -> None:
        with self._condition:
            self._broken = self._broken or reason
            self.barrier.abort()
            self._condition.notify_all()
            for entry in self._rounds.values():
                entry.call_back()

    def call_when_done(self, entry: _Round, callback: Callable[[], object]) -> None:
        with self._condition:
            entry.callbacks.append(callback)
            if entry.done or self._broken is not None:
                entry.call_back()

    def wait_for(self, done: Callable[[], bool], what: str) -> None:
        with self._condition:
            if not self._condition.wait_for(lambda: done() or self._broken, _DEADLINE_SECONDS):
                raise TransportTimeout(f"waited {_DEADLINE_SECONDS} s for {what}")
            if not done():
                raise JobAborted(f"while waiting for {what}: {self._broken}")

    def check_life(self) -> None:
        if self._broken is not None:
            raise JobAborted(self._broken)

    def is_broken(self) -> bool:
        return self._broken is not None

    def sleep(self, done: Callable[[], bool], seconds: float | None) -> None:
        with self._condition:
            self._condition.wait_for(lambda: done() or self._broken, seconds)

    def form_group(self, ranks: tuple[int, ...]) -> int:
        """The id of these workers, which rise."""
        with self._condition:
            return self._groups.setdefault(ranks, len(self._groups))

    def check_spec(self, rank: int, spec: TensorSpec) -> None:
        with self._condition:
            other, known = self._specs.setdefault(spec.name, (rank, spec))
        if known != spec:
            sides = f"worker {other} declares {known.describe()}, worker {rank} {spec.describe()}"
            raise AgreementError(f"tensor {spec.name!r}: {sides}")

    def contribute(
        self,
        rank: int,
        spec: TensorSpec,
        number: int,
        source: Array | None,
        output: Array,
        operation: Operation,
        root: int,
        claim: str,
        indices: Array | None = None,
    ) -> FakePending:
        with self._condition:
            entry = self._rounds.setdefault((spec.name, number), _Round())
            entry.claims[rank] = claim
            entry.sources[rank] = source
            if indices is not None:
                entry.indices.append(indices)
            pending = entry.pending[rank] = FakePending(self, spec, output, entry)
            members = next(ranks for ranks, group in self._groups.items() if group == spec.group)
            if len(entry.sources) == len(members):
                if len(set(entry.claims.values())) > 1:
                    sides = ", ".join(f"worker {each} pushes {text}" for each, text in sorted(entry.claims.items()))
                    entry.error = f"tensor {spec.name!r}: {sides}"
                else:
                    _complete(entry, spec.dtype, operation, root)
                entry.done = True
                self._condition.notify_all()
                entry.call_back()
            return pending


def _complete(entry: _Round, dtype: DType, operation: Operation, root: int) -> None:
    present = [array for _, array in sorted(entry.sources.items()) if array is not None]
    if operation is Operation.BROADCAST:
        result = entry.sources[root]
        assert result is not None, "the root of a broadcast has nothing to send"
    elif present:
        result = reduce(dtype, present, len(entry.sources) if operation is Operation.AVERAGE else 1)
    for pending in entry.pending.values():
        pending.absent = not present
        pending.output.reshape(-1)[...] = result.reshape(-1) if present else 0
        if entry.indices:
            some = np.unique(np.concatenate(entry.indices))
            pending.rows = Rows(some, pending.output[some])


def reduce(dtype: DType, sources: Sequence[Array], divisor: int) -> Array:
    """Left fold of ``sources``; 16-bit floats in float32; divided before the one rounding."""
    element: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16) if dtype is DType.BFLOAT16 else dtype.storage
    accumulator = np.dtype(np.float32) if dtype in (DType.FLOAT16, DType.BFLOAT16) else element
    total = sources[0].view(element).astype(accumulator)
    for source in sources[1:]:
        total = total + source.view(element).astype(accumulator)
    if divisor > 1:
        total = total / accumulator.type(divisor) if dtype.is_floating else total // accumulator.type(divisor)
    return np.asarray(total.astype(element)).view(dtype.storage)


def run_workers(size: int, body: Callable[[FakeSession], _T]) -> list[_T]:
    """Run ``body`` once per worker, at the same time; what they return, by rank.

    Raises:
        Exception: the first failure in order of rank that is not the mere echo of another worker's.
    """
    job = FakeJob(size)
    local = threading.local()

    def current() -> FakeSession:
        session: FakeSession | None = getattr(local, "session", None)
        if session is None:
            raise NotInitializedError("this thread is no worker")
        return session

    def work(session: FakeSession) -> _T:
        session.enter = lambda: setattr(local, "session", session)
        session.enter()
        try:
            return body(session)
        except BaseException as error:
            job.fail(f"worker {session.rank} failed: {error!r}")
            raise

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(size) as pool:
        patch.setattr(_session, "current", current)
        futures = [pool.submit(work, session) for session in job.sessions]
        errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda each: isinstance(each, JobAborted)):
        raise error
    return [future.result() for future in futures]
