"""``torch.cuda`` in miniature, on CPU tensors: streams that do nothing before somebody waits for them.

Inside :meth:`FakeCuda.lazy` whatever a thread asks of torch while a stream is current is put into that stream, and is
done as late as CUDA may do it: when the host waits for an event, or at :meth:`FakeCuda.finish`.  So a wait that is
missing shows as a wrong value.  Outside it everything happens at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class FakeStream:
    """What is still to be done, in order: work, events to mark, and events to wait for."""

    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.name = name
        self._cuda = cuda
        self._todo: list[Callable[[], None]] = []

    def add(self, work: Callable[[], None]) -> None:
        self._todo.append(work)

    def wait_event(self, event: FakeEvent) -> None:
        assert event.stream is not None, "an event that was never recorded is waited for"
        self._cuda.log.append((self.name, "wait", event.stream.name))
        self.add(event.reach)

    def wait_stream(self, stream: FakeStream) -> None:
        event = FakeEvent(self._cuda)
        event.record(stream)
        self.wait_event(event)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        while self._todo and not until():
            self._todo.pop(0)()


class FakeEvent:
    """Happens when its stream comes to it."""

    def __init__(self, cuda: FakeCuda, blocking: bool = False) -> None:
        self.stream: FakeStream | None = None
        self._cuda = cuda
        self._blocking = blocking
        self._happened = False

    def record(self, stream: FakeStream) -> None:
        self.stream = stream
        stream.add(self._happen)

    def _happen(self) -> None:
        self._happened = True

    def reach(self) -> None:
        """Let its stream work up to here."""
        if not self._happened:
            assert self.stream is not None
            self.stream.run(lambda: self._happened)
            assert self._happened

    def synchronize(self) -> None:
        assert self._blocking, "a thread of the host would spin"
        assert self._cuda.devices.current is not None, "a context would be made on another device"
        self._cuda.gate.wait(60)
        if self._cuda.failure is not None:
            raise self._cuda.failure
        with self._cuda.lock:
            self.reach()


class _Devices(threading.local):
    current: Any = None
    stream: FakeStream | None = None


class _Lazy(TorchDispatchMode):
    """Puts operations into the current stream; what they return has its shape at once and its content later."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self._cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, stream = kwargs or {}, self._cuda.devices.stream
        if stream is None or func not in _WORK:
            return func(*args, **kwargs)
        if func is torch.ops.aten.copy_.default:
            assert args[2:] == (True,), "a copy that makes the host wait"
            stream.add(lambda: func(*args, **kwargs))
            return args[0]
        result = func(*args, **kwargs)
        result.fill_(-99)
        stream.add(lambda: result.copy_(func(*args, **kwargs)))
        return result


_WORK = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default, torch.ops.aten.clone.default)


class FakeCuda:
    """What of ``torch.cuda`` is used.

    Attributes:
        main: what is the current stream outside ``stream()``.
        gate: while it is cleared, no event happens for the host.
        failure: what waiting for an event raises.
        log: ``(stream, "wait", stream)`` in order.
        pinned: registered addresses, and how many bytes from there.
        status: what cudaHostRegister returns.
        registrations: how often it was called.
        capturing: whether a CUDA graph is captured.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.devices = _Devices()
        self.log: list[tuple[str, str, str]] = []
        self.main = FakeStream(self, "main")
        self.streams: list[FakeStream] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failure: BaseException | None = None
        self.pinned: dict[int, int] = {}
        self.status = 0
        self.registrations = 0
        self.capturing = False

    def Stream(self, device: torch.device) -> FakeStream:
        made = FakeStream(self, f"side{len(self.streams)}")
        self.streams.append(made)
        return made

    def Event(self, blocking: bool = False) -> FakeEvent:
        return FakeEvent(self, blocking)

    def current_stream(self, device: torch.device) -> FakeStream:
        return self.devices.stream or self.main

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.devices.stream = self.devices.stream, stream
        try:
            yield
        finally:
            self.devices.stream = before

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.devices.current = self.devices.current, device
        try:
            yield
        finally:
            self.devices.current = before

    def cudart(self) -> FakeCuda:
        assert self.devices.current is not None, "a context would be made on another device"
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.registrations += 1
        assert flags == 1
        assert address % 4096 == nbytes % 4096 == 0
        assert threading.current_thread() is not threading.main_thread(), "its error would meet the next call here"
        assert all(address + nbytes <= other or other + size <= address for other, size in self.pinned.items())
        if self.status == 0:
            self.pinned[address] = nbytes
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0

    def lazy(self) -> contextlib.AbstractContextManager[Any]:
        """See the module."""
        return _Lazy(self)

    def finish(self) -> None:
        """Let all streams come to their ends."""
        with self.lock:
            for stream in (self.main, *self.streams):
                stream.run()
