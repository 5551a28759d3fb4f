"""CUDA gradients on their way: through pinned memory, on a side stream, without holding up the backward pass.

A GPU works through *streams*, queues of copies and kernels; an *event* marks a place in one.  One gradient goes so:

=====================  ==============================================================================================
who                    does
=====================  ==============================================================================================
the hook               has the side stream wait for the stream that made the gradient, copy it to the host, and mark
                       the end by an event; returns at once
one thread             waits for that event, and submits; gradients in the order of their hooks
``synchronize()``      waits for the result on the host; has the side stream wait for the current one and copy the
                       result into the gradient, and the current stream wait for that; returns at once
=====================  ==============================================================================================

Nobody needs to tell PyTorch's allocator of the side stream: a gradient is kept until its copy to the host has been
waited for, after the copy back the current stream waits for the side stream, and temporaries are made and freed there.

One :class:`Buffer` serves one gradient in every step.  The copy of the next step into it comes after the copy out of it
of this one on the same stream, so nothing is overwritten that is still read.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import mmap
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from byteps_py.errors import UnsupportedError
from byteps_py.roles.pending import Pending
from byteps_py.roles.rows import Rows
from byteps_py.session import Session
from byteps_py.torch.tensors import to_tensor
from byteps_py.types import TensorSpec

__all__ = ["Buffer", "Staging", "Submission", "Submissions"]

_log = logging.getLogger("byteps_py.worker")
_PORTABLE: Final = 1
"""cudaHostRegisterPortable: pinned for all GPUs of this process."""
_EXIT_SECONDS: Final = 5.0
"""How long the end of the interpreter waits for copies that are under way."""


class Submission:
    """An operation that another thread begins later. Has of :class:`~byteps_py.roles.pending.Pending` what is needed.

    Args:
        copied: returns when the contribution is in host memory.
        begin: submits it.
    """

    def __init__(self, copied: Callable[[], object], begin: Callable[[], Pending]) -> None:
        self._work: tuple[Callable[[], object], Callable[[], Pending]] | None = (copied, begin)
        self._begun = threading.Event()
        self._pending: Pending | None = None
        self._error: BaseException | None = None

    @property
    def absent(self) -> bool:
        """As of the operation; only after :meth:`wait`."""
        return self._pending is not None and self._pending.absent

    @property
    def rows(self) -> Rows | None:
        """None: what goes this way is dense."""
        return None

    def perform(self) -> None:
        """Begin the operation. Never raises: :meth:`wait` does. Called once, by the submitting thread."""
        assert self._work is not None
        copied, begin = self._work
        try:
            copied()
            self._pending = begin()
        except BaseException as error:
            self._error = error
        finally:
            self._work = None  # and with it the gradient
            self._begun.set()

    def wait(self) -> npt.NDArray[Any]:
        """Block until the result is on the host, and return it. Any thread.

        Raises:
            BytePSError: as :meth:`byteps_py.roles.pending.Pending.wait`, or what submitting raised.
            RuntimeError: the copy from the device failed.
        """
        self._begun.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)
        assert self._pending is not None
        return self._pending.wait()


class Submissions:
    """Performs submissions one after the other, in a thread that is made when it is first needed. Any thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, submission: Submission) -> None:
        """Have it performed after those that were added before."""
        with self._lock:
            self._queue.put(submission)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="byteps-submit", daemon=True)
                self._thread.start()
                atexit.register(self.close)  # after init() has done so, thus run before the session leaves

    def close(self) -> None:
        """Perform what was added, and end the thread; gives up after a few seconds."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._queue.put(None)
        atexit.unregister(self.close)
        thread.join(_EXIT_SECONDS)

    def _run(self) -> None:
        while self._perform_next():
            pass

    def _perform_next(self) -> bool:
        # A function of its own: the thread must not hold on to the last submission while it waits for the next.
        submission = self._queue.get()
        if submission is not None:
            submission.perform()
        return submission is not None


class Buffer:
    """Memory of the host for one gradient.

    Attributes:
        tensor: of the shape and dtype in which the gradient travels, contiguous, on the CPU.
        last: the event after the last copy from or to it; empty before the first.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.last: list[Any] = []


