"""The allocator of a server's process: it should not return to the system what the next frame needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

__all__ = ["KEPT_BYTES", "keep_freed"]

KEPT_BYTES: Final = 64 << 20
"""Most that each arena of the allocator keeps: the I/O thread, which receives, has one of its own."""


def keep_freed() -> None:
    """Keep freed memory for later frames, instead of having the system clear it anew for each of them.

    libzmq takes the memory of every received frame from the allocator.  Only for a process that is ours, since it
    concerns all of it.  Does nothing where the extension in C was not built.
    """
    try:
        library: Any = import_module("byteps_py.kernels._native").lib
    except ImportError:
        return
    if hasattr(library, "byteps_keep_freed_memory"):
        library.byteps_keep_freed_memory(KEPT_BYTES)
