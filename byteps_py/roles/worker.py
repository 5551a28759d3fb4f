"""A worker: declares tensors, pushes contributions, receives results, meets the others at barriers.

Callers' threads copy their data into a staging buffer and leave a command.  One background thread owns the endpoint
and everything behind it; it sleeps until a message, a command or the next deadline.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy.typing as npt

from byteps_py.errors import (
    AgreementError,
    BytePSError,
    JobAborted,
    NotInitializedError,
    RemoteProtocolError,
    TransportTimeout,
)
from byteps_py.kernels import Kernels
from byteps_py.roles.barrier_calls import BarrierCalls
from byteps_py.roles.envelope import Complaints
from byteps_py.roles.exchange import Exchange
from byteps_py.roles.farewell import MILLISECONDS
from byteps_py.roles.goodbye import Goodbye
from byteps_py.roles.member import SCHEDULER, SchedulerLink, worker_registration
from byteps_py.roles.pending import Pending, Signal
from byteps_py.roles.requests import Requests
from byteps_py.roles.tensors import Tensor, TensorOperation, check_spec, check_unchanged
from byteps_py.settings import WorkerSettings
from byteps_py.telemetry.metrics import SpeedRecord
from byteps_py.telemetry.stages import Stages, WorkerTimes, worker_stages
from byteps_py.transport.base import Endpoint
from byteps_py.types import Operation, TensorSpec
from byteps_py.wire.control import (
    BarrierDone,
    Conflict,
    ControlMessage,
    Declared,
    Left,
    Waiting,
    Welcome,
)

__all__ = ["Worker"]

_log = logging.getLogger("byteps_py.worker")
_TELL_SECONDS: Final = 0.5
"""Between two looks at whether a failure has been heard."""


class Worker:
    """The worker role over any endpoint.  Public methods may be called by any thread.

    Args:
        settings: the role's settings.
        endpoint: not yet connected; closed by :meth:`close`.
        incarnation: random 64-bit number of this process start.
        kernels: for copying.
        on_abort: called once on the worker's thread when the job ends before :meth:`close`, with the reason.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        endpoint: Endpoint,
        incarnation: int,
        kernels: Kernels,
        on_abort: Callable[[BaseException], None],
    ) -> None:
        self.speed = SpeedRecord(time.monotonic())
        self._settings = settings
        self._endpoint = endpoint
        self._incarnation = incarnation
        self._kernels = kernels
        self._on_abort = on_abort
        self._complaints = Complaints(_log)
        self._lock = threading.Lock()
        self._commands: deque[Callable[[float], None]] = deque()
        self._ended: BaseException | None = None
        self._tensors: dict[str, Tensor] = {}
        self._conflicts: dict[str, AgreementError] = {}
        self._undeclared: list[Tensor] = []
        self._barriers = BarrierCalls(lambda number, signal: self._post(lambda now: self._reach(now, number, signal)))
        self._times = WorkerTimes() if settings.stage_times else None
        self._requests: Requests | None = None
        self._exchange: Exchange | None = None
        self._welcome: Welcome | None = None
        self._welcomed = Signal()
        self._goodbye: Goodbye | None = None
        self._is_dying = False
        self._has_said = threading.Event()
        self._thread = threading.Thread(target=self._run, name="byteps-worker", daemon=True)

    def start(self) -> Welcome:
        """Join the job; blocks until it is complete.

        Raises:
            JobRefused, JobAborted, TransportTimeout, TransportError: it never will be.
        """
        self._thread.start()
        self._welcomed.wait()
        assert self._welcome is not None
        return self._welcome

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """Declare tensors in one batch and wait until they are placed.

        Raises:
            AgreementError: a name is declared with another dtype or shape, here or on another worker.
        """
        tensors = [self._tensor(each) for each in specs]
        self._post(lambda now: self._request(tensors))
        for each in tensors:
            each.placed.wait()

    def submit(
        self,
        spec: TensorSpec,
        source: npt.NDArray[Any] | None,
        output: npt.NDArray[Any] | None,
        operation: Operation,
        *,
        root: int = 0,
        priority: int = 0,
        step: int = 0,
    ) -> Pending:
        """Start one operation; see :meth:`byteps_py.session.Session.submit`."""
        tensor = self._tensor(spec)
        threads = self._settings.omp_num_threads or 1
        pending = Pending(spec, output)
        begun = 0.0 if self._times is None else time.monotonic()
        staging = None if source is None else tensor.stage(source, self._kernels, threads)
        started = TensorOperation(
            tensor, pending, operation=operation, root=root, priority=priority, step=step, staging=staging
        )
        if self._times is not None:
            started.submitted = time.monotonic()
            started.copied = started.submitted - begun
        self._post(lambda now: self._submit(now, started))
        return pending

    def barrier(self) -> None:
        """Wait until every worker has called this as often as this one.

        Raises:
            JobAborted: a worker left without reaching the barrier, or the job ended otherwise.
            TransportTimeout: not all came within ``BYTEPS_STALL_TIMEOUT``.
        """
        self._barriers.wait()

    def stages(self) -> Stages:
        """The stage times of this worker."""
        return worker_stages(self._times)

    def close(self, failure: str = "") -> None:
        """Leave the job and end the thread, within a few seconds whatever the others do.

        Args:
            failure: what this process dies of, as words that follow its name: it ends the job for all; empty to
                leave in order.

        Raises:
            JobAborted, TransportTimeout: the job had ended before, or what others wait for could not be delivered.
        """
        with self._lock:
            self._commands.append(lambda now: self._begin_close(now, failure))
        self._endpoint.wake()
        self._thread.join()
        if not failure and not isinstance(self._ended, NotInitializedError):
            assert self._ended is not None
            raise self._ended.with_traceback(None)

    def say_goodbye(self, failure: str) -> None:
        """Tell the others which signal this process dies of and return when they know; nobody wakes up for that."""
        self._is_dying = True
        self._commands.append(lambda now: self._begin_close(now, failure))
        self._endpoint.wake()
        self._has_said.wait()

    # From here on, everything runs on the worker's thread, except _tensor and _post.

    def _tensor(self, spec: TensorSpec) -> Tensor:
        with self._lock:
            tensor = self._tensors.get(spec.name)
            if tensor is None:
                check_spec(spec)
                tensor = self._tensors[spec.name] = Tensor(spec)
                conflict = self._conflicts.get(spec.name)
                if conflict is not None:
                    tensor.refuse(conflict)
        check_unchanged(tensor.spec, spec)
        return tensor

    def _post(self, command: Callable[[float], None]) -> None:
        with self._lock:
            if self._ended is not None:
                raise self._ended.with_traceback(None)
            self._commands.append(command)
        self._endpoint.wake()

    def _run(self) -> None:
        error: BaseException = NotInitializedError("shutdown() was called while this operation was on its way")
        try:
            self._work()
        except BytePSError as raised:
            error = raised
            if isinstance(raised, TransportTimeout):
                self._tell(f"gave up: {raised}")
        except BaseException as raised:
            _log.exception("the worker thread failed")
            error = JobAborted(f"the worker thread failed: {raised!r}; please report this with the lines above")
            self._tell(f"failed: {raised!r}")
        finally:
            self._has_said.set()
            if self._is_dying:  # and dead before this is over, unless the program has a handler by now
                time.sleep(2 * MILLISECONDS / 1000)
                error = JobAborted("this process was told to end (SIGTERM)")
            self._end(error)

    def _tell(self, failure: str) -> None:
        """Let the others know of the failure, so that all of them end with the same cause."""
        if self._exchange is None or self._goodbye is not None:
            return
        self._goodbye = Goodbye(self._link, time.monotonic(), failure, joined=True)
        with contextlib.suppress(BytePSError):  # the job has ended: they know
            while not self._may_end(time.monotonic()):
                for message in self._endpoint.receive(_TELL_SECONDS):
                    if message.peer == SCHEDULER:
                        self._receive_control(time.monotonic(), message.frames)
        self._goodbye = None

    def _work(self) -> None:
        register = worker_registration(self._settings, self._incarnation)
        link = self._link = SchedulerLink(self._endpoint, self._settings, register, _log, time.monotonic())
        requests = self._requests = Requests(link, self._settings.stall_timeout)
        while not self._may_end(time.monotonic()):
            now = time.monotonic()
            timeout = link.tick(now)
            if self._exchange is not None:
                timeout = min(timeout, self._exchange.tick(now))
            requests.repeat(now)
            for message in self._endpoint.receive(timeout):
                now = time.monotonic()
                if message.peer == SCHEDULER:
                    self._receive_control(now, message.frames)
                elif self._exchange is not None:
                    for each in self._exchange.receive(now, message.peer, message.frames):
                        self._complete(now, each)
            self._run_commands(time.monotonic())

    def _run_commands(self, now: float) -> None:
        while self._commands:
            self._commands.popleft()(now)
        if self._undeclared:
            undeclared, self._undeclared = self._undeclared, []
            assert self._requests is not None
            self._requests.declare(now, undeclared)

    def _request(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if not tensor.requested:
                tensor.requested = True
                self._undeclared.append(tensor)
        if self._ended is not None:
            for tensor in tensors:
                tensor.placed.fail(self._ended)

    def _submit(self, now: float, operation: TensorOperation) -> None:
        tensor = operation.tensor
        error = self._ended or tensor.error
        if error is not None:
            operation.pending.fail(error)
        elif tensor.placement is None:
            tensor.waiting.append(operation)
            self._request([tensor])
        else:
            assert self._exchange is not None
            self._exchange.submit(now, operation)

    def _reach(self, now: float, number: int, signal: Signal) -> None:
        if self._ended is not None:
            signal.fail(self._ended)
            return
        assert self._requests is not None
        self._requests.reach(now, number, signal)

    def _complete(self, now: float, operation: TensorOperation) -> None:
        self.speed.add(now, int(time.time() * 1000), operation.tensor.spec.nbytes)
        operation.pending.complete(operation.absent)

    def _receive_control(self, now: float, frames: Sequence[memoryview]) -> None:
        try:
            message = self._link.receive(now, frames)
        except RemoteProtocolError as error:
            self._complaints.add(SCHEDULER, error)
            return
        if message is not None:
            self._control(now, message)

    def _control(self, now: float, message: ControlMessage) -> None:
        if isinstance(message, Welcome):
            self._begin(now, message)
        elif isinstance(message, Declared):
            self._declared(now, message)
        elif isinstance(message, Conflict):
            self._conflict(now, message)
        elif isinstance(message, BarrierDone):
            assert self._requests is not None
            self._requests.barrier_done(message.number)
        elif isinstance(message, Waiting):
            assert self._requests is not None
            self._requests.barrier_waits(message.barrier, message.text)
        elif isinstance(message, Left):
            assert self._welcome is not None
            if self._goodbye is not None and message.rank == self._welcome.rank:
                self._goodbye.confirmed = True
        else:
            self._complaints.add(SCHEDULER, f"an unexpected {type(message).__name__}")

    def _begin(self, now: float, welcome: Welcome) -> None:
        if self._welcome is not None:
            return
        self._exchange = Exchange(
            self._endpoint,
            settings=self._settings,
            welcome=welcome,
            incarnation=self._incarnation,
            kernels=self._kernels,
            times=self._times,
            now=now,
        )
        self._welcome = welcome
        self._welcomed.complete()

    def _declared(self, now: float, message: Declared) -> None:
        for placement in message.placements:
            tensor = self._tensors.get(placement.name)
            if tensor is None or tensor.placement is not None:
                continue
            tensor.placement = placement
            tensor.placed.complete()
            waiting, tensor.waiting = tensor.waiting, []
            for operation in waiting:
                self._submit(now, operation)
        assert self._requests is not None
        self._requests.declared(message.request)

    def _conflict(self, now: float, message: Conflict) -> None:
        error = AgreementError(message.text)
        with self._lock:
            self._conflicts.setdefault(message.name, error)
            tensor = self._tensors.get(message.name)
        if tensor is not None:
            tensor.refuse(error)
            if self._exchange is not None:
                self._exchange.fail_tensor(now, tensor, error)

    def _begin_close(self, now: float, failure: str) -> None:
        if self._goodbye is None and self._ended is None:
            self._goodbye = Goodbye(self._link, now, failure, joined=self._exchange is not None)

    def _may_end(self, now: float) -> bool:
        """Whether it is time to go."""
        return self._goodbye is not None and self._goodbye.may_end(now, self._owed())

    def _owed(self) -> str:
        """What others may still wait for; empty if nothing."""
        if self._exchange is None or self._requests is None:
            return ""
        if self._requests.declaring or any(each.waiting for each in self._tensors.values()):
            return "the scheduler has not placed all tensors"
        unsent = self._exchange.unsent
        return f"{unsent} partitions were not accepted by a server" if unsent else ""

    def _end(self, error: BaseException) -> None:
        with self._lock:
            self._ended = error
            tensors = list(self._tensors.values())
        self._welcomed.fail(error)
        if self._exchange is not None:
            self._exchange.fail_all(error)
        for tensor in tensors:
            tensor.placed.fail(error)
            for operation in tensor.waiting:
                operation.pending.fail(error)
        if self._requests is not None:
            self._requests.fail(error)
        while self._commands:  # nobody will perform them any more, which they tell their callers
            self._commands.popleft()(time.monotonic())
        self._endpoint.close()
        if self._goodbye is None and self._welcome is not None:
            self._on_abort(error)
