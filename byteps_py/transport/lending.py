"""Memory lent to libzmq, without a Python thread that takes it back.

pyzmq lends, too, but sends a message to a thread of its own for each piece that libzmq is done with: for each large
frame that thread takes the core and the GIL from the one that works.  Here libzmq's I/O thread sets a flag (see
``csrc/lend.c``), and what it is done with is let go of when the endpoint is used again.

What is lent when the interpreter ends stays alive: libzmq may still read it.
"""

from __future__ import annotations

import ctypes
from collections import deque
from importlib import import_module
from typing import Any, Final

__all__ = ["LOANS", "Lender", "library"]

LOANS: Final = 1024
"""Most that can be lent at the same time: as many flags as ``csrc/lend.c`` has."""

_held: dict[int, object] = {}
"""By the number of the loan: what keeps its memory alive."""
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_held))  # never freed, so neither is what is in it at the end

_free = deque(range(LOANS))
"""Numbers of loans that are not out. Of the process, as the flags are: endpoints of several threads share them."""

_EXTENSIONS: Final = ("zmq.backend.cython._zmq", "zmq.backend.cython.socket")
"""Modules of pyzmq that are linked with libzmq: since version 26 and before."""


def library() -> str:
    """The path of the extension of pyzmq through which libzmq's functions are found.

    Raises:
        LookupError: this pyzmq has none, as with its backend for PyPy.
    """
    for name in _EXTENSIONS:
        try:
            path = import_module(name).__file__
        except ImportError:
            continue
        if path:
            return path
    raise LookupError(f"memory cannot be lent to libzmq: pyzmq has none of {', '.join(_EXTENSIONS)}")


class Lender:
    """Lends memory to the sockets of one endpoint. Belongs to the endpoint's thread.

    Args:
        library: path of what has loaded libzmq, see :func:`library`.

    Raises:
        LookupError: the extension in C was not built, or libzmq's functions are not to be found.
    """

    def __init__(self, library: str) -> None:
        try:
            native = import_module("byteps_py.kernels._native")
            self._lend: Any = native.lib.byteps_lend
            self._is_lent: Any = native.lib.byteps_is_lent
            loaded = ctypes.CDLL(library)
            addresses = [
                ctypes.cast(loaded[name], ctypes.c_void_p).value
                for name in ("zmq_msg_init_data", "zmq_msg_send", "zmq_msg_close")
            ]
        except (ImportError, AttributeError, OSError) as error:
            raise LookupError(f"memory cannot be lent to libzmq: {error}") from error
        self._ffi: Any = native.ffi
        self._functions = self._ffi.new("struct byteps_libzmq *")
        for field, address in zip(("init_data", "send", "close"), addresses, strict=True):
            setattr(self._functions, field, self._ffi.cast(self._ffi.typeof(getattr(self._functions, field)), address))
        self._out: list[int] = []

    def send(self, socket: int, frame: object, flags: int) -> int | None:
        """Send ``frame`` as one frame of a message.

        Args:
            socket: libzmq's address of it.
            frame: contiguous bytes, which must not change before the receiver has told that it has them. Kept alive.
            flags: libzmq's.

        Returns:
            0; libzmq's errno, and nothing was sent; or None if no loan is free, and nothing was sent.
        """
        self.collect()
        try:
            loan = _free.popleft()
        except IndexError:
            return None
        data = self._ffi.from_buffer(frame)
        _held[loan] = data
        self._out.append(loan)
        return int(self._lend(self._functions, self._ffi.cast("void *", socket), data, len(data), flags, loan))

    def collect(self) -> None:
        """Let go of what libzmq is done with."""
        out = self._out
        if not out:
            return
        self._out = [loan for loan in out if self._is_lent(loan)]
        if len(self._out) < len(out):
            for loan in set(out).difference(self._out):
                del _held[loan]
                _free.append(loan)