class Staging:
    """The side streams of this process. Any thread; of one buffer one at a time.

    Args:
        cuda: the module ``torch.cuda``, or what behaves like it.
        kind: type of the devices whose tensors go this way.
    """

    def __init__(self, cuda: Any = torch.cuda, kind: str = "cuda") -> None:
        self._cuda = cuda
        self._kind = kind
        self._sides: dict[torch.device, Any] = {}
        self._submissions = Submissions()
        self._can_pin = True

    def takes(self, gradient: torch.Tensor) -> bool:
        """Whether a dense gradient goes this way."""
        return gradient.device.type == self._kind and gradient.numel() > 0

    def buffer(self, session: Session, spec: TensorSpec, dtype: torch.dtype, device: torch.device) -> Buffer:
        """Memory for gradients that travel as ``spec``, pinned if that is possible.

        It is unpinned and freed when the buffer is dropped and the last copy is over.

        Args:
            session: gives the memory, which servers of this host can read.
            spec: shape and element type.
            dtype: what torch calls that element type.
            device: where the gradients are.

        Raises:
            TransportError: there is no memory left.
        """
        # Whole pages: a page that two buffers shared could not be pinned for both.
        length = -(-spec.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = session.empty((length + mmap.PAGESIZE,), np.uint8)
        start = -memory.ctypes.data % mmap.PAGESIZE
        pages = memory[start : start + length]
        buffer = Buffer(to_tensor(pages[: spec.nbytes].view(spec.dtype.storage).reshape(spec.shape), dtype))
        is_pinned = self._pin(pages, device)
        weakref.finalize(buffer, _release, self._cuda, device, buffer.last, pages, is_pinned).atexit = False
        return buffer

    def start(self, gradient: torch.Tensor, buffer: Buffer, begin: Callable[[], Pending]) -> Submission:
        """Copy ``gradient`` into ``buffer`` behind what its device has to do before, then call ``begin``; no waiting.

        Args:
            gradient: dense; must not be changed before the operation is done.
            buffer: not in use by another operation.
            begin: submits the operation, in another thread; its result is written to the buffer.

        Raises:
            UnsupportedError: a CUDA graph is being captured.
        """
        cuda, device = self._cuda, gradient.device
        if cuda.is_current_stream_capturing():
            raise UnsupportedError(
                "a backward pass that a CUDA graph captures cannot push gradients, because a replay calls no hooks: "
                "capture without the DistributedOptimizer, and push the gradients by push_pull_inplace() after a replay"
            )
        side = self._side(device)
        side.wait_stream(cuda.current_stream(device))
        for event in buffer.last:  # another stream's, if the parameter has moved to another device
            side.wait_event(event)
        with torch.no_grad(), cuda.stream(side):
            travels = gradient.detach().resolve_neg().to(buffer.tensor.dtype).contiguous()
            buffer.tensor.copy_(travels, non_blocking=True)
        copied = self._mark(side, buffer)
        submission = Submission(functools.partial(_await, cuda, copied, gradient, buffer), begin)
        self._submissions.add(submission)
        return submission

    def fetch(self, buffer: Buffer, gradient: torch.Tensor) -> None:
        """Copy what is in ``buffer`` into ``gradient``, behind and before all else in the current stream; no waiting.

        No autograd graph sees the change, but one that has saved the older values will notice it.
        """
        cuda, device = self._cuda, gradient.device
        current, side = cuda.current_stream(device), self._side(device)
        side.wait_stream(current)
        with torch.no_grad(), cuda.stream(side):
            arrived = buffer.tensor
            if arrived.dtype != gradient.dtype or not gradient.is_contiguous():
                arrived = arrived.to(device, non_blocking=True)  # or the host would convert, and without pinned memory
            gradient.detach().copy_(arrived, non_blocking=True)
        current.wait_event(self._mark(side, buffer))

    def close(self) -> None:
        """End the submitting thread, after what was started."""
        self._submissions.close()

    def _side(self, device: torch.device) -> Any:
        side = self._sides.get(device)
        return self._sides.setdefault(device, self._cuda.Stream(device)) if side is None else side

    def _mark(self, side: Any, buffer: Buffer) -> Any:
        event = self._cuda.Event(blocking=True)  # who waits for it sleeps
        event.record(side)
        buffer.last[:] = [event]
        return event

    def _pin(self, pages: npt.NDArray[np.uint8], device: torch.device) -> bool:
        if not self._can_pin:
            return False

        def register() -> int:
            with self._cuda.device(device):  # else a context would be made on the first GPU
                return int(self._cuda.cudart().cudaHostRegister(pages.ctypes.data, pages.nbytes, _PORTABLE))

        # In a thread of its own: CUDA keeps the error of a call that failed for the next one of the same thread.
        with ThreadPoolExecutor(1) as apart:
            status = apart.submit(register).result()
        if status == 0:
            return True
        self._can_pin = False
        _log.warning(
            "cannot pin %d bytes of host memory (cudaHostRegister: error %d): gradients on a GPU are copied without, "
            "which is slower and holds up the backward pass",
            pages.nbytes,
            status,
        )
        return False


def _await(cuda: Any, event: Any, gradient: torch.Tensor, buffer: Buffer) -> None:
    """Return when the event has happened; the gradient and the buffer live as long."""
    del buffer
    with cuda.device(gradient.device):
        event.synchronize()


def _release(cuda: Any, device: torch.device, last: list[Any], pages: npt.NDArray[np.uint8], is_pinned: bool) -> None:
    """Nobody uses the pages any more, but a copy may; the memory is freed when this is over."""
    with contextlib.suppress(RuntimeError), cuda.device(device):  # a device that has failed copies nothing
        for event in last:
            event.synchronize()
        if is_pinned:
            cuda.cudart().cudaHostUnregister(pages.ctypes.data)
