"""Membership of this process in a job: join, leave, rank and size.

Module functions act on the one session of this process (``byteps_py.operations`` has those on arrays); plugins
for frameworks build on :class:`Session`, which :func:`current` returns.  All functions may be called by any thread,
and only in the process that called :func:`init`: a forked child has no session.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from byteps_py.errors import UnsupportedError
from byteps_py.roles.farewell import Farewell
from byteps_py.roles.groups import KnownGroups
from byteps_py.roles.holder import Holder
from byteps_py.roles.joining import AnyWorker, join
from byteps_py.roles.lineage import Lineage
from byteps_py.roles.pending import Pending
from byteps_py.roles.rows import Rows
from byteps_py.roles.step_count import StepCount
from byteps_py.roles.worker_stats import worker_stats
from byteps_py.telemetry.metrics import SpeedRecord
from byteps_py.telemetry.recorder import Recorder
from byteps_py.types import DType, Operation, TensorSpec, check_shape

__all__ = [
    "Session",
    "barrier",
    "current",
    "get_pushpull_speed",
    "holder",
    "init",
    "is_initialized",
    "leave_at_exit",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "stats",
    "step",
]

_log = logging.getLogger("byteps_py.worker")
_LAST_STEP: Final = 2**64 - 1


class Session:
    """This process's membership in a job.  Methods may be called by any thread.

    Attributes:
        rank, size, local_rank, local_size: place among all worker processes, or this machine's, and their number.
        is_asynchronous: whether the servers hold parameters, which :data:`~byteps_py.types.Operation.SEED` gives them.
        lineage: what this session has in common with those before and after it, by ``suspend()`` and ``resume()``.
        specs: what was pushed so far, by name: looking it up is quicker than making it.
    """

    def __init__(
        self,
        worker: AnyWorker,
        rank: int = 0,
        size: int = 1,
        local_rank: int = 0,
        local_size: int = 1,
        farewell: Farewell | None = None,
        recorder: Recorder | None = None,
        lineage: Lineage | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.is_asynchronous = worker.asynchrony.is_on
        self.lineage = Lineage() if lineage is None else lineage
        self.specs: dict[str, TensorSpec] = {}
        self._worker = worker
        self._groups = KnownGroups(rank, size)
        self._submit = worker.submit
        self._farewell = farewell
        self._recorder = recorder
        self._count = StepCount(recorder)

    @property
    def steps(self) -> int:
        """How many :meth:`mark_step` counted."""
        return self._count.steps

    @property
    def samples(self) -> int:
        """How many :meth:`mark_step` was told of."""
        return self._count.samples

    @property
    def speed(self) -> SpeedRecord:
        """How many bytes have been summed, over time."""
        return self._worker.speed

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """Declare tensors in one batch, so that they are spread evenly over the servers; waits until that is done.

        Raises:
            AgreementError: a name has another dtype, shape or group here or on another worker; both sides are named.
            ValueError: this process has not formed the group.
        """
        for each in specs:
            if each.group:
                self._groups.check(each)
        self._worker.declare(specs)
        self.lineage.note(specs)

    def form_group(self, ranks: Sequence[int]) -> int:
        """The id of a group of workers, for :class:`~byteps_py.types.TensorSpec`; waits until all servers know it.

        Every member calls it, nobody else, and it waits for no other worker.  The same set of ranks has the same id on
        all workers, whenever they ask; asking again costs nothing.

        Args:
            ranks: of the members, in any order; contributions are summed in that of the ranks. All workers are group 0.

        Raises:
            ValueError: a rank is no worker's or is there twice, or this worker's own is not.
            TypeError: a rank is no whole number.
            MembershipError: the job cannot have so many groups.
            BytePSError: the job has ended.
        """
        return self._groups.form(ranks, self._worker.form_group)

    def submit(
        self,
        spec: TensorSpec,
        source: npt.NDArray[Any] | Rows | None,
        output: npt.NDArray[Any] | None,
        operation: Operation,
        *,
        root: int = 0,
        priority: int = 0,
        step: int = 0,
    ) -> Pending:
        """Start one operation on one tensor and return at once.

        Args:
            spec: name, dtype, shape and group; a name that was not declared is declared on the way.
            source: C-contiguous array of ``spec.dtype.storage`` with ``spec.count`` elements, copied before this
                returns; or rows, then this worker's own no more. None contributes nothing: it counts as zero, and for
                BROADCAST, which knows no rows, it is what all but the root pass.
            output: writable C-contiguous array like ``source``, and possibly the same, that receives the result; it
                must not be touched before the operation is done. None makes a new array of ``spec.shape``. Where
                workers contribute rows the result is in ``rows`` of what is returned.
            operation: must be the same on all workers (of the group), as must ``root`` and ``step``; but a DIFFERENCE
                waits for nobody, and its ``step`` is its sender's.
            root: for BROADCAST and SEED, whose contribution is the result.
            priority: higher goes first where several wait.
            step: the training step, as the caller counts it.

        Raises:
            AgreementError: the name has another dtype, shape or group in this process.
            UnsupportedError: the name or the shape is impossible; or it is a SEED or a DIFFERENCE, and the job is not
                asynchronous; or it is no sum, and ``source`` is rows.
            TypeError: ``root``, ``priority`` or ``step`` is no whole number.
            ValueError: there is no worker ``root`` (in the group), ``step`` is no number from 0 to 2**64 - 1, or this
                process has not formed the group.
            BytePSError: the job has ended.
        """
        if type(operation) is not Operation:
            operation = Operation(operation)
        if not type(root) is type(priority) is type(step) is int:
            root, priority, step = operator.index(root), operator.index(priority), operator.index(step)
        if operation > Operation.AVERAGE:
            self._check_no_sum(spec, source, operation)
        if not 0 <= root < self.size:
            raise ValueError(f"root {root} is not a worker: ranks are 0 to {self.size - 1}")
        if not 0 <= step <= _LAST_STEP:
            raise ValueError(f"step (version) must be a number from 0 to 2**64 - 1, not {step}")
        if spec.group:
            self._groups.check(spec, operation, root)
        return self._submit(spec, source, output, operation, root=root, priority=priority, step=step)

    def _check_no_sum(self, spec: TensorSpec, source: npt.NDArray[Any] | Rows | None, operation: Operation) -> None:
        """Whether this job can do ``operation``, and with rows.

        Raises:
            UnsupportedError: no.
        """
        if (objection := self._worker.asynchrony.objection(operation)) is not None:
            raise objection
        if isinstance(source, Rows):
            raise UnsupportedError(
                f"tensor {spec.name!r}: rows can be summed or averaged, and not be pushed by {operation.name}: push "
                "all elements"
            )

    def empty(self, shape: Sequence[int] | int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """A writable C-contiguous array of any content; pushes of it, and of parts of it that are C-contiguous, need
        no copy where servers are on this machine.

        It lies in memory that they can read (and nobody else), so it must not be changed between a push and its end.
        It may be ``output`` of the same operation, and is valid as long as it is referenced, also after the session
        has ended; a forked child cannot use it.  ``uint16`` is for the bits of bfloat16.

        Raises:
            UnsupportedError: arrays of this dtype cannot be pushed.
            TypeError, ValueError: that is no shape.
            TransportError: there is no memory left.
        """
        wanted: np.dtype[Any] = np.dtype(dtype)
        if wanted != DType.BFLOAT16.storage:
            DType.from_numpy(wanted)
        return self._worker.empty(check_shape(shape), wanted)

    def barrier(self) -> None:
        """Wait until every worker has called this as often as this one."""
        self._worker.barrier()

    def mark_step(self, samples: int | None = None, *, automatic: bool = False) -> None:
        """Count a finished training step, and the samples that this worker trained on in it.

        Args:
            samples: how many.
            automatic: an optimizer says so, not the script.  A script that marks its steps itself knows better: then
                those that optimizers have marked, before and from then on, do not count.

        Raises:
            TypeError, ValueError: ``samples`` is no number from 0 on. Nothing is counted.
        """
        self._count.mark(samples, automatic=automatic)

    def stats(self) -> dict[str, Any]:
        """See :func:`stats`."""
        return worker_stats(self._worker, self.rank, self.steps, self.samples)

    def suspend(self) -> None:
        """Leave this generation of the job; see :func:`byteps_py.suspension.suspend`."""
        self._worker.suspend()
        self._tell_staleness()
        self.lineage.resumes = True
        if self._recorder is not None:
            self._recorder.close()
        if self._farewell is not None:
            self._farewell.close()

    def close(self, failure: str = "") -> None:
        """Leave the job; takes a few seconds at most.

        Args:
            failure: what this process dies of, as words that follow its name: it ends the job for all; empty to
                leave in order.

        Raises:
            JobAborted, TransportTimeout: the job had ended before its time, or what other workers wait for could not
                be delivered.
        """
        try:
            if self._recorder is not None:  # the goodbye is no part of what was measured, and may fail
                self._recorder.close()
        finally:
            if self._farewell is not None:
                self._farewell.close()
            self._tell_staleness()
            self._worker.close(failure)

    def _tell_staleness(self) -> None:
        if text := self._worker.asynchrony.describe():
            _log.info("%s", text)


holder: Final[Holder[Session]] = Holder()
"""Of the session of this process."""


def init(lazy: bool = True) -> None:
    """Join the job that the ``DMLC_*`` variables describe; blocks until it is complete.

    Without ``DMLC_ROLE``, and with ``DMLC_NUM_WORKER=1`` unless ``BYTEPS_FORCE_DISTRIBUTED=1``, this process is a job
    of its own and nothing is connected.  A second call does nothing.  :func:`shutdown`, or the exit, ends it.

    Args:
        lazy: accepted because BytePS has it; the connection is always made at once.

    Raises:
        SettingsError: with every variable that is missing or wrong, or that does not agree with another process.
        JobRefused, JobAborted, TransportError: the job cannot be joined; the message says why.
        NotInitializedError: this is a forked child of a worker.
    """
    del lazy
    holder.join(lambda: Session(*join()[:-1]))


def shutdown() -> None:
    """Leave the job; what is still on its way fails with NotInitializedError. Does nothing without a session.

    Raises:
        JobAborted, TransportTimeout: the job had ended before its time: an aborted job must not look like a success.
    """
    holder.leave()


def leave_at_exit() -> None:
    """Leave as the interpreter exits, now: for the exit handler of a plugin that must do something after it.

    In order, or saying what this process dies of.  Without a session it does nothing.
    """
    holder.leave_at_exit()


def is_initialized() -> bool:
    """Whether this process has a session."""
    return holder.has_session


def current() -> Session:
    """The session of this process.

    Raises:
        NotInitializedError: there is none.
    """
    return holder.current()


def rank() -> int:
    """Place of this process among all worker processes, from 0."""
    return current().rank


def size() -> int:
    """Number of worker processes."""
    return current().size


def local_rank() -> int:
    """Place of this process among the worker processes of its machine, from 0."""
    return current().local_rank


def local_size() -> int:
    """Number of worker processes on this machine."""
    return current().local_size


def barrier() -> None:
    """Wait until every worker has called this as often as this one; JobAborted tells who has left, or is too late."""
    current().barrier()


def step(samples: int | None = None) -> None:
    """Mark the end of a training step; ``samples`` is how many this worker trained on in it.

    Optimizers of the plugins do that by themselves, as long as the script does not.

    Raises:
        TypeError, ValueError: ``samples`` is no number from 0 on. Nothing is counted.
    """
    current().mark_step(samples)


def stats() -> dict[str, Any]:
    """What this process has done since ``init()`` or the last ``resume()``; cheap enough to be called in every step.

    Returns:
        ``role`` (``"worker"``) and ``rank``; ``steps`` and ``samples`` as :func:`step` counted them; ``cpu_seconds``,
        user and system time of all threads since the process began; ``messages``: a dict of ``sent`` and ``received``,
        the messages to and from servers; ``transport``: a dict of ``shm`` and ``tcp``, how many servers are reached
        through shared memory and over TCP (log lines at info say which, and why not otherwise); ``stages``: by name
        (:mod:`byteps_py.telemetry.stages` says from where to where each goes) a dict of ``count``, how often it was
        passed, and ``seconds`` in sum; ``staleness`` of asynchronous training: a dict of ``count``, the differences
        that were added for this worker, and of ``mean`` and ``max``, the differences of others that each was computed
        without (a tensor of several partitions has one of each). All is the caller's own.
        The stages are zero in a process that is a job of its own, and with ``BYTEPS_STAGE_TIMES=0``; the staleness is
        in synchronous training.
    """
    return current().stats()


def get_pushpull_speed() -> tuple[int, float]:
    """The oldest unread point of the speed record: milliseconds since the epoch, and MB/s; ``(0, -5.0)`` if none."""
    return current().speed.take()
