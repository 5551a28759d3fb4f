"""One operation on one array, from its push to the callback of MXNet's engine; see :mod:`byteps_py.mxnet.engine`."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy.typing as npt

from byteps_py.errors import BytePSError
from byteps_py.mxnet.arrays import memory_of
from byteps_py.roles.pending import Pending
from byteps_py.types import TensorSpec

__all__ = ["OnComplete", "Work", "call_back"]

_Callback: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class OnComplete(ctypes.Structure):
    """``CallbackOnComplete`` of MXNet 1.9.1: what an operation calls when it is over."""

    _fields_ = (("callback", ctypes.c_void_p), ("engine", ctypes.c_void_p), ("parameter", ctypes.c_void_p))


def call_back(complete: OnComplete, error: BaseException | None) -> None:
    """Tell the engine that an operation is over; it may run what comes after before this returns."""
    with _as_cpp_error(error) as address:
        _Callback(complete.callback)(complete.engine, complete.parameter, address)


class Work:
    """One operation on one array. Any thread.

    Attributes:
        spec: what the array travels as.
        array: written by it; None once it is told.
        turn: written by all works of its name.
        began_in: the thread that ran it; None before.
    """

    def __init__(self, spec: TensorSpec, array: Any, begin: Callable[[npt.NDArray[Any]], Pending]) -> None:
        self.spec = spec
        self.array = array
        self.turn: Any = None
        self.began_in: int | None = None
        self._begin: Callable[[npt.NDArray[Any]], Pending] | None = begin
        self._on_complete: OnComplete | None = None
        self._pending: Pending | None = None
        self._over = threading.Event()
        self._absent = False
        self._error: BaseException | None = None
        self._is_told = False

    def wait(self) -> bool:
        """Block until it is over; returns whether some worker contributed something.

        Raises:
            BytePSError: as :meth:`byteps_py.roles.pending.Pending.wait`, and where the array could not be computed.
        """
        self._over.wait()
        self.raise_error()
        return not self._absent

    def raise_error(self) -> None:
        """Raise what it failed of, if it has."""
        if self._error is not None:
            self._is_told = True
            raise self._error.with_traceback(None)

    @property
    def has_failed(self) -> bool:
        """Whether something went wrong, so far; not whether somebody was told."""
        return self._error is not None

    @property
    def untold(self) -> BaseException | None:
        """What it failed of, unless somebody was told."""
        return None if self._is_told else self._error

    @property
    def is_over(self) -> bool:
        """Whether :meth:`wait` would return or raise at once."""
        return self._over.is_set()

    def start(self, on_complete: OnComplete, then: Callable[[], None]) -> None:
        """Submit it, and have ``then`` called when it is over. Raises nothing but what a signal raises."""
        self._on_complete = on_complete
        self.began_in = threading.get_ident()
        assert self._begin is not None
        begin, self._begin = self._begin, None
        try:
            self._pending = begin(memory_of(self.array, self.spec))
        except BaseException as error:
            self._error = error
            then()
        else:
            self._pending.call_when_done(then)

    def hurry(self) -> None:
        """Nothing of what was submitted is to be held back."""
        if self._pending is not None:
            self._pending.done()

    def fail(self, error: BaseException) -> None:
        """Something went wrong beside what was submitted, which is waited for nevertheless: it writes the memory."""
        self._error = self._error or error

    def refuse(self) -> None:
        """The engine has not got it, and its caller is told so."""
        self._is_told = True

    def finish(self) -> None:
        """Take the outcome; it is there already."""
        if self._pending is not None:
            try:
                self._pending.wait()
            except BaseException as error:
                self._error = error
            self._absent = self._pending.absent
            self._pending = None
        self._over.set()

    def skip(self) -> None:
        """The engine will not run it."""
        self._error = BytePSError(
            f"tensor {self.spec.name!r} was not pushed, because the operation that computes it has failed: "
            "read the array to see why"
        )
        self._over.set()

    def tell(self) -> None:
        """Call the engine back; it may run what comes after before this returns."""
        complete, self.array = self._on_complete, None
        assert complete is not None
        call_back(complete, self._error)


@contextlib.contextmanager
def _as_cpp_error(error: BaseException | None) -> Iterator[Any]:
    """The address of a ``dmlc::Error`` with the text of ``error``; None for none.

    It is a ``std::runtime_error`` and adds nothing; the engine copies it.  The C++ library that MXNet has loaded makes
    and destroys it.
    """
    if error is None:
        yield None
        return
    library = ctypes.CDLL("libstdc++.so.6")
    memory = ctypes.create_string_buffer(2 * ctypes.sizeof(ctypes.c_void_p))
    text = f"{type(error).__name__}: {error}".encode(errors="replace").replace(b"\0", b"?")
    library["_ZNSt13runtime_errorC1EPKc"](ctypes.byref(memory), ctypes.c_char_p(text))
    try:
        yield ctypes.byref(memory)
    finally:
        library["_ZNSt13runtime_errorD1Ev"](ctypes.byref(memory))
