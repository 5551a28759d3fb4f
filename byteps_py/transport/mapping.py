"""Maps memory files where large pages can be used, and asks for these.

Linux gives memory files pages of 4 KiB unless an administrator has said otherwise, and each costs an entry of the
processor's table of addresses: copies into and out of them take twice as long as with pages of 2 MiB.  From 6.1 on the
kernel makes such pages when it is asked for by madvise(2), MADV_COLLAPSE, in mappings whose addresses are multiples of
their size.  Where it does not, the small ones stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import weakref
from typing import Any, Final

__all__ = ["LARGE_PAGE", "Mapping"]

LARGE_PAGE: Final = 2 << 20
_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 0x01, 0x02, 0x10, 0x20
_MADV_DONTFORK: Final = 10
_MADV_COLLAPSE: Final = 25

_library: Final = ctypes.CDLL(None, use_errno=True)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED: Final = ctypes.c_void_p(-1).value


class Mapping:
    """A memory file as memory, shared, and not inherited by forked children, which have nothing at its address.

    It is unmapped when neither this object nor a view of :attr:`content` is left, in the process that made it.

    Args:
        descriptor: of the file; stays the caller's.
        nbytes: to map, a multiple of the page size.
        writable: whether it may be written.

    Attributes:
        address: where it begins, a multiple of :data:`LARGE_PAGE`.
        content: its bytes.

    Raises:
        OSError: it cannot be mapped.
    """

    __slots__ = ("__weakref__", "_may_collapse", "address", "content", "nbytes")

    def __init__(self, descriptor: int, nbytes: int, *, writable: bool) -> None:
        self.nbytes = nbytes
        self.address = _map(descriptor, nbytes, _PROT_READ | (_PROT_WRITE if writable else 0))
        memory = (ctypes.c_char * nbytes).from_address(self.address)
        weakref.finalize(memory, _unmap, self.address, nbytes, os.getpid()).atexit = False
        content = memoryview(memory).cast("B")
        self.content = content if writable else content.toreadonly()
        self._may_collapse = True

    def make_large(self, begin: int, end: int, own: int) -> None:
        """Have the part from ``begin`` to ``end``, multiples of :data:`LARGE_PAGE`, consist of large pages, if the
        system can: its memory is taken now, and what is in it stays. The mapping must be writable, and bytes from
        ``own`` on, which lies in the first of these pages or before it, must be nobody else's."""
        if self._may_collapse and begin < end <= self.nbytes:
            for each in range(begin, end, LARGE_PAGE):
                self.content[max(each, own)] |= 0  # the kernel leaves alone what does not exist at all
            status = _library.madvise(self.address + begin, end - begin, _MADV_COLLAPSE)
            # Memory may be short for a moment; a kernel that does not know of it never will.
            self._may_collapse = status == 0 or ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS)


def _map(descriptor: int, nbytes: int, protection: int) -> int:
    """Map the file at an aligned address within a range that is reserved first; what is left of that is given back."""
    reserved = nbytes + LARGE_PAGE
    start: int = _library.mmap(None, reserved, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
    if start == _FAILED:
        raise _error()
    address = -(-start // LARGE_PAGE) * LARGE_PAGE
    found = _library.mmap(address, nbytes, protection, _MAP_SHARED | _MAP_FIXED, descriptor, 0)
    if found == _FAILED:
        problem = _error()
        _library.munmap(start, reserved)
        raise problem
    for begin, end in ((start, address), (address + nbytes, start + reserved)):
        if begin < end:
            _library.munmap(begin, end - begin)
    if _library.madvise(address, nbytes, _MADV_DONTFORK):  # else a child would keep pages alive
        problem = _error()
        _library.munmap(address, nbytes)
        raise problem
    return address


def _unmap(address: int, nbytes: int, owner: int) -> None:
    """Not in a forked child, where something else may be at that address by now."""
    with contextlib.suppress(AttributeError, TypeError):  # the interpreter is ending
        if os.getpid() == owner:
            _library.munmap(address, nbytes)


def _error() -> OSError:
    number: Any = ctypes.get_errno()
    return OSError(number, os.strerror(number))
