"""How much memory a process may still have, by what the system says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from byteps_py.transport import available
from byteps_py.transport.available import LARGE_ALLOCATION, OutOfMemory, available_bytes, need

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text, encoding="ascii")


def test_the_machine_has_what_it_says_and_what_it_can_swap(root: Path) -> None:
    assert available_bytes(root) == 8 * GIB
    write(root, "proc/meminfo", f"MemAvailable: {GIB // 1024} kB\nSwapFree: {GIB // 1024} kB\n")
    assert available_bytes(root) == 2 * GIB


def test_a_group_of_version_2_that_lies_above(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/pod/main\n")
    write(root, "sys/fs/cgroup/pod/main/memory.max", "max\n")
    write(root, "sys/fs/cgroup/pod/main/memory.current", f"{GIB}\n")
    write(root, "sys/fs/cgroup/pod/memory.max", f"{4 * GIB}\n")
    write(root, "sys/fs/cgroup/pod/memory.current", f"{3 * GIB}\n")
    write(root, "sys/fs/cgroup/pod/memory.stat", f"anon {2 * GIB}\ninactive_file {GIB // 2}\nactive_file 0\n")
    assert available_bytes(root) == 3 * GIB // 2


def test_a_group_of_version_1_in_a_container_that_sees_only_its_own(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/0123\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{3 * GIB}\n")
    write(root, "sys/fs/cgroup/memory/memory.stat", f"total_active_file {GIB // 4}\n")
    assert available_bytes(root) == 0
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert available_bytes(root) == 8 * GIB


def test_a_system_that_says_nothing_refuses_nothing(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == sys.maxsize


def test_only_what_is_large_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "available_bytes", lambda: 1000)
    need(LARGE_ALLOCATION)
    with pytest.raises(OutOfMemory, match=rf"{LARGE_ALLOCATION + 1} bytes .*: 1000 bytes .* are available"):
        need(LARGE_ALLOCATION + 1)
