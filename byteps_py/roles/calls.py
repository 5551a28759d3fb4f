"""What callers' threads do with tensors, and how they move the data while they wait.

One lock guards the :class:`~byteps_py.roles.exchange.Exchange` and all tensors.  Whoever holds it may submit, and
write and read the lanes to servers of this machine.  So a caller who waits need not hand over to another thread: it
takes the lanes from the worker's thread (which goes on with the scheduler and with sockets), sleeps until something
arrives there, and takes it; :mod:`~byteps_py.roles.lane_keeper` tells who has them when.  The lock is let go while a
large result is copied out, so what was looked up before must be looked up again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_py.errors import AgreementError, JobAborted, NotInitializedError
from byteps_py.kernels import Kernels
from byteps_py.roles.exchange import Exchange
from byteps_py.roles.lane_keeper import LOOK_SECONDS, LaneKeeper
from byteps_py.roles.light import Light
from byteps_py.roles.pending import Pending
from byteps_py.roles.rows import Rows
from byteps_py.roles.tensor_book import TensorBook
from byteps_py.roles.tensors import Tensor, TensorOperation, new_array, rows_operation
from byteps_py.telemetry.stages import WorkerTimes
from byteps_py.transport.base import Endpoint, Message
from byteps_py.types import Operation, TensorSpec
from byteps_py.wire.control import Conflict, Declared

__all__ = ["Calls"]


class Calls:
    """The tensors of a worker, and the operations on them. Any thread, unless a method says otherwise.

    Args:
        endpoint: of the worker; its lanes are read by whoever holds the lock.
        kernels: for copying.
        threads: how many may share a copy.
        times: where the stages are counted and timed; None where they are not.

    Attributes:
        lock: guards everything here.
        exchange: None before the job is complete.
        ended: why nothing more can be done; None while it can.
        broken: what has left a part of the work half-done, upon which the worker's thread ends the job.
    """

    def __init__(self, endpoint: Endpoint, kernels: Kernels, threads: int, times: WorkerTimes | None) -> None:
        self.lock = threading.RLock()
        self.exchange: Exchange | None = None
        self.ended: BaseException | None = None
        self._endpoint = endpoint
        self._kernels = kernels
        self._threads = threads
        self._times = times
        self._book = TensorBook(self.lock)
        self._light: Light | None = None
        self._keeper = LaneKeeper(endpoint)
        self.broken: BaseException | None = None
        self._is_over = False
        self._pid = os.getpid()

    @property
    def waiting(self) -> bool:
        """Whether operations wait for the placement of their tensors."""
        return any(each.waiting for each in self._book.all())

    def declare(self, specs: Sequence[TensorSpec]) -> list[Tensor]:
        """Have the placements of tensors asked for; returns the tensors, to wait for.

        Raises:
            AgreementError: a name was another tensor before.
            BytePSError: the job has ended.
        """
        self._check_process()
        tensors = [self._book.tensor(each) for each in specs]
        with self.lock:
            self._check_life()
            self._book.want(tensors)
        self._endpoint.wake()
        return tensors

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
        """Start one operation; see :meth:`byteps_py.session.Session.submit`."""
        self._check_process()
        tensor = self._book.find(spec.name)
        if tensor is None or tensor.spec is not spec:
            tensor = self._book.tensor(spec)
        pending = Pending(spec, output, self)
        # A SUM or an AVERAGE of whole tensors.
        if tensor.light is not None and operation < Operation.BROADCAST and not isinstance(source, Rows):
            with self.lock:
                self._check_life()
                light, now = self._light, time.monotonic()
                assert light is not None
                try:
                    if light.submit(now, tensor, source, pending, operation, step):
                        self._keeper.visit(now)  # the worker's thread sends what is held back for too long
                        return pending
                except BaseException as error:
                    self._break(error)
                    raise
        started = self._prepare(tensor, pending, source, operation, root, priority, step)
        with self.lock:
            self._check_life()
            try:
                self._begin(time.monotonic(), started)
                must_wake = tensor.placement is None or self.exchange is None or self.exchange.outbox.has_deferred
            except BaseException as error:
                self._break(error)
                raise
        if must_wake:
            self._endpoint.wake()
        return pending

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """See :meth:`byteps_py.session.Session.empty`; the arguments were checked."""
        return new_array(self._endpoint.allocate, shape, dtype)

    def hurry(self) -> None:
        """See :class:`byteps_py.roles.pending.Driver`."""
        if os.getpid() != self._pid:
            return
        with self.lock:
            must_wake = self._flush()
        if must_wake:
            self._endpoint.wake()

    def drive(self, pending: Pending) -> None:
        """See :class:`byteps_py.roles.pending.Driver`."""
        self._check_process()
        me = threading.get_ident()
        try:
            if self._take_lanes(pending, me):
                self._read_lanes(pending, me)
        finally:
            if self._keeper.driver == me:
                self._stop_driving(me)
        if not pending.over():
            self._sleep(pending)

    # From here on: the worker's thread only.

    def begin(self, exchange: Exchange, has_lanes: bool) -> None:
        """The job is complete."""
        with self.lock:
            self.exchange = exchange
            self._light = exchange.light
            self._keeper.has_lanes = has_lanes

    def turn(self, now: float, messages: Iterable[Message]) -> float | None:
        """Do what is due, and take messages of servers; returns seconds until the next call is due.

        Raises:
            TransportTimeout: as :meth:`byteps_py.roles.exchange.Exchange.tick`.
            TransportError: memory that a peer refers to cannot be mapped, or there is none left.
            JobAborted: a caller's thread was interrupted where it must not be.
        """
        if self.broken is not None:
            raise self._half_way()
        if self.exchange is None:
            return None
        with self.lock:
            for each in messages:
                self.exchange.receive(now, each)
            wait = self._keeper.come_by(now)
            if wait is None:
                for each in self._endpoint.receive_lanes():
                    self.exchange.receive(now, each)
            self.exchange.advance(now)
            timeout = self.exchange.tick(now)
            self.exchange.outbox.send_deferred()
            driver = self._keeper.driver  # now: the lock was let go during copies
        if driver:  # it may wait for what has just come another way
            self._endpoint.wake_lanes()
        return timeout if wait is None else min(timeout, wait)

    def leave_lanes(self) -> None:
        """Nobody reads the lanes any more, and they wake nobody."""
        with self.lock:
            self._keeper.leave()

    def take_undeclared(self) -> list[Tensor]:
        """Tensors whose placement is to be asked for now."""
        with self.lock:
            return self._book.take_undeclared()

    def declared(self, now: float, message: Declared) -> None:
        """The scheduler has placed tensors."""
        assert self.exchange is not None
        with self.lock:
            self.exchange.window.widen(message.partition_bytes, message.window_bytes)
            for placement in message.placements:
                tensor = self._book.find(placement.name)
                if tensor is None or tensor.placement is not None:
                    continue
                node = self.exchange.node
                tensor.place(placement if node is None else node.route(placement, tensor.spec))
                waiting, tensor.waiting = tensor.waiting, []
                for operation in waiting:
                    self._begin(now, operation)

    def left(self, now: float, rank: int) -> None:
        """A worker has left in order."""
        with self.lock:
            if self.exchange is not None and self.broken is None:
                self.exchange.left(now, rank)

    def owed(self, now: float, *, suspends: bool = False) -> tuple[str, bool]:
        """See :meth:`byteps_py.roles.exchange.Exchange.owed`; nothing before the job is complete."""
        if self.exchange is None:
            return "", False
        with self.lock:
            return self.exchange.owed(now, suspends=suspends)

    def conflict(self, now: float, message: Conflict) -> None:
        """Workers disagree about a tensor."""
        error = AgreementError(message.text)
        with self.lock:
            tensor = self._book.refuse(message.name, error)
            if tensor is not None and self.exchange is not None:
                self.exchange.fail_tensor(now, tensor, error)

    def end(self, error: BaseException) -> None:
        """Nothing more can be done: fail all that is outstanding."""
        with self.lock:
            self.ended = error
            self._keeper.end()
            tensors = self._book.all()
            if self.exchange is not None:
                self.exchange.fail_all(error)
        for tensor in tensors:
            tensor.placed.fail(error)
            for operation in tensor.waiting:
                operation.pending.fail(error)
        self._endpoint.wake_lanes()
        deadline = time.monotonic() + LOOK_SECONDS
        while self._keeper.driver and time.monotonic() < deadline:  # the endpoint is about to be closed
            time.sleep(0.001)
        self._is_over = True

    def _is_dead(self) -> bool:
        """Whether nothing may be done any more. It may come while the lock is let go during a copy."""
        return self.ended is not None or self.broken is not None

    def _check_life(self) -> None:
        if self.ended is not None:
            raise self.ended.with_traceback(None)
        if self.broken is not None:
            raise self._half_way()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise NotInitializedError("this process was forked from a worker, which alone can do this")

    def _half_way(self) -> JobAborted:
        return JobAborted(f"an operation was interrupted half-way ({self.broken!r}), so this worker cannot go on")

    def _prepare(
        self,
        tensor: Tensor,
        pending: Pending,
        source: npt.NDArray[Any] | Rows | None,
        operation: Operation,
        root: int,
        priority: int,
        step: int,
    ) -> TensorOperation:
        """Bring the contribution to where servers can read it, unless that can wait."""
        if isinstance(source, Rows):
            return rows_operation(tensor, pending, source, operation, priority, step)
        begun = 0.0 if self._times is None else time.monotonic()
        staging: npt.NDArray[np.uint8] | None = None
        lent: npt.NDArray[np.uint8] | None = None
        # A result that is written over a part of it that was not pushed yet would change that.
        borrowed = (
            source is not None
            and self._endpoint.owns(source)
            and (source is pending.output or not np.may_share_memory(source, pending.output))
        )
        if source is not None and borrowed:  # not renewed: other parts of the allocation may be on their way
            staging = source.reshape(-1).view(np.uint8)
        elif source is not None and source is pending.output:  # which the caller leaves alone until the end
            lent = source.reshape(-1).view(np.uint8)
        elif source is not None:
            staging = tensor.stage(source, self._endpoint, self._kernels, self._threads)
        started = TensorOperation(
            tensor,
            pending,
            operation=operation,
            root=root,
            priority=priority,
            step=step,
            staging=staging,
            borrowed=borrowed,
            lent=lent,
        )
        if self._times is not None:
            started.submitted = time.monotonic()
            started.copied = 0.0 if staging is None else started.submitted - begun
        return started

    def _begin(self, now: float, operation: TensorOperation) -> None:
        tensor = operation.tensor
        if tensor.error is not None:
            operation.pending.fail(tensor.error)
        elif tensor.placement is None:
            tensor.waiting.append(operation)
            self._book.want([tensor])
        else:
            assert self.exchange is not None
            self.exchange.submit(now, operation)

    def _receive_lanes(self) -> bool:
        """Take what has arrived in lanes; whether the worker's thread must come by."""
        with self.lock:
            if self.exchange is None or self._is_dead():
                return False
            now = time.monotonic()
            self._keeper.looked(now)
            try:
                for each in self._endpoint.receive_lanes():
                    self.exchange.receive(now, each)
                    if self._is_dead():
                        return False
                self.exchange.advance(now)
            except BaseException as error:
                self._break(error)
                raise
            return self.exchange.outbox.has_deferred

    def _flush(self) -> bool:
        """Send what is held back; whether the worker's thread must come by. The lock is held."""
        if self.exchange is None or self._is_dead():
            return False
        try:
            self.exchange.hurry(time.monotonic())
        except BaseException as error:
            self._break(error)
            raise
        return self.exchange.outbox.has_deferred

    def _take_lanes(self, pending: Pending, me: int) -> bool:
        """Whether this thread drives from now on; else it may sleep."""
        with self.lock:
            must_wake = self._flush()
            drives = not self._is_dead() and not pending.over() and self._keeper.take(me)
        if must_wake:
            self._endpoint.wake()
        return drives

    def _break(self, error: BaseException) -> None:
        """A caller's thread leaves a part that must be done as a whole, as by Ctrl-C: what is written down here cannot
        be relied on any more, so the job ends, instead of others waiting for what this worker has forgotten."""
        self.broken = self.broken or error
        self._endpoint.wake()

    def _read_lanes(self, pending: Pending, me: int) -> None:
        """Drive until ``pending`` is over, or something else is."""
        while not pending.over() and not self._is_dead() and self._keeper.driver == me:
            self._endpoint.wait_lanes(LOOK_SECONDS)
            if self._receive_lanes():
                self._endpoint.wake()

    def _stop_driving(self, me: int) -> None:
        with self.lock:
            if self._keeper.driver == me:
                relied_on = self.exchange is not None and self.exchange.node is not None
                self._keeper.stop(time.monotonic(), at_once=relied_on)

    def _sleep(self, pending: Pending) -> None:
        """Leave the work to whoever drives, and then to the worker's thread."""
        with self.lock:
            self._keeper.rely()
        try:
            while not pending.over():
                pending.sleep(LOOK_SECONDS)
                if self._is_over and self.ended is not None:  # an interruption may have lost it
                    pending.fail(self.ended)
        finally:
            with self.lock:
                self._keeper.sleepers -= 1
