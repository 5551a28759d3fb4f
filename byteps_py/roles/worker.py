"""A worker: declares tensors, pushes contributions, receives results, meets the others at barriers.

One background thread owns the endpoint: it talks with the scheduler, and with servers that are reached over sockets,
and sleeps until a message, a command or the next deadline.  What callers' threads do themselves is in
:mod:`byteps_py.roles.calls`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from byteps_py.errors import BytePSError, JobAborted, NotInitializedError, RemoteProtocolError, TransportTimeout
from byteps_py.kernels import Kernels
from byteps_py.roles.asynchrony import Asynchrony
from byteps_py.roles.barrier_calls import BarrierCalls
from byteps_py.roles.beginning import make_exchange
from byteps_py.roles.calls import Calls
from byteps_py.roles.engine import Engine
from byteps_py.roles.envelope import Complaints
from byteps_py.roles.farewell import MILLISECONDS
from byteps_py.roles.goodbye import Goodbye, tell
from byteps_py.roles.groups import Formed
from byteps_py.roles.lineage import Lineage
from byteps_py.roles.link_speed import known_speed
from byteps_py.roles.member import SCHEDULER, SchedulerLink, worker_registration
from byteps_py.roles.neighbours import may_have_neighbours
from byteps_py.roles.pending import Signal
from byteps_py.roles.requests import Requests
from byteps_py.roles.suspension import Suspension
from byteps_py.roles.tracing import worker_recording
from byteps_py.settings import WorkerSettings
from byteps_py.telemetry.metrics import SpeedRecord
from byteps_py.telemetry.stages import Stages, worker_stages
from byteps_py.transport.base import Endpoint
from byteps_py.types import TensorSpec
from byteps_py.wire.control import BarrierDone, Conflict, ControlMessage, Declared, GroupFormed, Left, Waiting, Welcome

__all__ = ["Worker"]

_log = logging.getLogger("byteps_py.worker")
_SERVE_SECONDS: Final = 0.02
"""Between two looks at whether other workers of the machine still need this one, which is leaving."""


class Worker:
    """The worker role over any endpoint.  Public methods may be called by any thread.

    Args:
        settings: the role's settings.
        endpoint: not yet connected; closed by :meth:`close`.
        incarnation: random 64-bit number of this process start.
        kernels: for copying.
        on_abort: called once on the worker's thread when the job ends before :meth:`close`, with the reason.
        lineage: what this process has of earlier generations of the job.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        endpoint: Endpoint,
        incarnation: int,
        kernels: Kernels,
        on_abort: Callable[[BaseException], None],
        lineage: Lineage | None = None,
    ) -> None:
        self.speed = SpeedRecord(time.monotonic())
        self.asynchrony = Asynchrony(settings)
        self._settings = settings
        self._endpoint = endpoint
        self._incarnation = incarnation
        self._kernels = kernels
        self._on_abort = on_abort
        self._lineage = lineage or Lineage()
        self._register = worker_registration(settings, incarnation, resumes=self._lineage.resumes)
        self._complaints = Complaints(_log)
        self._lock = threading.Lock()
        self._commands: deque[Callable[[float], None]] = deque()
        self._ended: BaseException | None = None
        self._barriers = BarrierCalls(self._reach)
        self._tracing, self._times = worker_recording(settings, _log)
        self._calls = Calls(endpoint, kernels, settings.omp_num_threads or 1, self._times)
        self.submit = self._calls.submit  # without a call between: it is the one that is made often
        self._requests: Requests | None = None
        self._engine: Engine | None = None
        self._welcome: Welcome | None = None
        self._welcomed = Signal()
        self._goodbye: Goodbye | None = None
        self._is_dying = False
        self._ways = {"shm": 0, "tcp": 0}
        self._has_said = threading.Event()
        self._thread = threading.Thread(target=self._run, name="byteps-worker", daemon=True)

    def start(self) -> Welcome:
        """Join the job; blocks until it is complete.

        Raises:
            JobRefused, JobAborted, TransportTimeout, TransportError: it never will be.
            SettingsError: it never will be, with these settings.
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
        for each in self._calls.declare(specs):
            each.placed.wait()

    def form_group(self, ranks: tuple[int, ...]) -> int:
        """Have the group of some workers formed, and wait until all servers know it; returns its id.

        Args:
            ranks: rising, this worker's among them, and not all.

        Raises:
            MembershipError: the job cannot have so many groups.
            TransportTimeout: servers do not confirm it within ``BYTEPS_STALL_TIMEOUT``.
            BytePSError: the job has ended.
        """
        signal = Formed()
        self._post(lambda now: self._ask(signal, lambda requests: requests.form(now, ranks, signal)))
        signal.wait()
        return signal.group

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """See :meth:`byteps_py.session.Session.empty`."""
        return self._calls.empty(shape, dtype)

    def messages(self) -> tuple[int, int]:
        """How many data messages were sent and received so far."""
        exchange = self._calls.exchange
        return (0, 0) if exchange is None else (exchange.outbox.sent, exchange.received)

    def ways(self) -> dict[str, int]:
        """How many servers are reached through shared memory (``shm``) and over TCP (``tcp``)."""
        return dict(self._ways)

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
        ended = self._depart(lambda now: self._goodbye_for(now, failure))
        if not failure and not isinstance(ended, NotInitializedError):
            raise ended.with_traceback(None)

    def suspend(self) -> None:
        """Wait until all operations of this worker are over and all workers have called this, or left; end the thread.

        Raises:
            JobAborted, TransportTimeout: the job has ended, or others have not come within ``BYTEPS_STALL_TIMEOUT``.
        """
        ended = self._depart(lambda now: Suspension(self._link, now, self._settings.stall_timeout))
        self._lineage.scheduler = self._link.scheduler
        if not isinstance(ended, NotInitializedError):
            raise ended.with_traceback(None)

    def say_goodbye(self, failure: str) -> None:
        """Tell the others which signal this process dies of and return when they know; nobody wakes up for that."""
        self._is_dying = True
        self._commands.append(lambda now: self._begin_departure(self._goodbye_for(now, failure)))
        self._endpoint.wake()
        self._has_said.wait()

    def _depart(self, make: Callable[[float], Goodbye]) -> BaseException:
        """Have the thread leave by what ``make`` gives; returns what it has ended by."""
        with self._lock:
            self._commands.append(lambda now: self._begin_departure(make(now)))
        self._endpoint.wake()
        self._thread.join()
        assert self._ended is not None
        return self._ended

    # From here on, everything runs on the worker's thread, except _post.

    def _post(self, command: Callable[[float], None]) -> None:
        with self._lock:
            if self._ended is not None:
                raise self._ended.with_traceback(None)
            self._commands.append(command)
        self._endpoint.wake()

    def _run(self) -> None:
        error: BaseException
        try:
            error = NotInitializedError(self._work())
        except BytePSError as raised:
            error = raised
            if isinstance(self._goodbye, Suspension):  # it has failed, and the others are to know
                self._goodbye = None
            if isinstance(raised, TransportTimeout) or self._calls.broken is not None:
                self._tell(f"gave up: {raised}")
            else:  # as where memory of another process cannot be mapped
                self._tell(f"failed: {raised}")
        except BaseException as raised:
            _log.exception("the worker thread failed")
            error = JobAborted(f"the worker thread failed: {raised!r}; please report this with the lines above")
            self._tell(f"failed: {raised!r}")
        finally:
            if self._is_dying and self._tracing is not None:  # as soon as that is said, the process is gone
                self._tracing.trace.finish()
            self._has_said.set()
            if self._is_dying:  # and dead before this is over, unless the program has a handler by now
                time.sleep(2 * MILLISECONDS / 1000)
                error = JobAborted("this process was told to end (SIGTERM)")
            self._end(error)

    def _tell(self, failure: str) -> None:
        """Let the others know of the failure, so that all of them end with the same cause."""
        if self._welcome is None or self._goodbye is not None or self._link.is_over:
            return
        self._calls.leave_lanes()
        self._goodbye = Goodbye(self._link, time.monotonic(), failure, joined=True)
        try:
            tell(self._goodbye, self._endpoint, self._receive_control)
        finally:
            self._goodbye = None

    def _work(self) -> str:
        """Until this worker may leave; returns what operations end with from then on."""
        if may_have_neighbours(self._settings):
            self._endpoint.listen_lanes()
            self._endpoint.hold_lanes()  # what comes before this process knows who is in the job can wait
        probe = None if self._tracing is None else self._tracing.trace.probe
        link = self._link = SchedulerLink(self._endpoint, self._settings, self._register, _log, time.monotonic(), probe)
        link.former = self._lineage.scheduler
        requests = self._requests = Requests(link, self._settings.stall_timeout)
        while not self._may_end(time.monotonic()):
            now = time.monotonic()
            timeout = link.tick(now)
            due = self._calls.turn(now, ())
            requests.repeat(now)
            messages = self._endpoint.receive(timeout if due is None else min(timeout, due))
            now = time.monotonic()
            for message in messages:
                if message.peer == SCHEDULER:
                    self._receive_control(now, message.frames)
            data = [each for each in messages if each.peer != SCHEDULER]
            if data:
                self._calls.turn(now, data)
            self._run_commands(time.monotonic())
        assert self._goodbye is not None
        return self._goodbye.words

    def _run_commands(self, now: float) -> None:
        while self._commands:
            self._commands.popleft()(now)
        exchange = self._calls.exchange
        speed = None if exchange is None else known_speed(exchange.link)  # the size of partitions follows from it
        if speed is not None and (undeclared := self._calls.take_undeclared()):
            assert self._requests is not None
            self._requests.declare(now, undeclared, speed)

    def _reach(self, number: int, signal: Signal) -> None:
        self._post(lambda now: self._ask(signal, lambda requests: requests.reach(now, number, signal)))

    def _ask(self, signal: Signal, ask: Callable[[Requests], None]) -> None:
        """Have the scheduler asked something; ``signal`` fails if the job is over."""
        if self._ended is not None:
            signal.fail(self._ended)
            return
        assert self._requests is not None
        ask(self._requests)

    def _receive_control(self, now: float, frames: Sequence[memoryview]) -> None:
        try:
            message = self._link.receive(now, frames)
        except RemoteProtocolError as error:
            self._complaints.add(SCHEDULER, error)
            return
        if message is not None:
            self._control(now, message)

    def _control(self, now: float, message: ControlMessage) -> None:
        if self._calls.broken is not None and not isinstance(message, Left):
            return  # what it is about cannot be relied on
        if isinstance(message, Welcome):
            self._begin(message)
        elif isinstance(message, Conflict):
            self._calls.conflict(now, message)
        elif isinstance(message, (Declared, GroupFormed, BarrierDone, Waiting)):
            if isinstance(message, Declared):
                self._declared(now, message)
            assert self._requests is not None
            self._requests.answered(message)
        elif isinstance(message, Left):
            assert self._welcome is not None
            if message.rank != self._welcome.rank:
                self._calls.left(now, message.rank)
            elif self._goodbye is not None:
                self._goodbye.confirmed = True
        else:
            self._complaints.add(SCHEDULER, f"an unexpected {type(message).__name__}")

    def _begin(self, welcome: Welcome) -> None:
        if self._welcome is not None:
            return
        self._welcome = welcome
        if self._tracing is not None:
            self._tracing.begin(welcome)
        begun = make_exchange(
            self._endpoint,
            self._settings,
            welcome,
            self._incarnation,
            self._kernels,
            self._times,
            self._calls.lock,
            self.speed,
            self.asynchrony,
        )
        self._engine, self._ways = begun.engine, begun.ways
        self._calls.begin(begun.exchange, begun.has_lanes)
        self._endpoint.resume_lanes()
        self._welcomed.complete()

    def _declared(self, now: float, message: Declared) -> None:
        if self._tracing is not None:
            self._tracing.placed(message.placements)
        self._calls.declared(now, message)

    def _goodbye_for(self, now: float, failure: str) -> Goodbye:
        return Goodbye(self._link, now, failure, joined=self._calls.exchange is not None)

    def _begin_departure(self, goodbye: Goodbye) -> None:
        if self._ended is None and (self._goodbye is None or isinstance(self._goodbye, Suspension)):
            self._goodbye = goodbye

    def _may_end(self, now: float) -> bool:
        """Whether it is time to go."""
        if self._goodbye is None:
            return False
        owed, serves = self._owed(now)
        if serves:
            self._endpoint.wake_in(_SERVE_SECONDS)
        return self._goodbye.may_end(now, owed, serves=serves)

    def _owed(self, now: float) -> tuple[str, bool]:
        """What others may still wait for, empty if nothing; and whether it is the other workers of this machine."""
        if self._requests is None or self._goodbye is None or self._goodbye.confirmed or not self._goodbye.in_order:
            return "", False
        if self._requests.declaring or self._calls.waiting:
            return "the scheduler has not placed all tensors", False
        return self._calls.owed(now, suspends=isinstance(self._goodbye, Suspension))

    def _end(self, error: BaseException) -> None:
        with self._lock:
            self._ended = error
        self._welcomed.fail(error)
        self._calls.end(error)
        if self._engine is not None:
            self._engine.close()
        if self._requests is not None:
            self._requests.fail(error)
        while self._commands:  # nobody will perform them any more, which they tell their callers
            self._commands.popleft()(time.monotonic())
        self._endpoint.close()
        if self._goodbye is None and self._calls.exchange is not None:
            self._on_abort(error)
        if self._tracing is not None:  # after that: it may take a while
            self._tracing.trace.finish()
