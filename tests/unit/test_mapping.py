"""Memory files as memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from byteps_py.transport.mapping import LARGE_PAGE, Mapping

NBYTES = 3 * LARGE_PAGE


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = os.memfd_create("test")
    os.ftruncate(made, NBYTES)
    yield made
    os.close(made)


def mapped(address: int) -> bool:
    with open("/proc/self/maps", encoding="ascii") as lines:
        return any(line.startswith(f"{address:x}-") for line in lines)


def test_what_one_writes_the_other_reads(descriptor: int) -> None:
    mine, theirs = Mapping(descriptor, NBYTES, writable=True), Mapping(descriptor, NBYTES, writable=False)
    assert mine.address % LARGE_PAGE == theirs.address % LARGE_PAGE == 0
    mine.content[12345] = 7
    assert theirs.content[12345] == 7
    assert theirs.content.readonly
    assert (len(mine.content), mine.content.format) == (NBYTES, "B")


def test_making_pages_large_changes_nothing_that_is_there(descriptor: int) -> None:
    mine = Mapping(descriptor, NBYTES, writable=True)
    pattern = np.random.default_rng(1).integers(0, 256, LARGE_PAGE, np.uint8)
    mine.content[:LARGE_PAGE] = pattern.data
    mine.make_large(0, 2 * LARGE_PAGE, 0)
    mine.make_large(2 * LARGE_PAGE, 4 * LARGE_PAGE, 2 * LARGE_PAGE)  # beyond the end: nothing
    assert bytes(mine.content[:LARGE_PAGE]) == pattern.tobytes()
    assert not any(mine.content[LARGE_PAGE:])
    assert Mapping(descriptor, NBYTES, writable=False).content[LARGE_PAGE - 1] == pattern[-1]


def test_it_stays_as_long_as_a_view_of_it(descriptor: int) -> None:
    mapping = Mapping(descriptor, NBYTES, writable=True)
    address, view = mapping.address, np.frombuffer(mapping.content, np.uint8)[5:9]
    del mapping
    gc.collect()
    assert mapped(address)
    view[:] = 3
    del view
    gc.collect()
    assert not mapped(address)


def test_a_file_that_cannot_be_mapped() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        Mapping(-1, NBYTES, writable=True)


def test_a_forked_child_has_no_part_of_it() -> None:
    """In a process of its own: this one may have threads, and must not be forked then."""
    script = """
import gc, os
from byteps_py.transport.mapping import LARGE_PAGE, Mapping
descriptor = os.memfd_create("test")
os.ftruncate(descriptor, LARGE_PAGE)
mapping = Mapping(descriptor, LARGE_PAGE, writable=True)
address = f"{mapping.address:x}-"
def mapped():
    return any(line.startswith(address) for line in open("/proc/self/maps"))
if not os.fork():
    seen = mapped()
    del mapping
    gc.collect()
    os._exit(7 if not seen else 1)
status = os.waitstatus_to_exitcode(os.wait()[1])
mapping.content[0] = 1
print(status, mapped())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "7 True\n", done.stderr
