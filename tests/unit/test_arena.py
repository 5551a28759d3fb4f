"""The memory that peers may read: where it lies, when it is used again, and who cannot harm it."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from byteps_py.errors import RemoteProtocolError, TransportError
from byteps_py.transport import arena as module
from byteps_py.transport.arena import STAMP_BYTES, Arena, Place, view_of
from byteps_py.transport.available import OutOfMemory
from byteps_py.transport.mapping import Mapping

SEALS = {"SEAL": 0x1, "SHRINK": 0x2, "GROW": 0x4, "FUTURE_WRITE": 0x10}


def located(arena: Arena, buffer: memoryview | np.ndarray) -> Place:
    place = arena.locate(buffer)
    assert place is not None
    return place


def in_child(action: Callable[[], None]) -> None:
    """Do something in a forked child; it must go well and the child end well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


class TestAllocation:
    @pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 448, 449, 100_000, 4_096_000])
    def test_it_has_its_own_aligned_bytes(self, nbytes: int) -> None:
        arena = Arena()
        several = [arena.allocate(nbytes) for _ in range(5)]
        for number, each in enumerate(several):
            assert (each.dtype.str, each.shape, each.flags.writeable) == ("|u1", (nbytes,), True)
            assert each.ctypes.data % 64 == 0
            each[:] = number
        assert [set(each.tolist()) for each in several] == [{0}, {1}, {2}, {3}, {4}]

    @pytest.mark.parametrize("nbytes", [*range(1, 2000, 83), 65536, 100_000, 4_096_000, (1 << 24) + 1])
    def test_at_most_a_quarter_is_lost_to_rounding(self, nbytes: int) -> None:
        arena = Arena()
        kept = arena.allocate(nbytes)
        assert nbytes + STAMP_BYTES <= arena.nbytes <= max(1.25 * (nbytes + STAMP_BYTES), nbytes + STAMP_BYTES + 63)
        assert len(kept) == nbytes

    def test_an_empty_arena_costs_nothing(self) -> None:
        before = os.listdir("/proc/self/fd")
        arena = Arena()
        assert arena.nbytes == 0
        assert os.listdir("/proc/self/fd") == before

    def test_no_bytes_are_plain_memory(self) -> None:
        arena = Arena()
        assert arena.allocate(0).nbytes == 0
        assert arena.nbytes == 0

    def test_one_that_is_larger_than_a_segment_has_its_own(self) -> None:
        arena = Arena(segment_bytes=1 << 16)
        small, large, other = arena.allocate(100), arena.allocate(1 << 20), arena.allocate(100)
        large[:] = 1
        assert located(arena, small).segment is located(arena, other).segment
        assert located(arena, large).segment.nbytes >= 1 << 20

    def test_segments_follow_each_other(self) -> None:
        arena = Arena(segment_bytes=1 << 16)
        several = [arena.allocate(30_000) for _ in range(7)]
        places = [located(arena, each) for each in several]
        assert sorted({each.segment.number for each in places}) == list(range(len({each.segment for each in places})))
        assert len({each.segment for each in places}) >= 4

    @pytest.mark.parametrize("nbytes", [1 << 44, 1 << 60, 1 << 70])
    def test_what_nobody_has_is_refused_before_anything_is_taken(self, nbytes: int) -> None:
        arena = Arena()
        with pytest.raises(OutOfMemory, match=rf"no memory left for {nbytes} bytes"):
            arena.allocate(nbytes)
        assert arena.nbytes == 0
        assert arena.allocate(100).nbytes == 100

    def test_what_the_system_refuses_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "need", lambda nbytes: None)
        with pytest.raises(TransportError, match=r"cannot make \d+ bytes of shared memory"):
            Arena().allocate(1 << 60)

    @pytest.mark.parametrize(("mib", "most"), [(1, 2), (2, 4), (8, 10), (64, 66), (65, 0), (1024, 0)])
    def test_pages_are_there_before_they_are_written_up_to_a_size(self, mib: int, most: int) -> None:
        arena = Arena()
        kept = arena.allocate(mib << 20)
        descriptor = located(arena, kept).segment.descriptor
        assert os.fstat(descriptor).st_blocks * 512 <= (most << 20) + 4096  # the stamp's page is written

    def test_slots_that_follow_each_other_have_all_their_pages(self) -> None:
        arena = Arena()
        kept = [arena.allocate(5 << 20) for _ in range(3)]
        segment = located(arena, kept[0]).segment
        assert os.fstat(segment.descriptor).st_blocks * 512 >= 3 * (5 << 20)
        for number, each in enumerate(kept):
            each[:] = number
        assert [set(each[:: 1 << 16].tolist()) for each in kept] == [{0}, {1}, {2}]

    def test_a_new_slot_touches_no_byte_of_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Somebody may be writing there."""
        touched: list[tuple[int, int]] = []
        make_large = Mapping.make_large

        def watched(mapping: Mapping, begin: int, end: int, own: int) -> None:
            touched.append((max(begin, own), segment.used - own))
            make_large(mapping, begin, end, own)

        arena = Arena()
        kept = [arena.allocate((1 << 20) - 64)]
        segment = located(arena, kept[0]).segment
        monkeypatch.setattr(Mapping, "make_large", watched)
        first = arena.allocate((20 << 20) + 100_000)
        del first
        kept.append(arena.allocate((24 << 20) - 64))  # the same slot, all of it
        kept[-1][:] = 7
        end = segment.used
        kept.append(arena.allocate((3 << 20) - 64))
        assert located(arena, kept[-1]).segment is segment
        assert touched[-1][0] >= end
        assert set(kept[1][:: 1 << 12].tolist()) == {7}


class TestReuse:
    def test_when_the_last_view_is_gone(self) -> None:
        arena = Arena()
        first = arena.allocate(1000)
        address, generation = first.ctypes.data, located(arena, first).generation
        view = first.view(np.float32)[3:].data[1:]
        del first
        assert arena.allocate(1000).ctypes.data != address
        del view
        again = [arena.allocate(1000), arena.allocate(1000)]
        (same,) = [each for each in again if each.ctypes.data == address]
        assert located(arena, same).generation == generation + 1

    def test_an_arena_does_not_grow_when_it_is_used_again_and_again(self) -> None:
        arena = Arena()
        sizes = [100, 5000, 70_000, 4_096_000]
        for _ in range(50):
            kept = [arena.allocate(each) for each in sizes]
        del kept
        assert arena.nbytes <= 2 * 1.25 * (sum(sizes) + 64 * len(sizes))

    def test_any_thread_may_free(self) -> None:
        arena = Arena()
        handed = [[arena.allocate(100) for _ in range(100)] for _ in range(4)]
        used = arena.nbytes
        threads = [threading.Thread(target=each.clear) for each in handed]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        again = [arena.allocate(100) for _ in range(400)]
        assert arena.nbytes == used
        assert len({each.ctypes.data for each in again}) == 400

    def test_threads_never_share_an_allocation(self) -> None:
        arena = Arena(segment_bytes=1 << 16)
        wrong: list[int] = []

        def work(number: int) -> None:
            for _ in range(300):
                kept = [arena.allocate(500) for _ in range(5)]
                for each in kept:
                    each[:] = number
                wrong.extend(number for each in kept if np.any(each != number))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert wrong == []

    def test_an_allocation_outlives_its_arena(self) -> None:
        arena = Arena()
        kept = arena.allocate(1000)
        del arena
        gc.collect()
        kept[:] = 5
        assert kept.sum() == 5000

    def test_at_the_end_of_the_interpreter_nothing_is_said(self) -> None:
        script = "from byteps_py.transport.arena import Arena; arena = Arena(); a = [arena.allocate(9)]; a.append(a)"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class TestPlaces:
    def test_any_part_is_found(self) -> None:
        arena = Arena()
        first, second = arena.allocate(1000), arena.allocate(1000)
        whole = located(arena, first)
        assert located(arena, first.data[10:20]) == whole._replace(offset=whole.offset + 10)
        assert located(arena, first[999:]).offset == whole.offset + 999
        assert located(arena, second).stamp == located(arena, second).offset - STAMP_BYTES != whole.stamp

    def test_what_lies_elsewhere_or_is_empty_is_not_found(self) -> None:
        arena, other = Arena(), Arena()
        mine, theirs = arena.allocate(1000), other.allocate(1000)
        for each in (theirs, np.zeros(1000, np.uint8), mine[:0]):
            assert arena.locate(each) is None
        for contents in (b"bytes", bytearray(b"bytes"), memoryview(b"bytes")):
            assert arena.locate(contents) is None
        assert Arena().locate(mine) is None

    def test_renewing_counts(self) -> None:
        arena = Arena()
        mine, other = arena.allocate(100), arena.allocate(100)
        before, unchanged = located(arena, mine), located(arena, other)
        arena.renew(mine[50:])
        arena.renew(np.zeros(3))
        assert located(arena, mine).generation == before.generation + 1
        assert located(arena, other) == unchanged


class TestSeals:
    def test_nobody_can_resize_it_or_map_it_for_writing(self) -> None:
        arena = Arena()
        mine = arena.allocate(100)
        segment = located(arena, mine).segment
        assert fcntl.fcntl(segment.descriptor, 1034) == sum(SEALS.values())
        for nbytes in (0, 2 * segment.nbytes):
            with pytest.raises(PermissionError):
                os.ftruncate(segment.descriptor, nbytes)
        with pytest.raises(PermissionError):
            mmap.mmap(segment.descriptor, 4096)
        with pytest.raises(PermissionError):
            os.pwrite(segment.descriptor, b"x", 64)
        assert not os.get_inheritable(segment.descriptor)
        mine[:] = 1

    def test_a_peer_sees_what_is_written_and_cannot_write(self) -> None:
        arena = Arena()
        mine = arena.allocate(100)
        place = located(arena, mine)
        view = view_of(place.segment.descriptor, place.segment.nbytes)
        mine[:] = 7
        assert bytes(view.content[place.offset : place.offset + 100]) == b"\7" * 100
        assert view.words[place.stamp // 8] == place.generation
        assert view.content.readonly
        with pytest.raises(TypeError):
            view.content[0] = 1


class TestViews:
    @pytest.fixture
    def memory_file(self) -> int:
        descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, 8192)
        return descriptor

    def refused(self, descriptor: int, nbytes: int, match: str) -> None:
        with pytest.raises(RemoteProtocolError, match=match):
            view_of(descriptor, nbytes)
        os.close(descriptor)

    def test_one_that_is_not_sealed_is_refused(self, memory_file: int) -> None:
        fcntl.fcntl(memory_file, 1033, SEALS["GROW"])
        self.refused(memory_file, 8192, "not sealed")

    @pytest.mark.parametrize("nbytes", [0, 4096, 8128, 8193, 1 << 40])
    def test_one_of_another_size_is_refused(self, memory_file: int, nbytes: int) -> None:
        fcntl.fcntl(memory_file, 1033, SEALS["SHRINK"])
        self.refused(memory_file, nbytes, "of 8192 was passed")

    def test_what_is_no_memory_file_is_refused(self) -> None:
        reading, writing = os.pipe()
        os.close(writing)
        self.refused(reading, 4096, "not a memory file")
        self.refused(os.open("/proc/self/status", os.O_RDONLY), 4096, "not a memory file")

    def test_an_odd_size_is_refused(self) -> None:
        descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, 1001)
        fcntl.fcntl(descriptor, 1033, SEALS["SHRINK"])
        self.refused(descriptor, 1001, "1001 bytes")


class TestForkedChild:
    def test_it_has_plain_memory_and_leaves_the_parents_alone(self) -> None:
        arena = Arena()
        kept = [arena.allocate(1000)]
        place = located(arena, kept[0])
        view = [view_of(place.segment.descriptor, place.segment.nbytes)]
        kept[0][:] = 3

        def use() -> None:
            assert arena.locate(kept[0]) is None
            arena.renew(kept[0])
            fresh = arena.allocate(1000)
            fresh[:] = 1
            assert arena.locate(fresh) is None
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
            kept.clear()
            view.clear()
            gc.collect()

        descriptor = place.segment.descriptor
        in_child(use)
        assert kept[0].sum() == 3000
        assert located(arena, kept[0]) == place

    def test_what_it_maps_at_the_same_addresses_stays(self) -> None:
        """The parent's mapping is not there, so the system may give its addresses to something else."""
        arena = Arena()
        kept = [arena.allocate(1000)]
        segment = located(arena, kept[0]).segment
        library = ctypes.CDLL(None)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)

        def use() -> None:
            protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            taken = library.mmap(segment.address, segment.nbytes, protection, flags, -1, 0)
            assert taken == segment.address, "the system gives free addresses to who wishes them"
            kept.clear()
            arena.__dict__.clear()
            gc.collect()
            ctypes.memset(taken, 1, segment.nbytes)

        in_child(use)
