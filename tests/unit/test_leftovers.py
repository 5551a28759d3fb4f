"""The check that nothing is left behind must itself be able to fail."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.helpers import leftovers

_SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_running_child_is_named_and_ended(run_mark: str) -> None:
    before = leftovers.look(run_mark)
    child = subprocess.Popen(_SLEEP)
    try:
        left = leftovers.wait_until_gone(run_mark, before, 0)
        assert [each.partition(": ")[0] for each in left] == [f"process {child.pid}"]
        assert "time.sleep(60)" in left[0]
        leftovers.end_processes(run_mark, before)
        assert child.wait(10) == -9
        assert leftovers.wait_until_gone(run_mark, before, 0) == []
    finally:
        child.kill()
        child.wait(10)


def test_an_orphan_is_found_by_its_environment(run_mark: str) -> None:
    before = leftovers.look(run_mark)
    detached = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    script = f"import subprocess; print(subprocess.Popen({_SLEEP!r}, {detached}).pid)"
    shell = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=30)
    orphan = psutil.Process(int(shell.stdout))
    try:
        assert orphan.ppid() != os.getpid()
        left = leftovers.wait_until_gone(run_mark, before, 0)
        assert [each.partition(": ")[0] for each in left] == [f"process {orphan.pid}"]
    finally:
        orphan.kill()
    assert leftovers.wait_until_gone(run_mark, before, 10) == []


def test_a_process_that_was_there_before_is_no_leftover(run_mark: str) -> None:
    child = subprocess.Popen(_SLEEP)
    try:
        assert leftovers.look(run_mark).since(leftovers.look(run_mark)) == []
    finally:
        child.kill()
        child.wait(10)


def test_sockets_and_files_of_ours_are_named(run_mark: str) -> None:
    before = leftovers.look(run_mark)
    folder = Path(tempfile.gettempdir())
    named, plain = folder / "byteps-notes", folder / "something-else"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        named.touch()
        plain.touch()
        try:
            left = leftovers.wait_until_gone(run_mark, before, 0)
            assert left == [f"temporary file {named}", f"temporary file {folder / 's'}"]
        finally:
            for each in (named, plain, folder / "s"):
                each.unlink()


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the real one, where others have things at the same time."""
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_shared_memory_is_named(run_mark: str, shared_memory: Path) -> None:
    before = leftovers.look(run_mark)
    segment = shared_memory / "byteps-test"
    segment.touch()
    assert leftovers.look(run_mark).since(before) == [f"shared memory {segment}"]


def test_shared_memory_that_somebody_uses_is_no_leftover(run_mark: str, shared_memory: Path) -> None:
    before = leftovers.look(run_mark)
    segment = shared_memory / "byteps-test"
    with segment.open("wb"):
        assert leftovers.look(run_mark).since(before) == []
    assert leftovers.look(run_mark).since(before) == [f"shared memory {segment}"]
