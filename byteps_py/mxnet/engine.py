"""Operations of the session as operations of MXNet's engine.

MXNet computes in threads of its own: a call in Python only tells the engine which arrays an operation reads and writes,
and the engine runs it when these are free.  A push and pull is such an operation, which writes one array:

==========  =====================================  ==================================================================
a work is   since                                  who
==========  =====================================  ==================================================================
waiting     :meth:`Engine.push`                    the caller, who goes on at once
begun       whatever wrote the array is over       a thread of the engine: submits to the session, and goes on at once
over        the session has the result or an       whichever thread of the session completes it, which only puts the
            error                                  work into a queue
told        the engine was called back: what       the thread ``byteps-mxnet``, which waits for the queue
            reads the array may run
==========  =====================================  ==================================================================

A work whose array could not be computed is skipped by the engine, which then only drops it.  Works of one name have a
second array in common that they write, their *turn*: without it two arrays of one name would be submitted in the order
in which they happen to be computed, which need not be that of another worker.

An error is given to the engine, which makes it the state of the array: what reads the array is skipped, and
``asnumpy()``, ``wait_to_read()`` or ``waitall()`` raise it as MXNetError.  It is raised too by the next call of this
plugin that declares, pushes, broadcasts parameters or makes a step, or by ``shutdown()``, or ends the process as it
exits.  See docs/decisions/0027.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import logging
import os
import queue
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import mxnet as mx
import numpy.typing as npt

from byteps_py import session as _session
from byteps_py import suspension as _suspension
from byteps_py.errors import BytePSError
from byteps_py.mxnet.work import OnComplete, Work, call_back
from byteps_py.roles import last_words
from byteps_py.roles.pending import Pending
from byteps_py.session import Session
from byteps_py.types import TensorSpec

__all__ = ["Engine", "engine", "shutdown", "suspend"]

_log = logging.getLogger("byteps_py.worker")

if mx.__version__ != "1.9.1":
    raise ImportError(
        f"byteps_py.mxnet needs MXNet 1.9.1, whose engine it knows, and this is {mx.__version__}: "
        "pip install 'byteps_py[mxnet]'"
    )

# include/mxnet/c_api.h and engine.h of MXNet 1.9.1.
_AsyncFunction: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
"""``(RunContext*, CallbackOnComplete*, parameter)``; the second lives only as long as the call."""
_Deleter: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PRIORITIZED: Final = ctypes.c_int(3)
"""FnProperty::kCPUPrioritized: run by threads apart from those that compute, the highest priority first."""
_PRIORITIES: Final = range(-(2**31), 2**31)
_NAME: Final = b"byteps_push_pull"
_REORDER: Final = "_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv"
_EXIT_SECONDS: Final = 5.0
"""How long the end of a process waits for results that nobody will read, and, after the job was left, for works that
are still known."""


class _Context(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


_CPU: Final = _Context(1, 0)


class Engine:
    """MXNet's engine, and what this plugin has given it. Any thread; one for the process."""

    def __init__(self) -> None:
        self._library = mx.base._LIB
        # Builds without oneDNN lack it, and need not reorder.
        self._reorder: Any = getattr(self._library, _REORDER, None)
        if self._reorder is not None:
            self._reorder.restype, self._reorder.argtypes = None, [ctypes.c_void_p]
        # C keeps these addresses, so they must live as long as the process.
        self._start_function = _AsyncFunction(self._start)
        self._drop_function = _Deleter(self._drop)
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.reset()

    def reset(self) -> None:
        """Forget all: at the beginning, and in a forked child."""
        self._changed = threading.Condition()
        self._works: dict[int, Work] = {}
        self._waiting: set[int] = set()
        self._numbers = itertools.count(1)
        self._turns: weakref.WeakKeyDictionary[Session, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._over: queue.SimpleQueue[tuple[int, Work]] = queue.SimpleQueue()
        self._teller: threading.Thread | None = None
        self._failed: deque[Work] = deque()
        self._forks = 0

    def push(
        self,
        session: Session,
        spec: TensorSpec,
        array: Any,
        begin: Callable[[npt.NDArray[Any]], Pending],
        priority: int = 0,
    ) -> Work:
        """Have ``begin`` called when ``array`` has been computed; the array is busy until the operation is over.

        Args:
            session: whose end waits for it.
            spec: of the array.
            array: an NDArray.
            begin: is given the memory, to read and to write until the operation is done, and submits; it must not wait.
                Called by a thread of the engine.
            priority: higher goes first where several are ready.

        Raises:
            BytePSError: an earlier work failed, and nobody was told.
            MXNetError: the engine refuses.
        """
        self.raise_failure()
        self._watch(session)
        work = Work(spec, array, begin)
        number = next(self._numbers)
        statuses: list[int] = []
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._forks)
                work.turn = self._turn(session, spec.name)
                self._start_teller()
                self._works[number] = work  # the last: what is known here is waited for
                self._waiting.add(number)
            self._give(number, work, min(max(priority, _PRIORITIES[0]), _PRIORITIES[-1]), statuses)
        except BaseException:
            if statuses != [0]:  # else Ctrl-C came when the engine had it already
                work.refuse()
                self._forget(number)  # its turn is as it was: earlier pushes of the name may wait for it still
            raise
        if work.began_in == threading.get_ident():  # the NaiveEngine ran it within the call, and forgets errors
            work.raise_error()
        return work

    def raise_failure(self) -> None:
        """Raise what a work failed of that nobody was told of; once."""
        error = self.take_failure()
        if error is not None:
            raise error.with_traceback(None)

    def take_failure(self) -> BaseException | None:
        """What :meth:`raise_failure` would raise."""
        while self._failed:
            with contextlib.suppress(IndexError):  # another thread was quicker
                error = self._failed.popleft().untold
                if error is not None:
                    return error
        return None

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all that was pushed is over, ``seconds`` at most; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._works, seconds)

    def drain_at_end(self) -> None:
        """As a process ends: wait until all that was pushed is submitted, so that others get it, and for
        ``_EXIT_SECONDS`` more for the results, which nobody will read.

        Where others wait for something else of this process, which it will never push, its going tells them so.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
        self.drain(_EXIT_SECONDS)

    def hold(self) -> None:
        """Before a fork: MXNet then waits for its engine, without letting the GIL go that its threads need here."""
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._works)

    def release(self) -> None:
        """After a fork, in the parent."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def leave_at_exit(self) -> None:
        """As the interpreter exits: wait for what was pushed, unless it dies; leave; see that nothing is left to do.

        MXNet waits for its engine later, and must not wait for what would only end with the session; and no thread of
        the engine may find Python gone.
        """
        if not last_words.cause():
            self.drain_at_end()
        error = self.take_failure()
        if error is not None and not last_words.cause():  # the script ended well, but not what it asked for
            _log.error("%s", error)
            with contextlib.suppress(BytePSError):
                _session.current().close(f"failed: {type(error).__name__}: {error}")
            last_words.exit_now()
        _session.leave_at_exit()
        self.drain(_EXIT_SECONDS)

    def _watch(self, session: Session) -> None:
        if session not in self._sessions:
            self._sessions.add(session)
            atexit.unregister(self.leave_at_exit)
            atexit.register(self.leave_at_exit)  # before MXNet's own handler, and that of init()

    def _turn(self, session: Session, name: str) -> Any:
        turns = self._turns.setdefault(session, {})
        if name not in turns:
            turns[name] = mx.nd.empty((1,))
        return turns[name]

    def _start_teller(self) -> None:
        if self._teller is None:
            teller = threading.Thread(target=self._tell_all, name="byteps-mxnet", daemon=True)
            teller.start()
            self._teller = teller

    def _give(self, number: int, work: Work, priority: int, statuses: list[int]) -> None:
        if self._reorder is not None:
            # What oneDNN has computed may lie in a layout of its own, and to ask for the memory would then wait for
            # the engine, within the engine.
            self._reorder(work.array.handle)
        written = (ctypes.c_void_p * 2)(work.array.handle, work.turn.handle)
        arguments = (
            self._start_function,
            ctypes.c_void_p(number),
            self._drop_function,
            ctypes.byref(_CPU),
            None,
            ctypes.c_int(0),
            written,
            ctypes.c_int(len(written)),
            ctypes.byref(_PRIORITIZED),
            ctypes.c_int(priority),
            ctypes.c_char_p(_NAME),
            ctypes.c_bool(False),
        )
        # The call and its status are one step of the interpreter: Ctrl-C comes before both, or after both.
        statuses.extend(itertools.starmap(self._library.MXEnginePushAsyncND, (arguments,)))
        mx.base.check_call(statuses[0])

    # From here on: threads of the engine, and the one that tells.

    def _start(self, _: int, on_complete: int, number: int) -> None:
        copied = OnComplete.from_buffer_copy(ctypes.string_at(on_complete, ctypes.sizeof(OnComplete)))
        work = self._works.get(number)
        if work is None:  # its push was interrupted
            call_back(copied, BytePSError("this array was not pushed, because its push was interrupted"))
            return
        then = functools.partial(self._over.put, (number, work))
        try:
            work.start(copied, then)
            if self._begun(number) == 0:  # else what is light waits for company
                work.hurry()
        except BaseException as error:  # of a signal, where the engine runs it in the thread that pushes
            work.fail(error)
            then()

    def _drop(self, number: int) -> None:
        work = self._works.get(number)
        if work is not None and work.began_in is None:
            work.skip()
            self._fail(work)
            self._forget(number)

    def _begun(self, number: int) -> int:
        """Returns how many others wait."""
        with self._changed:
            self._waiting.discard(number)
            self._changed.notify_all()
            return len(self._waiting)

    def _fail(self, work: Work) -> None:
        """Its error is to be told; its turn may be in the state of the error, so the next of its name gets another."""
        if work.untold is not None:
            self._failed.append(work)
        with self._changed:
            for turns in self._turns.values():
                if work.turn is not None and turns.get(work.spec.name) is work.turn:
                    del turns[work.spec.name]

    def _forget(self, number: int) -> None:
        with self._changed:
            self._works.pop(number, None)
            self._waiting.discard(number)
            self._changed.notify_all()

    def _tell_all(self) -> None:
        while True:
            self._tell(*self._over.get())

    def _tell(self, number: int, work: Work) -> None:
        if work.array is None:  # told already: it was put into the queue twice
            return
        work.finish()
        if work.has_failed:
            self._fail(work)
        work.tell()
        self._forget(number)


engine: Final = Engine()


def shutdown() -> None:
    """Wait until all that was pushed is over, then leave the job. Does nothing without a session.

    While an exception is handled, as in a ``finally`` block, it waits for a few seconds at most: what was pushed may
    never be over then, and others wait to be told.  What has failed is not raised in its place.

    Raises:
        JobAborted, TransportTimeout: the job had ended before its time: an aborted job must not look like a success.
        BytePSError: something that was pushed has failed, and nobody was told.
    """
    if sys.exc_info()[0] is None:
        engine.drain()
        _session.shutdown()
        engine.raise_failure()
        return
    engine.drain(_EXIT_SECONDS)
    _session.shutdown()
    engine.drain(_EXIT_SECONDS)  # the session has ended them
    while engine.take_failure() is not None:
        pass


def suspend() -> None:
    """Wait until all that was pushed is over, then suspend the job: see :func:`byteps_py.suspension.suspend`.

    Raises:
        BytePSError: something that was pushed has failed, and nobody was told; or as that function.
    """
    engine.drain()
    engine.raise_failure()
    _suspension.suspend()


os.register_at_fork(before=engine.hold, after_in_parent=engine.release, after_in_child=engine.reset)
