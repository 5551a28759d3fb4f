"""Memory that another process of this host may read: the arena of one process, in sealed memory files.

A *segment* is an anonymous file (memfd_create(2)) of 64 MiB, or of what one large allocation needs.  Its pages exist
once they are written; those of allocations up to 64 MiB, which are gradients, partitions and results in steady use,
from the beginning, since that makes them large (:mod:`~byteps_py.transport.mapping`).  It is mapped first and
sealed afterwards: it can neither shrink nor grow, which would end its readers by SIGBUS, and nobody else can map it for
writing.  It has no name: nothing is left of it after kill -9.

A segment is cut into *slots*, from its beginning on, each a stamp and the bytes of one allocation:

======  ======================================================================================================
bytes   content
======  ======================================================================================================
0-7     the generation: how often the content has been given up so far, by a new allocation or by ``renew``
8-63    nothing: what is allocated starts at a cache line of its own
64-     the allocation
======  ======================================================================================================

Slots come in sizes of which there are four per power of two (and multiples of 64 below 512).  A slot whose allocation
is gone serves the next one of its size; slots are neither split nor joined.  So an arena holds at most 5/4 of the sum,
over all sizes, of the most bytes that were in use at one time in allocations of that size, and 64 bytes for each.

A forked child has no mapping of it, and leaves the addresses alone: see ``_forget_in_child``.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import weakref
from bisect import bisect_right
from typing import Any, Final, NamedTuple

import _cffi_backend  # type: ignore[import-untyped]  # what the kernels need, too: the fastest way to an address
import numpy as np
import numpy.typing as npt

from byteps_py.errors import RemoteProtocolError, TransportError
from byteps_py.transport import descriptors
from byteps_py.transport.available import LARGE_ALLOCATION, need
from byteps_py.transport.base import ALIGNMENT, Buffer, plain_memory
from byteps_py.transport.mapping import LARGE_PAGE, Mapping

__all__ = ["STAMP_BYTES", "Arena", "Place", "Segment", "View", "nbytes_of", "view_of"]

STAMP_BYTES: Final = ALIGNMENT
_SEGMENT_BYTES: Final = 64 << 20
_PAGE: Final = 4096
_LARGEST: Final = 1 << 46
"""No address space holds more."""
_F_ADD_SEALS: Final = 1033  # by number: Python 3.10 has none of the names for a C library that is old enough
_F_GET_SEALS: Final = 1034
_SEAL, _SHRINK, _GROW, _FUTURE_WRITE = 0x1, 0x2, 0x4, 0x10

_ffi: Final = _cffi_backend.FFI()
_from_buffer: Final = _ffi.from_buffer
_cast: Final = _ffi.cast
_uintptr_t: Final = _ffi.typeof("uintptr_t")

_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


class Place(NamedTuple):
    """Where in an arena some bytes lie.

    Attributes:
        segment: the segment.
        offset: of the bytes in it.
        stamp: offset of the stamp of the allocation they are part of.
        generation: what the stamp says now.
    """

    segment: Segment
    offset: int
    stamp: int
    generation: int


class _Slot:
    """A part of a segment that holds one allocation at a time; lives as long as the segment."""

    __slots__ = ("address", "end", "free", "segment", "word")

    def __init__(self, segment: Segment, stamp: int, size: int, free: list[_Slot]) -> None:
        self.segment = segment
        self.word = stamp // 8
        self.end = stamp + size
        self.address = segment.address + stamp + STAMP_BYTES
        self.free = free


class _Allocation:
    """What keeps a slot occupied: the base of the array, and so of every view of it, that :meth:`Arena.allocate` gave.

    When the last of them is gone, on whatever thread, it puts the slot back by one atomic step and without any lock:
    that may happen in the middle of another allocation.
    """

    __slots__ = ("__array_interface__", "_slot")

    def __init__(self, slot: _Slot, nbytes: int) -> None:
        self._slot = slot
        self.__array_interface__ = {"data": (slot.address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        self._slot.free.append(self._slot)


class Segment:
    """One memory file of the own arena.

    Attributes:
        number: consecutive in the arena.
        descriptor: of the file, for passing it on; -1 in a forked child.
        nbytes: its size.
        address: where it is mapped.
        words: its stamps, as 64-bit words of the whole segment.
        used: bytes of it that are cut into slots.
        ready: up to where large pages were asked for.
    """

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.nbytes = nbytes
        self.used = self.ready = 0
        self.starts: list[int] = []
        self.slots: list[_Slot] = []
        self.descriptor = -1
        descriptor = os.memfd_create("byteps_py", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, nbytes)
            self.mapping = Mapping(descriptor, nbytes, writable=True)
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEAL | _SHRINK | _GROW | _FUTURE_WRITE)
        except BaseException:
            os.close(descriptor)
            raise
        self.descriptor = descriptor
        self.words = self.mapping.content.cast("Q")
        self.address = self.mapping.address

    def cut(self, size: int, nbytes: int, free: list[_Slot]) -> _Slot:
        """A new slot at the end of what is used, for ``nbytes`` bytes at first."""
        slot = _Slot(self, self.used, size, free)
        del self.slots[len(self.starts) :]  # one that an interruption has left alone
        self.slots.append(slot)
        self.starts.append(self.used)
        begin = max(self.ready, self.used // LARGE_PAGE * LARGE_PAGE)
        end = -(-(self.used + STAMP_BYTES + nbytes) // LARGE_PAGE) * LARGE_PAGE
        own, self.used = self.used, self.used + size
        # More at a time would be seconds in which nothing happens, for memory that may never be written.
        if nbytes <= LARGE_ALLOCATION and begin < end:
            self.mapping.make_large(begin, end, own)
            self.ready = end
        return slot

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Arena:
    """The memory of one process that its peers may read. Any thread may call its methods.

    Args:
        segment_bytes: size of the usual segment, a multiple of the page size.
    """

    def __init__(self, segment_bytes: int = _SEGMENT_BYTES) -> None:
        self._segment_bytes = segment_bytes
        self._free: dict[int, list[_Slot]] = {}
        self._index: tuple[list[int], list[Segment]] = ([], [])
        """Addresses in ascending order, and the segments there; replaced as a whole."""
        self._open: Segment | None = None
        self._count = 0
        self._lock = threading.Lock()
        self._is_alien = False
        _arenas.add(self)

    @property
    def nbytes(self) -> int:
        """Bytes that are cut into slots, occupied or not."""
        return sum(each.used for each in self._index[1])

    def allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """See :meth:`byteps_py.transport.base.Endpoint.allocate`. Plain memory in a forked child, and for no bytes.

        Raises:
            TransportError: there is no memory left, or a segment cannot be made.
        """
        if self._is_alien or nbytes <= 0:
            return plain_memory(nbytes)
        size = _slot_size(nbytes)
        free = self._free.get(size)
        if free is None:
            free = self._free.setdefault(size, [])
        try:
            slot = free.pop()
        except IndexError:
            need(nbytes)
            with self._lock:
                slot = self._room(size).cut(size, nbytes, free)
        slot.segment.words[slot.word] += 1
        return np.asarray(_Allocation(slot, nbytes))

    def renew(self, buffer: npt.NDArray[Any] | memoryview) -> None:
        """See :meth:`byteps_py.transport.base.Endpoint.renew`."""
        place = self.locate(buffer)
        if place is not None:
            place.segment.words[place.stamp // 8] = place.generation + 1

    def locate(self, buffer: Buffer | npt.NDArray[Any]) -> Place | None:
        """Where a contiguous buffer lies; None if it is empty or not wholly a part of one allocation in this arena."""
        address = address_of(buffer)
        addresses, segments = self._index
        position = bisect_right(addresses, address) - 1
        if position < 0:
            return None
        segment = segments[position]
        offset = address - segment.address
        if offset >= segment.used:
            return None
        slot = segment.slots[bisect_right(segment.starts, offset) - 1]
        nbytes = nbytes_of(buffer)
        if nbytes == 0 or address < slot.address or offset + nbytes > slot.end or self._is_alien:
            return None
        return Place(segment, offset, slot.word * 8, segment.words[slot.word])

    def forget(self) -> None:
        """In a forked child: there is nothing at the addresses any more."""
        self._is_alien = True
        for each in self._index[1]:
            descriptor, each.descriptor = each.descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def _room(self, size: int) -> Segment:
        """A segment with room for a new slot; the lock is held."""
        present = self._open
        if present is not None and present.nbytes - present.used >= size:
            return present
        nbytes = max(self._segment_bytes, -(-size // _PAGE) * _PAGE)
        descriptors.need(descriptors.SEGMENT)
        try:
            made = Segment(self._count, nbytes)
        except (OSError, OverflowError) as error:
            raise TransportError(f"cannot make {nbytes} bytes of shared memory: {error}") from error
        self._count += 1
        segments = sorted((*self._index[1], made), key=lambda each: each.address)
        self._index = [each.address for each in segments], segments
        if present is None or present.nbytes - present.used < nbytes - size:
            self._open = made
        return made


class View:
    """A segment of a peer, mapped for reading.

    Attributes:
        nbytes: its size.
        content: its bytes, read-only.
        words: the same, as 64-bit words.
    """

    __slots__ = ("content", "nbytes", "words")

    def __init__(self, mapping: Mapping) -> None:
        self.content = mapping.content
        self.nbytes = len(self.content)
        self.words = self.content.cast("Q")


def view_of(descriptor: int, nbytes: int) -> View:
    """Map a segment that a peer has passed, which is said to have ``nbytes``; the descriptor stays the caller's.

    Raises:
        RemoteProtocolError: it is not a memory file of that size, or it could still shrink.
        TransportError: this process has no room for it.
    """
    try:
        seals = fcntl.fcntl(descriptor, _F_GET_SEALS)
    except OSError:
        raise RemoteProtocolError("what was passed is not a memory file") from None
    if not seals & _SHRINK:
        raise RemoteProtocolError("the memory file that was passed is not sealed, so its owner could take it away")
    found = os.fstat(descriptor)  # after the look at the seals: now it cannot change any more
    if not stat.S_ISREG(found.st_mode) or found.st_size != nbytes or nbytes % ALIGNMENT or not 0 < nbytes <= _LARGEST:
        raise RemoteProtocolError(f"a memory file of {nbytes} bytes was announced, one of {found.st_size} was passed")
    try:
        mapping = Mapping(descriptor, nbytes, writable=False)
    except OSError as error:
        raise TransportError(
            f"{nbytes} bytes of another process's shared memory cannot be mapped: {error.strerror}: raise the limit of "
            "this process's address space (`ulimit -v`), or set BYTEPS_TRANSPORT=tcp for the whole job"
        ) from error
    return View(mapping)


def address_of(buffer: Any) -> int:
    """Where the memory of a contiguous buffer starts."""
    return int(_cast(_uintptr_t, _from_buffer(buffer)))


def nbytes_of(buffer: Buffer | npt.NDArray[Any]) -> int:
    """The size of a buffer, whatever its elements."""
    return len(buffer) if isinstance(buffer, (bytes, bytearray)) else buffer.nbytes


def _slot_size(nbytes: int) -> int:
    """Stamp and allocation, rounded up to the next of the sizes in use."""
    needed = nbytes + STAMP_BYTES
    step = max(ALIGNMENT, 1 << ((needed - 1).bit_length() - 3))
    return -(-needed // step) * step


def _forget_in_child() -> None:
    """Nothing is locked here: a lock may have been held by a thread that the child does not have."""
    for arena in list(_arenas):
        arena.forget()


os.register_at_fork(after_in_child=_forget_in_child)
