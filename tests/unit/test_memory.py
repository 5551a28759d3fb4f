"""What a server's allocator keeps, counted in page faults of a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from byteps_py.roles import memory

CHUNK = 16 << 20
CHUNKS = 3
ROUNDS = 10
PAGES = CHUNKS * CHUNK // 4096

PROGRAM = f"""
import ctypes, resource, sys
from byteps_py.roles import memory
if sys.argv[1] == "keep":
    memory.keep_freed()
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
c.malloc.argtypes = [ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]

def one_round():
    chunks = [c.malloc({CHUNK}) for _ in range({CHUNKS})]
    for each in chunks:
        ctypes.memset(each, 1, {CHUNK})
    for each in chunks:
        c.free(each)

one_round()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    one_round()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    made = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True, timeout=60)
    return int(made.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="concerns glibc")
def test_freed_memory_is_there_for_the_next_frame() -> None:
    assert CHUNKS * CHUNK < memory.KEPT_BYTES
    assert faults("keep") < PAGES
    assert faults("leave") > ROUNDS * PAGES / 2


def test_without_the_extension_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def missing(name: str) -> None:
        asked.append(name)
        raise ImportError(name)

    monkeypatch.setattr(memory, "import_module", missing)
    memory.keep_freed()
    assert asked == ["byteps_py.kernels._native"]
